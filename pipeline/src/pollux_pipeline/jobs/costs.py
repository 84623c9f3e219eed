"""Counts the cost of the change from one life of a node to the next, in messages."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame

    from pollux_pipeline.jobs.activations import Gap

_LIFE = ("node", "epoch")
#: Stretches of time that are asked about before a message is looked at more closely.
_ASKED = 32


def of_lives(
    messages: DataFrame, gaps: Sequence[Gap]
) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], tuple[int, int, int]]]:
    """By node and epoch: how many messages it had confirmed that were lost; how many messages, producers and groups
    were affected by the gap before it: sent, or sent again, between the last confirm before and its first one, by the
    clock of the ledger they stand in."""
    lost = messages.filter("state = 'lost' and epoch is not null").groupBy("node", "epoch")
    zero = f.lit(0).cast("bigint")
    told = lost.agg(f.count("*").alias("lost"), *(zero.alias(name) for name in ("messages", "producers", "groups")))
    if gaps:
        told = told.unionByName(_affected(messages, gaps).withColumn("lost", zero))
    of_lost: dict[tuple[str, int], int] = {}
    affected: dict[tuple[str, int], tuple[int, int, int]] = {}
    for row in told.collect():
        if row.lost:
            of_lost[row.node, row.epoch] = row.lost
        else:
            affected[row.node, row.epoch] = (row.messages, row.producers, row.groups)
    return of_lost, affected


def _affected(messages: DataFrame, gaps: Sequence[Gap]) -> DataFrame:
    known = f.array(*(f.struct(*(f.lit(value).alias(name) for name, value in gap._asdict().items())) for gap in gaps))
    within = f.filter(
        known,
        lambda gap: f.exists(
            "attempts",
            lambda one: (one["ledger"] == gap["ledger"]) & one["time"].between(gap["start"], gap["end"]),
        ),
    )
    lives = f.array_distinct(f.transform(within, lambda gap: f.struct(*(gap[name].alias(name) for name in _LIFE))))
    near = messages.filter(_near(gaps) | (f.size("attempts") > 1))
    return (
        near.select("producer", "group", f.inline(lives))
        .groupBy("node", "epoch")
        .agg(
            f.count("*").alias("messages"),
            f.approx_count_distinct("producer").alias("producers"),
            f.approx_count_distinct("group").alias("groups"),
        )
    )


def _near(gaps: Sequence[Gap]) -> Column:
    """Whether the attempt that was answered may be in one of the gaps: a cheap question that most messages fail."""
    times: dict[int, list[tuple[float, float]]] = defaultdict(list)
    for gap in gaps:
        times[gap.ledger].append((gap.start, gap.end))
    near = f.lit(False)
    for ledger, spans in sorted(times.items()):
        of_ledger = f.col("sent_ledger") == ledger
        whole = (min(start for start, _ in spans), max(end for _, end in spans))
        for start, end in spans if len(spans) <= _ASKED else [whole]:
            near |= of_ledger & f.col("sent_ms").between(start, end)
    return near
