"""The ground of sessions: an office, log-ins and rights that a test decides on, and the broker's end of connections."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from harness.acceptors import acceptor_settings
from harness.sessions.office import Office
from pollux.config.verifiers import MINIMUM_ITERATIONS, Verifier
from pollux.engine.peer import Peer
from pollux.engine.scram import ScramExchange
from pollux.engine.security import Identity
from pollux.errors import AuthenticationError, NotPermittedError
from pollux.protocols import mqtt
from pollux.protocols.amqp import Containers
from pollux.protocols.services import Services

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from pollux.config.model import Configuration
    from pollux.protocols.mqtt.sessions import MqttSessions
    from pollux.store.port import Files

#: Everybody's.
PASSWORD = "secret"
_VERIFIER = Verifier.create(PASSWORD, iterations=MINIMUM_ITERATIONS)


class FakeSecurity:
    """Lets in whoever says :data:`PASSWORD` or nothing; ``denied`` holds (permission, address) pairs nobody has."""

    enabled = True

    def __init__(self) -> None:
        self.denied: set[tuple[str, str]] = set()
        self.anonymous_allowed = True
        #: Log-ins with a password wait for it.
        self.gate: asyncio.Event | None = None
        #: Whom SCRAM finds it was, and what it is done with.
        self.scram_user = "ann"
        self.scrams: Callable[[str], Any] = self._exchange
        #: Connections that are logged in.
        self.open: set[int] = set()
        self.on_login: Callable[[int, str], None] = lambda _connection, _user: None

    async def authenticate_password(self, user: str | None, password: str | None, peer: Peer) -> Identity:
        """As :class:`pollux.engine.security.Security` does, like all that follows."""
        if self.gate is not None:
            await self.gate.wait()
        if user is None:
            return self.anonymous(peer)
        if password != PASSWORD:
            raise AuthenticationError("the user name or the password is wrong")
        return Identity(user)

    def authenticate_certificate(self, peer: Peer) -> Identity:
        """The certificate's subject is the user."""
        if peer.certificate_subject is None:
            raise AuthenticationError("no certificate")
        return Identity(peer.certificate_subject)

    def anonymous(self, _peer: Peer) -> Identity:
        """Nobody in particular."""
        if not self.anonymous_allowed:
            raise AuthenticationError("log-in is required")
        return Identity("anonymous")

    def scram(self, mechanism: str, _peer: Peer | None = None) -> Any:
        """Return what leads one exchange."""
        return self.scrams(mechanism)

    def _exchange(self, _mechanism: str) -> Any:
        exchange = ScramExchange(lambda user: (_VERIFIER, user == "ann"))

        async def final(data: bytes) -> bytes:
            return exchange.final(data)

        return SimpleNamespace(first=exchange.first, final=final, identity=Identity(self.scram_user))

    def check(self, identity: Identity, permission: Any, address: str, queue: str | None = None) -> None:
        """Refuse what is denied."""
        if not self.allowed(identity.user, permission, address):
            raise NotPermittedError(
                f"user {identity.user!r} does not have the permission {permission.name!r} at {address}"
            )

    def everywhere(self, _user: str, _permission: Any) -> bool:
        """No pattern of names is looked at one by one."""
        return True

    def allowed(self, _user: str, permission: Any, address: str) -> bool:
        """True unless it is denied."""
        return (permission.name, address) not in self.denied

    def connection_opened(self, identity: Identity, peer: Peer) -> None:
        """Somebody is logged in."""
        self.open.add(peer.connection_id)
        self.on_login(peer.connection_id, identity.user)

    def connection_closed(self, _identity: Identity | None, peer: Peer) -> None:
        """Called for each that was opened."""
        self.open.discard(peer.connection_id)


class Transport:
    """The broker's end of a connection: holds what a session writes, and what it asks of its connection."""

    def __init__(self, loop: asyncio.AbstractEventLoop, peer: Peer) -> None:
        self.loop = loop
        self.peer = peer
        #: What the client has not taken.
        self.written = bytearray()
        self.closed = False
        self.aborted = False
        self.reading = True
        self.pauses = 0
        #: Set when there is something new to see.
        self.arrived = asyncio.Event()
        #: Above this many bytes since the last ``drain`` the session is told to pause.
        self.high_water = -1
        self.session: Any = None
        self._undrained = 0

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Called by the session, like all up to ``resume_reading``."""
        assert not self.closed, "a write after close"
        self.written += data
        self._undrained += len(data)
        self.arrived.set()
        if 0 <= self.high_water < self._undrained:
            self.session.pause_writing()

    def close(self) -> None:
        """The broker ends the connection."""
        self.closed = True
        self.arrived.set()

    def abort(self) -> None:
        """The broker ends the connection, and what is not written yet is not."""
        self.aborted = True
        self.close()

    def pause_reading(self) -> None:
        """The broker does not want more."""
        self.reading = False
        self.pauses += 1

    def resume_reading(self) -> None:
        """The broker goes on."""
        self.reading = True
        self.arrived.set()

    def take(self, size: int | None = None) -> bytes:
        """Take what was written, or so many bytes of it."""
        data = bytes(self.written[:size])
        del self.written[: len(data)]
        return data

    def drain(self) -> None:
        """The client has read everything."""
        self._undrained = 0
        self.session.resume_writing()


class Broker(Office):
    """An office, and what sessions get of a broker. ``parameters`` are the acceptor's, as in its URI."""

    def __init__(
        self,
        directory: Path,
        configuration: Configuration | None = None,
        *,
        files: Files | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(directory, configuration, files=files)
        self.loop = asyncio.get_running_loop()
        self.security: Any = FakeSecurity()
        self.parameters = dict(parameters or {})
        #: The connection router of the acceptor.
        self.router: Any = None
        self.containers = Containers()
        #: The other members, which the test sets; and for whom they were asked for: the protocol, and with TLS or not.
        self.servers: list[tuple[str, int, str]] = []
        self.asked: list[tuple[str, bool]] = []
        self.connections = 0
        self._mqtt_sessions: MqttSessions | None = None
        #: Whose connections are lost when the broker stops.
        self.sessions: list[Any] = []

    async def start(self) -> None:
        """Open the office and join it to the security, as a node does."""
        await self.open()
        self.join_security()

    def join_security(self) -> None:
        """Have the post office ask the security, and keep accounts by user."""
        self.post.address_manager.ask = self._ask
        self.security.on_login = self.post.memory.opened

    def _ask(self, user: str, permission: Any, address: str, queue: str | None) -> None:
        self.security.check(Identity(user), permission, address, queue)

    async def stop(self) -> None:
        """Lose all connections and close; nothing has failed."""
        for session in self.sessions:
            session.connection_lost(None)
        self.sessions.clear()
        await self.close()
        assert not self.failures

    async def restart(self) -> None:
        """Stop and start again."""
        await self.stop()
        await self.start()

    def failover_servers(self, protocol: str, tls: bool) -> list[tuple[str, int, str]]:
        """The other members."""
        self.asked.append((protocol, tls))
        return self.servers

    def services(self) -> Services:
        """Return what a new session is given."""
        return Services(
            self.configuration,
            self.post,
            cast("Any", self.security),
            self.wall_ms,
            self.failover_servers,
            acceptor_settings(**self.parameters),
            lambda: self.router,
        )

    def mqtt_sessions(self) -> MqttSessions:
        """Return the MQTT sessions on this post office; they are made when they are first asked for."""
        if self._mqtt_sessions is None or self._mqtt_sessions.post is not self.post:
            self._mqtt_sessions = mqtt.start(self.services(), self.loop)
        return self._mqtt_sessions

    def transport(self, **peer: Any) -> Transport:
        """A new connection's end at the broker; keywords are attributes of the peer."""
        self.connections += 1
        return Transport(self.loop, Peer(self.connections, "127.0.0.1", 40_000 + self.connections, **peer))
