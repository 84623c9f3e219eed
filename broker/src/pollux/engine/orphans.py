"""Messages whose queue nobody knows: kept, told of, and given back or discarded when an operator says so.

A queue's messages are in the journal and in pages under its number; what it is called is in the bindings. When a
binding is gone and no deletion is on record (docs/journal-format.md, "Orphans"), the messages stay where they are: on
disk, charged to no address. Restoring gives the number a name again: nothing is copied, nothing can be lost half way.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field
from msgspec.structs import replace

from pollux.errors import InvalidRequestError, NoSuchQueueError
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Iterator

    from pollux.audit import Trail
    from pollux.engine.address_manager import AddressManager
    from pollux.engine.due import DueQueues
    from pollux.engine.large_files import LargeFiles
    from pollux.engine.pages import Pages
    from pollux.engine.queue_records import QueueRecords
    from pollux.message import RoutingType
    from pollux.routing.queue import Queue
    from pollux.routing.space import AddressSpace
    from pollux.store.storage import Storage

log = logging.getLogger("pollux.orphans")

#: Orphans that are named one by one at the start; of more only the number is told.
_TOLD = 20


class Orphan(Struct):
    """The rest of one queue. ``priorities``: priority -> message ids in order; ``paged``: messages in pages."""

    id: int
    priorities: dict[int, array[int]] = field(default_factory=dict)
    delivery_counts: dict[int, int] = field(default_factory=dict)
    schedules: dict[int, int] = field(default_factory=dict)
    #: What the journal says of the queue; None: nothing.
    spec: QueueSpec | None = None
    paged: int = 0
    #: The address of its messages, as far as that is known without reading one.
    address: str | None = None

    @property
    def messages(self) -> int:
        """Return how many messages are left, those in pages too."""
        return sum(len(ids) for ids in self.priorities.values()) + self.paged

    @property
    def sample(self) -> int:
        """Return the id of a message in the journal, 0 when all are in pages."""
        return next((ids[0] for ids in self.priorities.values() if ids), 0)

    def view(self) -> dict[str, Any]:
        """Return what management shows of it."""
        return {
            "id": self.id,
            "queue": self.spec.name if self.spec is not None else None,
            "address": self.spec.address if self.spec is not None else self.address,
            "messages": self.messages,
            "paged": self.paged,
        }

    def __str__(self) -> str:
        called = f"{self.spec.name!r} of address {self.spec.address!r}" if self.spec is not None else "its name is lost"
        return f"queue {self.id} ({called}): {self.messages} messages, {self.paged} of them in pages"


class Orphans:
    """All queues that nobody knows, with messages. For the loop's thread."""

    def __init__(
        self,
        *,
        storage: Storage,
        space: AddressSpace,
        records: QueueRecords,
        address_manager: AddressManager,
        pages: Pages,
        large_files: LargeFiles,
        due: DueQueues,
        trail: Trail,
        wake: Callable[[Queue], None],
    ) -> None:
        self._storage = storage
        self._space = space
        self._records = records
        self._address_manager = address_manager
        self._pages = pages
        self._large_files = large_files
        self._due = due
        self._trail = trail
        self._wake = wake
        self._found: dict[int, Orphan] = {}

    def __len__(self) -> int:
        return len(self._found)

    def __iter__(self) -> Iterator[Orphan]:
        return iter(self._found.values())

    @property
    def messages(self) -> int:
        """Return how many messages have no queue."""
        return sum(orphan.messages for orphan in self._found.values())

    def get(self, queue_id: int) -> Orphan:
        """Return the rest of a queue. Raises NoSuchQueueError."""
        orphan = self._found.get(queue_id)
        if orphan is None:
            raise NoSuchQueueError(f"there are no orphans of queue {queue_id}: see 'pollux journal orphans'")
        return orphan

    def found(self, queue_id: int) -> Orphan:
        """Return the rest of a queue, at the start, to note in it what was found."""
        orphan = self._found.get(queue_id)
        if orphan is None:
            orphan = self._found[queue_id] = Orphan(queue_id)
        return orphan

    def found_in_pages(self, queue_id: int, address: str, messages: int) -> None:
        """Note that an address has so many messages in pages for a queue that nobody knows."""
        orphan = self.found(queue_id)
        orphan.paged += messages
        orphan.address = address

    def settle(self) -> None:
        """Forget those without messages, and join those whose queue is there; at the start, when all are found."""
        for orphan in list(self):
            queue = self._successor(orphan)
            if queue is not None:
                self._join(orphan, queue)
        for orphan in [orphan for orphan in self if not orphan.messages]:
            self._records.record_drop(orphan.id)
            del self._found[orphan.id]

    def _successor(self, orphan: Orphan) -> Queue | None:
        """Return the queue of that name and address; None where pages hold some, filed under the old number."""
        if orphan.spec is None or orphan.paged:
            return None
        queue = self._space.queue(orphan.spec.name)
        return queue if queue is not None and queue.durable and queue.address == orphan.spec.address else None

    def _join(self, orphan: Orphan, queue: Queue) -> None:
        """File the messages under the number of the queue that was made again while its bindings were gone."""
        storage = self._storage
        tx = storage.next_id()
        for priority, ids in orphan.priorities.items():
            for message_id in ids:
                storage.append_references(message_id, (queue.id,), tx, priority=priority)
            storage.append_acks(orphan.id, ids, tx)
        storage.append_commit(tx)
        for message_id, count in orphan.delivery_counts.items():
            storage.append_delivery_count(queue.id, message_id, count)
        for message_id, deliver_at in orphan.schedules.items():
            storage.append_schedule(queue.id, message_id, deliver_at)
        log.warning("queue %s: %d messages of its number %d join it", queue.name, orphan.messages, orphan.id)
        self._fill(queue, orphan)
        orphan.priorities = {}

    def report(self) -> list[str]:
        """Log them at the start, and return the same in words for the status."""
        told = [f"orphans: {orphan}" for orphan in list(self)[:_TOLD]]
        if len(self) > _TOLD:
            told.append(f"orphans: {len(self) - _TOLD} more queues; see 'pollux journal orphans'")
        for words in told:
            log.error(
                "%s; no binding names the queue and no deletion is on record, so they are kept: put the bindings file "
                "back and start again, or see 'pollux journal orphans --help'",
                words,
            )
        return told

    async def views(self) -> list[dict[str, Any]]:
        """Return all for management, with the addresses of those whose name is lost. Raises StoreError."""
        nameless = [one for one in self if one.spec is None and one.address is None and one.sample]
        read = await self._storage.read_messages([one.sample for one in nameless])
        for orphan, message in zip(nameless, read, strict=True):
            if message is not None:
                orphan.address = message.address.partition("::")[0]
        return [orphan.view() for orphan in self]

    def restore(
        self,
        queue_id: int,
        *,
        name: str | None = None,
        address: str | None = None,
        routing: RoutingType | None = None,
        enabled: bool | None = None,
    ) -> Queue:
        """Make a queue of what is left of one, as the journal knows it or with the given name, and address.

        ``enabled`` false: it gets no new messages. Await ``when_stable``. Raises NoSuchQueueError; InvalidRequestError
        when the name is taken or not known.
        """
        orphan = self.get(queue_id)
        changed = {"name": name, "address": address, "routing_type": routing, "enabled": enabled}
        given: dict[str, Any] = {key: value for key, value in changed.items() if value is not None}
        if orphan.spec is not None:
            spec = replace(orphan.spec, **given)
        elif name is None:
            raise InvalidRequestError(f"nothing tells how queue {queue_id} was called: give it a name (--queue)")
        else:
            spec = QueueSpec(**{"address": orphan.address or name, **given})
        queue = self._address_manager.create_queue(spec, auto_address=False, queue_id=queue_id)
        self._fill(queue, self._found.pop(queue_id))
        log.info("orphans restored queue=%s id=%d messages=%d", queue.name, queue_id, self._pages.message_count(queue))
        return queue

    def _fill(self, queue: Queue, orphan: Orphan) -> None:
        queue.used = True
        for priority in sorted(orphan.priorities, reverse=True):
            queue.restore(priority, orphan.priorities[priority], orphan.delivery_counts, orphan.schedules)
        if queue.scheduled:
            self._due.plan(queue)
        if orphan.paged:
            self._pages.take_orphans(queue)
        self._wake(queue)

    def discard(self, queue_id: int) -> int:
        """Forget the rest of a queue for good; return how many messages. Raises as :meth:`restore` does."""
        orphan = self.get(queue_id)
        self._records.record_drop(queue_id)
        for ids in orphan.priorities.values():
            self._large_files.release_cold(ids)
        self._pages.drop_orphans(queue_id)
        del self._found[queue_id]
        self._trail.event("orphans-discarded", queue=str(queue_id), messages=orphan.messages)
        log.warning("orphans discarded id=%d messages=%d", queue_id, orphan.messages)
        return orphan.messages
