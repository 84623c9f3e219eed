"""A connection that is cut off in the turn in which something was queued for it: nothing is written, nothing raised."""

from __future__ import annotations

import asyncio

import uvloop

from pollux.process.output import Output


def test_what_was_queued_for_a_connection_that_was_cut_off_is_dropped() -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        try:
            transport, _ = await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname())
            output = Output(loop, 1024)
            output.transport = transport
            output._out = [b"delivery", b"delivery"]
            output._out_size = 16
            transport.abort()
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            output._end_turn()
            assert output._out is None
        finally:
            server.close()

    uvloop.run(run())
