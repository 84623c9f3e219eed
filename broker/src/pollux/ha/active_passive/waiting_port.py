"""A waiting member's port: other brokers may ask it, on the address that it will serve clients on. Clients may not.

Only the core protocol is spoken here, and whoever does not prove to know the password is dropped; a client is told
where the primary is, in its protocol's words, one of AMQP after its log-in. The port is closed before the acceptors
open.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from pollux.cluster.link import Conversation
from pollux.engine.peer import Peer
from pollux.errors import PolluxError
from pollux.ha.active_passive.amqp_away import SentAway
from pollux.ha.active_passive.turned_away import farewell, protocol_of
from pollux.wire.sniff import MAX_SNIFF, Protocol, SniffError

if TYPE_CHECKING:
    import ssl
    from collections.abc import AsyncIterator, Callable

    from pollux.cluster.link import CoreHub
    from pollux.engine.security import Security
    from pollux.ha.active_passive.settings import Settings

#: Connections at a time.
_CONNECTIONS = 64
#: How long who connects may take to prove that it knows the password, and the pause after a wrong one, seconds.
_LOG_IN, _WRONG = 10.0, 0.25


class WaitingPort:
    """The listening socket. Everything is called in the loop."""

    def __init__(
        self,
        hub: CoreHub,
        settings: Settings,
        tls: ssl.SSLContext | None,
        security: Security,
        *,
        primary: Callable[[], str],
    ) -> None:
        """``primary``: where clients are served; empty while that is not known. ``security``: who may be told."""
        self.hub = hub
        self.primary = primary
        self.security = security
        self.mechanisms = settings.mechanisms
        self.tls = tls
        self.connections: set[_Asker] = set()
        #: One password is looked at at a time.
        self.turn = asyncio.Lock()
        self._host = settings.host
        self._port = settings.port
        self._server: asyncio.Server | None = None

    async def open(self) -> None:
        """Listen. Raises PolluxError."""
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(lambda: _Asker(self, loop), self._host, self._port, ssl=self.tls)
        except OSError as error:
            raise PolluxError(
                f"{self._host}:{self._port}, this broker's address in ha-brokers-url, cannot be listened on: {error}"
            ) from error

    async def close(self) -> None:
        """Listen no more, and end all connections."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
            for asker in list(self.connections):
                asker.end()
            await server.wait_closed()


class _Asker(asyncio.Protocol):
    """One connection."""

    def __init__(self, port: WaitingPort, loop: asyncio.AbstractEventLoop) -> None:
        self._port = port
        self._loop = loop
        self._known = False
        #: What came before it is known what is spoken.
        self._head = b""
        self._transport: asyncio.Transport
        self._conversation: Conversation | None = None
        self._away: SentAway | None = None
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if len(self._port.connections) >= _CONNECTIONS:
            self._transport.abort()
            return
        self._port.connections.add(self)
        self._timer = self._loop.call_later(_LOG_IN, self._look)

    def _converse(self) -> None:
        self._conversation = Conversation(
            self._port.hub,
            self._transport,
            self._loop,
            initiator=False,
            on_ready=self._ready,
            on_end=lambda *_: self._transport.close(),
            turn=self._turn,
        )

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        async with self._port.turn:
            yield
            if not self._known:
                await asyncio.sleep(_WRONG)

    def _ready(self, _peer: object) -> None:
        self._known = True

    def _look(self) -> None:
        """Have nobody stay that has not proven to know the password."""
        if not self._known:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._away is not None:
            self._away.feed(data)
            return
        if self._conversation is None:
            self._head += data
            try:
                protocol = protocol_of(self._head)
            except SniffError:
                self._transport.abort()
                return
            if protocol is None and len(self._head) <= MAX_SNIFF:
                return
            if protocol is Protocol.AMQP:
                data, self._head = self._head, b""
                self._send_away(data)
                return
            if protocol is not Protocol.CORE:
                self._transport.write(farewell(self._head, self._port.primary()))
                self._transport.close()
                return
            data, self._head = self._head, b""
            self._converse()
        if self._conversation is not None:
            self._conversation.feed(data)

    def _send_away(self, data: bytes) -> None:
        here = self._port
        address, port = self._transport.get_extra_info("peername", ("", 0))[:2]
        peer = Peer(0, str(address), int(port), tls=here.tls is not None)
        self._away = SentAway(self._transport, self._loop, peer, here.security, here.mechanisms, primary=here.primary)
        self._away.feed(data)

    def pause_writing(self) -> None:
        if self._conversation is not None:
            self._conversation.pause()

    def resume_writing(self) -> None:
        if self._conversation is not None:
            self._conversation.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        self._port.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._away is not None:
            self._away.stop()
        if self._conversation is not None:
            self._conversation.end("failed", str(exc) if exc else "the connection was closed")

    def end(self) -> None:
        if self._conversation is not None:
            self._conversation.stop("stopping", "this broker waits no longer")
        self._transport.close()
