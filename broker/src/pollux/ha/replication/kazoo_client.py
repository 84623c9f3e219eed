"""kazoo's client as Pollux uses it: connections with a limit of their own, and what session the servers grant.

kazoo has no public word for either; the two places where it is met are here. ``requirements.lock`` pins its version,
and ``tests/broker/ha/test_coordination.py`` meets both with a real server.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect
from kazoo.retry import KazooRetry
from kazoo.security import make_digest_acl

if TYPE_CHECKING:
    from collections.abc import Callable


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """Threads, and connections that we make."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self._seconds = seconds

    def create_connection(self, address: tuple[str, int], *, timeout: float, **_: object) -> socket.socket:
        """Connect to one server. Called by kazoo, which takes an OSError as a reason to try the next one."""
        connection = socket.create_connection(address, min(timeout, self._seconds))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def make_client(
    connect_string: str,
    session: float,
    *,
    connection: float,
    credentials: tuple[str, str] | None = None,
    known: tuple[int, bytes] | None = None,
    granted: Callable[[float], None] = lambda _: None,
) -> KazooClient:
    """A client that is not started yet. Times in seconds.

    ``connection`` bounds connecting to one server and agreeing on the session, each; a server that hangs never costs
    more than its share of a session. ``known``: id and password of a session that is there. ``granted`` is told the
    session that a server grants, in kazoo's thread, before anybody learns that there is a connection.
    """
    hosts = connect_string.partition("/")[0].count(",") + 1
    seconds = min(connection, session / hosts)
    client = KazooClient(
        connect_string,
        timeout=session,
        client_id=known,
        handler=_Handler(seconds),
        connection_retry=KazooRetry(max_tries=-1, delay=0.05, backoff=2, max_delay=1.0),
        auth_data=[("digest", f"{credentials[0]}:{credentials[1]}")] if credentials is not None else None,
        default_acl=[make_digest_acl(*credentials, all=True)] if credentials is not None else None,
    )
    loop = client._connection  # noqa: SLF001  (see the module)
    invoke = loop._invoke  # noqa: SLF001

    def agree(timeout: float, request: Any, xid: int | None = None) -> Any:
        if not isinstance(request, Connect):
            return invoke(timeout, request, xid)
        answer = invoke(min(timeout, seconds), request, xid)
        if answer[0].time_out > 0:  # else the session has ended
            granted(answer[0].time_out / 1000)
        return answer

    loop._invoke = agree  # noqa: SLF001
    return client
