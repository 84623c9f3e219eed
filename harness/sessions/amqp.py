"""AMQP clients on proton's own engine, joined in memory to sessions of a broker."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, cast

import proton

from harness.sessions import broker as base
from harness.sessions.office import TIMEOUT
from pollux.protocols.amqp import AmqpSession

if TYPE_CHECKING:
    from collections.abc import Callable


class Broker(base.Broker):
    """A broker with AMQP clients."""

    def session(self, **peer: Any) -> tuple[AmqpSession, base.Transport]:
        """The broker's ends of a new connection."""
        return session(self, **peer)

    def client(self, container: str = "client", **options: Any) -> Client:
        """A client, connecting."""
        return Client(self, container, **options)


def session(broker: base.Broker, **peer: Any) -> tuple[AmqpSession, base.Transport]:
    """The broker's ends of a new connection."""
    wire = broker.transport(**peer)
    made = AmqpSession(wire, broker.services(), broker.containers)
    broker.sessions.append(made)
    return made, wire


class Client:
    """An AMQP client: proton's engine, pumped by :meth:`until`. ``events`` collects what it was told."""

    def __init__(
        self,
        broker: base.Broker,
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
        self.session, self.wire = session(broker, **(peer or {}))
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
        while self.wire.written and (room := self.transport.capacity()) > 0:
            self.transport.push(self.wire.take(room))
            moved = True
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

    async def until(self, condition: Callable[[], Any], deadline: float = TIMEOUT) -> None:
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
        async with asyncio.timeout(TIMEOUT):
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
