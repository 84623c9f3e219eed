"""A TCP proxy that delays, for kernels without netem; started beside the traffic, clients connect to it.

What goes through keeps its order and arrives whole. A lost packet of TCP is not a lost byte but one that comes late,
after the sender's retransmission timer; so loss is a longer delay of a share of the pieces, and all behind them wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from dataclasses import dataclass
from typing import Self

#: What Linux waits at least before it sends a lost segment again, seconds.
RETRANSMISSION = 0.2
_PIECE = 16384
#: Pieces under way in one direction; a sender is not read further ahead.
_BOUND = 256


@dataclass(frozen=True)
class Impairment:
    """Delay and jitter in seconds, for each direction; loss as a share of the pieces (0 to 1)."""

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0

    def wait(self, chance: random.Random) -> float:
        """Seconds that one piece is under way."""
        wait = self.delay + chance.uniform(-self.jitter, self.jitter)
        return max(wait, 0.0) + (RETRANSMISSION if chance.random() < self.loss else 0.0)


class Proxy:
    """Forwards connections on loopback to one target. An asynchronous context manager; `impairment` may be replaced."""

    def __init__(self, host: str, port: int, impairment: Impairment, *, seed: int = 1) -> None:
        self._target = (host, port)
        self.impairment = impairment
        self._chance = random.Random(seed)  # noqa: S311  (not a secret)
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._server is not None:
            await self._server.wait_closed()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        if task is not None:
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        try:
            there, back = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._forward(reader, back))
                both.create_task(self._forward(there, writer))
        except* OSError:
            pass
        finally:
            for each in (writer, back):
                each.close()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One direction: pieces leave in order, each not before its time."""
        loop = asyncio.get_running_loop()
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_BOUND)

        async def deliver() -> None:
            while True:
                due, piece = await pieces.get()
                await asyncio.sleep(due - loop.time())
                if not piece:
                    with contextlib.suppress(OSError, RuntimeError):
                        writer.write_eof()
                    return
                writer.write(piece)
                await writer.drain()

        delivering = asyncio.create_task(deliver())
        try:
            while True:
                piece = await reader.read(_PIECE)
                await pieces.put((loop.time() + self.impairment.wait(self._chance), piece))
                if not piece:
                    break
            await delivering
        finally:
            delivering.cancel()
