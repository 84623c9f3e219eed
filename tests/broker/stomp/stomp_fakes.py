"""An in-memory post office for STOMP sessions, with the real one's contract.

It knows one queue per name and round robin; what it makes durable becomes stable
when the test says so (``settle``), which is what the tests of receipts are about.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from harness.sessions import stomp
from pollux.engine.memory import Memory
from pollux.engine.named import Named
from pollux.engine.share import Share
from pollux.errors import InvalidRequestError, NoSuchQueueError, SendError
from pollux.message import Message, RoutingType
from pollux.routing.reference import MessageReference
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from harness.sessions.stomp import Client

NOW = 1_790_000_000_000


class FakeQueue:
    """A queue that hands messages to its consumers in turn."""

    def __init__(self, spec: QueueSpec, identity: int) -> None:
        self.spec = spec
        self.id = identity
        self.name = spec.name
        self.address = spec.address
        self.durable = spec.durable
        self.no_local_origin = spec.no_local_origin
        self.user = spec.user
        self.of_pattern = False
        self.routing_type = spec.routing_type or RoutingType.MULTICAST
        self.waiting: deque[MessageReference] = deque()
        self.consumers: list[Any] = []
        self.held: dict[MessageReference, Any] = {}
        self.attributes = SimpleNamespace(non_destructive=False)

    @property
    def consumer_count(self) -> int:
        return len(self.consumers)

    def dispatch(self) -> None:
        for consumer in list(self.consumers):
            credit = consumer.credit
            taken: list[MessageReference] = []
            skipped: list[MessageReference] = []
            while self.waiting and len(taken) < credit:
                reference = self.waiting.popleft()
                message = reference.message
                own = consumer.no_local and message.origin == consumer.origin
                if own or (consumer.selector is not None and not consumer.selector.matches(message)):
                    skipped.append(reference)
                else:
                    reference.consumer = consumer
                    if not consumer.browsing:
                        self.held[reference] = consumer
                    taken.append(reference)
            self.waiting.extendleft(reversed(skipped))
            if taken:
                consumer.deliver(taken)


@dataclass
class FakeAddress:
    name: str
    routing_types: set[RoutingType]
    queues: list[FakeQueue] = field(default_factory=list)


class FakeTransaction:
    def __init__(self) -> None:
        self.sends: list[Message] = []
        self.acknowledged: list[MessageReference] = []
        self.ended = ""


class FakePost:
    """The post office's contract, in memory."""

    def __init__(self) -> None:
        self.addresses: dict[str, FakeAddress] = {}
        self.queues: dict[str, FakeQueue] = {}
        self.memory = Memory(lambda _: None, 1 << 30)
        self.named = Named()
        self.sent: list[Message] = []
        self.acknowledged: list[MessageReference] = []
        self.released: list[tuple[MessageReference, bool]] = []
        self.rejected: list[MessageReference] = []
        self.log: list[str] = []
        self.blocked: set[str] = set()
        self.refuse: SendError | None = None
        self._writable: list[tuple[str, Callable[[], None]]] = []
        self._stable: deque[Callable[[Exception | None], None]] = deque()
        self._next = 100
        #: For few subscriptions, whose end is not put off: no loop is needed.
        self.share = Share(cast("asyncio.AbstractEventLoop", None), lambda: 0.0)

    # contract

    @property
    def space(self) -> FakePost:
        return self

    def exclude_own(self, queue: FakeQueue, origin: int) -> None:
        queue.no_local_origin = origin

    def open(self, name: str, routing_type: RoutingType | None, user: str | None) -> None: ...

    def default_routing_type(self, _name: str) -> RoutingType:
        return RoutingType.MULTICAST

    def send(self, message: Message, tx: FakeTransaction | None = None) -> None:
        if self.refuse is not None:
            raise self.refuse
        if tx is not None:
            tx.sends.append(message)
            return
        self._next += 1
        message.id = self._next
        self.sent.append(message)
        self.log.append("send")
        name, _, queue = message.address.partition("::")
        address = self.ensure_address(name, message.routing_type)
        if message.routing_type is RoutingType.ANYCAST and not address.queues:
            self.create_queue(QueueSpec(name=name, address=name, routing_type=RoutingType.ANYCAST))
        targets = [self.queues[queue]] if queue else address.queues
        for target in targets:
            if target.no_local_origin and target.no_local_origin == message.origin:
                continue
            target.waiting.append(MessageReference(message, target))

    def send_alike(self, messages: list[Message]) -> bool:
        """None is taken in with others: each is looked at by itself."""
        return False

    def acknowledge(self, references: list[MessageReference], tx: FakeTransaction | None = None) -> None:
        if tx is not None:
            tx.acknowledged.extend(references)
            return
        self.log.append("acknowledge")
        for reference in references:
            del reference.queue.held[reference]  # type: ignore[attr-defined]
        self.acknowledged.extend(references)

    def release(self, references: list[MessageReference], *, failed: bool) -> None:
        self.released += [(reference, failed) for reference in references]
        for reference in reversed(references):
            del reference.queue.held[reference]  # type: ignore[attr-defined]
            reference.redelivered = True
            reference.consumer = None
            reference.delivery_count += failed
            reference.queue.waiting.appendleft(reference)  # type: ignore[attr-defined]

    def reject(self, references: list[MessageReference]) -> None:
        for reference in references:
            del reference.queue.held[reference]  # type: ignore[attr-defined]
        self.rejected.extend(references)

    def when_stable(self, callback: Callable[[Exception | None], None]) -> None:
        self._stable.append(callback)

    def begin(self, origin: int) -> FakeTransaction:
        return FakeTransaction()

    def commit(self, tx: FakeTransaction) -> None:
        tx.ended = "commit"
        for message in tx.sends:
            self.send(message)
        self.acknowledge(tx.acknowledged)

    def rollback(self, tx: FakeTransaction) -> None:
        tx.ended = "rollback"

    def address(self, name: str) -> FakeAddress | None:
        return self.addresses.get(name)

    def queue(self, name: str) -> FakeQueue:
        if name not in self.queues:
            raise NoSuchQueueError(f"queue {name!r} does not exist")
        return self.queues[name]

    def ensure_address(self, name: str, routing_type: RoutingType | None, auto: bool = True) -> FakeAddress:
        address = self.addresses.setdefault(name, FakeAddress(name, set()))
        address.routing_types.add(RoutingType.MULTICAST if routing_type is None else routing_type)
        return address

    def create_queue(self, spec: QueueSpec) -> FakeQueue:
        queue = FakeQueue(spec, len(self.queues) + 1)
        self.queues[spec.name] = queue
        self.ensure_address(spec.address, spec.routing_type).queues.append(queue)
        return queue

    def delete_queue(self, name: str, *, if_unused: bool = False) -> None:
        if if_unused and self.queues[name].consumers:
            raise InvalidRequestError(f"queue {name!r} has consumers")
        queue = self.queues.pop(name)
        self.log.append(f"delete {name}")
        self.addresses[queue.address].queues.remove(queue)
        for consumer in queue.consumers:
            consumer.queue_deleted(queue)

    def attach(self, queue: FakeQueue, consumer: Any) -> None:
        queue.consumers.append(consumer)

    def detach(self, queue: FakeQueue, consumer: Any) -> None:
        queue.consumers.remove(consumer)
        held = [reference for reference, holder in queue.held.items() if holder is consumer]
        self.release(held, failed=False)

    def wake(self, queue: FakeQueue) -> None:
        pass

    def writable(self, address: str) -> bool:
        return address not in self.blocked

    def on_writable(self, address: str, callback: Callable[[], None]) -> None:
        self._writable.append((address, callback))

    def off_writable(self, address: str, callback: Callable[[], None]) -> None:
        self._writable = [each for each in self._writable if each != (address, callback)]

    # the test's side

    def settle(self, error: Exception | None = None) -> None:
        """Everything so far is durable."""
        while self._stable:
            self._stable.popleft()(error)

    def dispatch(self) -> None:
        for queue in list(self.queues.values()):
            queue.dispatch()

    def unblock(self, address: str) -> None:
        self.blocked.discard(address)
        ready = [callback for name, callback in self._writable if name == address]
        self._writable = [(name, callback) for name, callback in self._writable if name != address]
        for callback in ready:
            callback()


class Broker(stomp.Broker):
    """Hold what several sessions of a test share: the post office's contract alone, its clock stands still."""

    def __init__(self, **parameters: str) -> None:
        super().__init__(Path(), None, **parameters)
        self.post: Any = FakePost()
        self.wall = NOW


VERSIONS = ["1.0", "1.1", "1.2"]


def is_error(client: Client, message: str) -> dict[str, str]:
    """The client got an ERROR with this message as its last frame, and the connection closes."""
    command, headers, body = client.received()[-1]
    assert command == "ERROR"
    assert message in headers["message"]
    assert message in body.decode()
    assert headers["content-type"] == "text/plain"
    assert client.transport.closed
    return headers


async def subscribed(broker: Broker, version: str = "1.2", ack: str = "client-individual", extra: str = "") -> Client:
    client = await broker.connected(version)
    client.send(f"SUBSCRIBE\nid:s\ndestination:/queue/a\nack:{ack}\n{extra}\n\0".encode())
    assert client.received() == []
    return client


async def produce(broker: Broker, *bodies: str, headers: str = "") -> None:
    client = await broker.connected()
    for body in bodies:
        client.send(f"SEND\ndestination:/queue/a\n{headers}\n{body}\0".encode())
    assert client.received() == []
    broker.post.settle()
    broker.post.dispatch()
