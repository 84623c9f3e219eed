"""Of large ledgers only places where something may be out of order are looked at closely: nothing is missed by that."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql import functions as f

from pollux_pipeline.jobs import order

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COLUMNS = (
    "id string, producer string, `group` string, sequence bigint, node string, queue string, ledger int,"
    " time double, at bigint"
)
GROUPS, MESSAGES = 24, 160
SPANS = {1: (0.0, 6400.0)}


def received(random: Random) -> list[tuple[Any, ...]]:
    """Receptions of groups of which some are in order, some are not here and there, some only over a long time."""
    rows: list[tuple[Any, ...]] = []
    for group in range(GROUPS):
        times = sorted(random.choice([random.uniform(0, 6400), 100.0 * random.randrange(64)]) for _ in range(MESSAGES))
        sequences = list(range(MESSAGES))
        if group % 3 == 1:
            a = random.randrange(MESSAGES - 1)
            sequences[a], sequences[a + 1] = sequences[a + 1], sequences[a]
        if group % 3 == 2:
            sequences.append(sequences.pop(random.randrange(20)))  # the last stretch has one of the first
        for number, (time, sequence) in enumerate(zip(times, sequences, strict=True)):
            name = f"m{group}-{sequence}"
            rows.append((name, f"p{group % 2}", f"g{group}", sequence, "n", f"q{group % 5}", 1, time, number))
    random.shuffle(rows)
    return rows


def behind(rows: list[tuple[Any, ...]]) -> set[tuple[str, str]]:
    """The messages that came after a later one, and after which: by plain code."""
    found = set()
    newest: dict[tuple[str, ...], tuple[int, str]] = {}
    for name, producer, group, sequence, _, queue, *_, _at in sorted(rows, key=lambda row: (row[7], row[8])):
        place, this = (producer, group, queue), (sequence, name)
        later = newest.get(place, this)
        if sequence < later[0]:
            found.add((name, f"came after {later[1]}"))
        newest[place] = max(later, this)
    return found


@pytest.mark.parametrize("case", ["some", "all", "one hash for many"])
def test_what_is_suspected_is_all_that_is_out_of_order(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    if case == "all":
        monkeypatch.setattr(order, "_SUSPECTS", 3)
    if case == "one hash for many":
        monkeypatch.setattr(f, "xxhash64", lambda *names: (f.hash(*names) % 5).cast("bigint"))
    rows = received(Random(20261130))  # noqa: S311
    frame = spark.createDataFrame(rows, COLUMNS)
    suspected = order.suspected(frame, SPANS)
    count = suspected.count()
    if case == "some":
        assert count == GROUPS // 3 * 2 * MESSAGES, "groups that are in order are left out"
    else:
        assert count >= GROUPS // 3 * 2 * MESSAGES
    found = order.violations(suspected, SPANS, large=True, several=False).collect()
    assert {(row.id, row.detail) for row in found} == behind(rows)


def test_where_everything_is_in_order_nothing_is_looked_at(spark: SparkSession) -> None:
    rows = [(f"m{n}", "p", "g", n // 2, "n", "q", 1, float(n), n) for n in range(MESSAGES)]  # a sequence may come twice
    assert order.suspected(spark.createDataFrame(rows, COLUMNS), SPANS).count() == 0
