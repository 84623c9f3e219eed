"""Measures the cost of a copy on another broker: throughput with a backup in sync, and copying while producers go on.

    .venv/bin/python -m benchmarks.replication                     # throughput and sync
    .venv/bin/python -m benchmarks.replication --parts throughput --rounds 5 --write
    .venv/bin/python -m benchmarks.replication --parts sync --gib 0.25
    .venv/bin/python -m benchmarks.replication --parts sessions --minutes 10 --write

throughput: the same load on a broker of its own, on the live of a shared store and on the live of a replicated pair
whose backup is in sync; all of it, both brokers, ZooKeeper and the clients, on this machine. Brokers are started anew
for each run, in turns, and each figure is the median of the rounds. "pair CPU" is what both brokers use.

sync: a live with so many GiB in its queues gets a backup while a producer goes on; seconds from the start of the
backup's process until it is in sync, with the producer's rate before and meanwhile and the longest confirm.

sessions: a pair whose ZooKeeper sessions last 2 s, under full load; how often somebody else began to serve, though
nobody had failed.

Nothing is asserted. Goals: with a backup at least 60 % of a single broker's rate; at least 100 MB/s, meanwhile at least
half the rate, and no confirm longer than 1 s; no failover without a failure in 10 minutes.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console

from benchmarks.failover_pairs import PolluxPair, ReplicatedPair
from benchmarks.peers import Broker
from benchmarks.report import markdown, show, write_measured
from benchmarks.throughput import ROOT, RUN_LIMIT, Scenario, options
from harness.broker import PASSWORD, USER, BrokerProcess
from harness.loadclient.process import cpu_seconds

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

    #: Starts brokers below a directory, the one that serves first.
    Brokers = Callable[[Path], AbstractContextManager[list[BrokerProcess]]]

GIB = 1 << 30
#: Bytes of each message that is there when the backup comes, and of those that are sent meanwhile.
STORED, SENT = 65_536, 1024
#: Seconds of each stretch in which the producer's rate is measured.
STRETCH = 2.0
#: The shortest sessions that are to work.
SHORT_SESSION_MS = 2000
SCENARIOS = (
    Scenario("produced and consumed, window 512, 100 B", options(512, 100, consume=True)),
    Scenario("published and confirmed, window 512, 100 B", options(512, 100, consume=False)),
    Scenario("published and confirmed, window 512, 1 KiB", options(512, 1024, consume=False)),
    Scenario("published and confirmed, window 1, 100 B", options(1, 100, consume=False)),
)


def load(broker: Broker, queue: str, seconds: float, words: tuple[str, ...]) -> dict[str, Any]:
    """Run the load client. Raises SystemExit with its complaint."""
    command = [sys.executable, "-m", "harness.loadclient", *broker.load_options("amqp"), *words]
    command += ["--queue", queue, *(("--seconds", str(seconds)) if seconds else ())]
    limit = RUN_LIMIT + seconds
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit, check=False)
    if done.returncode != 0:
        raise SystemExit(f"the load client failed: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def broker_of(member: BrokerProcess, name: str) -> Broker:
    """Return what the load client has to know of a broker that runs."""
    assert member.process is not None
    login = {"all": ["--user", USER, "--password", PASSWORD]}
    return Broker(name, member.process, {"amqp": member.port}, login)


# -- throughput ----------------------------------------------------------------------------------------------------


@contextmanager
def single(directory: Path) -> Iterator[list[BrokerProcess]]:
    """A broker of its own."""
    broker = BrokerProcess(directory, addresses="")
    try:
        yield [broker.start()]
    finally:
        broker.close()


@contextmanager
def pair(kind: Callable[[Path], PolluxPair], directory: Path) -> Iterator[list[BrokerProcess]]:
    """A live and its backup."""
    made = kind(directory)
    try:
        made.start()
        yield list(made.members)
    finally:
        made.close()


KINDS: dict[str, Brokers] = {
    "standalone": single,
    "shared store": lambda directory: pair(PolluxPair, directory),
    "replicated": lambda directory: pair(ReplicatedPair, directory),
}


class Figure(NamedTuple):
    """One run."""

    rate: float
    p99: float
    cpu: float


def once(kind: str, start: Brokers, scenario: Scenario, seconds: float) -> Figure:
    """Start, measure, stop."""
    with (
        # A killed broker's checkpointer may still write.
        tempfile.TemporaryDirectory(prefix="pollux-replication-", ignore_cleanup_errors=True) as directory,
        start(Path(directory)) as members,
    ):
        pids = [member.process.pid for member in members if member.process is not None]
        began, used = time.monotonic(), sum(map(cpu_seconds, pids))
        found = load(broker_of(members[0], kind), "bench", seconds, scenario.options)
        cpu = (sum(map(cpu_seconds, pids)) - used) / (time.monotonic() - began)
    return Figure(found["rate"], found["p99_ms"], cpu)


def throughput(kinds: Mapping[str, Brokers], rounds: int, seconds: float, console: Console) -> list[tuple[str, ...]]:
    """The rows of the table. The first of ``kinds`` is a broker of its own."""
    rows: list[tuple[str, ...]] = []
    for scenario in SCENARIOS:
        runs: dict[str, list[Figure]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, figures in runs.items():
                figures.append(once(kind, kinds[kind], scenario, seconds))
        alone = statistics.median(one.rate for one in next(iter(runs.values())))
        for kind, figures in runs.items():
            rate, p99, cpu = (statistics.median(values) for values in zip(*figures, strict=True))
            share = f"{rate / alone:.0%}"
            rows.append((scenario.title, kind, f"{rate:,.0f}", share, f"{p99:.1f}", f"{cpu:.0%}"))
            console.print(*rows[-1], sep="  ")
    return rows


# -- copying -------------------------------------------------------------------------------------------------------


class Stretch(NamedTuple):
    """A run of the producer."""

    began: float
    ended: float
    rate: float
    longest: float


class Producer(threading.Thread):
    """Sends without a pause, in stretches, until it is told to stop."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(daemon=True)
        self._broker = broker
        self._finished = threading.Event()
        self.stretches: list[Stretch] = []

    def run(self) -> None:
        """Send until it is told to stop."""
        while not self._finished.is_set():
            began = time.monotonic()
            found = load(self._broker, "meanwhile", STRETCH, options(512, SENT, consume=False))
            self.stretches.append(Stretch(began, time.monotonic(), found["rate"], found["max_ms"]))

    def finish(self) -> None:
        """Stop after this stretch."""
        self._finished.set()
        self.join()


def sync(gib: float, console: Console) -> list[tuple[str, ...]]:
    """The row of the table."""
    place = {"prefix": "pollux-replication-", "dir": "/var/tmp"}  # noqa: S108
    with tempfile.TemporaryDirectory(**place, ignore_cleanup_errors=True) as directory:
        made = ReplicatedPair(Path(directory))
        try:
            made.zookeeper.start()
            live, backup = made.group.replicas
            live.start()
            live.wait_for("live")
            broker = broker_of(live, "live")
            count = round(gib * GIB / STORED)
            words = ("--messages", str(count), *options(64, STORED, consume=False))
            load(broker, "stored", 0, words)
            console.print(f"{gib:g} GiB are stored")
            before = load(broker, "meanwhile", 2 * STRETCH, options(512, SENT, consume=False))
            producer = Producer(broker)
            producer.start()
            began = time.monotonic()
            backup.spawn()
            made.group.wait_for_sync(backup)
            ended = time.monotonic()
            producer.finish()
        finally:
            made.close()
    during = [one for one in producer.stretches if one.began < ended]
    rate = statistics.mean(one.rate for one in during)
    took = ended - began
    return [
        (
            f"{gib:g} GiB",
            f"{took:.1f}",
            f"{gib * GIB / took / 1e6:,.0f}",
            f"{before['rate']:,.0f}",
            f"{rate:,.0f}",
            f"{rate / before['rate']:.0%}",
            f"{max(one.longest for one in during):,.0f}",
        )
    ]


# -- short sessions ------------------------------------------------------------------------------------------------


def sessions(minutes: float) -> list[tuple[str, ...]]:
    """The row of the table."""
    with tempfile.TemporaryDirectory(prefix="pollux-replication-", ignore_cleanup_errors=True) as directory:
        made = ReplicatedPair(Path(directory), SHORT_SESSION_MS)
        try:
            made.start()
            live, backup = made.group.replicas
            epoch = live.activation["epoch"]
            found = load(broker_of(live, "live"), "sessions", minutes * 60, SCENARIOS[0].options)
            failovers = max(member.activation.get("epoch", 0) for member in (live, backup)) - epoch
            in_sync = backup.in_sync
        finally:
            made.close()
    return [
        (
            f"{SHORT_SESSION_MS / 1000:g} s",
            f"{minutes:g}",
            f"{found['messages']:,}",
            f"{found['rate']:,.0f}",
            f"{found['max_ms']:,.0f}",
            str(failovers),
            "yes" if in_sync else "no",
        )
    ]


SESSIONS: tuple[str, ...] = (
    *("session", "minutes", "messages", "messages/s", "longest confirm ms", "failovers", "backup in sync all the same"),
)
THROUGHPUT: tuple[str, ...] = ("scenario (AMQP)", "broker", "messages/s", "of standalone", "p99 ms", "pair CPU")
SYNC: tuple[str, ...] = (
    *("stored", "seconds", "MB/s", "messages/s before", "meanwhile", "of before", "longest confirm ms"),
)


def main() -> None:
    """Measure and print; with --write also into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("throughput", "sync", "sessions")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts[:2], help="default: the first two")
    parser.add_argument("--minutes", type=float, default=10.0, help="of load for the part sessions")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--gib", type=float, default=1.0, help="what is stored before the backup comes")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    given = parser.parse_args()
    console = Console(width=160)
    for part in given.parts:
        before = os.getloadavg()[0]
        if part == "throughput":
            words = f"the median of {given.rounds} rounds of {given.seconds:g} s"
            headers, rows = THROUGHPUT, throughput(KINDS, given.rounds, given.seconds, console)
        elif part == "sessions":
            words = "produced and consumed over AMQP, window 512, 100 B"
            headers, rows = SESSIONS, sessions(given.minutes)
        else:
            words = f"messages of {STORED // 1024} KiB stored, of {SENT // 1024} KiB sent"
            headers, rows = SYNC, sync(given.gib, console)
        show(headers, rows)
        if given.write:
            write_measured(f"replication {part}", words, before, markdown(headers, rows))


if __name__ == "__main__":
    main()
