"""The lives of brokers, as ledgers and audit trails tell of them, and what each change from one to the next cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as f

from pollux_pipeline.jobs.base import table
from pollux_pipeline.jobs.evidence import SERVED, node_key

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_OF_LEDGERS = (
    "node string, epoch bigint, broker string, ledger int, first_ms double, last_ms double, confirmed bigint, "
    "fault_ms double, fault string, rto_ms double, lost bigint, affected_messages bigint, affected_producers bigint, "
    "affected_groups bigint"
)


def lives(events: DataFrame) -> DataFrame:
    """One row for each activation that confirmed something, and each ledger that tells so: node, broker, epoch, ledger;
    first, last (by this ledger's clock), confirmed."""
    return (
        events.filter("kind = 'C' and epoch is not null")
        .groupBy("node", "broker", "epoch", "ledger")
        .agg(f.min("time").alias("first"), f.max("time").alias("last"), f.count("*").alias("confirmed"))
    )


def nodes(known: DataFrame) -> DataFrame:
    """broker and node, of brokers that confirmed for one node only: what else they did was of that node."""
    named = known.filter("broker != ''").groupBy("broker")
    return named.agg(f.min("node").alias("node"), f.max("node").alias("other")).filter("node = other").drop("other")


def two_lives(known: DataFrame) -> DataFrame:
    """Findings: two activations of one node that confirmed in one epoch; by the clock of one ledger at once, or in the
    wrong order. What different ledgers tell of different epochs cannot be compared: see `uncompared`."""
    served = known.groupBy("node", "broker", "epoch").agg(
        f.min("ledger").alias("ledger"), f.min_by("first", "ledger").alias("first")
    )
    a, b = served.alias("a"), served.alias("b")
    same = (f.col("a.node") == f.col("b.node")) & (f.col("a.epoch") == f.col("b.epoch"))
    # A broker that one ledger has no name of may be the other's.
    different = (f.col("a.ledger") == f.col("b.ledger")) | ((f.col("a.broker") != "") & (f.col("b.broker") != ""))
    doubled = a.join(b, same & different & (f.col("a.broker") < f.col("b.broker")))
    words = f.concat(_both("a", "b"), f.lit(" both confirmed in one epoch"))
    found = [_finding("two_lives", doubled.withColumn("detail", words))]
    order = Window.partitionBy("node", "ledger").orderBy("first", "last", "broker", "epoch")
    ordered = known.withColumn("n", f.row_number().over(order))
    a, b = ordered.alias("a"), ordered.alias("b")
    one = (f.col("a.node") == f.col("b.node")) & (f.col("a.ledger") == f.col("b.ledger"))
    pairs = a.join(b, one & (f.col("a.n") < f.col("b.n")) & (f.col("a.epoch") != f.col("b.epoch")))
    detail = f.when(f.col("b.first") < f.col("a.last"), f.concat(_both("a", "b"), f.lit(" confirmed at once"))).when(
        f.col("b.epoch") < f.col("a.epoch"), f.concat(_both("a", "b"), f.lit(" confirmed in the wrong order"))
    )
    found.append(_finding("two_lives", pairs.withColumn("detail", detail).filter("detail is not null")))
    return found[0].unionByName(found[1])


def uncompared(known: DataFrame) -> DataFrame:
    """What is told of lives that came one after the other and stand in several ledgers, which have several clocks."""
    places = known.groupBy("node", "epoch").agg(
        f.array_join(f.array_sort(f.collect_set("broker")), ", ").alias("broker"),
        f.collect_set("ledger").alias("ledgers"),
    )
    order = Window.partitionBy("node").orderBy("epoch")
    pairs = places.withColumn("a", f.lag(f.struct("broker", "epoch", "ledgers")).over(order)).withColumn(
        "b", f.struct("broker", "epoch")
    )
    apart = f.size(f.array_distinct(f.concat("ledgers", "a.ledgers"))) > 1
    detail = f.concat(
        _both("a", "b"),
        f.lit(" confirmed in several ledgers: whether at once is told within each of them, not between their clocks"),
    )
    told = pairs.filter(f.col("a").isNotNull() & apart).select("node", detail.alias("detail"))
    return told.withColumn("finding", f.lit("order_unknown"))


def _both(a: str, b: str) -> Column:
    parts = [f.col(f"{one}.{name}") for one in (a, b) for name in ("broker", "epoch")]
    return f.format_string("%s (epoch %d) and %s (epoch %d)", *parts)


def _finding(name: str, pairs: DataFrame) -> DataFrame:
    return pairs.select(
        f.lit(name).alias("finding"),
        f.col("a.node").alias("node"),
        f.col("b.ledger").alias("ledger"),
        f.col("b.first").alias("time"),
        "detail",
    )


def of_ledgers(found: DataFrame, messages: DataFrame, events: DataFrame) -> DataFrame:
    """What each activation cost: how long nothing was confirmed before it (RTO), what it had confirmed and nobody
    received (RPO), and whose messages were under way meanwhile.

    An RTO is measured by the clock of one ledger that tells of this life and of the one before: from the fault that led
    to it, where that ledger has one, else from the last confirm before. Of several the shortest counts: each is at
    least what it was.
    """
    known = found.groupBy("node", "epoch").agg(
        f.array_join(f.array_sort(f.collect_set("broker")), ", ").alias("broker"),
        f.sum("confirmed").alias("confirmed"),
    )
    known = known.withColumn("previous", f.lag("epoch").over(Window.partitionBy("node").orderBy("epoch")))
    told = found.groupBy("node", "epoch", "ledger").agg(
        f.min("first").alias("first_ms"), f.max("last").alias("last_ms"), f.sum("confirmed").alias("in_ledger")
    )
    order = Window.partitionBy("node", "ledger").orderBy("epoch")
    before = f.lag(f.struct("epoch", "first_ms", "last_ms")).over(order)
    told = told.withColumn("before", before).join(known.select("node", "epoch", "previous"), ["node", "epoch"])
    told = told.withColumn("before", f.when(f.col("before.epoch") == f.col("previous"), f.col("before")))
    faults = events.filter("kind = 'F'").select(f.col("ledger").alias("of"), f.col("time").alias("fault_ms"), "text")
    led = (
        told.join(
            f.broadcast(faults),
            (f.col("of") == f.col("ledger"))
            & (f.col("fault_ms") <= f.col("first_ms"))
            & (f.col("fault_ms") > f.col("before.first_ms")),
        )
        .groupBy("node", "epoch", "ledger")
        .agg(f.max(f.struct("fault_ms", "text")).alias("fault"))
    )
    # Two that confirmed at once left no gap.
    gap = f.when(f.col("before.last_ms") < f.col("first_ms"), f.col("before.last_ms"))
    rto = f.col("first_ms") - f.coalesce("fault.fault_ms", gap)
    measured = told.join(led, ["node", "epoch", "ledger"], "left").withColumn("rto_ms", rto)
    best = f.struct(
        *(f.isnull("rto_ms"), f.isnull("fault"), f.col("rto_ms").alias("rto_ms"), -f.col("in_ledger")),
        *(f.col(name).alias(name) for name in ("ledger", "first_ms", "last_ms", "fault")),
    )
    chosen = measured.groupBy("node", "epoch").agg(f.min(best).alias("best"))
    lost = (
        messages.filter("state = 'lost' and epoch is not null").groupBy("node", "epoch").agg(f.count("*").alias("lost"))
    )
    joined = known
    for other in (chosen, lost, _affected(messages, told)):
        joined = joined.join(other, ["node", "epoch"], "left")
    return joined.select(
        "node",
        "epoch",
        "broker",
        *(f.col(f"best.{name}").alias(name) for name in ("ledger", "first_ms", "last_ms")),
        "confirmed",
        f.col("best.fault.fault_ms").alias("fault_ms"),
        f.col("best.fault.text").alias("fault"),
        f.col("best.rto_ms").alias("rto_ms"),
        f.coalesce("lost", f.lit(0)).alias("lost"),
        f.coalesce("affected_messages", f.lit(0)).alias("affected_messages"),
        f.coalesce("affected_producers", f.lit(0)).alias("affected_producers"),
        f.coalesce("affected_groups", f.lit(0)).alias("affected_groups"),
    )


def _affected(messages: DataFrame, told: DataFrame) -> DataFrame:
    """Messages that were sent, or sent again, after the last confirm of one life and before the first of the next, by
    the clock of the ledger they stand in."""
    gaps = told.filter("before.last_ms < first_ms").select(
        "node", "epoch", f.col("ledger").alias("of"), f.col("before.last_ms").alias("gap_from"), f.col("first_ms")
    )
    within = "{0}.ledger = of and {0}.time >= gap_from and {0}.time <= first_ms"
    once = within.format("attempts[0]")
    again = f"size(attempts) > 1 and exists(attempts, a -> {within.format('a')})"
    return (
        messages.filter("sent_ms is not null")
        .select("id", "producer", "group", "attempts")
        .join(f.broadcast(gaps), f.expr(f"({once}) or ({again})"))
        .groupBy("node", "epoch")
        .agg(
            f.count_distinct("id").alias("affected_messages"),
            f.approx_count_distinct("producer").alias("affected_producers"),
            f.approx_count_distinct("group").alias("affected_groups"),
        )
    )


def joined(spark: SparkSession, told: DataFrame | None, served: DataFrame | None) -> DataFrame:
    """What ledgers and audit trails say of each life, in one row. Either may be missing, not both."""
    if told is None:
        told = table(spark, (), _OF_LEDGERS)
    if served is None:
        served = table(spark, (), SERVED)
    keyed = told.withColumn("node_key", node_key("node"))
    both = keyed.join(served, ["node_key", "epoch"], "full")
    return (
        both.withColumns({"node": f.coalesce("node", "node_key"), "broker": f.coalesce("broker", "live_broker")})
        .select(*told.columns, *served.columns[2:])
        .drop("live_broker")
    )
