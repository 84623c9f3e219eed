"""How long from kill -9 to the next confirmed message with a full journal: what checkpoints are for.

    .venv/bin/python -m benchmarks.startup [--messages 1000000] [--size 1024] [--write]

Fills a queue over AMQP, waits until the broker is at rest, kills it, starts it, and sends one message as soon as the
port answers. The time runs from starting the process until that message is confirmed.
"""

from __future__ import annotations

import argparse
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks import peers
from benchmarks.report import markdown, show, write_section
from harness.loadclient.connection import LoadError
from harness.loadclient.process import cpu_seconds, resident_bytes
from harness.loadclient.stomp import StompConnection
from harness.loadclient.target import Target

ROOT = Path(__file__).resolve().parent.parent
QUEUE = "startup"
#: The broker is at rest when it used less than this share of a core over a second.
REST = 0.05
REST_LIMIT = 120.0
CONFIRM_LIMIT = 300.0
COLUMNS = ("messages", "size", "to first confirm (s)", "at once after the load", "memory after start (MiB)")


def fill(broker: peers.Broker, messages: int, size: int) -> None:
    """Send the messages."""
    command = [sys.executable, "-m", "harness.loadclient", *broker.load_options("amqp"), "--queue", QUEUE]
    command += ["--messages", str(messages), "--size", str(size)]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def wait_for_rest(pid: int) -> None:
    """Wait until checkpoints and compaction have caught up."""
    deadline = time.monotonic() + REST_LIMIT
    used = cpu_seconds(pid)
    while time.monotonic() < deadline:
        time.sleep(1)
        now = cpu_seconds(pid)
        if now - used < REST:
            return
        used = now


def first_confirm(port: int, started: float) -> float:
    """Send one message as soon as possible; return seconds from `started` until its receipt."""
    target = Target("127.0.0.1", port, peers.USER, peers.PASSWORD)
    while time.perf_counter() - started < CONFIRM_LIMIT:
        try:
            connection = StompConnection(target)
            connection.send(f"SEND\ndestination:{QUEUE}\npersistent:true\nreceipt:r\n\nx\0".encode())
            connection.receive_exactly_until(lambda data: b"RECEIPT" in data)
        except (OSError, LoadError):
            time.sleep(0.005)
            continue
        connection.close()
        return time.perf_counter() - started
    raise SystemExit("startup: no confirm")


def restart(broker: peers.Broker, directory: Path) -> tuple[peers.Broker, float]:
    """kill -9, start, first confirm."""
    broker.process.send_signal(signal.SIGKILL)
    broker.process.wait()
    port = broker.ports["amqp"]
    started = time.perf_counter()
    broker.process = peers.spawn([peers.POLLUX, "run", str(directory / "etc" / "broker.xml")], directory)
    return broker, first_confirm(port, started)


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="pollux-startup-") as name:
        directory = Path(name)
        broker = peers.start_pollux(directory)
        try:
            for messages in (0, arguments.messages):
                at_once = "-"
                if messages:
                    fill(broker, messages, arguments.size)
                    broker, seconds = restart(broker, directory)
                    at_once = f"{seconds:.2f}"
                times = []
                for _ in range(arguments.rounds):
                    wait_for_rest(broker.process.pid)
                    broker, seconds = restart(broker, directory)
                    times.append(seconds)
                memory = f"{resident_bytes(broker.process.pid) / 2**20:.0f}"
                median = f"{statistics.median(times):.2f}"
                rows.append((f"{messages:,}", f"{arguments.size} B", median, at_once, memory))
        finally:
            broker.stop()
    show(COLUMNS, rows, "start after kill -9 (goal: 1.5 s with 1 million messages)", width=120)
    if arguments.write:
        write_section("startup", "Goal: below 1.5 s with 1 million messages.\n\n" + markdown(COLUMNS, rows))


if __name__ == "__main__":
    main()
