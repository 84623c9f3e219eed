"""Messages that wait for their time, delivered before it because somebody says so."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Container

    from pollux.routing.queue import Queue
    from pollux.store.storage import Storage


class ScheduledMessages:
    """Has them delivered (``wall_ms``: milliseconds). ``ready`` gets each queue in which some wait for nothing more."""

    def __init__(self, storage: Storage, wall_ms: Callable[[], int], ready: Callable[[Queue], None]) -> None:
        self._storage = storage
        self._wall_ms = wall_ms
        self._ready = ready

    def deliver(self, queue: Queue, ids: Container[int]) -> int:
        """Have messages of a queue wait no longer, by id; returns how many did. It is durable in ``when_stable``.

        One that came out of a page is in no record of the journal: after a restart it waits for its time again.
        """
        references, cold = queue.deliver(ids, self._wall_ms())
        if queue.durable:
            numbers = [each.message.id for each in references if each.message.durable and not each.page]
            for number in (*numbers, *cold):
                self._storage.append_schedule(queue.id, number, 0)
        if references or cold:
            self._ready(queue)
        return len(references) + len(cold)
