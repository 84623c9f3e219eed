"""An in-memory server side for STOMP sessions: transport, post office and security, with their contracts.

The post office here knows one queue per name and round robin; what it makes durable becomes stable
when the test says so (``settle``), which is what the tests of receipts are about.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Protocol, cast

from harness.acceptors import acceptor_settings
from pollux.config.model import Configuration
from pollux.engine.memory import Memory
from pollux.engine.peer import Peer
from pollux.engine.security import Identity
from pollux.engine.share import Share
from pollux.errors import AuthenticationError, InvalidRequestError, NoSuchQueueError, NotPermittedError, SendError
from pollux.message import Message, RoutingType
from pollux.protocols.stomp import StompSession
from pollux.routing.reference import MessageReference
from pollux.routing.spec import QueueSpec
from pollux.wire.stomp.decoder import SERVER_TRANSITIONS, Decoder, Event, Frame, Limits
from pollux.wire.stomp.headers import Version, parse_headers

if TYPE_CHECKING:
    from collections.abc import Callable

NOW = 1_790_000_000_000


class FakeTransport:
    """Collects what the session writes and decodes it as a client would."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connection_id: int = 7) -> None:
        self.loop = loop
        self.peer = Peer(connection_id, "127.0.0.1", 50000)
        self.written = bytearray()
        self.closed = False
        self.aborted = False
        self.reading = True
        self.pauses = 0
        #: Above this many bytes not taken by ``drain`` the session is told to pause.
        self.high_water = -1
        self.session: StompSession | None = None
        self._taken = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert not self.closed
        self.written += data
        if self.session is not None and 0 <= self.high_water < len(self.written) - self._taken:
            self.session.pause_writing()

    def drain(self) -> None:
        """The client reads everything."""
        self._taken = len(self.written)
        if self.session is not None:
            self.session.resume_writing()

    def writelines(self, data: list[bytes]) -> None:
        for piece in data:
            self.write(piece)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False
        self.pauses += 1

    def resume_reading(self) -> None:
        self.reading = True


class FakeQueue:
    """A queue that hands messages to its consumers in turn."""

    def __init__(self, spec: QueueSpec, identity: int) -> None:
        self.spec = spec
        self.id = identity
        self.name = spec.name
        self.address = spec.address
        self.durable = spec.durable
        self.user = spec.user
        self.of_pattern = False
        self.routing_type = spec.routing_type or RoutingType.MULTICAST
        self.waiting: deque[MessageReference] = deque()
        self.consumers: list[Any] = []
        self.held: dict[MessageReference, Any] = {}
        self.attributes = SimpleNamespace(non_destructive=False)

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
            if target.spec.no_local_origin and target.spec.no_local_origin == message.origin:
                continue
            target.waiting.append(MessageReference(message, target))

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


class FakeSecurity:
    """One user, ``user``/``secret``, and a set of refused ``(permission name, address)``."""

    enabled = True

    def __init__(self) -> None:
        self.denied: set[tuple[str, str]] = set()
        self.checks = 0
        self.open = 0
        self.gate: asyncio.Event | None = None

    async def authenticate_password(self, user: str | None, password: str | None, peer: Peer) -> Any:
        if self.gate is not None:
            await self.gate.wait()
        if user is not None and (user, password) != ("user", "secret"):
            raise AuthenticationError("the user name or the password is wrong")
        return Identity(user or "anonymous")

    def authenticate_certificate(self, peer: Peer) -> Any:
        return Identity(str(peer.certificate_subject))

    def check(self, identity: Any, permission: Any, address: str, queue: str | None = None) -> None:
        self.checks += 1
        if (permission.name, address) in self.denied:
            raise NotPermittedError(f"user {identity.user!r} does not have the permission {permission.name!r}")

    def everywhere(self, user: str, permission: Any) -> bool:
        return True

    def allowed(self, user: str, permission: Any, address: str) -> bool:
        return (permission.name, address) not in self.denied

    def connection_opened(self, identity: Any, peer: Peer) -> None:
        self.open += 1

    def connection_closed(self, identity: Any, peer: Peer) -> None:
        self.open -= 1


class Broker:
    """Hold what several sessions of a test share."""

    def __init__(self, **parameters: str) -> None:
        self.post = FakePost()
        self.security = FakeSecurity()
        self.now = NOW
        self.parameters = {"anycastPrefix": "/queue/", "multicastPrefix": "/topic/"} | parameters
        self.configuration = Configuration()
        self.router: Any = None
        self._connections = 0

    def services(self) -> Any:
        return SimpleNamespace(
            configuration=self.configuration,
            post=self.post,
            security=self.security,
            wall_ms=lambda: self.now,
            failover_servers=lambda *_: [],
            acceptor=acceptor_settings(**self.parameters),
            router=lambda: self.router,
        )

    def client(self) -> Client:
        self._connections += 1
        return Client(self, self._connections)

    async def connected(self, version: str = "1.2", **headers: str) -> Client:
        """A client that has connected."""
        client = self.client()
        await client.connect(version, **headers)
        return client


class Served(Protocol):
    """A broker a client can connect to."""

    def services(self) -> Any:
        """Return what its sessions use."""


class Client:
    """The other end: sends frames, decodes what comes back."""

    def __init__(self, broker: Served, connection_id: int) -> None:
        self.broker = broker
        self.transport = FakeTransport(asyncio.get_running_loop(), connection_id)
        self.session = StompSession(self.transport, broker.services())
        self.transport.session = self.session
        self.version = Version.V1_2
        self.decoder = Decoder(Limits(large_size=1 << 30), SERVER_TRANSITIONS)
        self._read = 0

    async def connect(self, version: str = "1.2", **headers: str) -> dict[str, str]:
        self.version = {"1.0": Version.V1_0, "1.1": Version.V1_1, "1.2": Version.V1_2}[version]
        lines = {"accept-version": version, "host": "test", "login": "user", "passcode": "secret"}
        lines |= {name.replace("_", "-"): value for name, value in headers.items()}
        block = "".join(f"{name}:{value}\n" for name, value in lines.items())
        self.send(f"CONNECT\n{block}\n\0".encode())
        for _ in range(5):
            await asyncio.sleep(0)
        (frame,) = self.frames()
        assert isinstance(frame, Frame)
        assert frame.command == b"CONNECTED", frame
        self.decoder.accept(self.version)
        return parse_headers(frame.block, self.version, escaped=False)

    def send(self, data: bytes) -> None:
        self.session.data_received(data)

    def frames(self) -> list[Event]:
        """Return what the session wrote since the last call."""
        data = bytes(self.transport.written[self._read :])
        self._read = len(self.transport.written)
        return self.decoder.receive(data)

    def received(self) -> list[tuple[str, dict[str, str], bytes]]:
        """The same as command, headers, body."""
        answers = []
        for event in self.frames():
            assert isinstance(event, Frame), event
            answers.append((event.command.decode(), parse_headers(event.block, self.version), event.body))
        return answers

    def one(self) -> tuple[str, dict[str, str], bytes]:
        (answer,) = self.received()
        return answer

    def lose(self) -> None:
        self.transport.closed = True
        self.session.connection_lost(None)
