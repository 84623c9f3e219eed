"""Reading a queue without taking from it, a piece at a time, while it changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.routing.reference import MessageReference

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pollux.message import Message
    from pollux.routing.backlog import Backlog
    from pollux.routing.reference import NamedQueue
    from pollux.routing.selector import Selector

#: Messages one call of ``next`` looks at.
_SCAN = 4096


class BrowseCursor:
    """Show what a queue held when the cursor was made, in order, without what is gone when its turn comes.

    Use::

        while not cursor.done:
            show(cursor.next(100))
            if ids := cursor.wanted(100):             # next ones are on disk only
                show(cursor.feed(ids, await storage.read_messages(ids)))

    Nothing is locked and nothing is kept in memory for it. Messages in delivery and scheduled ones are not seen.
    """

    def __init__(self, queue: NamedQueue, backlog: Backlog, selector: Selector | None) -> None:
        self._queue = queue
        self._backlog = backlog
        self._selector = selector
        #: The levels still to be shown; the first is being shown.
        self._levels = list(backlog.levels)
        #: First positions that were not there at the start.
        self._limits = [level.limit for level in backlog.levels]
        self._position = 0
        #: (position, id) of what ``wanted`` asked for.
        self._asked: list[tuple[int, int]] = []

    @property
    def done(self) -> bool:
        """Was everything shown?"""
        return not self._levels

    def next(self, limit: int) -> list[MessageReference]:
        """Up to ``limit`` further messages that are in memory. Empty: see ``wanted`` and ``done``, else call again."""
        found: list[MessageReference] = []
        budget = _SCAN
        while self._levels and budget > 0 and len(found) < limit:
            level = self._levels[0]
            position = level.following(self._position)
            if position < 0:
                position = max(self._position, level.end)
                if level.is_cold(position):
                    self._position = position
                    if position < self._limits[0]:
                        break
                reference = level.waiting_at(position)
            else:
                reference = level.get(position)
            if position >= self._limits[0] or reference is None:
                self._next_level()
                continue
            self._position = position + 1
            budget -= 1
            if self._selector is None or self._selector.matches(reference.message):
                found.append(reference)
        return found

    def wanted(self, limit: int) -> list[int]:
        """Ids of up to ``limit`` messages that come next and are only on disk; then call ``feed``."""
        if not self._levels or self._levels[0].following(self._position) >= 0:
            return []
        level = self._levels[0]
        position = max(self._position, level.end)
        if position >= self._limits[0]:
            return []
        self._asked = level.cold_from(position, min(limit, self._limits[0] - position))
        if not self._asked:  # all of it was removed: what follows is in memory
            self._position = max(self._position, min(level.cold_end, self._limits[0]))
        return [number for _, number in self._asked]

    def feed(self, ids: Sequence[int], messages: Iterable[Message | None]) -> list[MessageReference]:
        """Show what ``wanted`` asked for and go on after it. ``messages`` answers ``ids`` (None: there is none).

        The references are for looking only; the queue does not know them.
        """
        if list(ids) != [number for _, number in self._asked]:
            raise ValueError("these are not the ids that were asked for")
        if not self._levels:
            return []
        level = self._levels[0]
        found = []
        for (position, number), message in zip(self._asked, messages, strict=False):
            if message is None or not level.holds(position, number):
                continue
            if self._selector is None or self._selector.matches(message):
                reference = MessageReference(message, self._queue)
                reference.redelivered = True
                reference.delivery_count = self._backlog.failures(number)
                found.append(reference)
        if self._asked:
            self._position = max(self._position, self._asked[-1][0] + 1)
        self._asked = []
        return found

    def _next_level(self) -> None:
        del self._levels[0], self._limits[0]
        self._position = 0
        self._asked = []
