"""Messages on their way into their queues: written, then stable, then in the queue.

Nobody sees a message before it is stable. Then few queues are entered at once, of many some in each turn of the loop:
what one message for a thousand queues takes must not be before everybody else's confirm. Each queue gets its messages
in order: who comes later for a queue that still waits for earlier ones waits with these.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from pollux.engine.share import AT_ONCE
from pollux.routing.reference import MessageReference

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pollux.engine.share import Share
    from pollux.errors import StoreError
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.store.storage import Storage

    ByQueue = dict[Queue, list[MessageReference]]

StableCallback = Callable[[Exception | None], None]

logger = logging.getLogger("pollux.post")

#: Queues that messages may be about to enter before whoever sends much has to wait: each takes some microseconds.
MANY = 1000


class Arrivals:
    """Messages that are written and not yet in their queues. ``enter`` puts references into their queue.

    The disk of the engine's :class:`~pollux.engine.share.Share`: it is behind when too much is on this way.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        share: Share,
        storage: Storage,
        enter: Callable[[Queue, list[MessageReference]], None],
    ) -> None:
        self._loop = loop
        self._storage = storage
        self._late = LateArrivals(share, enter)
        #: Since the last :meth:`when_stable`, by queue.
        self._written: ByQueue = {}
        self._unstable: deque[tuple[ByQueue, StableCallback | None]] = deque()
        #: How many queues the unstable ones enter, counted for each turn of the loop.
        self._entering = 0
        self._flush_planned = False

    def __contains__(self, queue: Queue) -> bool:
        if queue in self._written or queue in self._late:
            return True
        return any(queue in arrivals for arrivals, _ in self._unstable)

    def add(self, message: Message, queues: Sequence[Queue], failures: int = 0, *, redelivered: bool = False) -> None:
        """Keep a reference of each queue to a message that is being written until that is stable.

        ``failures``: how often its delivery failed elsewhere. ``redelivered``: a consumer may have had it there.
        """
        if redelivered:
            self._add_redelivered(message, queues, failures)
            return
        written = self._written
        for queue in queues:
            waiting = written.get(queue)
            if waiting is None:
                written[queue] = [MessageReference(message, queue)]
                self._plan_flush()
            else:
                waiting.append(MessageReference(message, queue))

    def add_all(self, messages: Sequence[Message], queues: Sequence[Queue], *, redelivered: bool = False) -> None:
        """Keep references to messages as :meth:`add` does."""
        for queue in queues:
            references = [MessageReference(message, queue) for message in messages]
            if redelivered:
                for reference in references:
                    reference.redelivered = True
            waiting = self._written.get(queue)
            if waiting is None:
                self._written[queue] = references
            else:
                waiting += references
        self._plan_flush()

    def _add_redelivered(self, message: Message, queues: Sequence[Queue], failures: int) -> None:
        for queue in queues:
            reference = MessageReference(message, queue)
            reference.delivery_count, reference.redelivered = failures, True
            self._written.setdefault(queue, []).append(reference)
        self._plan_flush()

    def take_back(self, message: Message, queues: Sequence[Queue]) -> None:
        """Forget a message that was added in this turn of the loop, before any :meth:`when_stable`."""
        for queue in queues:
            waiting = self._written.get(queue)
            if waiting is not None:
                self._written[queue] = [reference for reference in waiting if reference.message is not message]

    def when_stable(self, callback: StableCallback | None) -> None:
        """Call back when everything done so far is on disk and visible; an error means that the broker stops.

        Callbacks run in order, never within this call. None: nobody waits, and it becomes visible all the same.
        """
        # A new dict even when this one is empty: what arrives later must not be in this entry as well.
        arrivals, self._written = self._written, {}
        self._entering += len(arrivals)
        self._unstable.append((arrivals, callback))
        self._storage.when_stable(self._stable)

    @property
    def behind(self) -> bool:
        """Return whether so much waits for the disk, or to enter queues, that whoever asks for much had better wait."""
        return self._entering > MANY or self._storage.behind

    @property
    def crowded(self) -> bool:
        """Return whether so much that is on disk waits to enter queues that nobody may ask for more."""
        return self._late.crowded

    def finish(self, queue: Queue) -> None:
        """Put in what is stable and still waits for this queue."""
        self._late.finish(queue)

    def _plan_flush(self) -> None:
        """Have messages become visible, too, of whoever sends without waiting (QoS 0)."""
        if not self._flush_planned:
            self._flush_planned = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_planned = False
        if self._written:
            self.when_stable(None)

    def _stable(self, error: StoreError | None) -> None:
        arrivals, callback = self._unstable.popleft()
        self._entering -= len(arrivals)
        if error is None and arrivals:
            self._late.take(arrivals)
        if callback is not None:
            try:
                callback(error)
            except Exception:
                logger.exception("a session failed while its messages were confirmed")


class LateArrivals:
    """Stable messages of queues whose turn has not come. ``enter`` puts references into their queue."""

    __slots__ = ("_enter", "_late", "_planned", "_share")

    def __init__(self, share: Share, enter: Callable[[Queue, list[MessageReference]], None]) -> None:
        self._share = share
        self._enter = enter
        self._late: ByQueue = {}
        self._planned = False

    def __contains__(self, queue: Queue) -> bool:
        return queue in self._late

    @property
    def crowded(self) -> bool:
        """Return whether so many queues wait that nobody may ask for more."""
        return len(self._late) > MANY

    def take(self, arrivals: ByQueue) -> None:
        """Enter what is stable, or have it wait. The lists are kept."""
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
        """Enter as many queues as half a slice has time for; return whether there are more."""
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
