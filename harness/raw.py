"""Sockets that send what no client library would, and a witness that shows whether others are still served.

Knows just enough of the protocols to log in; it judges nothing.
"""

from __future__ import annotations

import socket
import struct
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from harness.broker import PASSWORD, USER
from harness.loadclient.amqp import AmqpConnection
from harness.loadclient.target import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from harness.broker import BrokerProcess

#: Nothing that the broker owes an attacker (an error, the end of the connection) takes longer than this (seconds).
LIMIT = 45.0


@contextmanager
def plain(broker: BrokerProcess, acceptor: str = "all", source: str = "127.0.0.1") -> Iterator[socket.socket]:
    """A TCP connection on which nothing was said."""
    with socket.create_connection(("127.0.0.1", broker.ports[acceptor]), LIMIT, (source, 0)) as opened:
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        yield opened


@contextmanager
def stomp(
    broker: BrokerProcess, user: str = USER, password: str = PASSWORD, source: str = "127.0.0.1"
) -> Iterator[socket.socket]:
    """A STOMP 1.2 connection that is logged in."""
    with plain(broker, source=source) as opened:
        opened.sendall(f"CONNECT\naccept-version:1.2\nhost:/\nlogin:{user}\npasscode:{password}\n\n\0".encode())
        greeting = read_until(opened, b"\0")
        assert greeting.startswith(b"CONNECTED\n"), greeting
        yield opened


@contextmanager
def mqtt(broker: BrokerProcess, client_id: str = "hostile") -> Iterator[socket.socket]:
    """An MQTT 5 connection that is logged in."""
    with plain(broker) as opened:
        body = field(b"MQTT") + b"\x05\xc2\0\0\0" + field(client_id.encode())
        opened.sendall(packet(0x10, body + field(USER.encode()) + field(PASSWORD.encode())))
        answer = opened.recv(2, socket.MSG_WAITALL)
        rest = opened.recv(answer[1], socket.MSG_WAITALL)
        assert answer[0] == 0x20, answer
        assert rest[1] == 0, rest
        yield opened


@contextmanager
def amqp(broker: BrokerProcess) -> Iterator[socket.socket]:
    """An AMQP connection with one session on channel 0."""
    connection = AmqpConnection(Target("127.0.0.1", broker.port, USER, PASSWORD), "hostile")
    connection.socket.settimeout(LIMIT)
    try:
        yield connection.socket
    finally:
        connection.close()


LOGINS: dict[str, Callable[[BrokerProcess], AbstractContextManager[socket.socket]]] = {
    "plain": plain,
    "stomp": stomp,
    "mqtt": mqtt,
    "amqp": amqp,
}


def field(value: bytes) -> bytes:
    """MQTT's string or binary."""
    return struct.pack(">H", len(value)) + value


def variable(value: int) -> bytes:
    """MQTT's variable byte integer."""
    found = bytearray()
    while True:
        value, low = divmod(value, 128)
        found.append(low | (128 if value else 0))
        if not value:
            return bytes(found)


def packet(first: int, body: bytes) -> bytes:
    """An MQTT packet."""
    return bytes((first,)) + variable(len(body)) + body


def read_packet(opened: socket.socket) -> tuple[int, bytes]:
    """The first byte of the next MQTT packet, and what is behind its length."""
    first = opened.recv(1, socket.MSG_WAITALL)[0]
    length = shift = 0
    while True:
        byte = opened.recv(1, socket.MSG_WAITALL)[0]
        length |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return first, opened.recv(length, socket.MSG_WAITALL) if length else b""


def read_until(opened: socket.socket, mark: bytes) -> bytes:
    """Read until these bytes came."""
    data = b""
    while mark not in data:
        chunk = opened.recv(65536)
        assert chunk, f"closed after {data!r}"
        data += chunk
    return data


def read_to_end(opened: socket.socket) -> bytes:
    """Read until the broker has closed the connection; TimeoutError when it does not."""
    data = b""
    opened.settimeout(LIMIT)
    while True:
        try:
            chunk = opened.recv(1 << 18)
        except ConnectionError:
            return data
        if not chunk:
            return data
        data += chunk


def send_unless_closed(opened: socket.socket, data: bytes) -> None:
    """Send; a broker that has closed the connection in the middle is what the caller wants to see."""
    try:
        opened.sendall(data)
    except ConnectionError:
        return


def resident(broker: BrokerProcess, what: str = "VmRSS") -> int:
    """Bytes of memory of the broker's process (VmHWM: the most it ever had)."""
    assert broker.process is not None
    for line in Path(f"/proc/{broker.process.pid}/status").read_text().splitlines():
        if line.startswith(what + ":"):
            return int(line.split()[1]) * 1024
    raise AssertionError(what)


def upgrade(subprotocol: str = "mqtt") -> bytes:
    """A whole request to speak WebSocket."""
    return (
        "GET / HTTP/1.1\r\nHost: broker\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        f"Sec-WebSocket-Protocol: {subprotocol}\r\n\r\n"
    ).encode()


def framed(payload: bytes, first: int = 0x82, *, size: int | None = None) -> bytes:
    """A WebSocket frame of a client, masked with zeros; it may say another `size` than it has."""
    return struct.pack(">BBQI", first, 0xFF, len(payload) if size is None else size, 0) + payload
