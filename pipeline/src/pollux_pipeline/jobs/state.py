"""The queues at the end of a journal, and what became of each message: recovery's rules as DataFrame code.

The rules are those of docs/journal-format.md ("Recovery", steps 3, 6 and 7); positions (epoch, segment, offset) order
everything, never clocks. Tests hold this against the broker's own recovery.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

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
    # A checkpoint names transactions that were committed before it for as long as pages hold messages of theirs.
    settled = f.coalesce(f.get_json_object("properties", "$.committed") == "true", f.lit(False))
    settled &= f.col("record_type") == "PAGE_TX"
    plain = counted.filter((counted.tx.isNull() & ~counted.record_type.isin(*outcomes)) | settled)
    inside = counted.filter(counted.tx.isNotNull() & counted.record_type.isin(*_IN_TX) & ~settled)
    commit = f.struct(f.col("at").alias("committed"), f.col("count").alias("expected"), "epoch")
    commits = (
        counted.filter(counted.record_type.isin("COMMIT", *_IN_TX) & counted.tx.isNotNull())
        .groupBy("node_id", "tx")
        .agg(
            f.count_if(f.col("record_type") != "COMMIT").alias("found"),
            f.collect_list(f.when(f.col("record_type") == "COMMIT", commit)).alias("commits"),
        )
        .select("node_id", "tx", "found", f.inline("commits"))
    )
    last_writes = (
        counted.filter(counted.record_type == "BATCH").groupBy("node_id", "epoch").agg(f.max("at").alias("last_write"))
    )
    happened = (
        commits.join(last_writes, ["node_id", "epoch"], "left")
        .filter(
            (f.col("found") >= f.col("expected"))
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
    # In one pass: an acknowledgement names messages of a queue, all others queues of a message.
    moves = records.filter(records.record_type.isin("MESSAGE", "REFERENCES", "CHECKPOINT", "ACKS"))
    ack = f.col("record_type") == "ACKS"
    queues = f.when(f.col("record_type") == "CHECKPOINT", f.array("queue_id")).otherwise(f.col("queue_ids"))
    each = moves.select("*", f.explode(f.when(ack, f.col("message_ids")).otherwise(queues)).alias("one"))
    state = each.groupBy(
        "node_id",
        f.when(ack, f.col("queue_id")).otherwise(f.col("one")).alias("queue_id"),
        f.when(ack, f.col("one")).otherwise(f.col("message_id")).alias("message_id"),
    ).agg(f.max(f.when(~ack, f.col("at"))).alias("added"), f.max(f.when(ack, f.col("at"))).alias("removed"))
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
    kind, whole = f.col("record_type"), f.size("message_ids") == 0
    committed = records.filter(kind == "PAGE_TX").select(*key, "tx", f.lit(1).alias("committed")).distinct()
    page_acks = records.filter(kind == "PAGE_ACKS")
    single = page_acks.select(*key, "queue_id", f.explode("message_ids").alias("message_id")).distinct()
    # What is said of pages as a whole: a row for each.
    said = (
        records.filter((kind == "PAGE_DONE") | ((kind == "PAGE_ACKS") & whole))
        .groupBy(*key)
        .agg(
            f.collect_set(f.when(kind == "PAGE_ACKS", f.col("queue_id"))).alias("all_acked"),
            (f.count_if(kind == "PAGE_DONE") > 0).alias("done"),
        )
    )
    stores = said.filter("done and page = 0").select("node_id", "store", f.lit(1).alias("gone"))
    # The queues behind a 0 end with the life that wrote the page.
    passing = f.array_position("queue_ids", f.lit(0))
    lasting = f.when(passing > 0, f.slice("queue_ids", f.lit(1), passing - 1)).otherwise(f.col("queue_ids"))
    wanted = (
        rows.filter((rows.kind == "page") & (rows.record_type == "MESSAGE"))
        .select(*key, "tx", f.explode(lasting).alias("queue_id"), "message_id")
        .join(committed, [*key, "tx"], "left")
        .filter("tx is null or committed is not null")
    )
    marked = (
        wanted.join(single.withColumn("acked", f.lit(1)), [*key, "queue_id", "message_id"], "left")
        .join(f.broadcast(said), key, "left")
        .join(f.broadcast(stores), ["node_id", "store"], "left")
    )
    all_acked = f.coalesce(f.array_contains("all_acked", f.col("queue_id")) | f.col("done"), f.lit(False))
    live = f.coalesce("acked", "gone").isNull() & ~all_acked
    # Of a page that is gone the acknowledgements tell which messages were in it.
    files = _page_files(rows).select("node_id", "store", "page")
    gone = single.join(files, key, "left_anti").select("node_id", "queue_id", "message_id", f.lit(False).alias("live"))
    none = f.lit(None).cast(_POSITION)
    found = marked.select("node_id", "queue_id", "message_id", live.alias("live")).unionByName(gone)
    return found.select("node_id", "queue_id", "message_id", none.alias("added"), none.alias("removed"), "live")


def _page_files(rows: DataFrame) -> DataFrame:
    """node_id, store, page: the files of pages that are there, whatever is in them."""
    name = r"([0-9]+)/([0-9]+)\.page$"
    store, page = (f.regexp_extract("file", name, n).cast("bigint") for n in (1, 2))
    return rows.filter(rows.kind == "page").select("node_id", store.alias("store"), page.alias("page")).distinct()


def gone_pages(rows: DataFrame) -> DataFrame:
    """One row for each node and address that had pages which are gone: node_id, address, pages, messages (those
    that were acknowledged one by one: what a deleted queue had is not told), upto (epoch and segment of the last record
    about one). Of those that ended behind a checkpoint it tells, and records that are still there are not asked again.
    """
    key = ["node_id", "store", "page"]
    told = rows.filter(rows.kind.isin("journal", "checkpoint") & ~rows.fenced & rows.damage.isNull())
    store = Window.partitionBy("node_id", "store")
    told = told.filter(told.record_type.isin("PAGE", "PAGE_ACKS", "PAGE_DONE") & (told.page > 0)).select(
        *(*key, "record_type", "message_ids", "epoch", "segment", "kind", "folded"),
        f.coalesce(f.max("address").over(store), f.lit("")).alias("address"),
    )
    ids = f.when(f.col("record_type") == "PAGE_ACKS", f.col("message_ids"))
    newer = (f.col("kind") == "journal") & ~f.col("folded")
    each = told.groupBy(*key, "address").agg(
        f.size(f.array_distinct(f.flatten(f.collect_list(ids)))).cast("bigint").alias("messages"),
        f.max(f.when(newer, f.struct("epoch", "segment"))).alias("upto"),
        (f.count_if((f.col("record_type") == "PAGE_DONE") & ~newer) > 0).alias("told_of"),
    )
    each = each.filter("upto is not null and not told_of").join(_page_files(rows), key, "left_anti")
    one = f.lit(1).cast("bigint").alias("pages")
    behind = _ended_pages(rows).select("node_id", "address", "pages", "messages", "upto")
    found = each.select("node_id", "address", one, "messages", "upto").unionByName(behind)
    return found.groupBy("node_id", "address").agg(
        f.sum("pages").alias("pages"), f.sum("messages").alias("messages"), f.max("upto").alias("upto")
    )


def _ended_pages(rows: DataFrame) -> DataFrame:
    """node_id, address, pages, messages, upto: what checkpoints tell of pages that ended behind them."""
    pages = "pages array<struct<address string, pages bigint, messages bigint>>"
    told = rows.filter(rows.record_type == "FOLDED").select(
        "node_id",
        f.struct("epoch", "segment").alias("upto"),
        f.from_json("properties", pages)["pages"].alias("told"),
    )
    return told.select("node_id", "upto", f.inline("told"))


def ended(rows: DataFrame) -> DataFrame:
    """node_id, store, page: pages that a checkpoint has as done, and has counted."""
    said = rows.filter((rows.kind == "checkpoint") & (rows.record_type == "PAGE_DONE"))
    return said.select("node_id", "store", "page").distinct()


def queue_names(rows: DataFrame) -> DataFrame:
    """node_id, queue_id, queue (its name), from the journal and the bindings beside it; the newest word on each id."""
    bindings = rows.filter(((rows.kind == "bindings") & (rows.record_type == "PUT")) | (rows.record_type == "QUEUE"))
    value = f.from_json("properties", "kind string, key string, deleted boolean, value struct<id: bigint>")
    put = bindings.select("node_id", "epoch", "segment", "offset", value.alias("b")).filter(
        (f.col("b.kind") == "queue") & ~f.col("b.deleted") & f.col("b.value.id").isNotNull()
    )
    newest = f.max_by(f.col("b.key"), f.struct("epoch", "segment", "offset")).alias("queue")
    return put.groupBy("node_id", f.col("b.value.id").alias("queue_id")).agg(newest)


#: What a LIFE row has as its properties.
LIFE = (
    "epoch bigint, salt bigint, created bigint, began bigint, ended bigint, `end` bigint, newest bigint, "
    "counted array<struct<address string, messages bigint, bytes bigint, largest bigint>>"
)


def checkpoints(rows: DataFrame) -> DataFrame:
    """One row for each checkpoint: node_id, upto (epoch and segment it ends with), and `unknown`, the same of what it
    folded without a note of it, null where there is nothing of that kind."""
    unknown = f.from_json("properties", "unknown array<bigint>")["unknown"]
    place = f.struct(unknown[0].alias("epoch"), unknown[1].alias("segment"))
    return rows.filter(rows.record_type == "FOLDED").select(
        "node_id",
        f.struct("epoch", "segment").alias("upto"),
        f.when(unknown.isNotNull(), place).alias("unknown"),
    )


class Begins(NamedTuple):
    """Where the history of a node begins."""

    #: The first segment that is there; None: there is none.
    first: int | None
    #: (epoch, segment) of the last segment that a checkpoint folded; None: there is no checkpoint.
    folded: tuple[int, int] | None
    #: Whether some of the segments that the checkpoint folded are gone, and their records with them.
    gone: bool


def begins(rows: DataFrame) -> dict[str, Begins]:
    """Where the history of each node begins: one query."""
    segment = f.when(rows.kind == "journal", f.col("segment"))
    counted = rows.filter(rows.kind.isin("journal", "checkpoint") & rows.damage.isNull())
    found = counted.groupBy("node_id").agg(
        f.min(segment).alias("first"),
        f.max(f.when(rows.kind == "checkpoint", f.struct("epoch", "segment"))).alias("upto"),
        f.count_distinct(f.when(rows.folded, segment)).alias("there"),
    )
    return {
        row.node_id: Begins(
            row.first, tuple(row.upto) if row.upto else None, bool(row.upto) and row.there < row.upto[1]
        )
        for row in found.collect()
    }


def before(places: Iterable[tuple[str, int, int]]) -> str:
    """Where what is left of journals begins. `places`: node and the last segment that is folded, of each."""
    words = [f"epoch {epoch}, segment {segment + 1} of node {node[:8]}" for node, epoch, segment in sorted(places)]
    return ", ".join(words[:3]) + (f" and of {len(words) - 3} more" if len(words) > 3 else "")


def lives(rows: DataFrame) -> DataFrame:
    """One row for each life whose segments a checkpoint folded: node_id, and what docs/journal-format.md says of it."""
    told = rows.filter(rows.record_type == "LIFE")
    return told.select("node_id", f.from_json("properties", LIFE).alias("life")).select("node_id", "life.*")


def missing_pages(rows: DataFrame, *more: str) -> DataFrame:
    """Damage (as of `damage`): pages that the journal or the checkpoint names, and no file holds.

    A page is on disk before the journal names it, and gone only behind the record that nobody needs it.
    """
    file = rows.kind == "page"
    counts = rows.kind.isin("journal", "checkpoint") & ~rows.fenced & ~rows.folded & rows.damage.isNull()
    told = rows.filter(file | (counts & rows.record_type.isin("PAGE", "PAGE_DONE"))).select(
        *more,
        f.coalesce("node_id", f.lit("")).alias("node_id"),
        f.when(file, f.regexp_extract("file", r"([0-9]+)/[0-9]+\.page$", 1).cast("bigint"))
        .otherwise(f.col("store"))
        .alias("store"),
        f.when(file, f.regexp_extract("file", r"([0-9]+)\.page$", 1).cast("bigint"))
        .otherwise(f.col("page"))
        .alias("page"),
        f.when(~file, f.col("address")).alias("address"),
        file.alias("there"),
        (f.col("record_type") == "PAGE").alias("named"),
        (f.col("record_type") == "PAGE_DONE").alias("done"),
    )
    flags = [f.coalesce(f.max(name), f.lit(False)).alias(name) for name in ("there", "named", "done")]
    pages = told.groupBy(*more, "node_id", "store", "page").agg(*flags, f.max("address").alias("address"))
    store = Window.partitionBy(*more, "node_id", "store")
    # Of a file whose header cannot be read no node is known; it is told as such already.
    nameless = Window.partitionBy(*more, "store", "page")
    pages = pages.withColumns(
        {
            "all_done": f.max(f.col("done") & (f.col("page") == 0)).over(store),
            "unread": f.max(f.col("there") & (f.col("node_id") == "")).over(nameless),
        }
    ).filter("named and not (there or done or all_done or unread)")
    words = f.format_string("page %d of address %s is missing; what it held is unknown", "page", "address")
    none = f.lit(None).cast("bigint")
    return pages.select(
        "node_id",
        f.format_string("%d/%010d.page", "store", "page").alias("file"),
        f.lit("page").alias("kind"),
        *(none.alias(name) for name in ("epoch", "segment", "offset", "length")),
        f.lit("missing-page").alias("damage"),
        words.alias("detail"),
        *more,
    )


def damage(rows: DataFrame, *more: str) -> DataFrame:
    """The rows that tell of bytes which cannot be used. A torn tail is normal after a crash and comes with them.
    `more`: columns behind the usual ones, of which each value has files of its own."""
    columns = ("node_id", "file", "kind", "epoch", "segment", "offset", "length", "damage", "detail")
    return rows.filter(rows.damage.isNotNull()).select(*columns, *more).unionByName(missing_pages(rows, *more))
