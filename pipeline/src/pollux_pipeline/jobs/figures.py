"""Figures of `reconcile` for its report: throughput over time, latency, by address, by broker."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from pollux_pipeline.jobs import latency
from pollux_pipeline.jobs.base import SHOWN

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from pollux_pipeline.jobs.base import Run
    from pollux_pipeline.jobs.timeline import Timeline

#: Ledgers whose throughput, and faults that a report draws.
_DRAWN, _FAULTS = 4, 200
_POINTS = (0.5, 0.9, 0.99, 0.999)
_SPENT = ("confirm", "receive")
#: What is counted of the messages of an address.
_COUNTED = {
    "messages": "true",
    "lost": "state = 'lost'",
    "stuck": "state = 'stuck'",
    "duplicated": "size(duplicated) > 0",
    "phantom": "state = 'phantom'",
}


def over_time(run: Run, timeline: Timeline, sections: dict[str, Any]) -> None:
    """Write `throughput` and `by_broker`, and add their rows and the faults to the sections."""
    columns = "ledger int, at_ms double, width_ms bigint, confirmed bigint, received bigint"
    run.write_rows("throughput", timeline.throughput, columns)
    drawn = sorted({row.ledger for row in timeline.throughput})[:_DRAWN]
    sections["throughput"] = [row._asdict() for row in timeline.throughput if row.ledger in drawn]
    sections["faults"] = [
        {"ledger": one.ledger, "at_ms": one.time, "text": one.text} for one in timeline.faults[:_FAULTS]
    ]
    names = ("broker", "confirmed", "received")
    run.write_rows("by_broker", timeline.brokers, "broker string, confirmed bigint, received bigint")
    sections["by_broker"] = [dict(zip(names, row, strict=True)) for row in timeline.brokers[:SHOWN]]


def by_address(run: Run, messages: DataFrame, sections: dict[str, Any]) -> None:
    """Write `latency` and `by_address`, and ask for rows of them for the sections: one pass over the messages."""
    first = f.col("name") == _SPENT[0]  # each message is counted with one of its times
    flags = [f.expr(condition).alias(name) for name, condition in _COUNTED.items()]
    times = f.array(*(f.struct(f.lit(name).alias("name"), f.col(f"{name}_ms").alias("value")) for name in _SPENT))
    each = messages.select("address", *flags, f.inline(times))
    sums = [f.count_if(f.col(name) & first).alias(name) for name in _COUNTED]
    counted = each.groupBy("address", "name", latency.step(f.col("value")).alias("step")).agg(
        f.count("*").alias("n"), f.max("value").alias("value"), *sums
    )
    counted = run.stage("counted", counted)
    spent = run.write("latency", latency.percentiles(counted, "address", _SPENT, _POINTS))
    sections["latency"] = run.ask(spent.orderBy("address"))
    found = counted.groupBy("address").agg(*(f.sum(name).alias(name) for name in _COUNTED))
    found = run.write("by_address", found)
    sections["by_address"] = run.ask(found.orderBy(f.desc("lost"), f.desc("duplicated"), "address"))
