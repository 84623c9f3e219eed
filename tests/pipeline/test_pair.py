"""Which lives two journals share: judged once by plain code and once as a column, which must say the same."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest
from pyspark.sql import functions as f

from pollux_pipeline.jobs.pair_lives import Lives, Told

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Epochs that are asked about.
EPOCHS = range(9)


def lives(a: dict[int, int], b: dict[int, int], newest_a: int = 0, newest_b: int = 0) -> Lives:
    """Of the salts by epoch that each side's segments tell, and of the newest epoch that any file of it has."""
    sides = {"a": (a, newest_a), "b": (b, newest_b)}
    return Lives.of({side: Told(salts=salts, epochs={*salts, newest} - {0}) for side, (salts, newest) in sides.items()})


@pytest.mark.parametrize(
    ("found", "shared"),
    [
        (lives({1: 5, 2: 6}, {1: 5, 2: 6, 3: 7}), {1, 2}),  # b went on in a life of its own
        (lives({1: 5, 2: 6}, {1: 5, 2: 9}), {1}),  # both took the same epoch from copies
        (lives({3: 5}, {3: 5}), {1, 2, 3}),  # what comes before a shared life is shared
        (lives({3: 5, 4: 6}, {3: 8}), {1, 2}),  # what comes behind one that is not is not
        (lives({}, {}, 4, 2), {1, 2}),  # compacted: no salt is left
        (lives({2: 5, 4: 6}, {2: 9, 4: 6}), {1, 3, 4}),  # cannot be: each life is what its own salts tell
        (lives({}, {}), set()),
    ],
)
def test_lives_are_shared_up_to_where_the_sides_part(found: Lives, shared: set[int]) -> None:
    assert {epoch for epoch in EPOCHS if epoch and found.shared(epoch)} == shared


def test_a_column_says_the_same(spark: SparkSession) -> None:
    """Breaks when a rule is changed in one of the two only."""
    random = Random(20261123)  # noqa: S311

    def salts() -> dict[int, int]:
        return {epoch: random.choice((5, 6)) for epoch in EPOCHS if epoch and random.random() < 0.5}

    every = [lives(salts(), salts(), random.randrange(9), random.randrange(9)) for _ in range(60)]
    epochs = spark.range(len(EPOCHS)).withColumnRenamed("id", "epoch")
    columns = [(one.life(f.col("epoch")) == "shared").alias(str(number)) for number, one in enumerate(every)]
    for row in epochs.select("epoch", *columns).collect():
        assert [row[str(number)] for number in range(len(every))] == [one.shared(row.epoch) for one in every]
