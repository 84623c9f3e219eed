"""Deliveries that are counted on disk before they are made (persist-delivery-count-before-delivery).

Each adds a record to the journal, and what the client is sent waits for it: a crash in the middle of a delivery leaves
its count behind. What is given back without having failed gets its old count again (:meth:`PostOffice.release`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.routing.consumer import Consumer
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.store.storage import Storage

    #: connection -> what to call when the counts are on disk (None), or never will be; None: it is gone.
    Hold = Callable[[int], Callable[[Exception | None], None] | None]


class FirstCounts:
    """Counts deliveries to clients. ``hold`` keeps what is written to a connection; the server sets it."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self.hold: Hold = lambda _connection: None

    def watch(self, queue: Queue) -> None:
        """Count the deliveries of a queue that is on disk and gives its messages away."""
        if queue.durable and not queue.non_destructive:
            queue.handing = self.count

    def count(self, consumer: Consumer, references: Sequence[MessageReference]) -> None:
        """Write how often each message will have been delivered, and hold what the consumer is about to be sent.

        Not what is on pages, nor what another part of the broker takes: that is no delivery to a client.
        """
        if not consumer.origin or consumer.browsing:
            return
        counted = False
        for reference in references:
            message = reference.message
            if message.durable and not reference.page:
                counted = True
                self._storage.append_delivery_count(reference.queue.id, message.id, reference.delivery_count + 1)
        if counted and (release := self.hold(consumer.origin)) is not None:
            self._storage.when_stable(release)
