"""Measures the machine's limits: the time of one synced write, alone and behind a socket, an event loop and a thread.

    .venv/bin/python -m benchmarks.floor

A broker that confirms after the sync cannot be faster with one message in flight than the second line: the same path
with nothing in it. Compare it with `throughput.py`'s window 1, run at the same time on the same disk.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import queue
import socket
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, cast

import uvloop

if TYPE_CHECKING:
    from collections.abc import Callable

RECORD = b"x" * 200
AREA = 4 << 20


def percentile(times: list[float], part: float) -> float:
    """A percentile in microseconds."""
    return sorted(times)[int(len(times) * part)] * 1e6


class Writer:
    """One thread that writes and syncs, as the journal's does."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.pwrite(self._fd, bytes(AREA), 0)
        os.fsync(self._fd)
        self._loop = loop
        self.queue: queue.SimpleQueue[Callable[[bytes], None] | None] = queue.SimpleQueue()
        self.times: list[float] = []
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        position = 0
        while (answer := self.queue.get()) is not None:
            began = time.perf_counter()
            os.pwritev(self._fd, [RECORD], position, os.RWF_DSYNC)
            self.times.append(time.perf_counter() - began)
            position = (position + len(RECORD)) % (AREA - len(RECORD))
            self._loop.call_soon_threadsafe(answer, b"ok")
        os.close(self._fd)


class Echo(asyncio.Protocol):
    """Answers each read when a record is on disk."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:  # noqa: ARG002  (asyncio's signature)
        self._writer.queue.put(self._transport.write)


def client(port: int, count: int) -> None:
    """The other process: one request in flight."""
    times = []
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            began = time.perf_counter()
            connection.send(RECORD)
            connection.recv(100)
            times.append(time.perf_counter() - began)
    p50, p99 = percentile(times, 0.5), percentile(times, 0.99)
    print(f"socket, loop, thread, synced write   p50 {p50:4.0f} us  p99 {p99:4.0f} us  {count / sum(times):6.0f}/s")


async def measure(count: int, directory: str | None) -> None:
    """Answer one client process."""
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory(dir=directory) as made:
        writer = Writer(Path(made) / "floor.bin", loop)
        server = await loop.create_server(lambda: Echo(writer), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        process = await asyncio.create_subprocess_exec(
            sys.executable, __file__, "--client", str(port), "--count", str(count)
        )
        await process.wait()
        server.close()
        writer.queue.put(None)
        writer.thread.join()
        p50, p99 = percentile(writer.times, 0.5), percentile(writer.times, 0.99)
        print(f"synced write of {len(RECORD)} bytes            p50 {p50:4.0f} us  p99 {p99:4.0f} us")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=5000, help="requests (5000)")
    parser.add_argument("--directory", help="where to write; default: the temporary directory")
    parser.add_argument("--client", type=int, metavar="PORT", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.client:
        client(arguments.client, arguments.count)
    else:
        uvloop.run(measure(arguments.count, arguments.directory))


if __name__ == "__main__":
    main()
