"""Two journals of one node id side by side: where they part, and which messages are the same.

Journals that began as one and were written on by two brokers share a prefix: the same records, with the same
checksums, at the same places. Behind it both may have used the same numbers: two brokers that start from copies of one
directory both take the next epoch, and so give the same ids to different messages. A life is therefore told by its
epoch *and* the salt of its segments, and a message by its id within its life.

What there is one row of for each life or segment is few, however long a journal is: it is brought here in one query and
judged by plain code (`pair_lives`). Only what there is one row of for each record or message is Spark's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from pollux_pipeline.errors import InputError
from pollux_pipeline.jobs import state
from pollux_pipeline.jobs.base import NORMAL_DAMAGE, count_where, table
from pollux_pipeline.jobs.pair_lives import SIDES, Known, Told

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

    from pollux_pipeline.jobs.base import Run

_COLUMNS = (
    *("file", "kind", "node_id", "epoch", "segment", "salt", "offset", "length", "checksum", "record_type", "fenced"),
    *("folded", "tx", "message_id", "queue_id", "message_ids", "queue_ids", "address", "priority", "timestamp", "size"),
    *("count", "store", "page", "duplicate_id", "properties", "damage", "detail"),
)
_KEY = ("epoch", "segment", "offset")
_POSITION = "struct<epoch:bigint,segment:bigint,offset:bigint>"
_SOUND = "damage is null and not fenced"
_RECORD = f"kind = 'journal' and {_SOUND}"
#: A message's id is its life's epoch, shifted by this much, and a counter.
EPOCH_SHIFT = 44


@dataclass(slots=True)
class Pair:
    """Hold what is known of the two sides. Every table is on disk already."""

    #: For each side: first (position of its first record that the other has not), last (of its last record), records,
    #: alone (records that the other has not), alone_lives, folded (its checkpoint, of a shared life, ends behind
    #: everything that the other side is known to have had).
    ends: dict[str, dict[str, Any]]
    #: side, queue_id, message_id, live, position (of its record; null: only in compacted files or pages), address,
    #: duplicate_id, timestamp, size, queue (name), life (shared or alone), uid, first (as in ends), placed (position,
    #: null also where the other side's journal cannot tell whether it has had that place), had (the other side has had
    #: it, though no place tells).
    messages: DataFrame
    #: life_epoch, newest_a, newest_b: the highest id of a message that a side is known to have had.
    newest: DataFrame
    damage: DataFrame
    #: How much of it is a finding.
    damaged: int
    node_id: str
    #: Behind what the history begins without which not everything can be told; empty: everything can.
    compacted: str = ""


def load(run: Run) -> Pair:
    """Read and compare. Raises InputError unless there are two inputs with journals of one node id."""
    paths = run.options["sides"]
    run.step(f"reading journals: a: {paths['a']}, b: {paths['b']}")
    a, b = (state.journal(run.spark, [paths[side]], _COLUMNS).withColumn("side", f.lit(side)) for side in SIDES)
    # Those of messages, most of what there is, nobody asks for here.
    properties = f.when(f.col("record_type") != "MESSAGE", f.col("properties"))
    rows = run.stage("rows", a.unionByName(b).withColumn("properties", properties))
    told = _told(rows)
    node = _node(told, paths)
    run.step("finding where they part")
    known = Known.of(told)
    ends = _ends(run, rows, known)
    run.step("telling messages apart")
    messages = run.stage("messages", _messages(run, rows, known, ends))
    unsound = f"count_if(damage not in {NORMAL_DAMAGE})"
    damage = run.write("damage", state.damage(rows, "side"), count={"unsound": unsound})
    damaged = run.counts["damage"]["unsound"]
    return Pair(ends, messages, _newest(run, messages, told), damage, damaged, node, known.compacted)


def check_sides(a: Path, b: Path) -> dict[str, str]:
    """The two directories as absolute paths. Raises InputError."""
    for name, path in (("a", a), ("b", b)):
        if not path.is_dir():
            raise InputError(f"--{name} {path}: is not a directory")
    if a.resolve() == b.resolve():
        raise InputError(f"--a and --b are the same directory: {a}")
    return {"a": str(a.absolute()), "b": str(b.absolute())}


def _told(rows: DataFrame) -> dict[str, Told]:
    """Return what the files of each side tell of lives and segments: one query."""
    began = f.from_json("properties", "ends array<array<bigint>>, checkpoint array<bigint>")

    def where(condition: str, value: Column) -> Column:
        return f.when(f.expr(condition), value)

    found = rows.groupBy("side", "node_id", "epoch").agg(
        count_where("damage is null").alias("whole"),
        count_where(_SOUND).alias("sound"),
        f.max(where(f"kind in ('journal', 'bindings') and {_SOUND}", f.col("salt"))).alias("salt"),
        f.collect_set(where(_RECORD, f.col("segment"))).alias("segments"),
        f.min(where(f"{_RECORD} and record_type = 'START'", f.struct(began.alias("began")))).alias("start"),
        f.max(where("kind = 'checkpoint' and damage is null", f.col("segment"))).alias("folded"),
        f.max(where("record_type = 'FOLDED'", f.from_json("properties", "unknown array<bigint>")["unknown"])).alias(
            "unknown"
        ),
        f.collect_list(where("record_type = 'LIFE'", f.from_json("properties", state.LIFE))).alias("lives"),
        f.max(where(_RECORD, f.struct("segment", (f.col("offset") + f.col("length")).alias("end")))).alias("last"),
    )
    told = {side: Told() for side in SIDES}
    for row in found.collect():
        side = told[row.side]
        if row.whole:
            side.nodes.add(row.node_id)
        if row.sound:
            side.epochs.add(row.epoch)
        if row.salt is not None:
            side.salts[row.epoch] = max(row.salt, side.salts.get(row.epoch, row.salt))
        if row.segments:
            side.segments.setdefault(row.epoch, set()).update(row.segments)
        if row.start is not None:
            side.starts[row.epoch] = row.start.began
        if row.folded is not None:
            side.folded = max((row.epoch, row.folded), side.folded or (0, 0))
            side.unknown = tuple(row.unknown) if row.unknown else None
        side.lives |= {life.epoch: life for life in row.lives}
        if row.last is not None:
            side.last[row.epoch] = tuple(row.last)
    for side in told.values():
        side.salts |= {epoch: life.salt for epoch, life in side.lives.items()}
        side.epochs |= side.lives.keys()
    return told


def _node(told: Mapping[str, Told], paths: Mapping[str, str]) -> str:
    """The node id that both sides have. Raises InputError."""
    nodes: dict[str, str] = {}
    for side in SIDES:
        found = sorted(told[side].nodes)
        if not found:
            raise InputError(f"--{side} {paths[side]}: holds no journal records")
        if len(found) > 1:
            names = ", ".join(found[:3])
            raise InputError(f"--{side} {paths[side]}: holds files of several nodes ({names}); keep one node's only")
        nodes[side] = found[0]
    if nodes["a"] != nodes["b"]:
        raise InputError(f"the journals are of different nodes: a of {nodes['a']}, b of {nodes['b']}")
    return nodes["a"]


def _ends(run: Run, rows: DataFrame, known: Known) -> dict[str, dict[str, Any]]:
    """For each side its last record, the first that the other side does not have at that place, and lives of its own.

    A segment that is missing on the other side only because a checkpoint made it superfluous says nothing, unless its
    life was this side's alone.
    """
    # From which byte on a record of a segment is this side's alone when the other has not got it; absent: none is.
    begins = [
        (side, one.epoch, one.segment, one.until or 0 if known.lives.shared(one.epoch) else 0)
        for side in SIDES
        for one in known.seen[side]
        if one.how in ("has", "never", "until") or not known.lives.shared(one.epoch)
    ]
    missed = table(run.spark, begins, "at_side string, at_epoch bigint, at_segment bigint, missed_from bigint")
    held = [count_where(f"side = '{side}'").alias(f"in_{side}") for side in SIDES]
    places = rows.filter(_RECORD).groupBy(*_KEY, "checksum").agg(*held)
    # Of a place that both have nothing is asked.
    of = f.when(f.col("in_b") == 0, "a").when(f.col("in_a") == 0, "b")
    places = places.withColumn("of", of)
    at = (places["of"] == missed.at_side) & (places.epoch == missed.at_epoch) & (places.segment == missed.at_segment)
    marked = places.join(f.broadcast(missed), at, "left")
    place = f.struct(*_KEY)
    alone = f.coalesce(f.col("offset") >= f.col("missed_from"), f.lit(False))
    columns = []
    for side in SIDES:
        mine, lone = f.col(f"in_{side}") > 0, alone & (f.col("of") == side)
        columns += [
            f.min(f.when(lone, place)).alias(f"first_{side}"),
            f.max(f.when(mine, place)).alias(f"last_{side}"),
            f.coalesce(f.sum(f"in_{side}"), f.lit(0)).alias(f"records_{side}"),
            f.coalesce(f.sum(f.when(lone, f.col(f"in_{side}"))), f.lit(0)).alias(f"alone_{side}"),
        ]
    (found,) = (row.asDict(recursive=True) for row in marked.agg(*columns).collect())
    names = ("first", "last", "records", "alone")
    return {
        side: {name: found[f"{name}_{side}"] for name in names}
        | {
            "side": side,
            "alone_lives": sum(not known.lives.shared(epoch) for epoch in known.told[side].epochs),
            "folded": known.has_more(side),
        }
        for side in SIDES
    }


def _messages(run: Run, rows: DataFrame, known: Known, ends: Mapping[str, dict[str, Any]]) -> DataFrame:
    # The rules of recovery keep nodes apart: here the sides are.
    apart = rows.withColumn("node_id", f.col("side"))
    stored = apart.filter(f"record_type = 'MESSAGE' and {_SOUND}")
    place = f.when(f.col("kind") == "journal", f.struct(*_KEY))
    about = stored.groupBy("node_id", "message_id").agg(
        f.min(place).alias("position"),
        f.max(f.col("kind") == "bodies").alias("compacted"),
        f.min("address").alias("address"),
        f.min("duplicate_id").alias("duplicate_id"),
        f.min("timestamp").alias("timestamp"),
        f.min("size").alias("size"),
    )
    records = run.stage("effective", state.effective(apart))
    queued = state.in_queues(apart, records).drop("added", "removed")
    names = f.broadcast(state.queue_names(apart))
    joined = queued.join(about, ["node_id", "message_id"], "left").join(names, ["node_id", "queue_id"], "left")
    both = joined.withColumnRenamed("node_id", "side").withColumn("life_epoch", f.expr(f"message_id >> {EPOCH_SHIFT}"))
    both = both.withColumn("life", known.lives.life(f.col("life_epoch")))
    identity = f.col("message_id").cast("string")
    uid = f.when(f.col("life") == "alone", f.concat(identity, f.lit(":"), f.col("side"))).otherwise(identity)
    a, b = (_position(ends[side]["first"]) for side in SIDES)
    first = f.when(f.col("side") == "a", a).otherwise(b)
    return _placed(run, both.withColumns({"uid": uid, "first": first}), known)


def _position(known: Mapping[str, int] | None) -> Column:
    if known is None:
        return f.lit(None).cast(_POSITION)
    return f.struct(*(f.lit(known[name]).cast("bigint").alias(name) for name in _KEY))


def _placed(run: Run, messages: DataFrame, known: Known) -> DataFrame:
    """Add `placed`: a place that nothing on the other side tells of orders nothing; the message's number has to. And
    `had`: whether the other side has had it all the same, as a later life that both have began with it, or as the other
    side has had all that the checkpoint holds in which alone the message is."""
    places = [(side, one.epoch, one.segment) for side in SIDES for one in known.seen[side] if one.how == "unknown"]
    unknown = table(run.spark, places, "at_side string, at_epoch bigint, at_segment bigint")
    at = (
        (messages.side == unknown.at_side)
        & (messages.position.epoch == unknown.at_epoch)
        & (messages.position.segment == unknown.at_segment)
    )
    placed = f.when(f.col("at_side").isNull(), f.col("position"))
    passed = [side for side in SIDES if known.passed(side)]
    compacted = f.col("position").isNull() & f.col("compacted") & f.col("side").isin(passed)
    earlier = f.col("life_epoch") < f.lit(known.lives.last_shared).cast("bigint")
    # Where the records of a life end says nothing of what is in pages.
    had = f.coalesce(compacted, f.lit(False)) | f.coalesce(earlier, f.lit(False))
    for side in SIDES:
        if epochs := known.had(side):
            whole = f.col("compacted") & (f.col("side") == side) & f.col("life_epoch").isin(*epochs)
            had |= f.coalesce(whole, f.lit(False))
    marked = messages.join(f.broadcast(unknown), at, "left").withColumns({"placed": placed, "had": had})
    return marked.drop(*unknown.columns, "compacted")


def _newest(run: Run, messages: DataFrame, told: Mapping[str, Told]) -> DataFrame:
    """The highest id of a message of each life that each side tells of, in its files or in its checkpoint's history."""
    noted = [(side, epoch, life.newest) for side in SIDES for epoch, life in told[side].lives.items()]
    every = messages.select("side", "life_epoch", "message_id").unionByName(
        table(run.spark, noted, "side string, life_epoch bigint, message_id bigint")
    )
    newest = [f.max(f.when(f.col("side") == side, f.col("message_id"))).alias(f"newest_{side}") for side in SIDES]
    return every.groupBy("life_epoch").agg(*newest)


def compared(pair: Pair) -> DataFrame:
    """One row for each message of each queue on both sides: queue, uid, a_live, b_live (null: no trace), and which of
    them accepted it alone (`only`: a, b or null).

    No trace of a message that the shared prefix holds means that it was consumed and compacted away; one behind the
    prefix was never there.
    """
    messages = pair.messages
    # Queue ids may differ between the sides for queues made after the split; names do not.
    queue = f.coalesce("queue", f.concat(f.lit("#"), f.col("queue_id").cast("string")))
    columns = (
        *("live", "message_id", "queue_id", "position", "placed", "had", "duplicate_id", "address", "timestamp"),
        *("size", "first"),
    )

    def of(side: str) -> DataFrame:
        renamed = [f.col(name).alias(f"{side}_{name}") for name in columns]
        return messages.filter(f.col("side") == side).select(
            queue.alias("queue"), "uid", "life", "life_epoch", *renamed
        )

    every = of("a").join(of("b"), ["queue", "uid", "life", "life_epoch"], "full")
    every = every.join(f.broadcast(pair.newest), "life_epoch", "left")

    def only(side: str, other: str) -> Column:
        behind = f.when(
            f.col(f"{side}_placed").isNotNull(),
            f.coalesce(f.col(f"{side}_placed") >= f.col(f"{side}_first"), f.lit(False)),
        ).otherwise(
            ~f.col(f"{side}_had") & (f.col(f"{side}_message_id") > f.coalesce(f.col(f"newest_{other}"), f.lit(-1)))
        )
        here = f.col(f"{side}_live").isNotNull() & f.col(f"{other}_live").isNull()
        return here & ((f.col("life") == "alone") | behind)

    return every.withColumn("only", f.when(only("a", "b"), "a").when(only("b", "a"), "b"))
