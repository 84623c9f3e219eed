"""A listener whose sessions only echo, for tests of connections."""

from __future__ import annotations

import asyncio
import ssl
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from pollux.cluster.link import CoreHub, CoreSession
from pollux.config.acceptors import Acceptor, AcceptorSettings
from pollux.config.model import Configuration, Limits
from pollux.config.users import Users
from pollux.engine.security import Identity, Security
from pollux.process.acceptor import Listener
from pollux.process.connections import Connections
from pollux.process.tls import ServerTls
from pollux.protocols.base import Session, Transport
from pollux.protocols.services import Services
from pollux.wire.sniff import Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable


AMQP = b"AMQP\x00\x01\x00\x00"


#: Nothing here takes this long; a test that waits for it has failed. Seconds.
PATIENCE = 30


class Echo(Session):
    """Answers with what it got; logged in by the word LOGIN."""

    protocol = "AMQP"

    def __init__(self, transport: Transport, services: Services) -> None:
        self.transport = transport
        self.services = services
        self.user = None
        self.client_id = None
        self.events: list[str] = []

    def data_received(self, data: bytes) -> None:
        if b"LOGIN" in data:
            self.user = "ada"
            self.services.security.connection_opened(Identity("ada"), self.transport.peer)
        if b"FLOOD" in data:
            self.transport.write(bytes(4 * 1024 * 1024))
        if b"BYE" in data:
            self.transport.write(b"farewell")
            self.transport.close()
            return
        self.transport.write(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.events.append("lost")

    def shutdown(self, reason: str) -> None:
        self.events.append(reason)
        self.transport.write(b"shutdown")
        self.transport.close()

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


class Bench:
    """A listener and what is needed around it."""

    def __init__(self, listener: Listener, connections: Connections) -> None:
        self.listener = listener
        self.connections = connections

    @property
    def sessions(self) -> list[Echo]:
        return [cast("Echo", connection.session) for connection in self.connections if connection.session]

    async def open(self, **options: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self.listener.port, **options)


@asynccontextmanager
async def bench(
    settings: AcceptorSettings = AcceptorSettings(),  # noqa: B008  (frozen)
    limits: Limits = Limits(),  # noqa: B008
    core: CoreHub | None = None,
    **overrides: Any,
) -> AsyncIterator[Bench]:
    configuration = Configuration(limits=limits, **overrides)
    loop = asyncio.get_running_loop()
    connections = Connections(loop, maximum=limits.max_connections, per_host=limits.max_connections_per_host)
    security = Security(configuration, Users(), on_login=connections.logged_in)
    services = Services(configuration, cast("Any", None), security, lambda: 0, lambda *_: [], settings)
    acceptor = Acceptor("test", "tcp", "127.0.0.1", 0, settings=settings)
    listener = Listener(
        acceptor,
        configuration,
        loop=loop,
        connections=connections,
        services=services,
        sessions={Protocol.AMQP: Echo, Protocol.CORE: partial(CoreSession, hub=core)},
        tls=ServerTls(settings, "acceptor 'test'") if settings.key_store_path else None,
    )
    connections.start()
    await listener.listen()
    try:
        yield Bench(listener, connections)
    finally:
        listener.stop_accepting()
        connections.stop()
        for connection in connections:
            connection.abort()
        await asyncio.wait_for(connections.empty.wait(), PATIENCE)
        security.close()


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until something is so; the server under test is in this loop."""
    async with asyncio.timeout(PATIENCE):
        while not condition():  # noqa: ASYNC110  (there is no event for what the kernel delivers)
            await asyncio.sleep(0.001)


async def finish(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except (OSError, ssl.SSLError):
        return
