"""`sizing`: throughput and depth over time, skew by address and by hash partition, and how many pairs a load takes."""

from __future__ import annotations

import math
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as f

from pollux_pipeline.errors import InputError
from pollux_pipeline.jobs import hops, state
from pollux_pipeline.jobs.base import Result, Run
from pollux_pipeline.report import page, svg

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row

#: Messages per second a pair is counted with unless told otherwise: measured, see docs/benchmarks.md.
CAPACITY = 40_000
#: Stretches of time of the depths, and queues that the report draws.
_STRETCHES, _DRAWN = 200, 4
_PAIRS = (1, 2, 3, 4, 6, 8)


def sizing(run: Run) -> Result:
    """Write `throughput`, `addresses`, `nodes`, `depth`, `partitions` and the report. Options: `load` (messages/s; 0:
    the peak that was seen), `capacity` (messages/s of one pair)."""
    if not run.inputs.journals:
        raise InputError("--input: give directories with journals")
    result = Result("sizing", run.output)
    run.step("reading journals")
    rows = run.stage("journal", state.journal(run.spark, run.inputs.journals))
    messages = rows.filter((rows.record_type == "MESSAGE") & rows.kind.isin("journal", "page") & ~rows.fenced)
    # What waits to be sent to another node of a cluster is counted where it arrives.
    messages = messages.filter(~hops.between_nodes())
    second = f.floor(f.col("timestamp") / 1000)
    throughput = messages.groupBy(second.alias("second")).agg(
        f.count("*").alias("messages"), f.sum("size").alias("bytes")
    )
    throughput = run.write("throughput", throughput)
    marks = state.checkpoints(rows)
    pages = run.stage("pages", state.gone_pages(rows))
    counted = run.stage("counted", _counted(rows, messages, marks, pages).filter(~hops.between_nodes()))
    addresses = counted.groupBy("address").agg(
        f.sum("messages").alias("messages"),
        f.sum("bytes").alias("bytes"),
        f.max("largest").alias("largest"),
        f.count_distinct("node_id").alias("nodes"),
    )
    addresses = run.write("addresses", addresses.filter("messages > 0"))
    depth = run.write("depth", _depth(rows), spread="queue")
    partitions = run.write("partitions", _partitions(addresses))
    nodes = run.first(
        run.write("nodes", _nodes(counted, hops.of_journals(rows))).orderBy(f.desc("messages"), "node_id")
    )
    totals = throughput.agg(
        f.sum("messages").alias("messages"),
        f.max("messages").alias("peak"),
        f.percentile_approx("messages", 0.99).alias("p99"),
        f.count("*").alias("seconds"),
    ).first()
    (every,) = counted.agg(f.sum("messages").alias("messages"), f.sum("gone").alias("gone")).collect()
    gone = int(every.gone or 0)
    left = pages.groupBy("node_id").agg(f.sum("pages").alias("pages"), f.max("upto").alias("upto")).collect()
    result.compacted = _compacted_before(rows, marks, left)
    peak = int(totals.peak or 0) if totals is not None else 0
    load = int(run.options.get("load") or 0) or peak
    capacity = int(run.options.get("capacity") or CAPACITY)
    spread = {row.pairs: row.skew for row in partitions.collect()}
    pairs = next((n for n in _PAIRS if load / n * spread.get(n, 1.0) <= capacity), None)
    # Of messages without times no second is known to be the busiest.
    known = load > 0 or not result.compacted
    result.facts = {
        "messages": int(every.messages or 0),
        "without_times": gone,
        "pages_gone": sum(row.pages for row in left),
        "busiest_second": peak if peak or not result.compacted else None,
        "load": load if known else None,
        "pairs": (pairs if pairs is not None else math.ceil(load / capacity)) if known else None,
    }
    if len(nodes) > 1:
        result.facts |= {
            "nodes": len(nodes),
            "node_skew": max(node["share"] for node in nodes),
            "forwarded": sum(node["forwarded"] for node in nodes),
            "redistributed": sum(node["redistributed"] for node in nodes),
        }
    result.findings = {"one_address_too_busy": int(pairs is None)}
    over_time = run.first(throughput.orderBy("second"), 2000)
    shown = run.first(addresses.orderBy(f.desc("messages"), "address"), 200)
    lines = svg.lines(
        [one["second"] * 1000.0 for one in over_time],
        {"messages": [float(one["messages"]) for one in over_time]},
        unit="per second",
        description="Messages accepted in each second",
    )
    busiest = [(one["address"] or "?", {"messages": one["messages"]}) for one in shown[:20]]
    deepest_now = depth.groupBy("node_id", "queue").agg(f.max("depth").alias("deepest"))
    most = [one["queue"] for one in run.first(deepest_now.orderBy(f.desc("deepest"), "queue"), _DRAWN)]
    changes = depth.filter(f.col("queue").isin(most)).groupBy("queue", "at_ms").agg(f.sum("change").alias("change"))
    drawn = _depths(run.first(changes.orderBy("at_ms", "queue"), (_STRETCHES + 1) * _DRAWN), most)
    deepest = run.first(depth.groupBy("queue").agg(f.max("depth").alias("deepest")).orderBy(f.desc("deepest"), "queue"))
    advice = f"<p>{load:,} messages/s at {capacity:,} messages/s for each pair: " + (
        f"<b>{pairs}</b> pair(s).</p>" if pairs else "more pairs do not help, one address is too busy.</p>"
    )
    if result.compacted:
        advice += (
            f"<p>History compacted before {result.compacted}: {gone:,} messages are counted without their times.</p>"
        )
    if not known:
        advice = advice.partition("</p>")[2] + "<p>No load is known: give one.</p>"
    sections = [
        ("How many pairs", advice + page.table(run.first(partitions.orderBy("pairs")))),
        ("Throughput", lines),
        ("Skew by node, and what went to others", page.table(nodes) if len(nodes) > 1 else ""),
        ("Skew by address", svg.bars(busiest, description="Messages of each address") + page.table(shown)),
        ("Depth of the deepest queues", drawn + page.table(deepest)),
    ]
    result.report = page.write(run.output / "report.html", result, sections, title="sizing")
    return run.finish(result)


def _counted(rows: DataFrame, messages: DataFrame, marks: DataFrame, pages: DataFrame) -> DataFrame:
    """node_id, address, messages, bytes, largest; `gone`: how many of them have no record any more. `pages`: as of
    `state.gone_pages`; of their messages no bytes are known.

    What a checkpoint has counted is taken from there, also where its segments are still there, and so is counted once.
    """
    newer = f.col("unknown").isNull() | (f.struct("epoch", "segment") > f.col("unknown"))
    noted = f.coalesce((f.col("kind") == "journal") & f.col("folded") & f.col("upto").isNotNull() & newer, f.lit(False))
    # The file of a page may still be there when the checkpoint has it as done.
    once = messages.join(f.broadcast(state.ended(rows)), ["node_id", "store", "page"], "left_anti")
    each = once.join(f.broadcast(marks), "node_id", "left").groupBy("node_id", "address", noted.alias("noted"))
    left = each.agg(f.count("*").alias("messages"), f.sum("size").alias("bytes"), f.max("size").alias("largest"))
    by_life = state.lives(rows).select("node_id", f.inline("counted")).groupBy("node_id", "address")
    told = by_life.agg(
        f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"), f.max("largest").alias("largest")
    )
    here = left.filter("noted").select(
        "node_id",
        "address",
        f.lit(0).cast("bigint").alias("messages"),
        f.lit(0).cast("bigint").alias("bytes"),
        "largest",
        (-f.col("messages")).alias("gone"),
    )
    none = f.lit(0).cast("bigint")
    return (
        left.filter("not noted")
        .drop("noted")
        .withColumn("gone", none)
        .unionByName(told.withColumn("gone", f.col("messages")))
        .unionByName(here)
        .unionByName(
            pages.select(
                *("node_id", "address", "messages", none.alias("bytes"), none.alias("largest")),
                f.col("messages").alias("gone"),
            )
        )
    )


def _nodes(counted: DataFrame, sent: DataFrame) -> DataFrame:
    """For each node what it accepted, and how much of an equal share that is; what it sent to others, and got of them.

    `sent`: as of `hops.of_journals`.
    """
    accepted = counted.groupBy("node_id").agg(f.sum("messages").alias("messages"), f.sum("bytes").alias("bytes"))
    away = sent.groupBy("node_id").agg(
        f.count_if(~f.col("moved")).alias("forwarded"), f.count_if("moved").alias("redistributed")
    )
    got = sent.groupBy(f.col("to_node").alias("node_id")).agg(f.count("*").alias("from_others"))
    found = accepted.join(away, "node_id", "full").join(got, "node_id", "full")
    found = found.na.fill(0, ["messages", "bytes", "forwarded", "redistributed", "from_others"])
    every = found.agg(f.sum("messages").alias("every"), f.count("*").alias("nodes"))
    share = f.coalesce(f.col("messages") / f.nullif("every", f.lit(0)) * f.col("nodes"), f.lit(1.0))
    columns = ("node_id", "messages", "bytes", share.alias("share"), "forwarded", "redistributed", "from_others")
    return found.crossJoin(f.broadcast(every)).select(*columns)


def _compacted_before(rows: DataFrame, marks: DataFrame, pages: list[Row]) -> str:
    """Where what is left of the journals begins; empty when nothing is gone: no segment that a checkpoint folded, and
    no page (`pages`: for each node that had some the place of the last record about one)."""
    begins = state.begins(rows)
    found = {row.node_id: tuple(row.upto) for row in pages}
    for row in marks.collect():
        if row.unknown or begins[row.node_id].gone:
            found[row.node_id] = max(tuple(row.upto), found.get(row.node_id, (0, 0)))
    return state.before((node, *place) for node, place in found.items())


def _depths(rows: list[dict[str, Any]], queues: list[str]) -> str:
    """Lines over time from changes. Queues of one name on several brokers are added up."""
    times = sorted({row["at_ms"] for row in rows})
    changes = {(row["queue"], row["at_ms"]): row["change"] for row in rows}
    series = {
        queue: [float(depth) for depth in accumulate(changes.get((queue, time), 0) for time in times)]
        for queue in queues
    }
    return svg.lines([float(time) for time in times], series, unit="messages", description="Depth of queues over time")


def _depth(rows: DataFrame) -> DataFrame:
    """node_id, queue, at_ms, change, depth: how deep each queue was at the end of each stretch of time.

    Acknowledgements have no times in a journal. Each record is given the newest time that a message before it in the
    same life had, or the life's own: positions order the journal. Spans are divided into up to _STRETCHES.
    """
    records = rows.filter((rows.kind == "journal") & ~rows.fenced & rows.damage.isNull())
    changing = records.filter(records.record_type.isin("MESSAGE", "REFERENCES", "ACKS")).select(
        *("node_id", "epoch", "segment", "offset", "created", "timestamp"),
        f.when(f.col("record_type") == "ACKS", f.array("queue_id")).otherwise(f.col("queue_ids")).alias("queue_ids"),
        f.when(f.col("record_type") == "ACKS", -f.size("message_ids")).otherwise(1).alias("change"),
    )
    # In two steps, so that a long life is not sorted by one task: newest of the segments before, newest within.
    life = ("node_id", "epoch")
    segments = changing.groupBy(*life, "segment").agg(f.max("timestamp").alias("newest"))
    earlier = Window.partitionBy(*life).orderBy("segment").rowsBetween(Window.unboundedPreceding, -1)
    before = segments.select(*life, "segment", f.max("newest").over(earlier).alias("before"))
    within = Window.partitionBy(*life, "segment").orderBy("offset")
    timed = changing.withColumn("within", f.max("timestamp").over(within)).join(
        f.broadcast(before), [*life, "segment"], "left"
    )
    timed = timed.withColumn("at", f.greatest("created", "before", "within"))
    span = timed.agg(f.min("at").alias("low"), f.max("at").alias("high"))
    width = f.greatest(f.ceil((f.col("high") - f.col("low")) / _STRETCHES / 1000) * 1000, f.lit(1000))
    cut = timed.crossJoin(f.broadcast(span.select("low", width.alias("width"))))
    at = f.floor((f.col("at") - f.col("low")) / f.col("width")) * f.col("width") + f.col("low")
    changes = (
        cut.select("node_id", "epoch", f.explode("queue_ids").alias("queue_id"), at.alias("at_ms"), "change")
        .groupBy("node_id", "queue_id", "at_ms")
        .agg(f.sum("change").alias("change"))
    )
    order = Window.partitionBy("node_id", "queue_id").orderBy("at_ms")
    names = f.broadcast(state.queue_names(rows))
    named = changes.withColumn("depth", f.sum("change").over(order)).join(names, ["node_id", "queue_id"], "left")
    queue = f.coalesce("queue", f.col("queue_id").cast("string"))
    return named.select("node_id", queue.alias("queue"), "at_ms", "change", "depth")


def _partitions(addresses: DataFrame) -> DataFrame:
    """For each number of pairs, how much more the busiest gets than its share when addresses are spread by hash."""
    spread = addresses.withColumn("pairs", f.explode(f.array(*(f.lit(n) for n in _PAIRS))))
    spread = spread.groupBy("pairs", f.pmod(f.xxhash64("address"), f.col("pairs")).alias("pair")).agg(
        f.sum("messages").alias("messages")
    )
    return spread.groupBy("pairs").agg(
        f.max("messages").alias("busiest"),
        f.sum("messages").alias("messages"),
        (f.max("messages") / f.sum("messages") * f.col("pairs")).alias("skew"),
    )
