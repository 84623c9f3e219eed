"""Records of addresses and queues: in the bindings, whose values these are, and in the journal of messages.

The journal has queues too, so that none is lost with the bindings. That a queue is in neither means nothing: only a
recorded deletion is one.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import asdict

from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from pollux.routing.queue import Queue
    from pollux.routing.space import Address
    from pollux.store.storage import Storage

ADDRESS = "address"
QUEUE = "queue"
#: Durable queues whose deliveries an operator paused.
PAUSED = "paused"
#: Numbers of queues that were deleted, until the journal says so too.
DROPPED = "dropped"

#: ``no_local_origin`` is a connection of the life that wrote it; in this one its number means another client.
_SPEC_FIELDS = frozenset(QueueSpec.__struct_fields__) - {"no_local_origin"}
#: How a QUEUE record ends of a queue whose deliveries are paused.
_PAUSED = msgspec.msgpack.encode("paused") + msgspec.msgpack.encode(True)


def encode_queue(queue: Queue, *, paused: bool = False) -> bytes:
    """Return the value of a queue's binding; ``paused``: of its record in the journal, which has that too."""
    spec: dict[str, Any] = {name: value for name, value in asdict(queue.spec).items() if value is not None}
    spec["routing_type"] = int(queue.routing_type)
    value = {"id": queue.id, "spec": spec}
    return msgspec.msgpack.encode({**value, "paused": True} if paused else value)


def is_paused(value: bytes | None) -> bool:
    """Return whether a QUEUE record says that the queue is paused."""
    return value is not None and value.endswith(_PAUSED)


def decode_queue(value: bytes) -> tuple[int, QueueSpec]:
    """Return (id, specification) of a queue from the value of its binding."""
    kept = msgspec.msgpack.decode(value)
    values = {name: each for name, each in kept["spec"].items() if name in _SPEC_FIELDS}
    values["routing_type"] = RoutingType(values["routing_type"])
    return kept["id"], QueueSpec(**values)


class QueueRecords:
    """Writes what is kept of addresses and queues."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        #: A number for a new queue.
        self.next_id = storage.next_id
        #: Queues whose deletion is in the journal, and still in the bindings.
        self._dropped: list[int] = []
        #: Addresses with queues that came or went, by how many of these changes are not on disk yet.
        self.declaring: Counter[str] = Counter()

    def declare(self, address: str) -> None:
        """Have an address among :attr:`declaring` until what was just recorded of a queue of it is on disk."""
        self.declaring[address] += 1
        self._storage.when_stable(lambda _error: self._declared(address))

    def _declared(self, address: str) -> None:
        self.declaring[address] -= 1
        if not self.declaring[address]:
            del self.declaring[address]

    def keep_address(self, address: Address) -> None:
        """Put an address into the bindings as it is now, unless it is temporary."""
        if address.temporary:
            return
        value = {
            "routing_types": sorted(int(each) for each in address.routing_types),
            "auto_created": address.auto_created,
            "internal": address.internal,
            "configuration_managed": address.configuration_managed,
        }
        self._storage.put(ADDRESS, address.name, msgspec.msgpack.encode(value))

    def forget_address(self, name: str) -> None:
        """Take an address out of the bindings."""
        self._storage.put(ADDRESS, name, None)

    def keep_queue(self, queue: Queue) -> None:
        """Put a queue into the bindings."""
        self._storage.put(QUEUE, queue.name, encode_queue(queue))
        if queue.paused:
            self._storage.put(PAUSED, queue.name, b"")

    def note_queue(self, queue: Queue) -> None:
        """Put a queue into the journal, and whether it is paused."""
        self._storage.append_queue(queue.id, encode_queue(queue, paused=queue.paused))

    def keep_paused(self, queue: Queue) -> None:
        """Put into the bindings and the journal whether a queue is paused."""
        self._storage.put(PAUSED, queue.name, b"" if queue.paused else None)
        self.note_queue(queue)

    def forget_queue(self, name: str, *, paused: bool = False) -> None:
        """Take a queue out of the bindings. ``paused``: they say that it is."""
        self._storage.put(QUEUE, name, None)
        if paused:
            self._storage.put(PAUSED, name, None)

    def record_drop(self, queue_id: int) -> None:
        """Put the deletion of a durable queue on record, for that it is not in the bindings means nothing.

        What is on disk first, in the bindings, outlives a crash before the journal's record of it; that it is on
        record there is forgotten when the journal has it (:meth:`forget_drops`). Transactions that took messages out
        are there before: else they were gone with the queue, and not where they went.
        """
        self._storage.follow_commits()
        self._storage.put(DROPPED, str(queue_id), b"", first=True)
        self._storage.append_drop_queue(queue_id)
        self._storage.when_stable(lambda error: self._dropped.append(queue_id) if error is None else None)

    def forget_drops(self) -> None:
        """Take deletions out of the bindings that the journal has."""
        dropped, self._dropped = self._dropped, []
        for queue_id in dropped:
            self._storage.put(DROPPED, str(queue_id), None)
