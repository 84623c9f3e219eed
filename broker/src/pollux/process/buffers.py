"""Watch what connections hold in buffers: incomplete frames, what waits in sessions, what clients do not take.

It changes with every byte, so it is not counted but looked at: by the connections' sweep, and whenever a share of the
limit was received since. It is part of what clients hold beside messages (:mod:`pollux.engine.memory`), at most half;
where that is too much, connections are cut off, as :func:`pollux.process.sources.who_goes` says.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.process.sources import Droppable, Held, place_of, who_goes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.engine.memory import Memory

#: Bytes of one connection that are not worth looking at.
_SMALL = 4096
#: The share of the limit that may come in between two looks.
_SHARE = 4


class Buffers:
    """Bound all buffers together. ``unseen``: bytes received since the last look; ``often``: how many may be."""

    def __init__(self) -> None:
        self.memory: Memory | None = None
        self.unseen = 0
        self.often = 1 << 62

    def watch(self, memory: Memory) -> None:
        """Account for the buffers in ``memory`` from here on."""
        self.memory = memory
        self.often = memory.limit // _SHARE

    def look(self, connections: Iterable[Droppable]) -> None:
        """Look how much there is, and cut off who has too much."""
        self.unseen = 0
        memory = self.memory
        if memory is None:
            return
        self.often = memory.limit // _SHARE
        held = [(each, size) for each in connections if (size := each.measure()) > _SMALL]
        excess = memory.look(sum(size for _, size in held))
        if excess > 0:
            places = [(each, Held(place_of(each.peer.address), size, each.opened)) for each, size in held]
            for connection in list(who_goes(places, excess)):
                size = connection.measure()
                memory.look(memory.buffers - size)
                connection.drop(
                    f"its buffers hold {size} bytes, and those of all connections may hold "
                    f"{memory.limit // 2} (half of max-state-size)"
                )
