"""kazoo's client as Pollux uses it: connections with a limit and TLS of our own, and what session the servers grant.

kazoo would trust the system's authorities beside the given ones, compare no names, and wait a session for a server; and
it has no public word for the session granted. The one place where that is met is here; ``requirements.lock`` pins the
version, and ``tests/broker/ha/test_coordination.py`` meets it with a real server.
"""

from __future__ import annotations

import logging
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

from pollux.config.tls import TlsError, client_context
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.config.acceptors import ConnectorSettings

logger = logging.getLogger("pollux.ha")


class _Refusals:
    """Why TLS with a server failed: one line for each reason, and again after it has worked.

    kazoo tries for ever and cannot tell why: a wrong certificate looks to it like a server that is away.
    """

    def __init__(self) -> None:
        self._said: dict[str, str] = {}

    def say(self, server: str, error: Exception) -> None:
        """``error`` came instead of a connection."""
        if isinstance(error, (ssl.SSLEOFError, ConnectionResetError)):
            reason = "it closes the connection: it may speak no TLS on this port"
        else:
            reason = getattr(error, "verify_message", "") or getattr(error, "reason", None) or str(error)
        if self._said.get(server) != reason:
            self._said[server] = reason
            event(
                logger,
                logging.ERROR,
                "no TLS connection to ZooKeeper: check the certificates of both sides, px:zookeeper-tls and the port in"
                " connect-string",
                server=server,
                reason=reason,
            )

    def forget(self, server: str) -> None:
        """Tell its next reason again: it works now."""
        self._said.pop(server, None)


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Threads, and connections that we make."""

    def __init__(self, seconds: float, tls: ConnectorSettings | None) -> None:
        super().__init__()
        self._seconds = seconds
        self._tls = tls
        self.refusals = _Refusals()
        #: Who is being connected to, for people.
        self.server = ""

    def create_connection(
        self, address: tuple[str, int], *, hostname: str, timeout: float, **_: object
    ) -> socket.socket:
        """Connect to one server. Called by kazoo, which takes an OSError as a reason to try the next one."""
        self.server = f"{hostname}:{address[1]}"
        connection = socket.create_connection(address, min(timeout, self._seconds))
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return connection if self._tls is None else self._encrypt(connection, hostname, self._tls)
        except BaseException:
            connection.close()
            raise

    def _encrypt(self, connection: socket.socket, hostname: str, tls: ConnectorSettings) -> socket.socket:
        try:
            # Files are read each time, so that renewed certificates are used.
            return client_context(tls).wrap_socket(connection, server_hostname=hostname)
        except (ssl.SSLError, ConnectionResetError, TlsError) as error:
            self.refusals.say(self.server, error)
            raise OSError(str(error)) from error


def make_client(
    connect_string: str,
    session: float,
    *,
    connection: float,
    credentials: tuple[str, str] | None = None,
    tls: ConnectorSettings | None = None,
    known: tuple[int, bytes] | None = None,
    granted: Callable[[float], None] = lambda _: None,
) -> KazooClient:
    """Return a client that is not started yet. Times in seconds.

    ``connection`` bounds connecting to one server and agreeing on the session, each; a server that hangs never costs
    more than its share of a session. ``known``: id and password of a session that is there. ``granted`` is told the
    session that a server grants, in kazoo's thread, before anybody learns that there is a connection. Raises TlsError
    when what ``tls`` names cannot be used.
    """
    if tls is not None:
        client_context(tls)  # what is wrong now is told at once
    hosts = connect_string.partition("/")[0].count(",") + 1
    seconds = min(connection, session / hosts)
    handler = _Handler(seconds, tls)
    client = KazooClient(
        connect_string,
        timeout=session,
        client_id=known,
        handler=handler,
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0),
        auth_data=[("digest", f"{credentials[0]}:{credentials[1]}")] if credentials is not None else None,
        default_acl=[make_digest_acl(*credentials, all=True)] if credentials is not None else None,
    )
    loop = client._connection  # noqa: SLF001  (see the module)
    invoke = loop._invoke  # noqa: SLF001
    refused_since: float | None = None

    def agree(timeout: float, request: Any, xid: int | None = None) -> Any:
        nonlocal refused_since
        if not isinstance(request, Connect):
            return invoke(timeout, request, xid)
        try:
            answer = invoke(min(timeout, seconds), request, xid)
        except ConnectionDropped as error:
            refused_since = time.monotonic() if refused_since is None else refused_since
            if time.monotonic() - refused_since > session:
                # Servers that were wiped drop whoever has seen more than they have, without a word and for ever. After
                # a session nothing is left that would have to be seen in order: ask as somebody who comes anew does.
                client.last_zxid = 0
            # With TLS 1.3 a server refuses our certificate after the connection was made. One that only closes it may
            # be without a majority now.
            if isinstance(error.__context__, ssl.SSLError):
                handler.refusals.say(handler.server, error)
            raise
        refused_since = None
        handler.refusals.forget(handler.server)
        if answer[0].time_out > 0:  # else the session has ended
            granted(answer[0].time_out / 1000)
        return answer

    loop._invoke = agree  # noqa: SLF001
    return client
