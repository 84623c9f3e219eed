"""Connections to the other members of the cluster, as their connectors say: addresses, TLS, options of the socket.

Files are read when they have changed, so that renewed certificates count from the next connection on.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from typing import TYPE_CHECKING

from pollux.cluster import tls_advice
from pollux.cluster.link.core_link import CoreConnectionError, CoreLink
from pollux.config.tls import TlsError, client_context
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from pollux.cluster.link.conversation import CoreHub
    from pollux.config.acceptors import Connector, ConnectorSettings, Endpoint

#: Contexts kept, one for each set of settings; a cluster has one or two.
_CONTEXTS = 64


class UnreachableError(CoreConnectionError):
    """A member cannot be reached. ``remedy`` empty: it may just not run, or wait; else somebody has to do something."""

    def __init__(self, reason: str, *, file: str = "", remedy: str = "") -> None:
        super().__init__(reason)
        self.file = file
        self.remedy = remedy

    @property
    def refused(self) -> bool:
        """Whether its machine said that nobody listens there; who is cut off hears nothing."""
        return isinstance(self.__cause__, ConnectionRefusedError)


def tell(logger: logging.Logger, message: str, member: str, error: UnreachableError) -> None:
    """Log one line that names the member, the file and the remedy; a warning where there is something to do."""
    level = logging.WARNING if error.remedy else logging.INFO
    event(logger, level, message, member=member, reason=error, file=error.file or None, remedy=error.remedy or None)


def check_connectors(connectors: Iterable[Connector]) -> None:
    """Read the key and trust stores of all connectors. Raises TlsError, which names the connector and the file."""
    for connector in connectors:
        for settings in {endpoint.settings for endpoint in connector.endpoints if endpoint.settings.ssl_enabled}:
            try:
                client_context(settings)
            except TlsError as error:
                raise TlsError(f"connector {connector.name!r}: {error}") from error


class Contexts:
    """One TLS context for each set of settings."""

    def __init__(self) -> None:
        self._contexts: dict[ConnectorSettings, tuple[tuple[object, ...], ssl.SSLContext]] = {}

    def context(self, settings: ConnectorSettings) -> ssl.SSLContext | None:
        """The TLS of a connector, None without; read again when a file of it was changed. Raises TlsError."""
        if not settings.ssl_enabled:
            return None
        files = (*settings.key_store_path, settings.trust_store_path, settings.crl_path)
        stamp = tuple(_stamp(path) for path in files if path)
        known = self._contexts.get(settings)
        if known is not None and known[0] == stamp:
            return known[1]
        context = client_context(settings)
        if len(self._contexts) >= _CONTEXTS:
            self._contexts.clear()
        self._contexts[settings] = (stamp, context)
        return context


class ClusterConnector(Contexts):
    """Connects to members, with one TLS context for each set of settings. Everything is called in the loop's thread."""

    def __init__(self, hub: CoreHub, silence: float | None = None) -> None:
        """``silence``: seconds after which a connection is dead; None: as the hub has it."""
        super().__init__()
        self._hub = hub
        self._silence = silence

    async def connect(self, endpoint: Endpoint, limit: float) -> CoreLink:
        """Connect and prove who we are, within ``limit`` seconds. Raises UnreachableError."""
        settings = endpoint.settings
        if settings.connect_timeout > 0:
            limit = min(limit, settings.connect_timeout / 1000)
        try:
            tls = self.context(settings)
        except TlsError as error:
            raise UnreachableError(
                str(error), remedy="correct this connector's keyStorePath or trustStorePath"
            ) from error
        link: CoreLink | None = None
        try:
            async with asyncio.timeout(limit):
                link = await self._connected(endpoint, tls)
                await link.ready
        except BaseException as error:
            if link is not None:
                link.close("not ready")
            if isinstance(error, TimeoutError):
                raise UnreachableError(f"no answer within {limit:g} s") from None
            if isinstance(error, CoreConnectionError | OSError):
                raise _unreachable(settings, link, error) from error
            raise
        return link

    async def _connected(self, endpoint: Endpoint, tls: ssl.SSLContext | None) -> CoreLink:
        loop, settings = asyncio.get_running_loop(), endpoint.settings
        local = (settings.local_address, settings.local_port) if settings.local_address else None
        if local is None and settings.local_port:
            local = ("0.0.0.0", settings.local_port)  # noqa: S104  (any address of ours, nothing is listened on)
        transport, link = await loop.create_connection(
            lambda: CoreLink(self._hub, loop, self._silence),
            endpoint.host,
            endpoint.port,
            ssl=tls,
            # With sniHost that is the name which the certificate has to be for.
            server_hostname=(settings.sni_host or endpoint.host) if tls is not None else None,
            local_addr=local,
        )
        # It may have broken off since: then there is no socket any more, and the link says why.
        if not transport.is_closing():
            _tune(transport.get_extra_info("socket"), settings)
        return link


def _stamp(path: Path) -> object:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _tune(connected: socket.socket, settings: ConnectorSettings) -> None:
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, int(settings.tcp_no_delay))
    for option, size in (
        (socket.SO_SNDBUF, settings.tcp_send_buffer_size),
        (socket.SO_RCVBUF, settings.tcp_receive_buffer_size),
    ):
        if size > 0:
            connected.setsockopt(socket.SOL_SOCKET, option, size)


def _unreachable(
    settings: ConnectorSettings, link: CoreLink | None, error: CoreConnectionError | OSError
) -> UnreachableError:
    """Return the error in words, with a remedy when it is about TLS."""
    if link is not None and link.heard:
        return UnreachableError(str(error))  # it said itself what it does not like
    if isinstance(error, OSError) and not (settings.ssl_enabled and _in_handshake(error)):
        return UnreachableError(error.strerror or str(error) or type(error).__name__)
    cause = error if isinstance(error, OSError) else link.error if link is not None else None
    advice = tls_advice.connecting(settings, cause, shaken=link is not None)
    return UnreachableError(advice.reason, file=advice.file, remedy=advice.remedy)


def _in_handshake(error: OSError) -> bool:
    """A connection that was never made has an error number; one that broke in the handshake has not, or is TLS's."""
    return isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError)
