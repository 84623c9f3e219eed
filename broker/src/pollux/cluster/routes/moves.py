"""Redistribution: which messages of a queue nobody takes here, and which other node gets them.

Looked at whenever something changes and once a second, so no event can be missed. By message, not by queue: what nobody
elsewhere wants stays and does not hold up what somebody wants. A message that was moved here is not moved on within
the hold time unless a consumer that may have it was here and left: two nodes that know old things of each other do not
throw it to and fro.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pollux.cluster.routes.grouped import weight

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

#: A message that was moved stays for as long, seconds.
HOLD = 2.0


class Demand(NamedTuple):
    """Who takes messages of a queue: how many consumers without a filter, and the filters of the others."""

    everything: bool
    filters: frozenset[str] = frozenset()


class Elsewhere(NamedTuple):
    """The queue of the same group at another node. ``node`` is its owner's id, ``filter`` the queue's own."""

    node: bytes
    queue: str
    demand: Demand
    connected: bool = True
    filter: str = ""
    free: int = 0


class Moves:
    """Decides for one queue. ``delay``: seconds for which nobody took a class of messages; negative: never."""

    def __init__(self, delay: float, *, hold: float = HOLD) -> None:
        self.delay = delay
        self._hold = hold
        self._here = Demand(everything=False)
        self._elsewhere: tuple[Elsewhere, ...] = ()
        #: Since when nobody here takes what some filter ("": everything) lets through.
        self._since: dict[str, float] = {}
        #: When a consumer with a filter ("": without) was last here that is not here any more.
        self._left: dict[str, float] = {}
        self._turn = 0
        #: Where everything goes that may be moved at all, when there is one such place.
        self._only: Elsewhere | None = None

    def update(self, here: Demand, elsewhere: Sequence[Elsewhere], now: float) -> float | None:
        """Look at what is the case; return when to look again because a delay is over, None: not before a change."""
        gone = set(self._here.filters - here.filters)
        if self._here.everything and not here.everything:
            gone.add("")
        for text in gone:
            self._left[text] = now
        self._left = {text: at for text, at in self._left.items() if at > now - self._hold}
        self._here = here
        self._elsewhere = tuple(one for one in elsewhere if one.connected)
        self._only = None
        if len(self._elsewhere) == 1 and not here.everything and not here.filters:
            (one,) = self._elsewhere
            self._only = one if one.demand.everything and not one.filter else None
        if self.delay < 0 or here.everything:
            self._since.clear()
            return None
        wanted: set[str] = set()
        for one in self._elsewhere:
            wanted |= one.demand.filters
            if one.demand.everything:
                wanted.add("")
        wanted -= here.filters
        self._since = {text: self._since.get(text, now) for text in wanted}
        waits = [at + self.delay for at in self._since.values() if at + self.delay > now]
        return min(waits, default=None)

    def due(self, now: float) -> frozenset[str]:
        """Return the classes of messages, by filter ("": everything), that may be moved now."""
        return frozenset(text for text, at in self._since.items() if at + self.delay <= now)

    def ready(self, now: float) -> bool:
        """Whether some class of messages may be moved now."""
        return bool(self.due(now))

    def only(self, now: float) -> Elsewhere | None:
        """Return where every message goes now that was not moved here; None: that is to be asked for each."""
        if self._only is None:
            return None
        since = self._since.get("")
        return self._only if since is not None and since + self.delay <= now else None

    def target(
        self, lets: Callable[[str], bool], moved_at: float | None, now: float, group: str | None = None
    ) -> Elsewhere | None:
        """Return where this message goes, None: it stays. ``lets``: whether a filter lets it through.

        ``moved_at``: when it was moved here, None for one that was not. A ``group`` goes as a whole, and only where
        nobody takes anything here: all its messages to the queue that has it (:mod:`pollux.cluster.routes.grouped`).
        """
        if moved_at is None and (only := self.only(now)) is not None:  # most messages of a backlog
            return only
        if group is not None and self._here.filters:
            return None
        if not self._since or self._here.everything or any(lets(text) for text in self._here.filters):
            return None
        if moved_at is not None and now - moved_at < self._hold and not self._consumer_left(lets, moved_at):
            return None
        due = [text for text, at in self._since.items() if at + self.delay <= now and (not text or lets(text))]
        fitting = [one for one in self._elsewhere if (not one.filter or lets(one.filter)) and _takes(one.demand, due)]
        if not fitting:
            return None
        if group is not None:
            return max(fitting, key=lambda one: weight(one.node, one.queue, group))
        self._turn += 1
        free = [one for one in fitting if one.free > 0] or fitting
        return free[self._turn % len(free)]

    def _consumer_left(self, lets: Callable[[str], bool], since: float) -> bool:
        return any(at >= since and (not text or lets(text)) for text, at in self._left.items())


def _takes(demand: Demand, due: Iterable[str]) -> bool:
    return any(demand.everything if not text else text in demand.filters for text in due)
