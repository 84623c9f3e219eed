"""Sockets and the loop of the load client: connections with a bounded output buffer, one epoll for all of them.

Knows no protocol. Set-up (handshakes) is done with blocking reads; then every connection is handed to `run`.
"""

from __future__ import annotations

import select
import socket
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

READ_SIZE = 1 << 18
#: Without any byte for so long (seconds) a run is given up.
STALL_LIMIT = 30.0
HANDSHAKE_LIMIT = 20.0


class LoadError(Exception):
    """The broker refused something or fell silent; the run is worth nothing."""


class Connection:
    """One connection: blocking for its handshake, then driven by `run`."""

    #: The same as `socket`; None until there is one, and for ever where nobody accepted.
    _opened: socket.socket | None = None

    def __init__(self, host: str, port: int) -> None:
        self.socket = self._opened = socket.create_connection((host, port), HANDSHAKE_LIMIT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.unsent: list[memoryview] = []
        self.epoll: select.epoll | None = None
        #: Bytes of an incomplete frame.
        self.rest = b""

    def receive_exactly_until(self, complete: Callable[[bytes], bool]) -> bytes:
        """Read during the handshake until `complete` says so; return everything read."""
        data = self.rest
        self.rest = b""
        while not complete(data):
            chunk = self.socket.recv(READ_SIZE)
            if not chunk:
                raise LoadError(f"the broker closed the connection during the handshake: {data[-200:]!r}")
            data += chunk
        return data

    def send(self, data: bytes | memoryview) -> None:
        """Send now what the socket takes, the rest when it is writable again."""
        if self.epoll is None:
            self.socket.sendall(data)
            return
        if self.unsent:
            self.unsent.append(memoryview(data))
            return
        try:
            sent = self.socket.send(data)
        except BlockingIOError:
            sent = 0
        if sent < len(data):
            self.unsent.append(memoryview(data)[sent:])
            self.epoll.modify(self.socket, select.EPOLLIN | select.EPOLLOUT)

    def flush(self) -> None:
        """The socket is writable: send what waits."""
        assert self.epoll is not None
        while self.unsent:
            try:
                sent = self.socket.send(self.unsent[0])
            except BlockingIOError:
                return
            if sent < len(self.unsent[0]):
                self.unsent[0] = self.unsent[0][sent:]
                return
            del self.unsent[0]
        self.epoll.modify(self.socket, select.EPOLLIN)

    def start(self) -> None:
        """Start the traffic; the handshake is done and the socket is non-blocking."""

    def received(self, data: bytes) -> None:
        """Handle what arrived, incomplete frames of earlier reads included."""
        raise NotImplementedError

    @property
    def done(self) -> bool:
        """True when this connection has nothing left to do."""
        raise NotImplementedError

    def close(self) -> None:
        """Close without ceremony."""
        self.socket.close()

    def __del__(self) -> None:
        """A handshake that failed leaves nobody else to close the socket."""
        if self._opened is not None:
            self._opened.close()


def run(connections: Sequence[Connection]) -> None:
    """Start every connection and drive them until all are done; LoadError when one is closed or all fall silent."""
    epoll = select.epoll()
    by_descriptor = {connection.socket.fileno(): connection for connection in connections}
    for connection in connections:
        connection.socket.setblocking(False)
        connection.epoll = epoll
        epoll.register(connection.socket, select.EPOLLIN)
    for connection in connections:
        connection.start()
    pending = [connection for connection in connections if not connection.done]
    last = time.monotonic()
    while pending:
        events = epoll.poll(1.0)
        if not events and time.monotonic() - last > STALL_LIMIT:
            raise LoadError(f"nothing arrived for {STALL_LIMIT:.0f} s; {len(pending)} connections were not done")
        for descriptor, event in events:
            connection = by_descriptor[descriptor]
            if event & select.EPOLLOUT:
                connection.flush()
            if event & ~select.EPOLLOUT:
                try:
                    data = connection.socket.recv(READ_SIZE)
                except BlockingIOError:
                    continue
                if not data:
                    raise LoadError("the broker closed a connection under load")
                connection.received(connection.rest + data if connection.rest else data)
        if events:
            last = time.monotonic()
            if connection.done:  # the last one looked at: cheap, and enough to notice every end
                pending = [connection for connection in pending if not connection.done]
    epoll.close()
