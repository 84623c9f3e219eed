"""WebSocket on a real acceptor, in front of sessions that only echo: by what clients see of it."""

from __future__ import annotations

import asyncio
import base64
import os
from typing import TYPE_CHECKING, Any

import pytest

from pollux.config.acceptors import AcceptorSettings
from pollux.process.output import ANSWER_ALLOWANCE
from pollux.wire.websocket.frames import (
    BINARY,
    CLOSE,
    PING,
    PONG,
    TEXT,
    unmask,
)

from .echoing import AMQP, PATIENCE, Bench, bench, finish, until

if TYPE_CHECKING:
    from .conftest import Authority


class Client:
    """A WebSocket client that says exactly what a test wants."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.answer = b""

    @classmethod
    async def open(cls, server: Bench, *offered: str, origin: str | None = None, **options: Any) -> Client:
        self = cls(*await server.open(**options))
        lines = [
            "GET / HTTP/1.1",
            "Host: broker",
            "Upgrade: websocket",
            "Connection: Upgrade",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
            "Sec-WebSocket-Version: 13",
        ]
        if offered:
            lines.append(f"Sec-WebSocket-Protocol: {', '.join(offered)}")
        if origin is not None:
            lines.append(f"Origin: {origin}")
        self.writer.write("\r\n".join([*lines, "", ""]).encode())
        self.answer = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), PATIENCE)
        return self

    def send(self, payload: bytes, opcode: int = BINARY) -> None:
        assert len(payload) < 126
        key = os.urandom(4)
        self.writer.write(bytes((0x80 | opcode, 0x80 | len(payload))) + key + unmask(payload, key))

    async def receive(self) -> tuple[int, bytes]:
        async with asyncio.timeout(PATIENCE):
            first, size = await self.reader.readexactly(2)
            assert first & 0x80
            if size > 125:
                size = int.from_bytes(await self.reader.readexactly(2 if size == 126 else 8), "big")
            return first & 0x0F, await self.reader.readexactly(size)

    async def rest(self) -> bytes:
        return await asyncio.wait_for(self.reader.read(), PATIENCE)

    async def finish(self) -> None:
        await finish(self.writer)


async def test_a_sub_protocol_is_agreed_on_and_payload_goes_both_ways() -> None:
    async with bench() as server:
        client = await Client.open(server, "binary", "amqp")
        assert client.answer.startswith(b"HTTP/1.1 101 ")
        assert b"Sec-WebSocket-Protocol: amqp\r\n" in client.answer
        client.send(AMQP)
        assert await client.receive() == (BINARY, AMQP)
        (connection,) = server.connections
        assert connection.describe()["webSocket"]
        assert connection.describe()["protocol"] == "AMQP"
        client.send(b"there?", PING)
        assert await client.receive() == (PONG, b"there?")
        client.send(b"FLOOD")
        opcode, payload = await client.receive()
        assert (opcode, len(payload)) == (BINARY, 4 << 20)
        await client.finish()


async def test_without_a_sub_protocol_the_first_payload_says_the_protocol() -> None:
    async with bench() as server:
        client = await Client.open(server)
        assert b"Sec-WebSocket-Protocol" not in client.answer
        for byte in AMQP:
            client.send(bytes((byte,)))
        assert (await client.receive())[1] == AMQP[:4]
        await client.finish()


@pytest.mark.parametrize("first", [b"nonsense", b"GET / HTTP/1.1", b"\x16\x03\x01", b"POLLUX"])
async def test_what_is_no_clients_protocol_is_refused_within_too(first: bytes) -> None:
    async with bench() as server:
        client = await Client.open(server)
        client.send(first)
        opcode, payload = await client.receive()
        assert (opcode, payload[:2]) == (CLOSE, b"\x03\xea")
        assert await client.rest() == b""
        assert server.connections.refused == 1
        await client.finish()


async def test_other_sub_protocols_are_refused_with_those_there_are() -> None:
    async with bench() as server:
        client = await Client.open(server, "soap", "mqtt")
        assert client.answer.startswith(b"HTTP/1.1 400 ")
        assert b"amqp" in await client.rest()
        await client.finish()


@pytest.mark.parametrize(
    ("origin", "status"), [("https://console.example", b"101 "), (None, b"101 "), ("https://evil.example", b"403 ")]
)
async def test_pages_of_other_sites_are_refused_where_sites_are_named(origin: str | None, status: bytes) -> None:
    async with bench(AcceptorSettings(web_socket_origins=("https://console.example",))) as server:
        client = await Client.open(server, "amqp", origin=origin)
        assert client.answer.startswith(b"HTTP/1.1 " + status)
        await client.finish()


async def test_the_session_closes_and_the_client_answers() -> None:
    async with bench() as server:
        client = await Client.open(server, "amqp")
        client.send(b"BYE")
        assert await client.receive() == (BINARY, b"farewell")
        assert await client.receive() == (CLOSE, b"\x03\xe8")
        client.send(b"crossed it on the way")
        assert len(server.connections) == 1, "it is waited for"
        client.send(b"\x03\xe8", CLOSE)
        assert await client.rest() == b""
        await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
        await client.finish()


async def test_the_client_closes_and_is_answered() -> None:
    async with bench() as server:
        client = await Client.open(server, "amqp")
        client.send(AMQP)
        await client.receive()
        (session,) = server.sessions
        client.send(b"\x03\xe9going", CLOSE)
        assert await client.receive() == (CLOSE, b"\x03\xe9")
        assert await client.rest() == b""
        await until(lambda: session.events == ["lost"])
        assert session.ended == ("client", "WebSocket close 1001")
        await client.finish()


async def test_shutdown_in_the_sessions_words_or_in_websockets() -> None:
    async with bench() as server:
        client, early = await Client.open(server, "amqp"), await Client.open(server)
        for connection in server.connections:
            connection.shutdown("the broker is stopping")
        assert await client.receive() == (BINARY, b"shutdown")
        assert await client.receive() == (CLOSE, b"\x03\xe8")
        assert await early.receive() == (CLOSE, b"\x03\xe9")
        assert await early.rest() == b""
        await client.finish()
        await early.finish()


async def test_a_broken_frame_ends_the_connection_with_its_code() -> None:
    async with bench(AcceptorSettings(web_socket_max_frame_payload_length=125)) as server:
        client = await Client.open(server, "amqp")
        client.send(b"text", TEXT)
        assert (await client.receive())[1][:2] == b"\x03\xeb"
        assert await client.rest() == b""
        await client.finish()
        client = await Client.open(server, "amqp")
        client.writer.write(b"\x82\xfe\x00\x7e")
        assert (await client.receive())[1][:2] == b"\x03\xf1"
        await client.finish()


async def test_a_port_for_websocket_alone() -> None:
    async with bench() as server:
        server.listener.rules = server.listener.rules._replace(web_only=True)
        reader, writer = await server.open()
        writer.write(AMQP)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE)
        await finish(writer)
        client = await Client.open(server, "amqp")
        client.send(AMQP)
        assert await client.receive() == (BINARY, AMQP)
        await client.finish()


async def test_with_tls_and_only_with_it(authority: Authority) -> None:
    settings = AcceptorSettings(ssl_enabled=True, key_store_path=(authority.issue("server", "broker.example"),))
    async with bench(settings) as server:
        reader, writer = await server.open()
        writer.write(b"GET / HTTP/1.1\r\nUpgrade: websocket\r\n")
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE)
        await finish(writer)
        client = await Client.open(server, "amqp", ssl=authority.client_context(), server_hostname="broker.example")
        client.send(AMQP)
        assert await client.receive() == (BINARY, AMQP)
        (session,) = server.sessions
        assert session.transport.peer.tls
        await client.finish()


async def test_pings_without_reading_the_answers_are_read_no_more() -> None:
    async with bench(AcceptorSettings(write_buffer_high_water_mark=4096)) as server:
        client = await Client.open(server, "amqp")
        key = os.urandom(4)
        ping = bytes((0x80 | PING, 0x80 | 125)) + key + bytes(125)
        (connection,) = server.connections
        limit = server.listener.high_water + ANSWER_ALLOWANCE
        for _ in range(400):
            client.writer.write(ping * 512)
            await asyncio.sleep(0)
            if connection.reading_paused and connection.bytes_out > limit:
                break
        await until(lambda: connection.reading_paused)
        assert connection.describe()["writeBuffer"] < limit + (1 << 20)
        client.writer.transport.abort()
        await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
