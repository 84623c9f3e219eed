"""Things that are passed on from node to node, and come by several ways of a ring or a mesh."""

from __future__ import annotations

from pollux.caches import make_room


class Once:
    """The last ``size`` things that came, at most, and how many hops they could still go."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._seen: dict[bytes, int] = {}

    def first(self, what: bytes, hops: int) -> bool:
        """Note that something came; return whether it is new: for the first time, or by a shorter way than before."""
        if self._seen.get(what, 0) >= hops:
            return False
        make_room(self._seen, self._size)
        self._seen[what] = hops
        return True
