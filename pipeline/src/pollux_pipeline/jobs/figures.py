"""Figures of `reconcile` for its report: throughput over time, latency, by address, by broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from pollux_pipeline.jobs.base import count_where
from pollux_pipeline.jobs.latency import percentiles

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pollux_pipeline.jobs.base import Run

#: Ledgers whose throughput a report draws.
_DRAWN = 4


def figures(run: Run, messages: DataFrame, events: DataFrame, sections: dict[str, Any]) -> None:
    """Write `throughput`, `latency`, `by_address`, `by_broker`; add rows and totals to the sections."""
    sections["totals"] = run.ask(
        messages.agg(
            count_where("sent_ms is not null").alias("sent"),
            count_where("confirmed_ms is not null").alias("confirmed"),
            f.sum("received").alias("received"),
        )
    )
    sections["faults"] = run.ask(
        events.filter("kind = 'F'").select("ledger", f.col("time").alias("at_ms"), "text").orderBy("ledger", "at_ms"),
        200,
    )
    # Each ledger by its own clock.
    spans = events.filter("kind != 'F'").groupBy("ledger")
    span = spans.agg(f.min("time").alias("low"), f.max("time").alias("high"))
    width = f.greatest(f.ceil((f.col("high") - f.col("low")) / 200 / 100) * 100, f.lit(100))
    throughput = (
        events.filter("kind in ('C', 'R')")
        .select("ledger", "kind", "time")
        .join(f.broadcast(span.select("ledger", "low", width.alias("width"))), "ledger")
        .groupBy(
            "ledger",
            (f.floor((f.col("time") - f.col("low")) / f.col("width")) * f.col("width") + f.col("low")).alias("at_ms"),
            f.col("width").alias("width_ms"),
        )
        .agg(count_where("kind = 'C'").alias("confirmed"), count_where("kind = 'R'").alias("received"))
    )
    throughput = run.write("throughput", throughput)
    sections["throughput"] = run.ask(throughput.orderBy("ledger", "at_ms"), 400 * _DRAWN)
    address = f.coalesce(f.nullif(f.col("group"), f.lit("")), f.nullif("producer", f.lit("")), f.lit("(unknown)"))
    named = messages.withColumn("address", f.coalesce(f.nullif(f.expr("get(receptions, 0).queue"), f.lit("")), address))
    spent = {name: f.col(f"{name}_ms") for name in ("confirm", "receive")}
    latency = run.write("latency", percentiles(named, "address", spent, (0.5, 0.9, 0.99, 0.999)))
    sections["latency"] = run.ask(latency.orderBy("address"))
    by_address = run.write(
        "by_address",
        named.groupBy("address").agg(
            f.count("*").alias("messages"),
            count_where("state = 'lost'").alias("lost"),
            count_where("state = 'stuck'").alias("stuck"),
            count_where("size(duplicated) > 0").alias("duplicated"),
            count_where("state = 'phantom'").alias("phantom"),
        ),
    )
    sections["by_address"] = run.ask(by_address.orderBy(f.desc("lost"), f.desc("duplicated"), "address"))
    by_broker = run.write(
        "by_broker",
        events.filter("kind in ('C', 'R')")
        .groupBy(f.coalesce(f.nullif("broker", f.lit("")), f.lit("(unknown)")).alias("broker"))
        .agg(count_where("kind = 'C'").alias("confirmed"), count_where("kind = 'R'").alias("received")),
    )
    sections["by_broker"] = run.ask(by_broker.orderBy("broker"))
