"""Bad input is told in the output and in what a run finds; nothing is skipped silently."""

from __future__ import annotations

import asyncio
import shutil
from random import Random
from typing import TYPE_CHECKING

import pytest
from crc32c import crc32c

from harness.histories import History
from harness.journals import JournalFile
from harness.parted_stores import PARTED, drawn
from pollux.store.compare.verdict import compare
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.jobs.compare_journals import compare_journals
from pollux_pipeline.jobs.pair import check_sides
from pollux_pipeline.jobs.reconcile import reconcile
from pollux_pipeline.sources.inputs import Inputs, find

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

DAY = 86_400_000
#: Those of `harness.parted_stores` that are judged by different evidence; each takes Spark some seconds.
JUDGED = (
    *("a copy", "went on in the same life", "both served and stopped", "consumed and folded", "folded on both"),
    *("went on alone, stopped", "went on alone, the other folded", "a checkpoint within a segment"),
    *("one snapshot twice", "an ancestor, killed", "an ancestor, stopped", "parted and stopped"),
)


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
    """Spoil a journal's files in each way, each in a segment of its own."""
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


@pytest.mark.parametrize("name", JUDGED)
def test_compare_journals_says_what_pollux_journal_compare_says(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """The same stores, read by other code: the verdict, and for the queue who accepted how much alone.

    Breaks, for one, when what is behind a checkpoint of the other side counts as something the other side has had, or
    when a checkpoint in which nothing is left is taken for none.
    """
    make, newest = PARTED[name]
    asyncio.run(make(tmp_path))
    sides = check_sides(tmp_path / "a", tmp_path / "b")
    result = compare_journals(Run(spark, Inputs((), ()), tmp_path / "out", {"sides": sides}))
    found = compare(tmp_path / "a", tmp_path / "b")
    assert result.facts["newest"] == found.newest == newest
    (row,) = spark.read.parquet(str(tmp_path / "out" / "queues")).collect()
    (told,) = found.queues
    same = (told.messages_a, told.messages_b, told.only_a, told.only_b)
    assert (row.messages_a, row.messages_b, row.only_a, row.only_b) == same


@pytest.mark.parametrize("seed", [1, 6])
def test_what_two_journals_have_had_is_known_whatever_stops_fold_away(
    spark: SparkSession, tmp_path: Path, seed: int
) -> None:
    """Random lives before and after two stores part; most stop in order, so that their records are gone."""
    newest, drawn_row = asyncio.run(drawn(tmp_path, Random(seed)))  # noqa: S311
    sides = check_sides(tmp_path / "a", tmp_path / "b")
    result = compare_journals(Run(spark, Inputs((), ()), tmp_path / "out", {"sides": sides}))
    (row,) = spark.read.parquet(str(tmp_path / "out" / "queues")).collect()
    found = {name: row[name] for name in ("messages_a", "messages_b", "only_a", "only_b") if row[name]}
    found |= {f"taken_by_{side}": n for side in "ab" if (n := row[f"consumed_by_{side}_only"])}
    assert (result.facts["newest"], found) == (newest, drawn_row)
