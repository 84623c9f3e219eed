"""A clean stop folds the records away. What is judged then is what checkpoints noted, and nothing is guessed."""

from __future__ import annotations

import asyncio
import shutil
from typing import TYPE_CHECKING, Any

import pytest

from harness.parted_stores import PARTED, without_history
from harness.store import message_of, opened, settings_in, stable
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.jobs.compare_journals import compare_journals
from pollux_pipeline.jobs.ingest import ingest
from pollux_pipeline.jobs.pair import check_sides
from pollux_pipeline.jobs.reconcile import reconcile
from pollux_pipeline.jobs.sizing import sizing
from pollux_pipeline.jobs.split_brain import split_brain
from pollux_pipeline.sources.inputs import Inputs, find

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pyspark.sql import SparkSession

    from pollux_pipeline.jobs.base import Result


async def served(data: Path, lives: int) -> None:
    """Lives that accept 30 orders and 2 others, consume most of them, and stop in order."""
    for _ in range(lives):
        async with opened(settings_in(data, journal_file_size=4 << 10, journal_compact_min_files=1)) as one:
            for number in range(32):
                message = message_of(one.storage, b"m" * 100, address="orders" if number < 30 else "other")
                one.storage.append_message(message, [7])
                if number < 28:
                    one.storage.append_acks(7, [message.id])
            await stable(one.storage)


def checkpoints(directory: Path) -> list[Path]:
    return list(directory.rglob("*.checkpoint"))


def test_sizing_counts_what_a_clean_stop_folded_away_and_says_so(spark: SparkSession, tmp_path: Path) -> None:
    """Breaks when a message is counted by its record and by the checkpoint both, or when the verdict is clean."""

    def measured(name: str) -> tuple[Result, dict[str, tuple[int, int]]]:
        result = sizing(Run(spark, find([str(tmp_path / "data")]), tmp_path / name, {}))
        rows = spark.read.parquet(str(tmp_path / name / "addresses")).collect()
        return result, {row.address: (row.messages, row.bytes) for row in rows}

    asyncio.run(served(tmp_path / "data", 3))
    # Nothing but a checkpoint is left for a lake, which is no failure.
    assert not ingest(Run(spark, find([str(tmp_path / "data")]), tmp_path / "lake")).found
    result, addresses = measured("out")
    assert addresses == {"orders": (90, 9000), "other": (6, 600)}
    assert (result.facts["messages"], result.clean, result.found) == (96, False, False)
    assert result.facts["without_times"] > 60
    assert result.verdict.startswith("sizing: history compacted before epoch 3, segment ")

    judged = reconcile(Run(spark, find([str(tmp_path / "data")]), tmp_path / "judged"))
    assert (judged.clean, judged.found) == (False, False)
    assert judged.verdict.startswith("reconcile: history compacted before epoch 3, segment ")

    for path in checkpoints(tmp_path / "data"):
        without_history(path)
    result, addresses = measured("old")
    assert sum(count for count, _ in addresses.values()) == result.facts["messages"] < 96
    assert result.verdict.startswith("sizing: history compacted before epoch 3, segment ")
    if not result.facts["messages"]:
        assert (result.facts["pairs"], result.facts["busiest_second"]) == (None, None)


@pytest.mark.parametrize("name", ["an ancestor, killed", "an ancestor, stopped"])
def test_what_a_version_before_folded_away_is_not_guessed(spark: SparkSession, tmp_path: Path, name: str) -> None:
    """Its checkpoints have no history: an ancestor was called diverged, and what had been consumed was to be sent.

    Breaks when the ids of messages that are left are taken for those of all that there were.
    """
    make, _ = PARTED[name]
    asyncio.run(make(tmp_path))
    for path in checkpoints(tmp_path):
        without_history(path)
    sides = check_sides(tmp_path / "a", tmp_path / "b")

    def judged(job: Callable[[Run], Result], options: dict[str, Any]) -> Result:
        return job(Run(spark, Inputs((), ()), tmp_path / job.__name__, {"sides": sides} | options))

    result = judged(compare_journals, {})
    assert (result.facts["newest"], result.findings) == ("unknown", {"diverged": 0, "unknown": 1, "damage": 0})
    assert "history compacted before epoch 3, segment " in result.verdict
    result = judged(split_brain, {"keep": "b"})
    assert (result.findings["unknown"], result.findings["to_send"], result.findings["to_remove"]) == (1, 0, 0)


def test_a_plan_for_two_that_stopped_in_order_sends_what_one_accepted_alone(
    spark: SparkSession, tmp_path: Path
) -> None:
    """Breaks when what the kept side consumed and folded away is taken for what it never had."""
    make, _ = PARTED["parted and stopped"]
    asyncio.run(make(tmp_path))
    sides = check_sides(tmp_path / "a", tmp_path / "b")
    result = split_brain(Run(spark, Inputs((), ()), tmp_path / "out", {"sides": sides, "keep": "b"}))
    assert result.findings == {"split": 1, "unknown": 0, "to_send": 6, "to_remove": 5, "bodies_missing": 0, "damage": 0}


def pages_of(data: Path) -> list[Path]:
    """The pages that are on disk."""
    return sorted(data.rglob("*.page"))


async def paged(data: Path, messages: int, *, consume: bool, crash: bool, but: int = 0) -> None:
    """A life that puts so many messages into pages of one address, or has its only queue acknowledge all pages of them
    `but` the last ones."""
    settings = settings_in(data, journal_file_size=4 << 10, page_size_bytes=2 << 10, journal_compact_min_files=1)
    async with opened(settings, crash=crash) as one:
        pages = one.storage.pages.address("paged")
        for _ in range(messages):
            pages.append(message_of(one.storage, b"p" * 150, address="paged"), [7])
        there = len(pages_of(data)) - but
        while consume and (there > 0 or not but) and (number := pages.next_page(7)) is not None:
            there -= 1
            pages.acknowledge(7, number, [each.message.id for each in await pages.read(number)], 0)
        await stable(one.storage)


def test_messages_that_were_in_pages_alone_are_counted_or_told(spark: SparkSession, tmp_path: Path) -> None:
    """Breaks when what was in pages is left out without a word: it read as clean, with 0 messages."""
    data = tmp_path / "data"
    asyncio.run(paged(data, 40, consume=False, crash=False))
    shutil.copytree(data, tmp_path / "copy")
    asyncio.run(paged(data, 0, consume=True, crash=True))
    assert len(list(data.rglob("*.page"))) < len(list((tmp_path / "copy").rglob("*.page"))), "pages are gone"
    result = sizing(Run(spark, find([str(data)]), tmp_path / "out", {}))
    (row,) = spark.read.parquet(str(tmp_path / "out" / "addresses")).collect()
    assert (row.address, row.messages, result.facts["messages"]) == ("paged", 40, 40)
    assert (result.clean, result.facts["pages_gone"] > 0, result.facts["without_times"] > 0) == (False, True, True)
    # The other side had them in its pages, and consumed them: nothing is this side's alone.
    options = {"sides": check_sides(tmp_path / "copy", data)}
    told = compare_journals(Run(spark, Inputs(tuple(options["sides"].values()), ()), tmp_path / "pair", options))
    (queue,) = spark.read.parquet(str(tmp_path / "pair" / "queues")).collect()
    assert (told.facts["newest"], queue.only_a, queue.only_b, queue.consumed_by_b_only) == ("b", 0, 0, 40)
    # A stop in order folds the acknowledgements away too.
    asyncio.run(paged(data, 0, consume=False, crash=False))
    later = sizing(Run(spark, find([str(data)]), tmp_path / "later", {}))
    assert (later.word, later.clean) == ("compacted", False)
    assert {name: later.facts[name] for name in ("messages", "without_times")} == {"messages": 40, "without_times": 40}
    assert later.facts["pages_gone"] == len(list((tmp_path / "copy").rglob("*.page")))


def test_a_page_that_a_power_cut_brought_back_is_counted_once(spark: SparkSession, tmp_path: Path) -> None:
    """Its file says what was in it, and the checkpoint has it as done. Another page of its store is still there."""
    data = tmp_path / "data"
    asyncio.run(paged(data, 40, consume=False, crash=False))
    shutil.copytree(data, tmp_path / "copy")
    asyncio.run(paged(data, 0, consume=True, crash=False, but=1))
    (back,) = sorted((tmp_path / "copy").rglob("*.page"))[:1]
    assert list(data.rglob("*.page")), "the store is still there"
    assert not (data / back.relative_to(tmp_path / "copy")).exists()
    shutil.copy(back, data / back.relative_to(tmp_path / "copy"))
    assert sizing(Run(spark, find([str(data)]), tmp_path / "out", {})).facts["messages"] == 40
