"""What is in the queues at the end of a journal, and what became of each message: recovery's rules as DataFrame code.

The rules are those of docs/journal-format.md ("Recovery", steps 3, 6 and 7); positions (epoch, segment, offset) order
everything, never clocks. Tests hold this against the broker's own recovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import Column, DataFrame, SparkSession

_COLUMNS = (
    *("file", "kind", "node_id", "epoch", "segment", "salt", "created", "offset", "record_type", "fenced", "folded"),
    *("tx", "message_id", "queue_id", "message_ids", "queue_ids", "address", "priority", "timestamp", "size", "count"),
    *("store", "page", "duplicate_id", "properties", "damage", "detail", "length"),
)
_OF_EFFECTIVE = (
    *("node_id", "record_type", "tx", "message_id", "queue_id", "message_ids", "queue_ids", "address", "store", "page"),
    "duplicate_id",
)
#: Behind every record of the segment a checkpoint ends with.
_LAST = (1 << 62) - 1
_IN_TX = ("MESSAGE", "ACKS", "REFERENCES", "DUPLICATE_ID", "PAGE_ACKS", "PAGE_TX")


def journal(spark: SparkSession, paths: Sequence[str], columns: Sequence[str] = _COLUMNS) -> DataFrame:
    """The rows of journals (see `pollux_pipeline.sources.journal`)."""
    import json

    reader = spark.read.format("pollux_journal").option("columns", ",".join(columns))
    return reader.option("paths", json.dumps(list(paths))).load()


def position(rows: DataFrame) -> Column:
    """Where a row is in its node's history."""
    offset = f.when(rows.kind == "checkpoint", f.lit(_LAST)).otherwise(rows["offset"])
    return f.struct(rows.epoch.alias("epoch"), rows.segment.alias("segment"), offset.alias("offset"))


def effective(rows: DataFrame) -> DataFrame:
    """The records that count, each `at` the position where it takes effect: its own, or its transaction's COMMIT.

    A COMMIT that names more records than were found in the last write of a life did not happen. Stage the result: it
    is read many times.
    """
    counted = rows.filter(
        rows.kind.isin("journal", "checkpoint") & ~rows.fenced & ~rows.folded & rows.damage.isNull()
    ).withColumn("at", position(rows))
    outcomes = ("COMMIT", "ROLLBACK", "PREPARE")
    plain = counted.filter(counted.tx.isNull() & ~counted.record_type.isin(*outcomes))
    inside = counted.filter(counted.tx.isNotNull() & counted.record_type.isin(*_IN_TX))
    commits = counted.filter(counted.record_type == "COMMIT").select(
        "node_id", "tx", f.col("at").alias("committed"), f.col("count").alias("expected"), "epoch"
    )
    found = inside.groupBy("node_id", "tx").agg(f.count("*").alias("found"))
    last_writes = (
        counted.filter(counted.record_type == "BATCH").groupBy("node_id", "epoch").agg(f.max("at").alias("last_write"))
    )
    happened = (
        commits.join(found, ["node_id", "tx"], "left")
        .join(last_writes, ["node_id", "epoch"], "left")
        .filter(
            (f.coalesce("found", f.lit(0)) >= f.col("expected"))
            | f.col("last_write").isNull()
            | (f.col("committed") < f.col("last_write"))
        )
        .select("node_id", "tx", "committed")
    )
    committed = inside.join(happened, ["node_id", "tx"]).withColumn("at", f.col("committed")).drop("committed")
    return plain.unionByName(committed.select(plain.columns)).select(*_OF_EFFECTIVE, "at")


def in_queues(rows: DataFrame, records: DataFrame) -> DataFrame:
    """One row for each message of each queue: node_id, queue_id, message_id, added, removed (positions), live.

    `removed` is null where it is there at the end. Pages are included; their messages have no position. `records`: the
    `effective` ones of `rows`.
    """
    added_types = records.record_type.isin("MESSAGE", "REFERENCES")
    added = (
        records.filter(added_types)
        .select("node_id", f.explode("queue_ids").alias("queue_id"), "message_id", f.col("at").alias("added"))
        .unionByName(
            records.filter(records.record_type == "CHECKPOINT").select(
                "node_id", "queue_id", "message_id", f.col("at").alias("added")
            )
        )
        .withColumn("removed", f.lit(None).cast(_POSITION))
    )
    removed = (
        records.filter(records.record_type == "ACKS")
        .select("node_id", "queue_id", f.explode("message_ids").alias("message_id"), f.col("at").alias("removed"))
        .withColumn("added", f.lit(None).cast(_POSITION))
    )
    both = added.unionByName(removed).groupBy("node_id", "queue_id", "message_id")
    state = both.agg(f.max("added").alias("added"), f.max("removed").alias("removed"))
    drops = (
        records.filter(records.record_type == "DROP_QUEUE")
        .groupBy("node_id", "queue_id")
        .agg(f.max("at").alias("dropped"))
    )
    state = state.join(f.broadcast(drops), ["node_id", "queue_id"], "left")
    live = (
        f.col("added").isNotNull()
        & (f.col("removed").isNull() | (f.col("added") > f.col("removed")))
        & (f.col("dropped").isNull() | (f.col("added") > f.col("dropped")))
    )
    gone = f.when(~live, f.coalesce(f.greatest("removed", "dropped"), "removed", "dropped"))
    state = state.select("node_id", "queue_id", "message_id", "added", gone.alias("removed"), live.alias("live"))
    return state.unionByName(_in_pages(rows, records))


_POSITION = "struct<epoch:bigint,segment:bigint,offset:bigint>"


def _in_pages(rows: DataFrame, records: DataFrame) -> DataFrame:
    """Messages that wait in pages, by queue."""
    key = ["node_id", "store", "page"]
    committed = records.filter(records.record_type == "PAGE_TX").select(*key, "tx").distinct()
    paged = rows.filter((rows.kind == "page") & (rows.record_type == "MESSAGE"))
    outside = paged.filter(paged.tx.isNull())
    inside = paged.filter(paged.tx.isNotNull()).join(committed, [*key, "tx"], "left_semi")
    wanted = outside.unionByName(inside.select(outside.columns)).select(
        *key, f.explode("queue_ids").alias("queue_id"), "message_id"
    )
    page_acks = records.filter(records.record_type == "PAGE_ACKS")
    single = page_acks.select(*key, "queue_id", f.explode("message_ids").alias("message_id")).distinct()
    whole = page_acks.filter(f.size("message_ids") == 0).select(*key, "queue_id").distinct()
    done = records.filter(records.record_type == "PAGE_DONE").select(*key).distinct()
    stores = done.filter(done.page == 0).select("node_id", "store").distinct()
    yes = f.lit(1).alias("yes")
    marked = (
        wanted.join(single.select("*", yes), [*key, "queue_id", "message_id"], "left")
        .withColumnRenamed("yes", "acked")
        .join(f.broadcast(whole.select("*", yes)), [*key, "queue_id"], "left")
        .withColumnRenamed("yes", "all_acked")
        .join(f.broadcast(done.select("*", yes)), key, "left")
        .withColumnRenamed("yes", "done")
        .join(f.broadcast(stores.select("*", yes)), ["node_id", "store"], "left")
    )
    live = f.coalesce("acked", "all_acked", "done", "yes").isNull()
    none = f.lit(None).cast(_POSITION)
    return marked.select(
        "node_id", "queue_id", "message_id", none.alias("added"), none.alias("removed"), live.alias("live")
    )


def queue_names(rows: DataFrame) -> DataFrame:
    """node_id, queue_id, queue (its name), from the bindings beside the journal; the newest word on each id."""
    bindings = rows.filter((rows.kind == "bindings") & (rows.record_type == "PUT"))
    value = f.from_json("properties", "kind string, key string, deleted boolean, value struct<id: bigint>")
    put = bindings.select("node_id", "epoch", "segment", "offset", value.alias("b")).filter(
        (f.col("b.kind") == "queue") & ~f.col("b.deleted") & f.col("b.value.id").isNotNull()
    )
    newest = f.max_by(f.col("b.key"), f.struct("epoch", "segment", "offset")).alias("queue")
    return put.groupBy("node_id", f.col("b.value.id").alias("queue_id")).agg(newest)


def damage(rows: DataFrame) -> DataFrame:
    """The rows that tell of bytes which cannot be used. A torn tail is normal after a crash and comes with them."""
    columns = ("node_id", "file", "kind", "epoch", "segment", "offset", "length", "damage", "detail")
    return rows.filter(rows.damage.isNotNull()).select(*columns)
