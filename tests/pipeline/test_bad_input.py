"""Bad input is told in the output and in what a run finds; nothing is skipped silently."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING

import msgspec
import pytest
from crc32c import crc32c

from broker.store.helpers import message_of, opened, settings_in, stable, until
from journals import JournalFile
from pollux.store.compare.verdict import compare
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.jobs.compare_journals import compare_journals
from pollux_pipeline.jobs.pair import check_sides
from pollux_pipeline.jobs.reconcile import reconcile
from pollux_pipeline.sources.inputs import Inputs, find
from support.histories import History

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pollux.store.storage import Storage

DAY = 86_400_000


def make_journal(directory: Path, messages: int = 60) -> list[Path]:
    """One life in several segments; their files."""
    journal = JournalFile(directory, size=4096)
    for number in range(messages):
        journal.message("a", [7], bytes(200), duplicate_id=f"m{number}".encode())
        journal.write()
    journal.close()
    return sorted(directory.glob("*.segment"))


def change(path: Path, offset: int, data: bytes) -> None:
    with path.open("r+b") as stream:
        stream.seek(offset)
        stream.write(data)


def spoil(directory: Path) -> None:
    """What can be wrong with a journal's files, each in a segment of its own."""
    files = make_journal(directory)
    assert len(files) >= 5
    change(files[0], 900, b"\xff" * 4)  # flipped bits
    with files[1].open("r+b") as stream:  # cut in the middle
        stream.truncate(1500)
    head = bytearray(files[2].read_bytes()[:64])  # written by a newer Pollux
    head[8:10] = (7).to_bytes(2, "little")
    head[60:64] = crc32c(bytes(head[:60])).to_bytes(4, "little")
    change(files[2], 0, bytes(head) * 2)
    other = JournalFile(directory.parent / "other", epoch=9, first=50, node=b"node-of-somebody", size=4096)
    other.message("stray", [1])
    other.close()
    shutil.copy(other.path, directory)  # two nodes in one directory


def test_all_that_is_wrong_with_a_journal_is_in_the_output(spark: SparkSession, tmp_path: Path) -> None:
    spoil(tmp_path / "data" / "journal")
    result = reconcile(Run(spark, find([str(tmp_path / "data")]), tmp_path / "out"))
    rows = spark.read.parquet(str(tmp_path / "out" / "damage")).collect()
    kinds = {row.damage for row in rows}
    assert kinds >= {"corrupt", "cut", "unknown-version", "foreign-node"}
    # Each is a finding but what every crash leaves behind, and is named with its file in the report.
    assert result.findings["damage"] == sum(row.damage not in ("torn-tail", "late-writes") for row in rows)
    page = (tmp_path / "out" / "report.html").read_text()
    assert all(kind in page for kind in kinds)


def test_an_empty_ledger_is_nothing_and_no_error(spark: SparkSession, tmp_path: Path) -> None:
    path = History().write(tmp_path / "ledger.txt")
    result = reconcile(Run(spark, find([str(path)]), tmp_path / "out"))
    assert (result.clean, result.facts["sent"]) == (True, 0)


def test_epochs_order_lives_not_clocks(spark: SparkSession, tmp_path: Path) -> None:
    """The second life's clock is a day behind the first's; it is the newest all the same."""
    for side in ("a", "b"):
        first = JournalFile(tmp_path / side, size=4096, created=2 * DAY)
        held = [first.message("orders", [7], timestamp=2 * DAY + number) for number in range(5)]
        first.close()
    ends = dict([first.end()])
    second = JournalFile(tmp_path / "b", epoch=2, first=2, size=4096, salt=9, ends=ends, created=DAY)
    second.acks(7, held[:3])
    second.message("orders", [7], timestamp=DAY + 1)
    second.close()
    sides = {"sides": check_sides(tmp_path / "a", tmp_path / "b")}
    result = compare_journals(Run(spark, Inputs((), ()), tmp_path / "out", sides))
    assert result.facts["newest"] == "b"
    waiting = reconcile(Run(spark, find([str(tmp_path / "b")]), tmp_path / "out-b"))
    assert waiting.facts["waiting_in_queues"] == 3
    # ... which is told, as people compare times.
    assert [name for name, count in waiting.findings.items() if count] == ["clock_skew"]
    (told,) = spark.read.parquet(str(tmp_path / "out-b" / "findings")).filter("finding = 'clock_skew'").collect()
    assert "epoch 2 began 86400.0 s before epoch 1" in told.detail


@pytest.mark.parametrize("stopped", [False, True], ids=["what it began with is there", "that is folded away too"])
def test_a_live_that_went_on_alone_is_not_thrown_away_for_a_later_life(
    spark: SparkSession, tmp_path: Path, *, stopped: bool
) -> None:
    """The backup was made to serve with older data, and its checkpoint lies behind all that the live wrote alone.

    Breaks when what is behind a checkpoint of the other side counts as something the other side has had.
    """
    asyncio.run(part(tmp_path / "live", tmp_path / "backup", stopped=stopped))
    sides = {"sides": check_sides(tmp_path / "live", tmp_path / "backup")}
    result = compare_journals(Run(spark, Inputs((), ()), tmp_path / "out", sides))
    assert result.facts["newest"] == compare(tmp_path / "live", tmp_path / "backup").newest == "diverged"
    (row,) = spark.read.parquet(str(tmp_path / "out" / "queues")).collect()
    assert (row.only_a, row.only_b) == (40, 60)


async def part(live: Path, backup: Path, *, stopped: bool) -> None:
    """A live that goes on over several segments after its backup was cut off, and that backup's later life.

    `stopped`: in order, which leaves a checkpoint and nothing else; else it has one of the life before, and is killed.
    """
    async with opened(settings_in(live, journal_file_size=4 << 10), crash=True) as one:
        one.storage.put("queue", "orders", msgspec.msgpack.encode({"id": 7, "spec": {}}))
        await send(one.storage, 5)
        shutil.copytree(live, backup)
        await send(one.storage, 40)
    folding = settings_in(backup, journal_file_size=64 << 10, journal_compact_min_files=1)
    async with opened(folding, crash=not stopped) as one:
        maintenance = one.storage._maintenance
        assert maintenance is not None
        maintenance.consider(urgent=True)
        await until(lambda: any((backup / "journal").glob("*.checkpoint")))
        await send(one.storage, 60)


async def send(storage: Storage, count: int) -> None:
    for _ in range(count):
        storage.append_message(message_of(storage, b"m" * 300), [7])
    await stable(storage)
