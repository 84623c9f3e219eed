"""A running broker's one port: AMQP, STOMP and MQTT, plain and with TLS, and two certificates chosen by SNI."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

PASSWORD = "castor"
TIMEOUT = 30.0


class Stream:
    """A client's connection, read exactly."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.connection.recv(size - len(data))
            assert chunk, f"closed after {data!r}"
            data += chunk
        return data

    def read_until(self, end: bytes) -> bytes:
        data = b""
        while not data.endswith(end):
            data += self.read(1)
        return data


def amqp(stream: Stream, user: str, password: str) -> None:
    """SASL PLAIN, then the AMQP header of the broker."""
    stream.connection.sendall(b"AMQP\x03\x01\x00\x00")
    assert stream.read(8) == b"AMQP\x03\x01\x00\x00"
    mechanisms = stream.read(int.from_bytes(stream.read(4), "big") - 4)
    assert b"PLAIN" in mechanisms
    response = f"\0{user}\0{password}".encode()
    fields = b"\xa3\x05PLAIN\xa0" + bytes([len(response)]) + response
    frame = b"\x02\x01\x00\x00\x00\x53\x41\xc0" + bytes([len(fields) + 1, 2]) + fields
    stream.connection.sendall((len(frame) + 4).to_bytes(4, "big") + frame)
    outcome = stream.read(int.from_bytes(stream.read(4), "big") - 4)
    assert outcome[5:7] == b"\x53\x44"
    assert outcome.endswith(b"\x50\x00"), outcome  # code ok
    stream.connection.sendall(b"AMQP\x00\x01\x00\x00")
    assert stream.read(8) == b"AMQP\x00\x01\x00\x00"


def stomp(stream: Stream, user: str, password: str) -> None:
    """Log in, send a message and take it out again."""
    stream.connection.sendall(
        f"CONNECT\naccept-version:1.2\nhost:x\nlogin:{user}\npasscode:{password}\n\n\0".encode()
        + b"SEND\ndestination:orders\nreceipt:1\n\nhello\0"
    )
    assert stream.read_until(b"\0").startswith(b"CONNECTED\n")
    assert stream.read_until(b"\0").strip().startswith(b"RECEIPT\n")
    stream.connection.sendall(b"SUBSCRIBE\nid:1\ndestination:orders\nack:auto\n\n\0")
    message = stream.read_until(b"\0").strip()
    assert message.startswith(b"MESSAGE\n")
    assert message.endswith(b"\n\nhello\0")


def mqtt(stream: Stream, user: str, password: str) -> None:
    """MQTT 3.1.1: CONNECT, CONNACK without a session, return code 0."""

    def text(value: str) -> bytes:
        return len(value).to_bytes(2, "big") + value.encode()

    body = b"\0\x04MQTT\x04\xc2\0\0" + text("tls-test") + text(user) + text(password)
    stream.connection.sendall(b"\x10" + bytes([len(body)]) + body)
    assert stream.read(4) == b"\x20\x02\0\0"


@pytest.mark.parametrize("speak", [amqp, stomp, mqtt])
def test_sni_and_plain_on_one_port_for_each_protocol(
    speak: Callable[[Stream, str, str], None], instance: Any, authority: Any
) -> None:
    stores = ",".join(str(authority.issue(name, f"{name}.test")) for name in ("castor", "pollux"))
    instance.configure(parameters=f"sslEnabled=true;sslAllowPlain=true;keyStorePath={stores}")
    instance.start()
    port = instance.ports["all"]
    for asked in ("castor", "pollux"):
        with (
            socket.create_connection(("127.0.0.1", port), TIMEOUT) as raw,
            authority.client_context().wrap_socket(raw, server_hostname=f"{asked}.test") as connection,
        ):
            subject = dict(part[0] for part in connection.getpeercert()["subject"])
            assert subject["commonName"] == asked
            speak(Stream(connection), "ada", PASSWORD)
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as raw:
        speak(Stream(raw), "ada", PASSWORD)
