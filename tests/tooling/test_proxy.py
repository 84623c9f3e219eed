"""The delaying proxy: everything arrives, in order, and not before its time."""

from __future__ import annotations

import asyncio
import random
import time

from lab.proxy import RETRANSMISSION, Impairment, Proxy


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(4096):
        writer.write(piece)
        await writer.drain()
    writer.close()


async def test_bytes_arrive_whole_in_order_and_late() -> None:
    sent = random.Random(1).randbytes(300_000)  # noqa: S311
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, Proxy("127.0.0.1", port, Impairment(delay=0.05, jitter=0.01, loss=0.05)) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        began = time.monotonic()
        writer.write(sent)
        writer.write_eof()
        assert await reader.read() == sent
        # There and back, each at least delay minus jitter.
        assert time.monotonic() - began >= 0.08
        writer.close()
        await writer.wait_closed()


async def test_a_target_that_is_not_there_ends_the_connection() -> None:
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    async with Proxy("127.0.0.1", port, Impairment()) as proxy:
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


def test_loss_is_a_late_piece() -> None:
    chance = random.Random(1)  # noqa: S311
    assert Impairment(delay=0.1).wait(chance) == 0.1
    assert Impairment(loss=1.0).wait(chance) == RETRANSMISSION
    assert Impairment(delay=0.0, jitter=0.5).wait(chance) >= 0
