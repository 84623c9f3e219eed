"""Several ledgers behind links, each with its own clock, and the store of a broker that stopped in order between lives:
`reconcile` and a program for DuckDB find the same, row for row."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from random import Random
from typing import TYPE_CHECKING

from harness import oracle
from harness.histories import History, generate
from harness.store import message_of, opened, settings_in, stable
from pollux.formats.ledger import Confirmed, Entry, Received, Sent
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.jobs.reconcile import reconcile
from pollux_pipeline.sources.inputs import find

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pyspark.sql import SparkSession

HOSTS, HOUR = 3, 3_600_000.0
#: What one of them finds in ledgers, and of messages that wait.
KINDS = {"lost", "stuck", "duplicated", "phantom", "order_violations", "two_lives", "order_unknown"}


def in_lives(random: Random, part: History) -> list[Entry]:
    """The entries of a history, its receptions in the two lives of the node; some of unknown brokers."""
    entries = sorted(part.entries, key=lambda entry: entry.time)
    turn = random.randrange(len(entries) + 1)
    moved: list[Entry] = []
    for number, entry in enumerate(entries):
        if isinstance(entry, Received) and entry.broker:
            name, epoch = ("castor", 1) if number < turn else ("pollux", 2)
            known = random.random() < 0.9
            moved.append(entry._replace(broker=f"{name}{entry.queue[1:]}" if known else "", epoch=epoch))
        elif isinstance(entry, Confirmed):
            moved.append(entry._replace(broker=f"{entry.broker}.{entry.node.removeprefix('node-')}"))
        else:
            moved.append(entry)
    return moved


def on_hosts(random: Random, entries: Sequence[Entry]) -> list[list[Entry]]:
    """Split the entries: a message is sent and confirmed on one host, received on any, by clocks hours apart."""
    clocks = [random.uniform(-HOUR, HOUR) for _ in range(HOSTS)]
    home: dict[str, int] = {}
    found: list[list[Entry]] = [[] for _ in range(HOSTS)]
    for entry in entries:
        host = random.randrange(HOSTS)
        if isinstance(entry, (Sent, Confirmed)):
            host = home.setdefault(entry.id, host)
        found[host].append(entry._replace(time=entry.time + clocks[host]))
    return found


async def keep(data: Path, waiting: Sequence[str], gone: Sequence[str]) -> None:
    """A broker that stops in order after each of three lives: it still has `waiting`, and had all of `gone`."""
    for life in range(3):
        async with opened(settings_in(data, journal_file_size=4 << 10, journal_compact_min_files=1)) as one:
            for name in (*waiting[life::3], *gone[life::3]):
                message = message_of(one.storage, b"m" * 50, address="q", duplicate_id=name.encode())
                one.storage.append_message(message, [7])
                if name in gone:
                    one.storage.append_acks(7, [message.id])
            await stable(one.storage)


def test_another_engine_finds_the_same_in_several_ledgers(spark: SparkSession, tmp_path: Path) -> None:
    """Breaks when times of two clocks are compared, a link is not followed, or followed twice, when what a stop has
    folded away reads as lost, and when anything is found once more or less than the documents say."""
    seed = int(os.environ.get("POLLUX_SEED", "20261126"))
    random = Random(seed)  # noqa: S311
    truth: list[Entry] = []
    lost: list[str] = []
    for number in range(40):
        part = generate(random, f"h{number}", random.randrange(2, 40))
        truth += in_lives(random, part)
        lost += sorted(part.lost)
    given, far = tmp_path / "given", tmp_path / "far"
    ledgers: list[Path] = []
    for number, entries in enumerate(on_hosts(random, truth)):
        place = random.choice((given, far)) / f"host{number}"
        place.mkdir(parents=True)
        ledgers.append(History(entries).write(place / "ledger.txt"))
        if far in place.parents:
            given.mkdir(exist_ok=True)
            for link in range(random.randrange(1, 3)):
                (given / f"link{number}{link}").symlink_to(place)
    waiting = random.sample(lost, len(lost) // 2)
    received = sorted({entry.id for entry in truth if isinstance(entry, Received)})
    asyncio.run(keep(far / "data", waiting, random.sample(received, 60)))
    (given / "data").symlink_to(far / "data")
    assert list(far.rglob("*.checkpoint")), "a stop folded the records away"

    reconcile(Run(spark, find([str(given)]), tmp_path / "out"))
    rows = spark.read.parquet(str(tmp_path / "out" / "findings")).collect()
    found = Counter((row.finding, row.id, row.queue, row.producer, row.node) for row in rows)
    expected = Counter(oracle.of_several(ledgers, waiting))
    assert {finding for finding, *_ in expected} == KINDS, "each kind was planted"
    assert (found - expected, expected - found) == (Counter(), Counter()), seed
