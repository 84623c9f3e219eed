"""`split_brain`: two brokers of one node id were live at once; what each accepted and consumed alone, and a merge plan.

One side is kept (`keep`). The plan says what to do to a running broker with the kept side's data so that every message
either side had confirmed is there once: `send` what only the other side accepted and nobody consumed, `remove` what the
other side's consumers have had already. `pollux journal apply-plan` carries it out; each `send` has a duplicate id, and
a message that is gone cannot be removed again, so that applying a plan twice changes nothing.

docs/pipeline.md describes the plan's format.
"""

from __future__ import annotations

import json
import shutil
from html import escape
from typing import TYPE_CHECKING, Any

from pyspark.sql import Window
from pyspark.sql import functions as f

from pollux_pipeline.jobs import pair as pairs
from pollux_pipeline.jobs.base import Result, Run, count_where
from pollux_pipeline.jobs.compare_journals import ends_of, verdict
from pollux_pipeline.jobs.manifest import STAGE
from pollux_pipeline.jobs.pair_lives import SIDES
from pollux_pipeline.places import finish
from pollux_pipeline.report import page, svg
from pollux_pipeline.sources.files import walk

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

    from pollux_pipeline.places import Output

PLAN_FORMAT = 1


def split_brain(run: Run) -> Result:
    """Write `messages`, `plan`, `plan.jsonl`, `by_queue`, `damage` and the report. Raises InputError.

    Options: `sides` as for compare_journals; `keep`: a, b, or auto (the side with the longer tail).
    """
    pair = pairs.load(run)
    result = Result("split_brain", run.output)
    run.step("comparing messages")
    compared = run.write("messages", _named(pairs.compared(pair)), spread="uid")
    ends = ends_of(pair, compared)
    keep = run.options.get("keep") or "auto"
    if keep == "auto":
        keep = "a" if ends["a"]["alone"] > ends["b"]["alone"] else "b"
    other = "b" if keep == "a" else "a"
    told = verdict(ends, pair.compacted)
    run.step("writing the merge plan")
    # Where it is not known what a side has had, there is nothing to plan with.
    judged = compared if told["newest"] != "unknown" else compared.limit(0)
    sends = _sends(run, judged, pair.node_id, keep, other)
    removals = _removals(judged, keep, other)
    plan = run.write("plan", sends.unionByName(removals, allowMissingColumns=True), spread="message_id")
    addresses = plan.groupBy("op", "address").agg(f.count("*").alias("n"), count_where("data is null").alias("bare"))
    counted = addresses.groupBy("op").agg(f.sum("n").alias("n"), f.sum("bare").alias("bare"), f.max("n").alias("most"))
    counts = {row.op: row for row in counted.collect()}
    sent, removed = (counts[op].n if op in counts else 0 for op in ("send", "remove"))
    header = {
        "pollux_merge_plan": PLAN_FORMAT,
        "node_id": pair.node_id,
        "keep": keep,
        "kept": run.options["sides"][keep],
        "send": sent,
        "remove": removed,
        "most_of_one_address": counts["send"].most if sent else 0,
    }
    path = _write_plan(run, plan, header)
    by_queue = run.write("by_queue", _by_queue(compared, keep, other))
    result.compacted = pair.compacted
    result.findings = {
        "split": int(told["newest"] == "diverged"),
        "unknown": int(told["newest"] == "unknown"),
        "to_send": sent,
        "to_remove": removed,
        "bodies_missing": counts["send"].bare if sent else 0,
        "damage": pair.damaged,
    }
    result.facts = told | {"keep": keep, "plan": str(path)}
    shown = run.first(by_queue.orderBy(f.desc("waiting_there_alone"), "queue"), 200)
    bars = [
        (one["queue"], {"waiting there alone": one["waiting_there_alone"], "to remove": one["to_remove"]})
        for one in shown[:20]
    ]
    steps = (
        f"<p>Keep {keep} ({escape(run.options['sides'][keep])}), start its broker, then:</p>"
        f"<pre>pollux journal apply-plan {escape(str(path))} --url http://HOST:8161</pre>"
    )
    result.report = page.write(
        run.output / "report.html",
        result,
        [
            ("What to do", steps),
            (
                "Queues (the plan leaves out what both sides have under one duplicate id)",
                svg.bars(bars, description="Messages the plan sends and removes") + page.table(shown),
            ),
            ("Damage", page.table(run.first(pair.damage.drop("node_id").orderBy("side", "file", "offset")))),
        ],
        title="split brain",
    )
    return run.finish(result)


def _named(compared: DataFrame) -> DataFrame:
    columns = ("queue", "uid", "life", "only")
    sides = [
        f.col(f"{side}_{name}")
        for side in SIDES
        for name in (
            "live",
            "message_id",
            "queue_id",
            "position",
            "duplicate_id",
            "address",
            "timestamp",
            "size",
            "first",
        )
    ]
    return compared.select(*columns, *sides)


def _sends(run: Run, compared: DataFrame, node_id: str, keep: str, other: str) -> DataFrame:
    """Return what only the other side accepted and still holds, with its bytes."""
    wanted = compared.filter((f.col("only") == other) & f.col(f"{other}_live")).select(
        "queue",
        f.col(f"{other}_message_id").alias("message_id"),
        f.col(f"{other}_duplicate_id").alias("own_id"),
        f.col(f"{other}_address").alias("address"),
    )
    # A producer that sent again after its connection broke was heard by both: its duplicate id is on both sides.
    heard = (
        compared.filter(f.col(f"{keep}_duplicate_id").isNotNull())
        .select(f.col(f"{keep}_duplicate_id").alias("own_id"), f.col(f"{keep}_address").alias("address"))
        .distinct()
    )
    wanted = wanted.join(heard, ["own_id", "address"], "left_anti").drop("address")
    columns = (
        *("kind", "message_id", "address", "encoding", "priority", "routing_type", "durable", "timestamp"),
        *("expiration", "properties", "fenced", "body"),
    )
    where = json.dumps([["record_type", "in", ["MESSAGE"]], ["kind", "in", ["journal", "bodies", "page"]]])
    reader = run.spark.read.format("pollux_journal").option("columns", ",".join(columns)).option("where", where)
    bodies = reader.load(run.options["sides"][other]).filter("not fenced").dropDuplicates(["message_id"])
    large = f.get_json_object("properties", "$.large[0]")
    directory = _large_directory(run.options["sides"][other])
    path = f.concat(f.lit(directory), f.lit("/"), large, f.lit(".msg")) if directory else f.lit(None).cast("string")
    joined = wanted.join(bodies, "message_id", "left")
    # Made of what never changes, so that a plan made again (after compaction too) has the same ids.
    content = (f.col("message_id"), f.col("timestamp"), f.crc32("body"), f.col("queue"))
    made = f.concat_ws(":", f.lit("pollux-merge"), f.lit(node_id), *content)
    # The producer's own duplicate id also stops a producer that still tries; but it holds for one queue only.
    single = f.count("*").over(Window.partitionBy("message_id")) == 1
    own = f.when(single & f.col("own_id").isNotNull(), f.col("own_id"))
    merge_id = _base64(f.coalesce(own, f.encode(made, "utf-8")))
    return joined.select(
        f.lit("send").alias("op"),
        "queue",
        "message_id",
        "address",
        merge_id.alias("duplicate_id"),
        "encoding",
        "priority",
        "routing_type",
        "durable",
        "timestamp",
        "expiration",
        "properties",
        _base64(f.col("body")).alias("data"),
        f.when(large.isNotNull(), path).alias("file"),
    )


def _base64(data: Column) -> Column:
    """On one line: Spark breaks it every 76 characters, as in mail."""
    return f.translate(f.base64(data), "\r\n", "")


def _large_directory(path: str) -> str | None:
    """Where the files of large messages are, below a data directory."""
    for place, names in walk(path):
        if any(name.endswith(".msg") for name in names):
            return str(place)
    return None


def _removals(compared: DataFrame, keep: str, other: str) -> DataFrame:
    """Return what the kept side still holds of the shared prefix and the other side's consumers have had.

    No trace on the other side of a message that is not the kept side's alone: it was consumed there and compacted.
    """
    consumed = ~f.coalesce(f"{other}_live", f.lit(False))
    shared = f.col("only").isNull() & f.col(f"{keep}_live")
    return compared.filter(shared & consumed).select(
        f.lit("remove").alias("op"),
        "queue",
        f.col(f"{keep}_message_id").alias("message_id"),
        f.col(f"{keep}_address").alias("address"),
    )


def _by_queue(compared: DataFrame, keep: str, other: str) -> DataFrame:
    return compared.groupBy("queue").agg(
        *(f.count_if(f.col("only") == side).alias(f"accepted_by_{side}_alone") for side in SIDES),
        f.count_if((f.col("only") == other) & ~f.col(f"{other}_live")).alias("consumed_there_too"),
        f.count_if((f.col("only") == other) & f.col(f"{other}_live")).alias("waiting_there_alone"),
        f.count_if(f.col("only").isNull() & f.col(f"{keep}_live") & ~f.coalesce(f"{other}_live", f.lit(False))).alias(
            "to_remove"
        ),
    )


def _write_plan(run: Run, plan: DataFrame, header: dict[str, Any]) -> Output:
    """One file: the header, then an operation on each line, in the order in which messages were accepted.

    The lines are written by Spark's tasks and put together here piece by piece, never held in memory.
    """
    parts = run.output / STAGE / "plan"
    ordered = plan.orderBy("op", "queue", "message_id")
    ordered.select(f.to_json(f.struct(*plan.columns)).alias("value")).write.mode("overwrite").text(str(parts))
    run.manifest.claim("plan.jsonl")
    written: list[Output] = [*parts.glob("part-*.txt")]
    path = run.output / "plan.jsonl"
    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as target:
        target.write(json.dumps(header).encode() + b"\n")
        for part in sorted(written, key=str):
            with part.open("rb") as source:
                shutil.copyfileobj(source, target)
    finish(unfinished, path)
    return path
