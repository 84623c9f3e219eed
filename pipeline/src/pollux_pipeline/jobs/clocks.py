"""Brokers of a pair whose clocks do not agree. Nothing is ordered by them, but people who compare times should know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from pollux_pipeline.jobs.evidence import node_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

#: Milliseconds by which a later life may seem to have begun before an earlier one: clocks are set in small steps.
_ALLOWED = 1000


def of_journals(rows: DataFrame) -> DataFrame:
    """node, epoch, began: when each life began, by its broker's clock, as the headers of its segments say."""
    told = rows.filter((rows.kind == "journal") & rows.damage.isNull() & ~rows.fenced & (rows.created > 0))
    return told.groupBy(node_key("node_id").alias("node"), "epoch").agg(f.min("created").alias("began"))


def of_trails(served: DataFrame) -> DataFrame:
    """The same from what the brokers noted (`evidence.activations`)."""
    return served.select(f.col("node_key").alias("node"), "epoch", f.col("live_at").alias("began"))


def skewed(lives: DataFrame) -> DataFrame:
    """Findings: lives that began, by their own clock, before a life of the same node that has a lower epoch."""
    known = lives.groupBy("node", "epoch").agg(f.min("began").alias("began"))
    earlier = Window.partitionBy("node").orderBy("epoch").rowsBetween(Window.unboundedPreceding, -1)
    latest = f.max(f.struct("began", f.col("epoch").alias("epoch"))).over(earlier)
    behind = known.withColumn("before", latest).filter(f.col("began") + _ALLOWED < f.col("before.began"))
    detail = f.format_string(
        "epoch %d began %.1f s before epoch %d by the clocks of their brokers: only epochs tell what came first",
        "epoch",
        (f.col("before.began") - f.col("began")) / 1000,
        f.col("before.epoch"),
    )
    return behind.select(
        f.lit("clock_skew").alias("finding"),
        *(f.lit(None).cast("string").alias(name) for name in ("id", "queue", "producer")),
        "node",
        f.lit(None).cast("double").alias("time"),
        detail.alias("detail"),
    )
