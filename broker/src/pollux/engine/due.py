"""Queues in which something is due at some time: scheduled messages, redeliveries, delays of queues and groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Iterator

    from pollux.engine.share import Share
    from pollux.routing.queue import Queue
    from pollux.routing.space import AddressSpace


#: The timer's clock only passes and the wall's is set: nothing that is due waits for longer when it is, seconds.
LONGEST = 10.0


class DueQueues:
    """One timer for all queues (``wall_ms``: milliseconds). ``ready`` gets each queue that has done what was due."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        share: Share,
        space: AddressSpace,
        wall_ms: Callable[[], int],
        ready: Callable[[Queue], None],
    ) -> None:
        self._loop = loop
        self._share = share
        self._space = space
        self._wall_ms = wall_ms
        self._ready = ready
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0
        self._queues: dict[Queue, None] = {}

    def plan(self, queue: Queue) -> None:
        """Look at the queue again when something in it is due, if anything is."""
        at = queue.next_due()
        if not at:
            return
        self._queues[queue] = None
        if self._timer is not None and self._timer_at <= at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._wait()

    def _wait(self) -> None:
        left = max(self._timer_at - self._wall_ms(), 0) / 1000
        self._timer = self._loop.call_later(min(left, LONGEST), self.look if left <= LONGEST else self._wait)

    def look(self) -> None:
        """Have all queues do what is due by now."""
        self._timer = None
        queues, self._queues = self._queues, {}
        self._share.work(self._look(queues))

    def _look(self, queues: Iterable[Queue]) -> Iterator[None]:
        """Have each queue do what is due, bit by bit, as there may be very many."""
        for queue in queues:
            if self._space.queue_by_id(queue.id) is queue:
                now = self._wall_ms()
                if 0 < queue.next_due() <= now:
                    queue.due(now)
                    self._ready(queue)
                self.plan(queue)
            yield

    def close(self) -> None:
        """Look no more."""
        if self._timer is not None:
            self._timer.cancel()
