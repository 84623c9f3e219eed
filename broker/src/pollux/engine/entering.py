"""Stored messages on their way into their queues: for few queues at once, for many some in each turn of the loop.

What one message for a thousand queues takes must not be before everybody else's confirm. Each queue gets its messages
in order: who comes later for a queue that still waits for earlier ones waits with these.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pollux.engine.share import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.engine.share import Share
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference

    Arrivals = dict[Queue, list[MessageReference]]

logger = logging.getLogger("pollux.post")

#: Queues that messages may be about to enter before whoever sends much has to wait: each takes some microseconds.
MANY = 1000


class Entering:
    """The queues whose turn has not come. ``enter`` puts references into their queue."""

    __slots__ = ("_enter", "_late", "_planned", "_share")

    def __init__(self, share: Share, enter: Callable[[Queue, list[MessageReference]], None]) -> None:
        self._share = share
        self._enter = enter
        self._late: Arrivals = {}
        self._planned = False

    def __contains__(self, queue: Queue) -> bool:
        return queue in self._late

    @property
    def crowded(self) -> bool:
        """Whether so many queues wait that nobody may ask for more."""
        return len(self._late) > MANY

    def take(self, arrivals: Arrivals) -> None:
        """These are stable. The lists are kept."""
        late = self._late
        few = len(arrivals) <= AT_ONCE
        for queue, references in arrivals.items():
            waiting = late.get(queue)
            if waiting is not None:
                waiting += references
            elif few:
                self._enter(queue, references)
            else:
                late[queue] = references
        if late and not self._planned:
            self._planned = True
            self._share.add(self._piece, of_broker=True)

    def finish(self, queue: Queue) -> None:
        """Put in what waits for this queue: somebody asks for it, or comes with messages that are later."""
        references = self._late.pop(queue, None)
        if references is not None:
            self._enter(queue, references)

    def _piece(self) -> bool:
        """As many queues as half a slice has time for; whether there are more."""
        late, clock = self._late, self._share.clock
        end = clock() + self._share.slice / 2
        while late:
            queue = next(iter(late))
            try:
                self._enter(queue, late.pop(queue))
            except Exception:
                logger.exception("messages could not enter %s", queue.name)
            if clock() >= end:
                break
        self._planned = bool(late)
        return self._planned
