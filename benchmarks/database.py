"""A store in PostgreSQL beside one in files on the same disk: throughput, many producers, failover, recovery.

    .venv/bin/python -m benchmarks.database [--only throughput producers peer failover takeover recovery]
        [--directory /var/tmp] [--rounds 3] [--seconds 5] [--trials 20] [--messages 1000000] [--size 1024]

The server is one of its own in the directory, with `fsync` and `synchronous_commit` on, reached by loopback.
Throughput: durable messages published and confirmed over AMQP, window 512, the two brokers in turns; the other one
idles (one that stands still would lose its right to serve). Producers: 50 at once, each of which waits for the confirm
of one message of 1 KiB before it sends the next; at least 5,000 messages/s with p99 below 20 ms were asked for. Peer:
the same server has ActiveMQ's messages (Debian's `activemq` and `libpostgresql-jdbc-java`), over STOMP, which is all
that one speaks. Failover: kill -9 of the live under load until the other one confirms. Takeover: the same for a live
that is killed, stands still or is asked to stop, with a lease of 5 s, clocks that are right or an hour off, and a
client that hears of it within a second; asked for were 1 s, 7 s and 0.3 s. Recovery: that many durable messages
in one queue, kill -9, and from the start of the process until it is ready. Prints a table for each part; nothing is
asserted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from benchmarks.failover import fill, trial
from benchmarks.failover_pairs import DatabasePair, PolluxPair
from benchmarks.failover_table import delays, figures
from benchmarks.peers import JDBC, activemq_installed, free_port, jdbc, start_activemq
from harness.broker import PASSWORD, USER
from harness.postgresql import running
from pollux.client.url import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.postgresql import Server

ROOT = Path(__file__).resolve().parent.parent
PARTS = ("throughput", "producers", "peer", "failover", "takeover", "recovery")
WINDOW = 512
#: That send at once, each with one message in flight.
PRODUCERS = 50
#: Of the takeovers: whoever serves may be asked to stop, and is followed.
FOLLOWED = "<failover-on-shutdown>true</failover-on-shutdown>"
FOLLOWED_ROLES = (
    f"<primary>{FOLLOWED}</primary>",
    f"<backup><allow-failback>false</allow-failback>{FOLLOWED}</backup>",
)
LEASE = "<px:lease-guard>3500</px:lease-guard><px:lease-margin>1500</px:lease-margin>"
#: Of a client that leaves a broker which stands still in time.
NOTICES = "&clientFailureCheckPeriod=1000&connect-timeout-millis=300"
FAULTS = {"kill -9": signal.SIGKILL, "stands still": signal.SIGSTOP, "is asked to stop": signal.SIGTERM}
WRONG_CLOCK = ROOT / "tests/e2e/wrong_clock_runner.py"


def pairs(directory: Path, server: Server, name: str) -> tuple[PolluxPair, DatabasePair]:
    """Return a pair on files and one on an empty database; not started."""
    files = PolluxPair(directory / name / "files")
    return files, DatabasePair(directory / name / "database", server.store(server.create(name)))


def published(
    pair: PolluxPair, arguments: argparse.Namespace, size: int, *, window: int = WINDOW, producers: int = 1
) -> dict[str, float]:
    """Publish for some seconds, and return what the load client tells: `rate` (confirmed messages/s), `p99_ms` ..."""
    where = ["--protocol", "amqp", "--port", str(pair.members[0].port), "--user", USER, "--password", PASSWORD]
    return load(where, arguments, size, window=window, producers=producers)


def load(
    where: list[str], arguments: argparse.Namespace, size: int, *, window: int = WINDOW, producers: int = 1
) -> dict[str, float]:
    """Publish at a broker that these options of the load client name."""
    command = [sys.executable, "-m", "harness.loadclient", *where, "--window", str(window), "--size", str(size)]
    command += [
        "--producers",
        str(producers),
        "--consumers",
        "0",
        "--queue",
        "load",
        "--seconds",
        str(arguments.seconds),
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def throughput(directory: Path, server: Server, arguments: argparse.Namespace) -> Table:
    """Two single brokers in turns."""
    table = Table(title=f"Published and confirmed, durable, window {WINDOW}, AMQP", title_justify="left")
    for column in ("size", "files messages/s", "database messages/s", "database / files"):
        table.add_column(column, justify="right")
    both = pairs(directory, server, "throughput")
    try:
        for pair in both:
            pair.start_live()
        for size in (100, 1024):
            rates: dict[str, list[float]] = {pair.name: [] for pair in both}
            for _ in range(arguments.rounds):
                for pair in both:
                    rates[pair.name].append(published(pair, arguments, size)["rate"])
            first, second = (statistics.median(rates[pair.name]) for pair in both)
            table.add_row(str(size), f"{first:,.0f}", f"{second:,.0f}", f"{second / first:.0%}")
    finally:
        for pair in both:
            pair.close()
    return table


def producers(directory: Path, server: Server, arguments: argparse.Namespace) -> Table:
    """Two single brokers in turns, each with many producers that wait for every confirm."""
    table = Table(title=f"{PRODUCERS} producers, one message of 1 KiB each in flight, AMQP", title_justify="left")
    for column in ("store", "messages/s", "p50 ms", "p99 ms", "longest ms"):
        table.add_column(column, justify="right")
    both = pairs(directory, server, "producers")
    found: dict[str, list[dict[str, float]]] = {pair.name: [] for pair in both}
    try:
        for pair in both:
            pair.start_live()
        for _ in range(arguments.rounds):
            for pair in both:
                found[pair.name].append(published(pair, arguments, 1024, window=1, producers=PRODUCERS))
    finally:
        for pair in both:
            pair.close()
    for name, rounds in found.items():
        keys = ("rate", "p50_ms", "p99_ms", "max_ms")
        rate, *waits = (statistics.median(each[key] for each in rounds) for key in keys)
        table.add_row(name, f"{rate:,.0f}", *(f"{each:.1f}" for each in waits))
    return table


def peer(directory: Path, server: Server, arguments: argparse.Namespace) -> Table:
    """ActiveMQ and Pollux in turns, each with a database of its own on the same server, reached by TCP."""
    table = Table(title=f"Published and confirmed, durable, window {WINDOW}, STOMP", title_justify="left")
    for column in ("size", "ActiveMQ messages/s", "Pollux messages/s", "Pollux / ActiveMQ"):
        table.add_column(column, justify="right")
    if not (activemq_installed() and JDBC.exists()):
        table.caption = "not measured: install activemq and libpostgresql-jdbc-java"
        return table
    own = DatabasePair(directory / "peer" / "pollux", server.store(server.create("peer_pollux")))
    (directory / "peer" / "activemq").mkdir()
    other = start_activemq(directory / "peer" / "activemq", jdbc(server.jdbc(server.create("peer_activemq")), "pollux"))
    try:
        own.start_live()
        port = str(own.members[0].port)
        options = ["--protocol", "stomp", "--port"]
        ways = {
            "ActiveMQ": [*options, str(other.ports["stomp"]), *other.options["stomp"]],
            "Pollux": [*options, port, "--user", USER, "--password", PASSWORD],
        }
        for size in (100, 1024):
            rates: dict[str, list[float]] = {name: [] for name in ways}
            for _ in range(arguments.rounds):
                for name, where in ways.items():
                    rates[name].append(load(where, arguments, size)["rate"])
            first, second = (statistics.median(each) for each in rates.values())
            table.add_row(str(size), f"{first:,.0f}", f"{second:,.0f}", f"{second / first:.1f}")
    finally:
        own.close()
        other.stop()
    return table


def failover(directory: Path, server: Server, arguments: argparse.Namespace) -> Table:
    """kill -9 of the live under load until the other one confirms."""
    table = Table(title="kill -9 of the live to the first confirm, AMQP", title_justify="left")
    for column in ("store", "trials", "p50 ms", "p99 ms", "longest ms"):
        table.add_column(column, justify="right")
    for pair in pairs(directory, server, "failover"):
        times = []
        try:
            pair.start()
            for number, delay in enumerate(delays(arguments.trials, 0.2)):
                time.sleep(delay)
                times.append(asyncio.run(trial(pair, Wire.AMQP, f"trial-{number}")))
                pair.swap()
        finally:
            pair.close()
        table.add_row("database" if isinstance(pair, DatabasePair) else "files", *figures(times))
    return table


def takeover(directory: Path, server: Server, arguments: argparse.Namespace) -> Table:
    """Take the live away in each way under load until the other one confirms, with clocks that are right and wrong."""
    table = Table(title="What becomes of the live to the first confirm, lease 5 s, AMQP", title_justify="left")
    for column in ("the live", "clocks, hours", "trials", "p50 ms", "p99 ms", "longest ms"):
        table.add_column(column, justify="right")
    for hours in (0, 1):
        name = f"takeover{hours}"
        pair = DatabasePair(directory / name, server.store(server.create(name)), roles=FOLLOWED_ROLES, own=LEASE)
        for member, wrong in zip(pair.members, (hours, -hours), strict=True):
            (member.directory / "hours").write_text(str(wrong))
            member.program = [sys.executable, str(WRONG_CLOCK)]
        try:
            pair.start()
            for words, how in FAULTS.items():
                times = []
                for number, delay in enumerate(delays(arguments.trials, 0.2)):
                    time.sleep(delay)
                    run = f"{words}-{number}"
                    times.append(asyncio.run(trial(pair, Wire.AMQP, run, how, options=NOTICES)))
                    if how == signal.SIGSTOP:
                        os.kill(pair.live, signal.SIGKILL)
                    pair.swap()
                table.add_row(words, f"{hours:+d}, {-hours:+d}" if hours else "right", *figures(times))
        finally:
            pair.close()
    return table


def recovery(directory: Path, server: Server, arguments: argparse.Namespace) -> Table:
    """A broker that was killed with many messages until it serves them again."""
    table = Table(title="kill -9, and the start with all messages", title_justify="left")
    for column in ("store", "messages", "not paged", "size", "start to ready s", "of these recovery s"):
        table.add_column(column, justify="right")
    for pair in pairs(directory, server, "recovery"):
        try:
            pair.start_live()
            asyncio.run(fill(pair, Wire.AMQP, arguments.messages, arguments.size))
            member = pair.members[0]
            member.kill()
            began = time.perf_counter()
            pair.start_live()
            seconds = time.perf_counter() - began
            store = member.api("/api/v1/status")["store"]
        finally:
            pair.close()
        name = "database" if isinstance(pair, DatabasePair) else "files"
        count, took = f"{store['recoveredMessages']:,}", f"{store['recoverySeconds']:.2f}"
        table.add_row(name, f"{arguments.messages:,}", count, str(arguments.size), f"{seconds:.2f}", took)
    return table


def tables(directory: Path, server: Server, arguments: argparse.Namespace) -> Iterator[Table]:
    """Yield the tables that are asked for."""
    for name, part in zip(PARTS, (throughput, producers, peer, failover, takeover, recovery), strict=True):
        if name in arguments.only:
            yield part(directory, server, arguments)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()), help="on the disk to measure")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--size", type=int, default=1024, help="bytes of a message that is recovered")
    arguments = parser.parse_args()
    console = Console()
    with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
        Path(directory).chmod(0o755)  # the server is another user's
        with running(Path(directory), durable=True, port=free_port()) as server:
            for table in tables(Path(directory), server, arguments):
                console.print(table, f"load average {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
