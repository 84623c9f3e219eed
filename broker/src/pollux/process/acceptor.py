"""Listen for clients, and hold what every connection that comes in by one has in common."""

from __future__ import annotations

import errno
import importlib
import logging
import socket
from functools import partial
from typing import TYPE_CHECKING, Any

from pollux.errors import PolluxError
from pollux.logs import event
from pollux.process.connection import Connection
from pollux.process.first_bytes import Rules
from pollux.process.tls_handshake import layer_of
from pollux.wire.sniff import Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from pollux.cluster.link import CoreHub
    from pollux.config.acceptors import Acceptor
    from pollux.config.model import Configuration
    from pollux.config.tls import ServerSettings
    from pollux.process.connections import Connections
    from pollux.process.tls import ServerTls
    from pollux.protocols.base import Session, Transport
    from pollux.protocols.mqtt.sessions import MqttSessions
    from pollux.protocols.services import Services

    SessionFactory = Callable[[Transport, Services], Session]

logger = logging.getLogger("pollux.acceptor")

#: Where each protocol's session class is; imported when the first acceptor that speaks it starts.
SESSIONS: Mapping[Protocol, tuple[str, str]] = {
    Protocol.AMQP: ("pollux.protocols.amqp", "AmqpSession"),
    Protocol.STOMP: ("pollux.protocols.stomp", "StompSession"),
    Protocol.MQTT: ("pollux.protocols.mqtt", "MqttSession"),
    Protocol.CORE: ("pollux.cluster.link", "CoreSession"),
}
#: Dead peers (power cut, no FIN) are found by the kernel's keep-alive after about two minutes.
_KEEPALIVE = ((socket.TCP_KEEPIDLE, 60), (socket.TCP_KEEPINTVL, 15), (socket.TCP_KEEPCNT, 4))
_BIND_RETRIES = 5


class ListenError(PolluxError):
    """An acceptor cannot listen; the text names it, its address and the remedy."""


def load_sessions(
    acceptors: tuple[Acceptor, ...], hub: CoreHub | None = None, mqtt_sessions: MqttSessions | None = None
) -> dict[Protocol, SessionFactory]:
    """Return what makes the sessions of each protocol that some acceptor speaks, with what they share among them.

    ``hub``: what other brokers may ask for. ``mqtt_sessions``: those that clients find again.
    """
    found: dict[Protocol, SessionFactory] = {}
    for protocol, (module, name) in SESSIONS.items():
        if any(acceptor.speaks(protocol.value) for acceptor in acceptors):
            loaded = importlib.import_module(module)
            session = getattr(loaded, name)
            if protocol is Protocol.CORE:
                session = partial(session, hub=hub)
            elif protocol is Protocol.AMQP:
                session = partial(session, containers=loaded.Containers())
            elif protocol is Protocol.MQTT:
                session = partial(session, mqtt_sessions=mqtt_sessions)
            found[protocol] = session
    return found


class Listener:
    """Listen on one acceptor. Times are seconds, sizes bytes."""

    def __init__(
        self,
        acceptor: Acceptor,
        configuration: Configuration,
        *,
        loop: asyncio.AbstractEventLoop,
        connections: Connections,
        services: Services,
        sessions: Mapping[Protocol, SessionFactory],
        tls: ServerTls | None,
    ) -> None:
        settings = acceptor.settings
        limits = configuration.limits
        self.acceptor = acceptor
        self.name = acceptor.name
        self.loop = loop
        self.connections = connections
        self.services = services
        self.tls = tls
        required = settings.ssl_enabled and not settings.ssl_allow_plain
        #: What the first bytes of a connection may be.
        self.rules = Rules(tls=tls is not None, tls_required=required, web_only=acceptor.scheme == "ws")
        self.tls_layer: Any = layer_of(loop) if tls is not None else None
        self.open_connections = 0
        self._factories = {
            protocol: factory for protocol, factory in sessions.items() if acceptor.speaks(protocol.value)
        }
        self.handshake_timeout = (
            float(settings.handshake_timeout) if settings.handshake_timeout > 0 else limits.handshake_timeout / 1000
        )
        self.write_timeout = limits.write_timeout / 1000
        high = settings.write_buffer_high_water_mark
        low = settings.write_buffer_low_water_mark
        self.high_water = high if high > 0 else max(limits.write_buffer_size, low)
        self.low_water = min(low if low > 0 else self.high_water // 4, self.high_water)
        self.ttl = self.ttl_of(configuration)
        self._servers: list[asyncio.Server] = []

    def ttl_of(self, configuration: Configuration) -> float:
        """Return the seconds of silence after which a client is dead; 0: only its protocol's heart-beats decide."""
        override = configuration.connection_ttl_override
        ttl = override if override > 0 else self.acceptor.settings.connection_ttl
        return ttl / 1000 if ttl > 0 else 0.0

    async def listen(self) -> None:
        """Bind every address the host name stands for, IPv4 and IPv6, on one port. Raises ListenError."""
        host, port = self.acceptor.host, self.acceptor.port
        try:
            addresses = await self._resolve(host, port)
        except OSError as error:
            raise ListenError(
                f"acceptor {self.name!r}: the host {host!r} cannot be resolved: {error.strerror}"
            ) from error
        for attempt in range(_BIND_RETRIES):
            try:
                self._servers = await self._bind(addresses)
                break
            except OSError as error:
                # With port 0 the second family may find the first one's port taken: choose again.
                if port == 0 and error.errno == errno.EADDRINUSE and attempt + 1 < _BIND_RETRIES:
                    continue
                hint = {
                    errno.EADDRINUSE: "another program listens there (see: ss -ltnp)",
                    errno.EACCES: "ports below 1024 need CAP_NET_BIND_SERVICE",
                    errno.EADDRNOTAVAIL: "this machine does not have that address",
                }.get(error.errno or 0, "check the acceptor's host and port")
                raise ListenError(
                    f"acceptor {self.name!r}: cannot listen on {host}:{port}: {error.strerror}; {hint}"
                ) from error
        event(
            logger,
            logging.INFO,
            "acceptor listens",
            acceptor=self.name,
            host=host,
            port=self.port,
            protocols=sorted(protocol.value for protocol in self._factories),
            tls="required" if self.rules.tls_required else "offered" if self.tls else "off",
        )

    async def _resolve(self, host: str, port: int) -> list[tuple[int, tuple[Any, ...]]]:
        if host in ("", "*"):
            host = "::" if _has_ipv6() else "0.0.0.0"  # noqa: S104  (the file asked for every interface)
        found = await self.loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        addresses = list(dict.fromkeys((family, address) for family, _, _, _, address in found))
        # A loopback name may stand for ::1 on a machine without IPv6.
        return [(family, address) for family, address in addresses if family != socket.AF_INET6 or _has_ipv6()]

    async def _bind(self, addresses: list[tuple[int, tuple[Any, ...]]]) -> list[asyncio.Server]:
        sockets: list[socket.socket] = []
        try:
            port = self.acceptor.port
            for family, address in addresses:
                listening = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
                sockets.append(listening)
                listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    # "::" alone serves both families; beside an IPv4 socket it must not claim its port.
                    only = int(len(addresses) > 1 or address[0] != "::")
                    listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, only)
                self._tune(listening)
                listening.bind((address[0], port, *address[2:]))
                port = listening.getsockname()[1]
            servers = [
                await self.loop.create_server(
                    lambda: Connection(self), sock=listening, backlog=self.acceptor.settings.backlog
                )
                for listening in sockets
            ]
        except BaseException:
            for listening in sockets:
                listening.close()
            raise
        return servers

    def _tune(self, listening: socket.socket) -> None:
        """Set the options that accepted sockets inherit; buffers must be set before the window is negotiated."""
        settings = self.acceptor.settings
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in _KEEPALIVE:
            listening.setsockopt(socket.IPPROTO_TCP, option, value)
        for option, size in (
            (socket.SO_SNDBUF, settings.tcp_send_buffer_size),
            (socket.SO_RCVBUF, settings.tcp_receive_buffer_size),
        ):
            if size > 0:
                listening.setsockopt(socket.SOL_SOCKET, option, size)

    @property
    def port(self) -> int:
        """Return the port listened on; 0 before :meth:`listen`."""
        for server in self._servers:
            for listening in server.sockets:
                return int(listening.getsockname()[1])
        return 0

    def stop_accepting(self) -> None:
        """Close the listening sockets; connections stay."""
        for server in self._servers:
            server.close()

    # -- what connections ask

    def admit(self, connection: Connection) -> str | None:
        """Count a new connection in; returns why it is refused, None when it is taken."""
        allowed = self.acceptor.settings.connections_allowed
        if 0 <= allowed <= self.open_connections:
            return f"the acceptor has {allowed} connections already (connectionsAllowed)"
        refusal = self.connections.add(connection)
        if refusal is None:
            self.open_connections += 1
        return refusal

    def released(self, connection: Connection) -> None:
        """Count a connection out, and out of its user's."""
        self.open_connections -= 1
        self.services.security.connection_closed(None, connection.peer)

    def tune(self, transport: asyncio.Transport) -> None:
        """Set the one socket option that event loops set by themselves, or do not."""
        no_delay = int(self.acceptor.settings.tcp_no_delay)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, no_delay)

    def session_factory(self, protocol: Protocol) -> SessionFactory | None:
        """Return the session class for ``protocol``; None when this acceptor does not speak it."""
        return self._factories.get(protocol)

    def speaks(self, protocol: Protocol) -> bool:
        """Tell whether this acceptor speaks ``protocol``."""
        return protocol in self._factories

    def certificate_subject(self, connection: Any) -> str | None:
        """Return the subject of the verified certificate of a TLS connection's client."""
        return self.tls.subject_of(connection) if self.tls is not None else None

    def asked_name(self, connection: Any) -> str | None:
        """Return the server name a TLS connection's client asked for."""
        return self.tls.asked_name(connection) if self.tls is not None else None


def make_tls(settings: ServerSettings, name: str) -> ServerTls | None:
    """Return the TLS of a port with sslEnabled; None for a plain one. Raises TlsError."""
    if not settings.ssl_enabled:
        return None
    from pollux.process.tls import ServerTls  # which takes a start's time, and most have none

    return ServerTls(settings, name)


def _has_ipv6() -> bool:
    if not socket.has_ipv6:
        return False
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_STREAM) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True
