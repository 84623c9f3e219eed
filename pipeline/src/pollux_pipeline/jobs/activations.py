"""The lives of brokers, as ledgers and audit trails tell of them, and what each change from one to the next cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from pollux_pipeline.jobs.base import table
from pollux_pipeline.jobs.evidence import SERVED, node_key

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_OF_LEDGERS = (
    "node string, epoch bigint, broker string, first_ms double, last_ms double, confirmed bigint, fault_ms double, "
    "fault string, rto_ms double, lost bigint, affected_messages bigint, affected_producers bigint, "
    "affected_groups bigint"
)


def lives(events: DataFrame) -> DataFrame:
    """One row for each activation that confirmed something: node, broker, epoch, first, last, confirmed."""
    return (
        events.filter("kind = 'C' and epoch is not null")
        .groupBy("node", "broker", "epoch")
        .agg(f.min("time").alias("first"), f.max("time").alias("last"), f.count("*").alias("confirmed"))
    )


def two_lives(known: DataFrame) -> DataFrame:
    """Findings: two activations of one node that confirmed at once, in one epoch, or in the wrong order."""
    ordered = known.withColumn(
        "n", f.row_number().over(Window.partitionBy("node").orderBy("first", "last", "broker", "epoch"))
    )
    a, b = ordered.alias("a"), ordered.alias("b")
    pairs = a.join(b, (f.col("a.node") == f.col("b.node")) & (f.col("a.n") < f.col("b.n")))
    both = f.concat(
        f.col("a.broker"),
        f.lit(" (epoch "),
        f.col("a.epoch"),
        f.lit(") and "),
        f.col("b.broker"),
        f.lit(" (epoch "),
        f.col("b.epoch"),
        f.lit(")"),
    )
    detail = (
        f.when(f.col("a.epoch") == f.col("b.epoch"), f.concat(both, f.lit(" both confirmed in one epoch")))
        .when(f.col("b.first") < f.col("a.last"), f.concat(both, f.lit(" confirmed at once")))
        .when(f.col("b.epoch") < f.col("a.epoch"), f.concat(both, f.lit(" confirmed in the wrong order")))
    )
    return (
        pairs.withColumn("detail", detail)
        .filter("detail is not null")
        .select(
            f.lit("two_lives").alias("finding"),
            *(f.lit(None).cast("string").alias(name) for name in ("id", "queue", "producer")),
            f.col("a.node").alias("node"),
            f.col("b.first").alias("time"),
            "detail",
        )
    )


def of_ledgers(found: DataFrame, messages: DataFrame, events: DataFrame) -> DataFrame:
    """What each activation cost: how long nothing was confirmed before it (RTO), what it had confirmed and nobody
    received (RPO), and whose messages were under way meanwhile.

    An RTO is measured from the fault that led to it, where the ledger has one, else from the last confirm before.
    """
    known = (
        found.groupBy("node", "epoch")
        .agg(
            f.array_join(f.array_sort(f.collect_set("broker")), ", ").alias("broker"),
            f.min("first").alias("first_ms"),
            f.max("last").alias("last_ms"),
            f.sum("confirmed").alias("confirmed"),
        )
    )
    order = Window.partitionBy("node").orderBy("epoch")
    known = known.withColumn("before_ms", f.lag("last_ms").over(order)).withColumn(
        "before_first_ms", f.lag("first_ms").over(order)
    )
    faults = events.filter("kind = 'F'").select(f.col("time").alias("fault_ms"), "text")
    led = (
        known.alias("k")
        .join(
            f.broadcast(faults),
            (f.col("fault_ms") <= f.col("k.first_ms")) & (f.col("fault_ms") > f.col("k.before_first_ms")),
        )
        .groupBy("node", "epoch")
        .agg(f.max(f.struct("fault_ms", "text")).alias("fault"))
    )
    lost = (
        messages.filter("state = 'lost' and epoch is not null").groupBy("node", "epoch").agg(f.count("*").alias("lost"))
    )
    gaps = known.filter("before_ms is not null and before_ms < first_ms").select(
        "node", "epoch", "before_ms", "first_ms"
    )
    affected = (
        messages.filter("sent_ms is not null")
        .select("producer", "group", "sent_ms")
        .join(f.broadcast(gaps), (f.col("sent_ms") >= f.col("before_ms")) & (f.col("sent_ms") <= f.col("first_ms")))
        .groupBy("node", "epoch")
        .agg(
            f.count("*").alias("affected_messages"),
            f.approx_count_distinct("producer").alias("affected_producers"),
            f.approx_count_distinct("group").alias("affected_groups"),
        )
    )
    joined = known
    for other in (led, lost, affected):
        joined = joined.join(other, ["node", "epoch"], "left")
    return joined.select(
        "node",
        "epoch",
        "broker",
        "first_ms",
        "last_ms",
        "confirmed",
        f.col("fault.fault_ms").alias("fault_ms"),
        f.col("fault.text").alias("fault"),
        (f.col("first_ms") - f.coalesce("fault.fault_ms", "before_ms")).alias("rto_ms"),
        f.coalesce("lost", f.lit(0)).alias("lost"),
        f.coalesce("affected_messages", f.lit(0)).alias("affected_messages"),
        f.coalesce("affected_producers", f.lit(0)).alias("affected_producers"),
        f.coalesce("affected_groups", f.lit(0)).alias("affected_groups"),
    )


def joined(spark: SparkSession, told: DataFrame | None, served: DataFrame | None) -> DataFrame:
    """What ledgers and audit trails say of each life, in one row. Either may be missing, not both."""
    if told is None:
        told = table(spark, (), _OF_LEDGERS)
    if served is None:
        served = table(spark, (), SERVED)
    keyed = told.withColumn("node_key", node_key("node"))
    both = keyed.join(served, ["node_key", "epoch"], "full")
    return both.withColumns(
        {"node": f.coalesce("node", "node_key"), "broker": f.coalesce("broker", "live_broker")}
    ).select(*told.columns, *served.columns[2:]).drop("live_broker")
