"""Measures the cost of idle connections: memory per connection for each protocol, and whether 5,000 of them hold.

.venv/bin/python -m benchmarks.idle [--connections 5000] [--write]
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import peers
from benchmarks.report import markdown, show, write_section
from harness.loadclient import amqp
from harness.loadclient.mqtt import packet, text
from harness.loadclient.process import cpu_seconds, resident_bytes

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]

#: Handshakes under way at a time.
AT_ONCE = 50
#: How long the connections are left alone before the second look, seconds.
REST = 10.0
COLUMNS = ("protocol", "connections", "KB each", "opened per second", "CPU while idle", "alive at the end")


async def open_amqp(port: int, number: int) -> Streams:
    """Open, log in, begin a session; idle timeouts are the broker's business."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    login = f"\0{peers.USER}\0{peers.PASSWORD}".encode()
    init = amqp.frame(amqp.described(amqp.SASL_INIT, amqp.symbol("PLAIN"), amqp.binary(login)), sasl=True)
    wide = amqp.uint(amqp.WIDE_OPEN)
    begin = amqp.frame(amqp.described(amqp.BEGIN, amqp.NULL, amqp.uint(0), wide, wide))
    writer.write(b"AMQP\x03\x01\0\0" + init)
    data = b""
    while b"\x53\x44" not in data:  # sasl-outcome
        data += await receive(reader)
    writer.write(b"AMQP\0\x01\0\0" + amqp.frame(amqp.described(amqp.OPEN, amqp.string(f"idle-{number}"))) + begin)
    data = b""
    while b"\x53\x11" not in data:  # begin
        data += await receive(reader)
    return reader, writer


async def open_stomp(port: int, _number: int) -> Streams:
    """CONNECT and wait for CONNECTED."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    login = f"login:{peers.USER}\npasscode:{peers.PASSWORD}\n"
    writer.write(f"CONNECT\naccept-version:1.2\nhost:/\n{login}\n\0".encode())
    if not (await receive(reader)).startswith(b"CONNECTED"):
        raise ConnectionError("CONNECT was refused")
    return reader, writer


async def open_mqtt(port: int, number: int) -> Streams:
    """CONNECT and wait for CONNACK."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(
        packet(0x10, text("MQTT") + b"\x04\xc2\0\0" + text(f"idle-{number}") + text(peers.USER) + text(peers.PASSWORD))
    )
    if (await receive(reader))[3] != 0:
        raise ConnectionError("CONNECT was refused")
    return reader, writer


async def receive(reader: asyncio.StreamReader) -> bytes:
    """Read something within a bound."""
    data = await asyncio.wait_for(reader.read(4096), 30)
    if not data:
        raise ConnectionError("the broker closed the connection")
    return data


OPENERS: dict[str, Callable[[int, int], Awaitable[Streams]]] = {
    "AMQP": open_amqp,
    "STOMP": open_stomp,
    "MQTT": open_mqtt,
}


async def measure(protocol: str, broker: peers.Broker, wanted: int) -> tuple[str, ...]:
    """Open the connections, leave them alone, look at memory and whether they live; one row of the table."""
    port, pid = broker.ports["amqp"], broker.process.pid
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> Streams:
        async with gate:
            return await OPENERS[protocol](port, number)

    warm = await asyncio.gather(*(one(-number - 1) for number in range(100)))  # imports, caches, arenas
    before = resident_bytes(pid)
    started = time.perf_counter()
    streams = await asyncio.gather(*(one(number) for number in range(wanted)))
    took = time.perf_counter() - started
    cpu = cpu_seconds(pid)
    await asyncio.sleep(REST)
    idle = (cpu_seconds(pid) - cpu) / REST
    each = (resident_bytes(pid) - before) / wanted / 1024
    alive = sum(not reader.at_eof() for reader, _ in streams)
    for _, writer in (*warm, *streams):
        writer.transport.abort()
    await asyncio.sleep(1)
    return (protocol, f"{wanted:,}", f"{each:.1f}", f"{wanted / took:,.0f}", f"{idle:.1%}", f"{alive:,}")


def main() -> None:
    """Measure each protocol against a broker of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    arguments = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = arguments.connections + 500
    if most != resource.RLIM_INFINITY and most < needed:
        raise SystemExit(f"idle: needs {needed} open files, the limit is {most} (ulimit -Hn)")
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, most))  # the broker inherits it
    rows = []
    for protocol in OPENERS:
        with tempfile.TemporaryDirectory(prefix="pollux-idle-") as directory:
            broker = peers.start_pollux(Path(directory))
            try:
                rows.append(asyncio.run(measure(protocol, broker, arguments.connections)))
            finally:
                broker.stop()
    show(COLUMNS, rows, "idle connections (goal: 40 KB each)", width=120)
    if arguments.write:
        write_section("idle", "Goal: at most 40 KB each.\n\n" + markdown(COLUMNS, rows))


if __name__ == "__main__":
    main()
