"""Connections: telling the protocol, TLS on the same port, limits, deadlines, slow readers. Sessions here only echo."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
from typing import Any

import pytest
from msgspec.structs import replace

from pollux.config.acceptors import AcceptorSettings
from pollux.config.model import Configuration, Limits
from pollux.process.acceptor import Listener, ListenError
from pollux.process.connection import Connection
from pollux.process.connections import SWEEP_INTERVAL, Connections
from pollux.wire.sniff import Protocol

from .echoing import AMQP, PATIENCE, Echo, bench, finish, until


@pytest.mark.parametrize(
    ("how", "who", "why"),
    [
        ("goes", "client", "without a farewell"),
        ("says so", "client", "DISCONNECT"),
        ("is refused", "broker", "it was closed"),
        ("is shut down", "broker", "administration"),
        ("says nothing known", "broker", "starts with"),
    ],
)
async def test_the_log_names_who_closed_and_why(caplog: pytest.LogCaptureFixture, how: str, who: str, why: str) -> None:
    caplog.set_level(logging.DEBUG, "pollux.connection")
    async with bench() as server:
        reader, writer = await server.open()
        writer.write(b"nonsense" if how == "says nothing known" else AMQP)
        if how != "says nothing known":
            await asyncio.wait_for(reader.readexactly(8), PATIENCE)
            (connection,) = server.connections
            if how == "is shut down":
                connection.shutdown("administration")
            elif how == "goes":
                writer.close()
            else:
                if how == "says so":
                    server.sessions[0].ends("client", "DISCONNECT")
                    server.sessions[0].ends("broker", "what came later")
                writer.write(b"BYE")
        await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
        await finish(writer)
    (line,) = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "connection closed"]
    assert line["closed_by"] == who
    assert why in line["reason"]


async def test_what_is_held_goes_out_when_its_hold_ends_and_no_sooner() -> None:
    async with bench() as server:
        reader, writer = await server.open()
        writer.write(AMQP)
        assert await asyncio.wait_for(reader.readexactly(8), PATIENCE) == AMQP
        (connection,) = server.connections
        first = connection.hold()
        connection.write(b"one")
        second = connection.hold()
        connection.write(b"two")
        connection.write(bytes(70_000))  # more than goes out at once
        first(None)
        assert await asyncio.wait_for(reader.readexactly(3), PATIENCE) == b"one"
        writer.write(b"ping")
        await until(lambda: connection.bytes_in == 12)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(1), 0)
        second(None)
        assert await asyncio.wait_for(reader.readexactly(70_007), PATIENCE) == b"two" + bytes(70_000) + b"ping"
        connection.write(b"free")
        assert await asyncio.wait_for(reader.readexactly(4), PATIENCE) == b"free"
        second(None)  # once too often changes nothing
        await finish(writer)


async def test_a_close_waits_for_what_is_held_and_an_error_sends_nothing_of_it() -> None:
    async with bench() as server:
        for error, expected in ((None, b"farewell"), (OSError("the disk is gone"), b"")):
            reader, writer = await server.open()
            writer.write(AMQP)
            assert await asyncio.wait_for(reader.readexactly(8), PATIENCE) == AMQP
            (connection,) = server.connections
            release = connection.hold()
            writer.write(b"BYE")
            await until(lambda: all(each.closing for each in server.connections))
            release(error)
            try:
                assert await asyncio.wait_for(reader.read(), PATIENCE) == expected
            except ConnectionResetError:
                assert error is not None
            await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
            await finish(writer)


async def test_a_session_waits_when_much_is_held_for_its_client() -> None:
    async with bench() as server:
        reader, writer = await server.open()
        writer.write(AMQP + b"LOGIN")
        assert await asyncio.wait_for(reader.readexactly(13), PATIENCE) == AMQP + b"LOGIN"
        (connection,) = server.connections
        release = connection.hold()
        size = server.listener.high_water + 1
        connection.write(bytes(size))
        assert server.sessions[0].events == ["pause"]
        connection.deadline = 0.0  # the sweep finds that the client took nothing: that is not its fault
        connection.expire(0.0)
        assert not connection.closing
        release(None)
        assert await asyncio.wait_for(reader.readexactly(size), PATIENCE) == bytes(size)
        await until(lambda: server.sessions[0].events[-1] == "resume")
        await finish(writer)


async def test_who_connects_and_goes_leaves_nothing_to_the_collector() -> None:
    """A health check comes every second, and a full collection is rare."""
    gc.disable()
    try:
        async with bench() as server:
            _, writer = await server.open()
            await until(lambda: len(server.connections) == 1)
            before = sum(isinstance(each, Connection) for each in gc.get_objects())
            await finish(writer)
            await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
            await until(lambda: sum(isinstance(each, Connection) for each in gc.get_objects()) < before)
    finally:
        gc.enable()


async def test_plain_in_any_slices() -> None:
    async with bench() as server:
        reader, writer = await server.open()
        for byte in AMQP:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0)
        assert await asyncio.wait_for(reader.readexactly(8), PATIENCE) == AMQP
        assert len(server.connections) == 1
        await finish(writer)
        await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
        assert server.listener.open_connections == 0


async def test_a_farewell_is_sent_before_the_end() -> None:
    async with bench() as server:
        reader, writer = await server.open()
        writer.write(AMQP + b"BYE")
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b"farewell"
        await finish(writer)


@pytest.mark.parametrize("first", [b"\x00\x01\x02", b"SSH-2.0-x\r\n", b"STOMP\n", b"\x10\x10\x00\x04MQTT"])
async def test_garbage_and_unspoken_protocols_are_closed(first: bytes) -> None:
    async with bench() as server:
        reader, writer = await server.open()
        writer.write(first)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE)
        assert server.connections.refused == 1
        await finish(writer)


async def test_http_gets_a_hint() -> None:
    async with bench() as server:
        reader, writer = await server.open()
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        answer = await asyncio.wait_for(reader.read(), PATIENCE)
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"management port" in answer
        await finish(writer)


async def test_protocols_parameter() -> None:
    async with bench(AcceptorSettings(protocols=("MQTT",))) as server:
        reader, writer = await server.open()
        writer.write(AMQP)
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(reader.readexactly(1), PATIENCE)
        await finish(writer)


async def test_no_log_in_in_time() -> None:
    async with bench(limits=Limits(handshake_timeout=100)) as server:
        silent = await server.open()
        half = await server.open()
        half[1].write(b"AMQ")
        started = await server.open()
        started[1].write(AMQP)
        done = await server.open()
        done[1].write(AMQP + b"LOGIN")
        assert await done[0].readexactly(13) == AMQP + b"LOGIN"
        assert await started[0].readexactly(8) == AMQP
        for reader, writer in (silent, half, started):
            with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
                await asyncio.wait_for(reader.readexactly(1), PATIENCE)
            await finish(writer)
        done[1].write(b"still here")
        assert await asyncio.wait_for(done[0].readexactly(10), PATIENCE) == b"still here"
        await finish(done[1])


@pytest.mark.parametrize(
    "asked",
    [{"connection_ttl_override": 100}, {"settings": AcceptorSettings(connection_ttl=100)}],
    ids=["of all acceptors", "of the acceptor"],
)
async def test_silence_beyond_the_connection_ttl(asked: dict[str, Any]) -> None:
    async with bench(**asked) as server:
        reader, writer = await server.open()
        writer.write(AMQP + b"LOGIN")
        await reader.readexactly(13)
        for connection in server.connections:
            connection.deadline = 0.0  # as if the log-in's time were over: the next sweep starts the ttl
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b"shutdown"
        await finish(writer)


@pytest.mark.parametrize(("asked", "interval"), [(0.05, 0.05), (2.0, SWEEP_INTERVAL)])
async def test_the_check_interval_makes_sweeps_more_frequent_never_rarer(asked: float, interval: float) -> None:
    assert Connections(asyncio.get_running_loop(), maximum=1, interval=asked).interval == interval


async def test_socket_options_of_the_acceptor() -> None:
    """The kernel shows the options of the listening socket and of an accepted one."""
    settings = AcceptorSettings(backlog=77, tcp_receive_buffer_size=20_000, tcp_send_buffer_size=30_000)
    for no_delay in (True, False):
        async with bench(replace(settings, tcp_no_delay=no_delay)) as server:
            (listening,) = server.listener._servers[0].sockets
            # tcp_info of a listening socket (linux/tcp.h): tcpi_sacked is the longest its queue may be.
            information = listening.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 104)
            assert int.from_bytes(information[28:32], sys.byteorder) == 77
            # The kernel books twice the size, for itself as well.
            assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 40_000
            assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF) == 60_000
            _, writer = await server.open()
            await until(lambda: len(server.connections) == 1)
            (connection,) = list(server.connections)
            accepted = connection._output.transport.get_extra_info("socket")
            assert bool(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)) is no_delay
            await finish(writer)


async def test_limits_of_connections() -> None:
    async with bench(AcceptorSettings(connections_allowed=1)) as server:
        first = await server.open()
        first[1].write(AMQP)
        await first[0].readexactly(8)
        second = await server.open()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(second[0].readexactly(1), PATIENCE)
        await finish(second[1])
        await finish(first[1])
        await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
        third = await server.open()
        third[1].write(AMQP)
        assert await asyncio.wait_for(third[0].readexactly(8), PATIENCE) == AMQP
        await finish(third[1])


@pytest.mark.parametrize(
    "limits", [Limits(max_connections=1), Limits(max_connections_per_host=1)], ids=["in all", "per host"]
)
async def test_other_limits_of_connections(limits: Limits) -> None:
    async with bench(limits=limits) as server:
        first = await server.open()
        first[1].write(AMQP + b"LOGIN")
        await first[0].readexactly(13)
        second = await server.open()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(second[0].readexactly(1), PATIENCE)
        assert len(server.connections) == 1
        await finish(second[1])
        await finish(first[1])


async def test_who_has_not_logged_in_makes_room() -> None:
    async with bench(limits=Limits(max_connections=1)) as server:
        first = await server.open()
        first[1].write(AMQP)
        await first[0].readexactly(8)
        second = await server.open()
        second[1].write(AMQP)
        assert await asyncio.wait_for(second[0].readexactly(8), PATIENCE) == AMQP
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await asyncio.wait_for(first[0].readexactly(1), PATIENCE)
        assert server.connections.strangers.dropped == 1
        await finish(second[1])
        await finish(first[1])


async def test_a_reader_that_does_not_keep_up() -> None:
    # The kernel's own buffers may be as large as the answer: what does not fit into a small one is left to the broker.
    settings = AcceptorSettings(
        write_buffer_high_water_mark=100_000, write_buffer_low_water_mark=10_000, tcp_send_buffer_size=65536
    )
    async with bench(settings) as server:
        reader, writer = await server.open(limit=1000)
        writer.write(AMQP + b"LOGIN FLOOD")
        await until(lambda: bool(server.sessions) and "pause" in server.sessions[0].events)
        (connection,) = list(server.connections)
        sent = 0
        # It goes on sending without reading its answers: the broker stops reading it.
        while not connection.reading_paused:
            writer.write(bytes(65536))
            sent += 65536
            await asyncio.sleep(0)
            assert sent < 64 * 1024 * 1024
        remaining = 4 * 1024 * 1024 + 8
        while remaining > 0:
            remaining -= len(await asyncio.wait_for(reader.read(65536), PATIENCE))
        while connection.reading_paused:
            await asyncio.wait_for(reader.read(65536), PATIENCE)
        assert server.sessions[0].events[:2] == ["pause", "resume"]
        writer.transport.abort()


async def test_a_reader_that_takes_nothing_is_cut_off() -> None:
    settings = AcceptorSettings(
        write_buffer_high_water_mark=1000, write_buffer_low_water_mark=100, tcp_send_buffer_size=4096
    )
    async with bench(settings, Limits(write_timeout=200)) as server:
        loop = asyncio.get_running_loop()
        client = socket.create_connection(("127.0.0.1", server.listener.port))
        client.setblocking(False)
        await loop.sock_sendall(client, AMQP + b"LOGIN FLOOD")
        await until(lambda: bool(server.sessions))
        await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
        client.close()


async def test_a_reader_that_stops_again_when_its_log_in_would_have_been_late_has_all_its_time() -> None:
    """Breaks when the deadline of before is the one that counts: it was cut off ten seconds after it connected."""
    async with bench(limits=Limits(handshake_timeout=10_000, write_timeout=60_000)) as server:
        reader, writer = await server.open()
        writer.write(AMQP + b"LOGIN")
        await asyncio.wait_for(reader.readexactly(13), PATIENCE)
        (connection,) = server.connections
        connection.pause_writing()
        connection.resume_writing()
        before = connection.loop.time()
        connection.pause_writing()
        connection.expire(connection.deadline + 0.001)
        assert not connection.closing
        assert connection.deadline >= before + 60
        connection.expire(connection.deadline + 0.001)
        assert connection.closing
        await asyncio.wait_for(server.connections.empty.wait(), PATIENCE)
        await finish(writer)


async def test_a_taken_port_is_named() -> None:
    async with bench() as server:
        listener = server.listener
        acceptor = replace(listener.acceptor, port=listener.port)
        other = Listener(
            acceptor,
            Configuration(),
            loop=listener.loop,
            connections=server.connections,
            services=listener.services,
            sessions={},
            tls=None,
        )
        with pytest.raises(ListenError, match=r"acceptor 'test': cannot listen on 127\.0\.0\.1:\d+: .*another program"):
            await other.listen()


async def test_a_name_listens_on_every_address_it_has() -> None:
    async with bench() as server:
        acceptor = replace(server.listener.acceptor, host="localhost")
        listener = Listener(
            acceptor,
            Configuration(),
            loop=server.listener.loop,
            connections=server.connections,
            services=server.listener.services,
            sessions={Protocol.AMQP: Echo},
            tls=None,
        )
        await listener.listen()
        try:
            found = socket.getaddrinfo("localhost", listener.port, type=socket.SOCK_STREAM)
            for _, _, _, _, address in found:
                reader, writer = await asyncio.open_connection(str(address[0]), listener.port)
                writer.write(AMQP)
                assert await asyncio.wait_for(reader.readexactly(8), PATIENCE) == AMQP
                await finish(writer)
        finally:
            listener.stop_accepting()
