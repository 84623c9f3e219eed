"""`ingest`: journals, audit trails and ledgers to a Parquet lake, by date and node, each record exactly once.

Journals and trails are read as a stream up to what is there now (`availableNow`), so that the next run goes on where
this one ended, also after it was killed in the middle: Spark's checkpoint says which batch comes next, and a batch that
is written again replaces what it wrote before, because its number is a partition of the lake. Ledgers are replaced as a
whole, by file.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f
from pyspark.sql.types import StructType

from pollux_pipeline.errors import InputError
from pollux_pipeline.jobs import delta, evidence
from pollux_pipeline.jobs.base import NORMAL_DAMAGE, Result, Run, count_where
from pollux_pipeline.report import page, svg
from pollux_pipeline.schemas import AUDIT, journal_schema
from pollux_pipeline.sources.ledger import read_ledgers

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

#: What the lake's journals and trails are divided by.
BY = ("date", "node", "batch")
#: Where Spark notes what it has read.
_CHECKPOINTS = {"journal": "_checkpoint", "audit": "_checkpoint_audit"}
#: Times a stream is started when its Python process does not come up in time.
_STARTS = 30


def ingest(run: Run) -> Result:
    """Write `journal` and `audit` (partitioned by date, node, batch) and `ledger` (by file).

    Options: `live`, the brokers run; `delta`, with a log of Delta Lake beside them, which later runs keep true.
    """
    inputs = run.inputs
    if not inputs.ledgers and not inputs.journals and not inputs.audits:
        raise InputError("--input: give a ledger, a journal, an audit trail, or a directory with any of them")
    result = Result("ingest", run.output)
    if inputs.journals:
        run.step("reading journals")
        _journals(run)
    if inputs.audits:
        run.step("reading audit trails")
        _audits(run)
    if inputs.ledgers:
        run.step("reading ledgers")
        lines = read_ledgers(run.spark, inputs.ledgers).drop("at")
        place = f.concat(f.lit("file:"), "file")
        named = lines.withColumn("ledger", f.regexp_replace(place, "[^A-Za-z0-9._-]+", "_"))
        writer = named.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy("ledger").parquet(str(run.output / "ledger"))
        _publish(run, "ledger", named.schema, ("ledger",))
    sections: list[tuple[str, str]] = []
    if (run.output / "journal").is_dir():
        run.step("counting")
        records = _table(run, "journal", journal_schema())
        days = records.groupBy("date", "node").agg(
            f.count("*").alias("records"),
            count_where("record_type = 'MESSAGE'").alias("messages"),
            f.coalesce(f.sum("size"), f.lit(0)).alias("message_bytes"),
            count_where("damage is not null").alias("damage"),
        )
        shown = run.first(days.orderBy(f.desc("date"), "node"), 400)
        rows = [(f"{one['date']} {one['node'][:8]}", {"messages": one["messages"]}) for one in shown[:20]]
        plot = svg.bars(rows, description="Messages of each day and node") if rows else ""
        sections.append(("What the lake holds", plot + page.table(shown)))
        result.facts["records"] = sum(one["records"] for one in shown)
        damage = records.filter(f.col("damage").isNotNull())
        found = run.first(damage.select("file", "offset", "length", "damage", "detail").orderBy("file", "offset"))
        sections.append(("Damage", page.table(found)))
        result.findings["damage"] = damage.filter(~f.col("damage").isin(*NORMAL_DAMAGE)).count()
    if (run.output / "audit").is_dir():
        run.step("counting events")
        _events(run, result, sections)
    result.report = page.write(run.output / "report.html", result, sections, title="the lake")
    return run.finish(result)


def _table(run: Run, name: str, schema: StructType) -> DataFrame:
    """A table of the lake. It may be empty: nothing was new yet, or `archive` has packed all of its days."""
    return run.spark.read.schema(in_lake(schema)).parquet(str(run.output / name))


def in_lake(schema: StructType) -> StructType:
    """The columns of a source as the lake has them."""
    # A new list: a StructType keeps the one that it is given, and add() would lengthen that of everybody.
    columns = StructType([*schema.fields]).add("at", "timestamp")
    return columns.add("date", "date").add("node", "string").add("batch", "integer")


def _publish(run: Run, name: str, schema: StructType, partitions: tuple[str, ...]) -> None:
    place = run.output / name
    if place.is_dir() and (run.options.get("delta") or delta.has_log(place)):
        delta.publish(place, schema, partitions)


def _journals(run: Run) -> None:
    columns = ",".join(journal_schema().names)
    live = "true" if run.options.get("live") else "false"
    options = {"paths": json.dumps(list(run.inputs.journals)), "columns": columns, "live": live}
    stream = run.spark.readStream.format("pollux_journal").options(**options).load()
    _append(run, stream, "journal", "timestamp", f.coalesce("created", f.lit(0)))
    _publish(run, "journal", in_lake(journal_schema()), BY)


def _audits(run: Run) -> None:
    options = {"paths": json.dumps(list(run.inputs.audits))}
    stream = run.spark.readStream.format("pollux_audit").options(**options).load()
    _append(run, stream, "audit", "time", f.coalesce("time", f.lit(0)))
    _publish(run, "audit", in_lake(AUDIT), BY)


def finish_stream(start: Callable[[], StreamingQuery]) -> None:
    """Run a stream of what is there now to its end.

    Spark gives the Python process that plans a stream 10 s to start, which is not a setting, and fails the query when a
    busy machine takes longer. Nothing was read then: the query is started again, from its checkpoint.
    """
    for attempt in range(_STARTS):
        try:
            start().awaitTermination()
        except StreamingQueryException as error:
            if attempt + 1 == _STARTS or "failed to connect back" not in str(error):
                raise
        else:
            return


def _append(run: Run, stream: DataFrame, name: str, at: str, day: Column) -> None:
    """Add what a stream has now to a table, by day and node. A batch that is written again replaces what it wrote.

    `at`: the column that says when, in milliseconds since the epoch; `day`: the same of what decides on the day.
    """

    def write(batch: DataFrame, number: int) -> None:
        run.step(f"writing batch {number}")
        dated = batch.select(
            "*",
            f.timestamp_millis(at).alias("at"),
            f.to_date(f.timestamp_millis(day)).alias("date"),
            f.coalesce(f.nullif("node_id", f.lit("")), f.lit("unknown")).alias("node"),
            f.lit(number).alias("batch"),
        )
        writer = dated.write.mode("overwrite").option("partitionOverwriteMode", "dynamic")
        writer.partitionBy(*BY).parquet(str(run.output / name))

    writer = stream.writeStream.foreachBatch(write).option("checkpointLocation", str(run.output / _CHECKPOINTS[name]))
    finish_stream(writer.trigger(availableNow=True).start)


def _events(run: Run, result: Result, sections: list[tuple[str, str]]) -> None:
    """Read the lake's trails: when brokers became live, and how many events of each kind there are."""
    events = _table(run, "audit", AUDIT)
    days = events.groupBy("date", "node").agg(
        f.count("*").alias("events"),
        count_where("queue is not null").alias("message_events"),
        count_where("event = 'client-connected'").alias("clients_connected"),
        count_where("event = 'broker-live'").alias("activations"),
        count_where("damage is not null").alias("damage"),
    )
    shown = run.first(days.orderBy(f.desc("date"), "node"), 400)
    result.facts["events"] = sum(one["events"] for one in shown)
    live = evidence.activations(evidence.lifecycle(events)).orderBy(f.desc("live_at"))
    times = ("live_at", "stopped_at")
    known = [{**one, **{name: one[name] and page.clock(one[name]) for name in times}} for one in run.first(live)]
    sections += [("Audit trails", page.table(shown)), ("Activations, as the brokers noted them", page.table(known))]
    real = events.filter(f.col("damage").isNotNull() & ~f.col("damage").isin(*NORMAL_DAMAGE))
    result.findings["audit_damage"] = real.count()
