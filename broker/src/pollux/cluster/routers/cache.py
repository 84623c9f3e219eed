"""The memory of a connection router: which broker a key was sent to. Pure; time is passed in.

Its size is bounded: the key that was not seen for longest is forgotten first.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Keys remembered at most.
MAXIMUM = 100_000


def _nowhere(_key: str, _node: str | None) -> None:
    """Keep it in memory alone."""


class Cache:
    """Key -> node id. ``timeout`` in seconds, 0 and below: they are remembered for ever.

    ``keep(key, node)`` is called with what is to be kept over a restart, node None: no more.
    """

    def __init__(
        self,
        timeout: float,
        *,
        keep: Callable[[str, str | None], object] | None = None,
        before: Iterable[tuple[str, str]] = (),
        now: float = 0.0,
        maximum: int = MAXIMUM,
    ) -> None:
        """``before``: what was kept; it counts as seen ``now``."""
        self._timeout = timeout
        self._keep = keep or _nowhere
        self._maximum = maximum
        self._known: OrderedDict[str, tuple[str, float]] = OrderedDict((key, (node, now)) for key, node in before)

    def __len__(self) -> int:
        return len(self._known)

    def entries(self) -> list[tuple[str, str]]:
        """Return each key and its node."""
        return [(key, node) for key, (node, _) in self._known.items()]

    def get(self, key: str, now: float) -> str | None:
        """Return where a key was sent to, and remember it for longer; None: it is not known."""
        self.expire(now)
        found = self._known.get(key)
        if found is None:
            return None
        self._known[key] = (found[0], now)
        self._known.move_to_end(key)
        return found[0]

    def put(self, key: str, node: str, now: float) -> None:
        """Remember where a key is sent to."""
        known = self._known.get(key)
        if known is None or known[0] != node:
            self._keep(key, node)
        self._known[key] = (node, now)
        self._known.move_to_end(key)
        while len(self._known) > self._maximum:
            self._keep(self._known.popitem(last=False)[0], None)

    def expire(self, now: float) -> None:
        """Forget what was not asked for during the timeout."""
        if self._timeout <= 0:
            return
        while self._known:
            key, (_, seen) = next(iter(self._known.items()))
            if now - seen < self._timeout:
                return
            del self._known[key]
            self._keep(key, None)
