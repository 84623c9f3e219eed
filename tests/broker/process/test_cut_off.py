"""A connection that is cut off in the turn in which something was queued for it: nothing is written, nothing raised."""

from __future__ import annotations

import asyncio

import uvloop

from pollux.process.connection import Connection
from pollux.process.holds import Holds


def test_what_was_queued_for_a_connection_that_was_cut_off_is_dropped() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        try:
            transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
            connection = Connection.__new__(Connection)
            connection._transport = transport
            connection._out = [b"delivery", b"delivery"]
            connection._out_size = 16
            connection._holds = Holds()
            transport.abort()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            connection._end_turn()
            assert connection._out is None
        finally:
            server.close()

    uvloop.run(run())
