"""Measures one hostile client's cost for others: an honest client's confirmed sends, idle and during each attack.

.venv/bin/python -m benchmarks.hostile [--attack NAME ...] [--write]
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import socket
import struct
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import peers
from benchmarks.report import markdown, show, write_section
from harness.loadclient.mqtt import packet, text

if TYPE_CHECKING:
    from collections.abc import Callable

#: Seconds between two sends of the honest client, and how long it is watched without an attack, and after one.
PACE = 0.005
IDLE = 5.0
AFTER = 4.0
#: The longest answer waited for.
LIMIT = 120.0
COLUMNS = ("attack", "it took", "sends", "p50", "p99", "worst", "p99 / idle", "log")

QUEUES, SUBSCRIPTIONS, OVERLAPPING, RETAINED, CONNECTS = 74_700, 120_000, 1_123, 67_000, 16_000
#: Subscriptions of one connection (the broker's limit for each), and filters in one SUBSCRIBE.
EACH = 10_000
FILTERS = 500


class Stomp:
    """As much of a STOMP client as is needed."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        login = f"login:{peers.USER}\npasscode:{peers.PASSWORD}"
        self.socket.sendall(f"CONNECT\naccept-version:1.2\nhost:/\n{login}\n\n\0".encode())
        self.answer()

    def answer(self) -> bytes:
        """One frame."""
        data = b""
        while not data.rstrip(b"\n").endswith(b"\0"):
            part = self.socket.recv(65536)
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return data

    def confirmed(self, address: str, body: bytes) -> None:
        """Send a durable message and wait for its receipt."""
        head = f"SEND\ndestination:{address}\npersistent:true\nreceipt:r\n\n".encode()
        self.socket.sendall(head + body + b"\0")
        self.answer()


class Mqtt:
    """As much of an MQTT 3.1.1 client as is needed."""

    def __init__(self, port: int, client_id: str) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), LIMIT)
        body = text("MQTT") + b"\x04\xc2\0\0" + text(client_id) + text(peers.USER) + text(peers.PASSWORD)
        self.socket.sendall(packet(0x10, body))
        self.take(4)

    def take(self, size: int) -> bytes:
        """So many bytes of the broker's."""
        data = b""
        while len(data) < size:
            part = self.socket.recv(size - len(data))
            if not part:
                raise ConnectionError("the broker closed the connection")
            data += part
        return data

    def drain(self) -> int:
        """Take what comes until PINGRESP, and what came with it; how many bytes."""
        self.socket.sendall(b"\xc0\0")
        size = 0
        last = b""
        while b"\xd0\0" not in last:
            part = self.socket.recv(1 << 20)
            if not part:
                raise ConnectionError("the broker closed the connection")
            size += len(part)
            last = last[-1:] + part
        return size

    def subscribe(self, filters: list[str]) -> None:
        """One SUBSCRIBE with all of them; waits for SUBACK."""
        self.socket.sendall(packet(0x82, struct.pack(">H", 1) + b"".join(text(each) + b"\0" for each in filters)))
        self.drain()

    def publish(self, topic: str, payload: bytes, *, retain: bool = False) -> None:
        """QoS 0."""
        self.socket.sendall(packet(0x31 if retain else 0x30, text(topic) + payload))


def queues(port: int) -> None:
    """Messages for ever new names, each of which makes an address and a queue."""
    client = Stomp(port)
    batch = 100
    for start in range(0, QUEUES, batch):
        names = range(start, start + batch)
        send = b"SEND\ndestination:hostile.%d\npersistent:true\n\nx\0"
        client.socket.sendall(b"".join(send % name for name in names))
    client.confirmed("hostile.last", b"x")


def subscriptions(port: int) -> None:
    """As many subscriptions as there may be, in few packets; then the client is gone without a word."""
    clients = []
    for start in range(0, SUBSCRIPTIONS, EACH):
        client = Mqtt(port, f"hostile-{start}")
        for first in range(start, start + EACH, FILTERS):
            client.subscribe([f"hostile/{number}" for number in range(first, first + FILTERS)])
        clients.append(client)
    for client in clients:
        client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        client.socket.close()


def overlapping(port: int) -> None:
    """Filters that all match one topic, and messages for it."""
    levels = 11
    filters = []
    for bits in range(OVERLAPPING):
        words = ["+" if bits >> level & 1 else f"l{level}" for level in range(levels)]
        filters.append("/".join(words))
    client = Mqtt(port, "hostile")
    for start in range(0, len(filters), 100):
        client.subscribe(filters[start : start + 100])
    topic = "/".join(f"l{level}" for level in range(levels))
    for _ in range(20):
        for _ in range(100):
            client.publish(topic, b"x" * 100)
        client.drain()


def retained(port: int) -> None:
    """Retained messages, for topics that get no queues (there may be fewer of these); then subscribers to all."""
    client = Mqtt(port, "hostile")
    for number in range(RETAINED):
        client.publish(f"topic/{number % 250}/{number}", b"x" * 100, retain=True)
    client.drain()
    for number in range(5):
        other = Mqtt(port, f"hostile-{number}")
        other.subscribe(["topic/#"])
        other.drain()


def connects(port: int) -> None:
    """CONNECTs that are no log-in."""
    for number in range(CONNECTS):
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), LIMIT) as opened:
            body = text("MQTT") + b"\x04\xc2\0\0" + text(f"c{number}") + text(peers.USER) + text(f"wrong {number}")
            opened.sendall(packet(0x10, body))


ATTACKS: dict[str, Callable[[int], None]] = {
    f"{QUEUES:,} automatic queues": queues,
    f"{SUBSCRIPTIONS:,} subscriptions": subscriptions,
    f"{OVERLAPPING:,} overlapping filters": overlapping,
    f"{RETAINED:,} retained messages": retained,
    f"{CONNECTS:,} bad CONNECTs": connects,
}


def from_elsewhere(attack: Callable[[int], None], port: int) -> None:
    """Attack from a process that leaves this machine's cores to the broker and its honest client."""
    os.nice(19)
    attack(port)


class Honest:
    """Sends one message after the other and notes how long each took to be confirmed."""

    def __init__(self, port: int) -> None:
        self._client = Stomp(port)
        self.took: list[float] = []

    def while_(self, going: Callable[[], bool]) -> list[float]:
        """Seconds of each send, in order of size; also of those that were due while one waited for its receipt."""
        took = []
        while going():
            started = time.perf_counter()
            self._client.confirmed("honest", b"x" * 100)
            seconds = time.perf_counter() - started
            took += [seconds - missed * PACE for missed in range(int(seconds / PACE) + 1)]
            time.sleep(max(0.0, PACE - seconds))
        return sorted(took)

    def for_(self, seconds: float) -> list[float]:
        """For so long."""
        end = time.monotonic() + seconds
        return self.while_(lambda: time.monotonic() < end)


def quantile(took: list[float], share: float) -> float:
    """In milliseconds."""
    return took[min(len(took) - 1, int(len(took) * share))] * 1000


def measure(name: str, attack: Callable[[int], None], base: Path) -> tuple[str, ...]:
    """One row of the table."""
    directory = base / attack.__name__
    directory.mkdir()
    broker = peers.start_pollux(directory, queues=["honest"])
    try:
        port = broker.ports["stomp"]
        honest = Honest(port)
        honest.for_(1.0)
        idle = quantile(honest.for_(IDLE), 0.99)
        log = (directory / "log").stat().st_size
        process = multiprocessing.get_context("spawn").Process(target=from_elsewhere, args=(attack, port))
        process.start()
        started = time.monotonic()
        took = honest.while_(process.is_alive)
        seconds = time.monotonic() - started
        took = sorted(took + honest.for_(AFTER))
        grown = ((directory / "log").stat().st_size - log) / 1e6
    finally:
        broker.stop()
    p99 = quantile(took, 0.99)
    figures = [f"{quantile(took, share):.1f} ms" for share in (0.5, 0.99, 1.0)]
    against = f"{p99 / idle:.1f} ({idle:.1f} ms)"
    return (name, f"{seconds:.1f} s", f"{len(took):,}", *figures, against, f"{grown:.2f} MB")


def main() -> None:
    """Each attack against a broker of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = {attack.__name__: name for name, attack in ATTACKS.items()}
    parser.add_argument("--attack", nargs="*", choices=list(chosen), default=list(chosen))
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="pollux-hostile-") as directory:
        rows = [measure(chosen[each], ATTACKS[chosen[each]], Path(directory)) for each in arguments.attack]
    show(COLUMNS, rows, "one hostile client (goal: p99 of others below 10x its idle value)", width=140)
    if arguments.write:
        write_section("hostile", markdown(COLUMNS, rows))


if __name__ == "__main__":
    main()
