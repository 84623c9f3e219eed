"""`reconcile` and a program for DuckDB find the same in histories where everything happens that can, row for row."""

from __future__ import annotations

import os
from collections import Counter
from random import Random
from typing import TYPE_CHECKING, Any

import pytest

from harness import oracle
from harness.histories import History
from pollux.formats.ledger import Confirmed, Received, Sent
from pollux_pipeline import spark_settings
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.jobs.reconcile import reconcile
from pollux_pipeline.sources.inputs import find

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

MESSAGES = 600
KINDS = {"lost", "duplicated", "phantom", "order_violations", "two_lives"}


def anything(random: Random) -> History:
    """Traffic in which each thing goes wrong often, and in combinations nobody thought of. No two times are equal."""
    history = History()
    moments = iter(random.sample(range(MESSAGES * 40), MESSAGES * 12))
    sequences: Counter[tuple[str, str]] = Counter()
    for number in range(MESSAGES):
        name = f"m{number}"
        producer, group = f"p{random.randrange(4)}", random.choice(["", "g1", "g2"])
        if random.random() < 0.95:
            sequences[producer, group] += 1
            at = number * 40 + next(moments) / MESSAGES
            history.entries.append(Sent(at, name, producer, group, sequences[producer, group]))
        for _ in range(random.choice([0, 1, 1, 1, 2])):
            node = f"n{random.randrange(5)}"
            epoch = random.choice([None, 1, 2])
            history.entries.append(Confirmed(next(moments), name, node, random.choice(["castor", "pollux"]), epoch))
        for _ in range(random.choice([0, 1, 1, 1, 2, 3, 4])):
            at = number * 40 + next(moments) / MESSAGES * random.choice([1, 1, 1, 30])
            history.entries.append(Received(at, name, f"q{random.randrange(3)}", random.random() < 0.3))
    random.shuffle(history.entries)
    return history


@pytest.mark.parametrize(("queues", "small"), [([], spark_settings.SMALL), (["q0", "q2"], 0)])
def test_another_engine_finds_the_same_rows(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, queues: list[str], small: int
) -> None:
    """`small`: what counts as a small input; a large one is cut into stretches of time."""
    monkeypatch.setattr(spark_settings, "SMALL", small)
    seed = int(os.environ.get("POLLUX_SEED", "20261126"))
    path = anything(Random(seed)).write(tmp_path / "ledger.txt")  # noqa: S311
    reconcile(Run(spark, find([str(path)]), tmp_path / "out", {"queues": queues}))
    rows = spark.read.parquet(str(tmp_path / "out" / "findings")).collect()

    def row(one: Any) -> tuple[Any, ...]:
        more = (None,) * 3 if one.finding == "two_lives" else (one.id, one.queue, one.producer)
        return one.finding, *more, one.node, None if one.finding == "two_lives" else one.time

    found, expected = Counter(map(row, rows)), Counter(oracle.findings(path, queues))
    assert {finding for finding, *_ in expected} == KINDS, "each kind was planted"
    assert (found - expected, expected - found) == (Counter(), Counter()), seed
