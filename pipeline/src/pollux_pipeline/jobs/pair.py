"""Two journals of one node id side by side: where they part, and which messages are the same.

Journals that began as one and were written on by two brokers share a prefix: the same records, with the same
checksums, at the same places. Behind it both may have used the same numbers: two brokers that start from copies of one
directory both take the next epoch, and so give the same ids to different messages. A life is therefore told by its
epoch *and* the salt of its segments, and a message by its id within its life.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from pollux_pipeline.errors import InputError
from pollux_pipeline.jobs import state

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import Column, DataFrame

    from pollux_pipeline.jobs.base import Run

SIDES = ("a", "b")
_COLUMNS = (
    *("file", "kind", "node_id", "epoch", "segment", "salt", "offset", "length", "checksum", "record_type", "fenced"),
    *("folded", "tx", "message_id", "queue_id", "message_ids", "queue_ids", "address", "priority", "timestamp", "size"),
    *("count", "store", "page", "duplicate_id", "properties", "damage", "detail"),
)
_KEY = ("epoch", "segment", "offset")
#: A message's id is its life's epoch, shifted by this much, and a counter.
EPOCH_SHIFT = 44


@dataclass(slots=True)
class Pair:
    """What is known of the two sides. Every table is on disk already."""

    rows: dict[str, DataFrame]
    #: side, first (position of its first record that the other has not), last (of its last record), records, alone
    #: (records that the other has not), alone_lives, folded (its checkpoint, of a shared life, ends behind everything
    #: that the other side is known to have had).
    ends: DataFrame
    #: side, queue_id, message_id, live, position (of its record; null: only in compacted files or pages), address,
    #: duplicate_id, timestamp, size, queue (name), life (shared or alone), uid, first (as in ends), placed (position,
    #: null also where the other side's journal cannot tell whether it has had that place), had (the other side has had
    #: it, though no place tells).
    messages: DataFrame
    damage: DataFrame
    node_id: str


def load(run: Run) -> Pair:
    """Read and compare. Raises InputError unless there are two inputs with journals of one node id."""
    paths = run.options["sides"]
    rows: dict[str, DataFrame] = {}
    nodes: dict[str, str] = {}
    for side in SIDES:
        run.step(f"reading journal {side}: {paths[side]}")
        rows[side] = run.stage(f"{side}", state.journal(run.spark, [paths[side]], _COLUMNS))
        found = rows[side].filter("damage is null").select("node_id").distinct().limit(3).collect()
        if not found:
            raise InputError(f"--{side} {paths[side]}: holds no journal records")
        if len(found) > 1:
            names = ", ".join(sorted(one.node_id for one in found))
            raise InputError(f"--{side} {paths[side]}: holds files of several nodes ({names}); keep one node's only")
        nodes[side] = found[0].node_id
    if nodes["a"] != nodes["b"]:
        raise InputError(f"the journals are of different nodes: a of {nodes['a']}, b of {nodes['b']}")
    run.step("finding where they part")
    lives = run.stage("lives", _lives(rows))
    bounds = run.stage("bounds", _bounds(rows, lives))
    seen = run.stage("seen", _seen(rows["a"], rows["b"], "a").unionByName(_seen(rows["b"], rows["a"], "b")))
    ends = run.stage("ends", _ends(rows, lives, bounds, seen))
    run.step("telling messages apart")
    messages = run.stage("messages", _placed(_messages(run, rows, ends, lives, bounds), seen, bounds))
    damage = state.damage(rows["a"]).withColumn("side", f.lit("a"))
    damage = run.write("damage", damage.unionByName(state.damage(rows["b"]).withColumn("side", f.lit("b"))))
    return Pair(rows, ends, messages, damage, nodes["a"])


def check_sides(a: Path, b: Path) -> dict[str, str]:
    """The two directories as absolute paths. Raises InputError."""
    for name, path in (("a", a), ("b", b)):
        if not path.is_dir():
            raise InputError(f"--{name} {path}: is not a directory")
    if a.resolve() == b.resolve():
        raise InputError(f"--a and --b are the same directory: {a}")
    return {"a": str(a.absolute()), "b": str(b.absolute())}


def _records(rows: DataFrame) -> DataFrame:
    return rows.filter((rows.kind == "journal") & rows.damage.isNull() & ~rows.fenced)


def _lives(rows: dict[str, DataFrame]) -> DataFrame:
    """life_epoch, salt_a, salt_b: the lives that segments and bindings tell of; null: a side has none."""
    sides = []
    for side in SIDES:
        one = rows[side]
        told = one.filter(one.kind.isin("journal", "bindings") & one.damage.isNull() & ~one.fenced)
        sides.append(told.groupBy(f.col("epoch").alias("life_epoch")).agg(f.max("salt").alias(f"salt_{side}")))
    return sides[0].join(sides[1], "life_epoch", "full")


def _bounds(rows: dict[str, DataFrame], lives: DataFrame) -> DataFrame:
    """One row: newest_a, newest_b (epochs), last_shared, first_alone (epochs whose salts are known on both sides)."""
    same = f.col("salt_a") == f.col("salt_b")
    bounds = lives.agg(
        f.max(f.when(same, f.col("life_epoch"))).alias("last_shared"),
        f.min(f.when(~same, f.col("life_epoch"))).alias("first_alone"),
    )
    for side in SIDES:
        newest = rows[side].filter("damage is null and not fenced").agg(f.max("epoch").alias(f"newest_{side}"))
        bounds = bounds.crossJoin(newest)
    return bounds


def _with_life(frame: DataFrame, lives: DataFrame, bounds: DataFrame) -> DataFrame:
    """Add `life` for the epoch in `life_epoch`: shared or alone.

    Sides part once: what comes before a shared life is shared, what comes behind one that is not is not. Where no salt
    is left (a stopped broker compacts its journal), a life is shared when both sides are at least that old.
    """
    epoch = f.col("life_epoch")
    both = f.col("salt_a").isNotNull() & f.col("salt_b").isNotNull()
    life = (
        f.when(both & (f.col("salt_a") == f.col("salt_b")), "shared")
        .when(both, "alone")
        .when(epoch <= f.col("last_shared"), "shared")
        .when(epoch >= f.col("first_alone"), "alone")
        .when(epoch <= f.least("newest_a", "newest_b"), "shared")
        .otherwise("alone")
    )
    joined = frame.join(f.broadcast(lives), "life_epoch", "left").crossJoin(f.broadcast(bounds))
    return joined.withColumn("life", life).drop("salt_a", "salt_b", *bounds.columns)


def _seen(mine: DataFrame, other: DataFrame, side: str) -> DataFrame:
    """For each segment of `side`, and for the one its newest checkpoint ends with (`folded`), what the other one knows
    of it: side, epoch, segment, folded, seen, until.

    `seen` is `has` (it has the segment too), `passed` (it had all of it before compaction took it away), `until` (its
    next life began with the segment's first `until` bytes), `never`, or `unknown`: nothing over there tells any more.
    Holds for segments of shared lives; those of a life of its own the other side never saw. A checkpoint does not tell
    at which byte its last segment ended: only who has `passed` it has had all that it holds.
    """
    theirs = _records(other)
    key = f.struct("epoch", "segment")
    has = theirs.select("epoch", "segment").distinct().withColumn("has", f.lit(1))
    furthest = theirs.groupBy("epoch").agg(f.max("segment").alias("furthest"))
    folded = _folded(other).select(f.col("newest").alias("folded"))
    began = f.from_json("properties", "ends array<array<bigint>>, checkpoint array<bigint>")
    starts = theirs.filter("record_type = 'START'").select(f.col("epoch").alias("start_epoch"), began.alias("began"))
    own = _records(mine).select("epoch", "segment").distinct()
    end = _folded(mine).filter("newest is not null").select("newest.epoch", "newest.segment")
    keys = own.withColumn("whole", f.lit(False)).unionByName(end.withColumn("whole", f.lit(True)))
    following = (
        keys.select("epoch")
        .distinct()
        .join(f.broadcast(starts), f.col("start_epoch") > f.col("epoch"))
        .groupBy("epoch")
        .agg(f.min(f.struct("start_epoch", "began")).alias("start"))
        .select("epoch", "start.began")
    )
    known = (
        keys.join(has, ["epoch", "segment"], "left")
        .join(furthest, "epoch", "left")
        .join(following, "epoch", "left")
        .crossJoin(f.broadcast(folded))
        .withColumn("until", f.expr("get(filter(began.ends, e -> e[0] = epoch and e[1] = segment), 0)[2]"))
        .withColumn("origin", f.expr("struct(began.checkpoint[1] as epoch, began.checkpoint[2] as segment)"))
    )
    no = f.lit(False)
    seen = (
        f.when(f.col("whole") & f.coalesce(f.col("furthest") > f.col("segment"), no), "passed")
        .when(f.col("has").isNotNull(), "has")
        .when(f.coalesce((f.col("folded.epoch") == f.col("epoch")) & (f.col("folded") >= key), no), "passed")
        .when(f.coalesce(f.col("furthest") > f.col("segment"), no), "passed")
        .when(f.col("until").isNotNull(), "until")
        .when(f.expr("began is not null and began.checkpoint is null"), "never")
        .when(f.expr("began is not null and origin.epoch > epoch"), "unknown")
        .when(f.col("began").isNotNull(), f.when(f.col("origin") >= key, "passed").otherwise("never"))
        .when(f.coalesce(f.col("folded") > key, no), "unknown")
        .otherwise("never")
    )
    return known.select(
        f.lit(side).alias("side"), "epoch", "segment", f.col("whole").alias("folded"), seen.alias("seen"), "until"
    )


def _folded(rows: DataFrame) -> DataFrame:
    """One row: `newest`, the epoch and the segment that the newest sound checkpoint ends with; null: there is none."""
    sound = rows.filter("kind = 'checkpoint' and damage is null")
    return sound.agg(f.max(f.struct("epoch", "segment")).alias("newest"))


def _ends(rows: dict[str, DataFrame], lives: DataFrame, bounds: DataFrame, seen: DataFrame) -> DataFrame:
    """For each side its last record, the first that the other side does not have at that place, and lives of its own.

    A segment that is missing on the other side only because a checkpoint made it superfluous says nothing, unless its
    life was this side's alone.
    """
    a, b = _records(rows["a"]), _records(rows["b"])
    parts: list[DataFrame] = []
    checkpoints = _folded(rows["a"]).select(f.col("newest").alias("folded_a"))
    checkpoints = checkpoints.crossJoin(_folded(rows["b"]).select(f.col("newest").alias("folded_b")))
    for side, mine, other in (("a", a, b), ("b", b, a)):
        there = other.select(*_KEY, "checksum", f.lit(1).alias("there"))
        marked = (
            mine.select(*_KEY, "checksum")
            .join(there, [*_KEY, "checksum"], "left")
            .join(f.broadcast(seen.filter(~seen.folded & (seen.side == side))), ["epoch", "segment"], "left")
            .withColumn("life_epoch", f.col("epoch"))
        )
        marked = _with_life(marked, lives, bounds)
        missed = f.col("seen").isin("has", "never") | ((f.col("seen") == "until") & (f.col("offset") >= f.col("until")))
        alone = f.col("there").isNull() & ((f.col("life") == "alone") | missed)
        place = f.struct(*_KEY)
        told = rows[side].filter("damage is null and not fenced").select(f.col("epoch").alias("life_epoch")).distinct()
        own = _with_life(told, lives, bounds).agg(f.count_if(f.col("life") == "alone").alias("alone_lives"))
        ends = marked.agg(
            f.lit(side).alias("side"),
            f.min(f.when(alone, place)).alias("first"),
            f.max(place).alias("last"),
            f.count("*").alias("records"),
            f.count_if(alone).alias("alone"),
        )
        there_too = f.coalesce(f.expr("folded_a >= folded_b" if side == "b" else "folded_b >= folded_a"), f.lit(False))
        more = seen.filter(seen.folded & (seen.side == side) & (seen.seen != "passed")).crossJoin(checkpoints)
        more = _with_life(more.filter(~there_too).withColumn("life_epoch", f.col("epoch")), lives, bounds)
        more = more.agg((f.count_if(f.col("life") == "shared") > 0).alias("folded"))
        parts.append(ends.crossJoin(own).crossJoin(more))
    return parts[0].unionByName(parts[1])


def _messages(
    run: Run, rows: dict[str, DataFrame], ends: DataFrame, lives: DataFrame, bounds: DataFrame
) -> DataFrame:
    parts: list[DataFrame] = []
    for side in SIDES:
        one = rows[side]
        stored = one.filter((one.record_type == "MESSAGE") & one.damage.isNull() & ~one.fenced)
        place = f.when(f.col("kind") == "journal", f.struct(*_KEY))
        about = stored.groupBy("message_id").agg(
            f.min(place).alias("position"),
            f.max(f.col("kind") == "bodies").alias("compacted"),
            f.min("address").alias("address"),
            f.min("duplicate_id").alias("duplicate_id"),
            f.min("timestamp").alias("timestamp"),
            f.min("size").alias("size"),
        )
        records = run.stage(f"effective-{side}", state.effective(one))
        queued = state.in_queues(one, records).drop("node_id", "added", "removed")
        names = state.queue_names(one).drop("node_id")
        joined = queued.join(about, "message_id", "left").join(f.broadcast(names), "queue_id", "left")
        parts.append(joined.withColumn("side", f.lit(side)))
    both = parts[0].unionByName(parts[1]).withColumn("life_epoch", f.expr(f"message_id >> {EPOCH_SHIFT}"))
    both = _with_life(both, lives, bounds)
    identity = f.col("message_id").cast("string")
    uid = f.when(f.col("life") == "alone", f.concat(identity, f.lit(":"), f.col("side"))).otherwise(identity)
    return both.withColumn("uid", uid).join(f.broadcast(ends.select("side", "first")), "side", "left")


def _placed(messages: DataFrame, seen: DataFrame, bounds: DataFrame) -> DataFrame:
    """Add `placed`: a place that nothing on the other side tells of orders nothing; the message's number has to. And
    `had`: whether the other side has had it all the same, as a later life that both have began with it, or as the other
    side has had all that the checkpoint holds in which alone the message is."""
    unknown = seen.filter("seen = 'unknown' and not folded").select(
        f.col("side").alias("at_side"),
        f.col("epoch").alias("at_epoch"),
        f.col("segment").alias("at_segment"),
        f.lit(1).alias("unknown"),
    )
    at = (
        (messages.side == unknown.at_side)
        & (messages.position.epoch == unknown.at_epoch)
        & (messages.position.segment == unknown.at_segment)
    )
    marked = messages.join(f.broadcast(unknown), at, "left").drop("at_side", "at_epoch", "at_segment")
    placed = f.when(f.col("unknown").isNull(), f.col("position"))
    passed = seen.filter("seen = 'passed' and folded").select("side", f.lit(1).alias("passed"))
    compacted = f.col("position").isNull() & f.col("compacted") & f.col("passed").isNotNull()
    earlier = f.col("life_epoch") < f.col("last_shared")
    had = f.coalesce(compacted, f.lit(False)) | f.coalesce(earlier, f.lit(False))
    marked = marked.join(f.broadcast(passed), "side", "left").crossJoin(f.broadcast(bounds.select("last_shared")))
    marked = marked.withColumns({"placed": placed, "had": had})
    return marked.drop("unknown", "passed", "compacted", "last_shared")


def compared(pair: Pair) -> DataFrame:
    """One row for each message of each queue on both sides: queue, uid, a_live, b_live (null: no trace), and which of
    them accepted it alone (`only`: a, b or null).

    No trace of a message that the shared prefix holds means that it was consumed and compacted away; one behind the
    prefix was never there.
    """
    messages = pair.messages
    # Queue ids may differ between the sides for queues made after the split; names do not.
    queue = f.coalesce("queue", f.concat(f.lit("#"), f.col("queue_id").cast("string")))
    known = messages.groupBy("side", "life_epoch").agg(f.max("message_id").alias("newest"))
    known_a = known.filter("side = 'a'").select("life_epoch", f.col("newest").alias("newest_a"))
    known_b = known.filter("side = 'b'").select("life_epoch", f.col("newest").alias("newest_b"))
    columns = (
        *("live", "message_id", "queue_id", "position", "placed", "had", "duplicate_id", "address", "timestamp"),
        *("size", "first"),
    )

    def of(side: str) -> DataFrame:
        renamed = [f.col(name).alias(f"{side}_{name}") for name in columns]
        return messages.filter(f.col("side") == side).select(
            queue.alias("queue"), "uid", "life", "life_epoch", *renamed
        )

    both = of("a").join(of("b").drop("life", "life_epoch"), ["queue", "uid"], "left")
    alone_b = of("b").join(of("a").select("queue", "uid"), ["queue", "uid"], "left_anti")
    every = both.unionByName(alone_b, allowMissingColumns=True)
    every = every.join(f.broadcast(known_a), "life_epoch", "left").join(f.broadcast(known_b), "life_epoch", "left")

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
