"""The header of a proxy before what a client sends: whose connection it is, and what is no header."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import struct
from typing import TYPE_CHECKING

import pytest

from broker.process.echoing import AMQP, PATIENCE, bench, finish, until
from harness.tls import make_certificates
from pollux.config.acceptors import AcceptorSettings
from pollux.config.model import Limits
from pollux.wire.proxy import LARGEST, Proxied, ProxyError, parse

if TYPE_CHECKING:
    from pathlib import Path

SIGNATURE = b"\r\n\r\n\x00\r\nQUIT\n"
PROXIED = AcceptorSettings(proxy_protocol_enabled=True)


def binary(command: int = 0x21, kind: int = 0x11, body: bytes = b"", length: int | None = None) -> bytes:
    return SIGNATURE + bytes([command, kind]) + struct.pack(">H", len(body) if length is None else length) + body


FOUR = socket.inet_aton("192.0.2.1") + socket.inet_aton("198.51.100.1") + struct.pack(">HH", 4711, 5672)
SIX = socket.inet_pton(socket.AF_INET6, "2001:db8::1") * 2 + struct.pack(">HH", 4711, 5672)
HEADERS = {
    "tcp4": (b"PROXY TCP4 192.0.2.1 198.51.100.1 4711 5672\r\n", "192.0.2.1", 4711),
    "tcp6": (b"PROXY TCP6 2001:db8::1 2001:db8::2 4711 5672\r\n", "2001:db8::1", 4711),
    "unknown": (b"PROXY UNKNOWN ffff::1 ffff::2 1 2\r\n", "", 0),
    "binary": (binary(body=FOUR), "192.0.2.1", 4711),
    "binary 6": (binary(kind=0x21, body=SIX), "2001:db8::1", 4711),
    "tlvs": (binary(body=FOUR + b"\x02\x00\x03abc"), "192.0.2.1", 4711),
    "local": (binary(command=0x20, kind=0, body=b""), "", 0),
    "unix": (binary(kind=0x31, body=bytes(216)), "", 0),
    "unspecified": (binary(kind=0x00, body=bytes(12)), "", 0),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_in_any_slices(name: str) -> None:
    header, address, port = HEADERS[name]
    for size in range(len(header)):
        assert parse(header[:size]) is None
    assert parse(header) == parse(header + AMQP) == Proxied(len(header), address, port)


@pytest.mark.parametrize(
    "data",
    [
        AMQP,
        b"\x16\x03\x01",
        b"CONNECT\n",
        b"\r\n\r\nCONNECT\n",
        b"PROXY TCP4 192.0.2.1\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.1 4711 5672 1\r\n",
        b"PROXY TCP4 2001:db8::1 2001:db8::2 4711 5672\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.1 70000 5672\r\n",
        b"PROXY TCP4 192.0.2.1 198.51.100.1 -1 5672\r\n",
        b"PROXY UDP4 192.0.2.1 198.51.100.1 1 2\r\n",
        b"PROXY \xff\r\n",
        b"PROXY " + b"x" * 200,
        binary(command=0x11, body=FOUR),
        binary(command=0x22, body=FOUR),
        binary(body=FOUR[:11]),
        binary(length=LARGEST + 1),
    ],
)
def test_what_is_no_header(data: bytes) -> None:
    with pytest.raises(ProxyError):
        parse(data)


@pytest.mark.parametrize("name", ["tcp4", "binary"])
async def test_the_client_is_who_the_proxy_says(name: str) -> None:
    async with bench(AcceptorSettings(proxy_protocol_enabled=True)) as server:
        reader, writer = await server.open()
        for byte in HEADERS[name][0] + AMQP:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert await asyncio.wait_for(reader.readexactly(8), PATIENCE) == AMQP
        (connection,) = server.connections
        assert (connection.peer.address, connection.peer.port) == ("192.0.2.1", 4711)
        await finish(writer)
        await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
        assert not server.connections._per_host
        assert (server.connections.strangers.held, len(server.connections.strangers)) == (0, 0)


async def test_a_proxy_that_speaks_for_itself_is_who_it_is() -> None:
    async with bench(PROXIED) as server:
        reader, writer = await server.open()
        writer.write(HEADERS["local"][0] + AMQP)
        assert await asyncio.wait_for(reader.readexactly(8), PATIENCE) == AMQP
        (connection,) = server.connections
        assert connection.peer.address == "127.0.0.1"
        await finish(writer)


async def test_tls_is_behind_the_header(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    settings = AcceptorSettings(
        proxy_protocol_enabled=True, ssl_enabled=True, key_store_path=(tmp_path / "broker.pem",)
    )
    context = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    context.check_hostname = False
    async with bench(settings) as server:
        reader, writer = await server.open()
        writer.write(HEADERS["tcp4"][0])
        await writer.drain()
        await writer.start_tls(context)
        writer.write(AMQP)
        assert await asyncio.wait_for(reader.readexactly(8), PATIENCE) == AMQP
        (connection,) = server.connections
        assert (connection.peer.address, connection.peer.tls) == ("192.0.2.1", True)
        await finish(writer)


@pytest.mark.parametrize("enabled", [True, False])
async def test_who_does_not_do_as_the_acceptor_says_is_closed(enabled: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Without a header nobody knows whose it is; where none is expected, anybody could say that he is somebody else."""
    caplog.set_level(logging.DEBUG, "pollux.connection")
    async with bench(PROXIED if enabled else AcceptorSettings()) as server:
        reader, writer = await server.open()
        writer.write(AMQP if enabled else HEADERS["tcp4"][0] + AMQP)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE)
        await finish(writer)
        await until(lambda: not server.connections)
    assert ("not with a header of the PROXY protocol" in str([vars(each) for each in caplog.records])) is enabled


async def test_a_clients_connections_are_counted_for_it_and_not_for_the_proxy() -> None:
    async with bench(PROXIED, Limits(max_connections_per_host=1)) as server:
        streams = []
        for last in (1, 2):
            reader, writer = await server.open()
            header = f"PROXY TCP4 192.0.2.{last} 198.51.100.1 4711 5672\r\n".encode()
            writer.write(header + AMQP + b"LOGIN")
            await asyncio.wait_for(reader.readexactly(13), PATIENCE)
            streams.append(writer)
        reader, writer = await server.open()
        writer.write(b"PROXY TCP4 192.0.2.2 198.51.100.1 4712 5672\r\n" + AMQP)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE)
        assert len(server.connections) == 2
        for each in (*streams, writer):
            await finish(each)
