"""One connection's bytes are handled a portion at a time, and others are served in between."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from broker.process.echoing import AMQP, PATIENCE, Echo, bench, finish, until
from pollux.engine.share import FIRST_PORTION, LEAST_PORTION, SLICE, Share

if TYPE_CHECKING:
    import pytest


#: Sent in one go by the client whose bytes are dear.
MUCH = 256 * 1024
#: Bytes that take a slice. Slices are short when the loop had some turns, and the least portion is handled then.
A_SLICE = 100
#: Portions of it that are handled, one in each turn of the loop, before what an honest client sends meanwhile: the loop
#: reads a socket in the turn after it was written to, or in the one after that.
BETWEEN = 3


class Dear(Echo):
    """A hundred bytes ``x`` take a slice of the clock."""

    now = 0.0
    #: Bytes handled, by session, in order.
    handled: list[tuple[int, int]]

    def data_received(self, data: bytes) -> None:
        Dear.now += data.count(b"x") * SLICE / A_SLICE
        Dear.handled.append((self.transport.peer.connection_id, len(data)))
        if b"ping" in data:
            self.transport.write(b"pong")


async def test_a_read_that_takes_long_is_handled_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    Dear.now, Dear.handled = 0.0, []
    async with bench() as server:
        server.listener._factories = dict.fromkeys(server.listener._factories, Dear)
        server.connections.share = Share(asyncio.get_running_loop(), lambda: Dear.now, lambda: Dear.now)
        _, hostile = await server.open()
        reader, honest = await server.open()
        for writer in (hostile, honest):
            writer.write(AMQP)
        await until(lambda: len(Dear.handled) == 2)
        (first, second) = (number for number, _ in Dear.handled)
        hostile.write(b"x" * MUCH)
        await until(lambda: sum(size for number, size in Dear.handled if number == first) > FIRST_PORTION)
        await until(lambda: Dear.handled[-1] == (first, LEAST_PORTION))
        behind = [size for number, size in Dear.handled if number == first][2:]
        assert max(behind) <= A_SLICE
        before = len(Dear.handled)
        honest.write(b"ping")
        assert await asyncio.wait_for(reader.readexactly(4), PATIENCE) == b"pong"
        position = Dear.handled.index((second, 4), before)
        portions = [size for number, size in Dear.handled[before:] if number == first]
        assert max(portions) <= LEAST_PORTION
        assert position - before <= BETWEEN, "the honest client does not wait for the end of it"
        await finish(hostile)
        await finish(honest)
        await until(lambda: sum(size for number, size in Dear.handled if number == first) == MUCH + len(AMQP))


async def test_what_is_behind_waits_while_the_session_takes_nothing() -> None:
    Dear.now, Dear.handled = 0.0, []
    async with bench() as server:
        server.listener._factories = dict.fromkeys(server.listener._factories, Dear)
        server.connections.share = Share(asyncio.get_running_loop(), lambda: Dear.now, lambda: Dear.now)
        reader, writer = await server.open()
        writer.write(AMQP)
        await until(lambda: len(Dear.handled) == 1)
        (connection,) = list(server.connections)
        writer.write(b"x" * MUCH + b"ping")
        await until(lambda: len(Dear.handled) > 3)
        connection.pause_reading()
        count = len(Dear.handled)
        for _ in range(20):
            await asyncio.sleep(0)
        assert len(Dear.handled) == count
        connection.resume_reading()
        assert await asyncio.wait_for(reader.readexactly(4), PATIENCE) == b"pong"
        assert sum(size for _, size in Dear.handled) == MUCH + 4 + len(AMQP)
        assert not connection.reading_paused
        await finish(writer)
