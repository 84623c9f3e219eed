"""Measures the cost of an active-passive cluster, and how long a promotion takes.

    .venv/bin/python -m benchmarks.active_passive                            # both parts
    .venv/bin/python -m benchmarks.active_passive --parts throughput --rounds 5 --write
    .venv/bin/python -m benchmarks.active_passive --parts promotion --messages 0 100000 1000000 --trials 5 --write

throughput: the same load on a broker of its own and on a primary with two backups in sync; all of it, three brokers and
the clients, on this machine. Brokers are started anew for each run, in turns, and each figure is the median of the
rounds. "all CPU" is what all brokers use.

promotion: two brokers with so many messages in a queue; the primary is killed, the backup promoted, and the killed one
joins again, so many times in turns. Milliseconds from the request until it is answered: then clients are served.

Nothing is asserted. Goals: at least 50 % of a single broker's rate; below 150 ms whatever the journal's size.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from benchmarks.failover_pairs import default_journal
from benchmarks.replication import broker_of, load, single, throughput
from benchmarks.report import markdown, show, write_measured
from benchmarks.throughput import options
from harness.passive import Cluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.replication import Brokers
    from harness.broker import BrokerProcess

#: Bytes of each message that is stored.
STORED = 256
THROUGHPUT: tuple[str, ...] = ("scenario (AMQP)", "broker", "messages/s", "of standalone", "p99 ms", "all CPU")
PROMOTION: tuple[str, ...] = ("messages stored", "journal MB", "trials", "median ms", "longest ms", "recovery ms")


def members(directory: Path, size: int) -> Cluster:
    """Return a cluster with the default settings of a journal; not started."""
    made = Cluster(directory, size)
    default_journal(made.brokers)
    return made


@contextmanager
def cluster(directory: Path) -> Iterator[list[BrokerProcess]]:
    """A primary with two backups in sync."""
    with members(directory, 3) as made:
        made.start()
        yield list(made.brokers)


KINDS: dict[str, Brokers] = {"standalone": single, "two backups in sync": cluster}


def promotion(messages: int, trials: int, console: Console) -> tuple[str, ...]:
    """A row of the table."""
    place = {"prefix": "pollux-passive-", "dir": "/var/tmp"}  # noqa: S108
    with (
        tempfile.TemporaryDirectory(**place, ignore_cleanup_errors=True) as directory,
        members(Path(directory), 2) as made,
    ):
        primary, backup = made.start()
        if messages:
            words = ("--messages", str(messages), *options(512, STORED, consume=False))
            load(broker_of(primary, "primary"), "stored", 0, words)
        size = sum(path.stat().st_size for path in (primary.shared / "journal").glob("*.segment"))
        times, recoveries = [], []
        for _ in range(trials):
            backup.wait_for_status("ready")
            backup.wait_until_read()
            primary.kill()
            began = time.monotonic()
            found = backup.api("/api/v1/activation/promote", method="POST", body={})
            times.append((time.monotonic() - began) * 1000)
            assert found["promoted"], found
            recoveries.append(backup.recovery_seconds * 1000)
            backup.wait_for_status("active")
            primary.spawn()
            primary, backup = backup, primary
            console.print(f"{messages:,} messages: {times[-1]:.0f} ms")
    return (
        f"{messages:,}",
        f"{size / 1e6:,.0f}",
        str(trials),
        f"{statistics.median(times):.0f}",
        f"{max(times):.0f}",
        f"{statistics.median(recoveries):.0f}",
    )


def main() -> None:
    """Measure and print; with --write also into docs/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = ("throughput", "promotion")
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument(
        "--messages", nargs="+", type=int, default=[0, 100_000, 1_000_000], help="stored, for promotion"
    )
    parser.add_argument("--trials", type=int, default=5, help="promotions for each of these")
    parser.add_argument("--write", action="store_true", help="write the tables into docs/benchmarks.md")
    given = parser.parse_args()
    console = Console(width=160)
    for part in given.parts:
        before = os.getloadavg()[0]
        if part == "throughput":
            words = f"the median of {given.rounds} rounds of {given.seconds:g} s"
            headers, rows = THROUGHPUT, throughput(KINDS, given.rounds, given.seconds, console)
        else:
            words = f"messages of {STORED} B"
            headers, rows = PROMOTION, [promotion(count, given.trials, console) for count in given.messages]
        show(headers, rows)
        if given.write:
            write_measured(f"active-passive {part}", words, before, markdown(headers, rows))


if __name__ == "__main__":
    main()
