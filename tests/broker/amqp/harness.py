"""A broker of real post office and store, and AMQP clients on proton's own engine, joined in memory."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import proton

from harness.acceptors import acceptor_settings
from pollux.config.model import Configuration, resolve_address_settings
from pollux.engine.peer import Peer
from pollux.engine.post_office import PostOffice
from pollux.engine.security import Identity
from pollux.errors import AuthenticationError, NotPermittedError
from pollux.protocols.amqp import AmqpSession, Containers
from pollux.protocols.services import Services
from pollux.routing.address import WildcardSyntax
from pollux.routing.space import AddressSpace
from pollux.store.settings import StoreSettings
from pollux.store.storage import Storage

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

DEADLINE = 10.0


class FakeSecurity:
    """One user, ``alice`` with password ``wonder``; ``denied`` holds (permission, address) pairs."""

    enabled = True
    anonymous_allowed = True

    def __init__(self) -> None:
        self.denied: set[tuple[str, str]] = set()
        self.open: set[int] = set()
        self.on_login: Callable[[int, str], None] | None = None
        self.scrams: Callable[[str], Any] | None = None

    async def authenticate_password(self, user: str | None, password: str | None, peer: Peer) -> Identity:
        await asyncio.sleep(0)
        if (user, password) != ("alice", "wonder"):
            raise AuthenticationError("the user name or the password is wrong")
        return Identity("alice")

    def authenticate_certificate(self, peer: Peer) -> Identity:
        if peer.certificate_subject is None:
            raise AuthenticationError("no certificate")
        return Identity(peer.certificate_subject)

    def anonymous(self, peer: Peer) -> Identity:
        if not self.anonymous_allowed:
            raise AuthenticationError("log-in is required")
        return Identity("anonymous")

    def scram(self, mechanism: str, peer: Peer | None = None) -> Any:
        assert self.scrams is not None
        return self.scrams(mechanism)

    def check(self, identity: Identity, permission: Any, address: str, queue: str | None = None) -> None:
        if (permission.name, address) in self.denied:
            raise NotPermittedError(f"no permission {permission.name} at {address}")

    def everywhere(self, user: str, permission: Any) -> bool:
        return True

    def allowed(self, user: str, permission: Any, address: str) -> bool:
        return (permission.name, address) not in self.denied

    def connection_opened(self, identity: Identity, peer: Peer) -> None:
        self.open.add(peer.connection_id)
        if self.on_login is not None:
            self.on_login(peer.connection_id, identity.user)

    def connection_closed(self, identity: Identity | None, peer: Peer) -> None:
        self.open.discard(peer.connection_id)


class Wire:
    """The server's end of a connection: what the session writes is kept for the client to take."""

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: Peer) -> None:
        self.loop = loop
        self.peer = peer
        self.written: deque[bytes] = deque()
        self.closed = False
        self.aborted = False
        self.reading = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.closed:
            self.written.append(bytes(data))

    def writelines(self, data: list[bytes]) -> None:
        for part in data:
            self.write(part)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class Broker:
    """Post office, store and what sessions get of them."""

    def __init__(self, directory: Path, configuration: Configuration | None = None) -> None:
        self.directory = directory
        self.configuration = configuration or Configuration()
        self.loop = asyncio.get_running_loop()
        self.security = FakeSecurity()
        self.servers: list[tuple[str, int, str]] = []
        #: For whom they were asked for: the protocol, and whether the client has TLS.
        self.asked: list[tuple[str, bool]] = []
        self.parameters: dict[str, str] = {}
        #: The connection router of the acceptor.
        self.router: Any = None
        self.clock: Callable[[], int] = lambda: int(time.time() * 1000)
        self.connections = 0
        self.failures: list[Exception] = []
        self.sessions: list[AmqpSession] = []
        self.containers = Containers()
        self.storage: Storage
        self.post: PostOffice

    def now(self) -> int:
        return self.clock()

    async def start(self, *, persistent: bool = True) -> None:
        base = self.directory
        settings = StoreSettings(
            base / "journal",
            base / "bindings",
            base / "large",
            base / "paging",
            journal_file_size=1 << 20,
            max_disk_usage=-1,
            persistence_enabled=persistent,
        )
        self.storage = await Storage.open(settings, loop=self.loop, on_failure=self.failures.append)
        recovered = await self.storage.recover()
        wildcards = self.configuration.wildcard_addresses
        space = AddressSpace(
            lambda name: resolve_address_settings(self.configuration, name),
            WildcardSyntax(wildcards.delimiter, wildcards.any_words, wildcards.single_word),
        )
        self.post = PostOffice(
            self.configuration, space, self.storage, memory=1 << 30, wall_ms=self.now, loop=self.loop
        )
        self.post.address_manager.ask = self._ask
        self.security.on_login = self.post.memory.opened
        self.post.restore(recovered)

    def _ask(self, user: str, permission: Any, address: str, queue: str | None) -> None:
        self.security.check(Identity(user), permission, address, queue)

    async def stop(self) -> None:
        for session in self.sessions:
            session.connection_lost(None)
        self.sessions.clear()
        await self.post.close()
        await self.storage.close()
        assert not self.failures

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    def failover_servers(self, protocol: str, tls: bool) -> list[tuple[str, int, str]]:
        """The other members, which the test has set."""
        self.asked.append((protocol, tls))
        return self.servers

    def services(self, parameters: Mapping[str, str] | None = None) -> Services:
        return Services(
            self.configuration,
            self.post,
            cast("Any", self.security),
            self.now,
            self.failover_servers,
            acceptor_settings(**{**self.parameters, **(parameters or {})}),
            lambda: self.router,
        )

    def session(self, **peer: Any) -> tuple[AmqpSession, Wire]:
        self.connections += 1
        wire = Wire(self.loop, Peer(self.connections, "127.0.0.1", 50000 + self.connections, **peer))
        session = AmqpSession(wire, self.services(), self.containers)
        self.sessions.append(session)
        return session, wire

    def client(self, container: str = "client", **options: Any) -> Client:
        return Client(self, container, **options)

    async def settle(self) -> None:
        """Until what was sent is durable and was delivered."""
        for _ in range(3):
            done = self.loop.create_future()
            self.post.when_stable(done.set_result)
            async with asyncio.timeout(DEADLINE):
                assert await done is None
            for _ in range(5):
                await asyncio.sleep(0)

    def count(self, queue: str) -> int:
        return self.post.queue(queue).message_count


class Client:
    """An AMQP client: proton's engine, pumped by :meth:`until`. ``events`` collects what it was told."""

    def __init__(
        self,
        broker: Broker,
        container: str = "client",
        *,
        user: str | None = None,
        password: str | None = None,
        mechanisms: str | None = "ANONYMOUS",
        max_frame: int = 0,
        idle_timeout: float = 0,
        desired: list[str] | None = None,
        peer: dict[str, Any] | None = None,
        open_now: bool = True,
    ) -> None:
        self.broker = broker
        self.session, self.wire = broker.session(**(peer or {}))
        self.transport: Any = proton.Transport()
        self.connection: Any = proton.Connection()
        self.connection.container = container
        self.connection.hostname = "broker.example"
        if desired:
            self.connection.desired_capabilities = [proton.symbol(each) for each in desired]
        self.collector = proton.Collector()
        self.connection.collect(self.collector)
        self.events: list[tuple[str, Any]] = []
        self.received: deque[proton.Delivery] = deque()
        if max_frame:
            self.transport.max_frame_size = max_frame
        if idle_timeout:
            self.transport.idle_timeout = idle_timeout
        if user is not None:
            self.connection.user = user
            self.connection.password = password or ""
        if mechanisms is not None:
            sasl = self.transport.sasl()
            sasl.allow_insecure_mechs = True
            sasl.allowed_mechs(mechanisms)
        self.transport.bind(self.connection)
        self.tags = 0
        if open_now:
            self.connection.open()

    # -- bytes

    def pump(self) -> bool:
        """Move bytes both ways once; whether any moved."""
        moved = False
        while (pending := self.transport.pending()) > 0 and self.wire.reading:
            data = bytes(self.transport.peek(pending))
            self.transport.pop(len(data))
            moved = True
            if not self.wire.closed:
                self.session.data_received(data)
        while self.wire.written:
            data = self.wire.written.popleft()
            moved = True
            while data:
                room = self.transport.capacity()
                if room <= 0:
                    break
                self.transport.push(data[:room])
                data = data[room:]
        if self.wire.closed and not self.wire.written and self.transport.capacity() > 0:
            self.transport.close_tail()
            moved = True
        self.collect()
        return moved

    def collect(self) -> None:
        while (event := self.collector.peek()) is not None:
            name = str(event.type)
            if name == "PN_DELIVERY":
                delivery: Any = event.delivery
                complete = delivery.link.is_receiver and delivery.readable and not delivery.partial
                if complete and delivery not in self.received and delivery.link.current == delivery:
                    self.received.append(delivery)
            else:
                self.events.append((name, event.context))
            self.collector.pop()

    async def until(self, condition: Callable[[], Any], deadline: float = DEADLINE) -> None:
        """Pump until ``condition`` holds."""
        async with asyncio.timeout(deadline):
            while True:
                while self.pump():
                    pass
                if condition():
                    return
                await asyncio.sleep(0.0005)

    async def quiet(self, turns: int = 20) -> None:
        """Pump until nothing has moved for a while."""
        idle = 0
        while idle < turns:
            idle = 0 if self.pump() else idle + 1
            await asyncio.sleep(0.0005)

    def drop(self) -> None:
        """The connection is lost."""
        self.wire.closed = True
        self.session.connection_lost(ConnectionResetError())

    # -- AMQP

    @property
    def remote_condition(self) -> Any:
        return self.connection.remote_condition

    async def opened(self) -> Client:
        await self.until(lambda: self.connection.state & proton.Endpoint.REMOTE_ACTIVE)
        return self

    def begin(self) -> Any:
        session = self.connection.session()
        session.open()
        return session

    async def sender(
        self,
        address: str | None,
        name: str = "sender",
        *,
        session: proton.Session | None = None,
        capabilities: list[str] | None = None,
        wait: bool = True,
        prepare: Callable[[Any], None] | None = None,
    ) -> Any:
        link = (session or self.begin()).sender(name)
        link.target.address = address
        link.source.address = "here"
        if capabilities:
            link.target.capabilities.put_object([proton.symbol(each) for each in capabilities])
        if prepare:
            prepare(link)
        link.open()
        if wait:
            await self.until(lambda: link.credit > 0 or link.state & proton.Endpoint.REMOTE_CLOSED)
        return link

    async def receiver(
        self,
        address: str | None,
        name: str = "receiver",
        *,
        session: proton.Session | None = None,
        credit: int = 0,
        capabilities: list[str] | None = None,
        prepare: Callable[[Any], None] | None = None,
    ) -> Any:
        link = (session or self.begin()).receiver(name)
        if address is not None:
            link.source.address = address
        link.target.address = "here"
        if capabilities:
            link.source.capabilities.put_object(
                proton.Array(
                    cast("Any", proton.UNDESCRIBED), proton.Data.SYMBOL, *[proton.symbol(each) for each in capabilities]
                )
            )
        if prepare:
            prepare(link)
        link.open()
        await self.until(lambda: link.state & (proton.Endpoint.REMOTE_ACTIVE | proton.Endpoint.REMOTE_CLOSED))
        if credit:
            link.flow(credit)
        return link

    def send(self, link: proton.Sender, message: proton.Message | bytes, *, settled: bool = False) -> Any:
        self.tags += 1
        delivery = link.delivery(str(self.tags))
        link.stream(message if isinstance(message, bytes) else bytes(message.encode()))
        link.advance()
        if settled:
            delivery.settle()
        return delivery

    async def send_all(self, link: proton.Sender, messages: list[proton.Message | bytes]) -> list[Any]:
        """Send within credit and await all outcomes."""
        deliveries = []
        for message in messages:
            if link.credit <= 0:
                await self.until(lambda: link.credit > 0)
            deliveries.append(self.send(link, message))
        await self.until(lambda: all(each.settled for each in deliveries))
        return deliveries

    async def receive(self) -> tuple[Any, bytes]:
        """The next message and its bytes."""
        await self.until(lambda: self.received)
        return self.take()

    def take(self) -> tuple[Any, bytes]:
        delivery: Any = self.received.popleft()
        link = delivery.link
        data = bytes(link.recv(delivery.pending)) if delivery.pending else b""
        link.advance()
        current = link.current
        if current is not None and current.readable and not current.partial and current not in self.received:
            self.received.append(current)
        return delivery, data

    async def get_large(self) -> Any:
        """A message of many frames, read as it comes so that the session's window opens."""
        parts: list[bytes] = []
        async with asyncio.timeout(DEADLINE):
            while True:
                self.pump()
                self.received.clear()
                link = next((each for each in self.links() if each.is_receiver and each.current is not None), None)
                delivery = link.current if link is not None else None
                if link is not None and delivery is not None:
                    while delivery.pending:
                        parts.append(bytes(link.recv(delivery.pending)))
                    if not delivery.partial:
                        link.advance()
                        delivery.update(proton.Delivery.ACCEPTED)
                        delivery.settle()
                        if link.current is not None and link.current.readable and not link.current.partial:
                            self.received.append(link.current)
                        return decode(b"".join(parts))
                await asyncio.sleep(0.0005)

    def links(self) -> list[Any]:
        found = []
        link = self.connection.link_head(0)
        while link is not None:
            found.append(link)
            link = link.next(0)
        return found

    async def get(self) -> Any:
        """The next message, accepted."""
        delivery, data = await self.receive()
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
        return decode(data)


def message(body: Any = "x", **fields: Any) -> Any:
    fields.setdefault("durable", True)
    return proton.Message(body=body, **fields)


def decode(data: bytes) -> Any:
    result = proton.Message()
    result.decode(data)
    return result
