"""Whether the messages of a producer and group came in order: what is judged, what is behind, and what nobody knows."""

from __future__ import annotations

from functools import reduce
from typing import TYPE_CHECKING

from pyspark.sql import Column, Window
from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame

#: Stretches of time into which the receptions of large ledgers are cut, so that many tasks judge one busy group.
_STRETCHES = 64
#: What order is kept within, and within one ledger.
_KEY = ("producer", "group", "queue")
_PLACE = (*_KEY, "ledger")
#: Of so many places the driver is told that something may be out of order there; where it is more, all are looked at.
_SUSPECTS = 1000


def columns(*, several: bool) -> str:
    """Return which columns of the table `messages` are asked for here, as SQL. `several`: ledgers, so lives count."""
    life = ", node: string, epoch: bigint" if several else ""
    one = f"struct<`order`: struct<time: double, at: bigint>{life}>"
    receptions = f"array<struct<queue: string, ledger: int, fresh: bigint, fresh_first: {one}, fresh_last: {one}>>"
    of_message = "id string, sent_ms double, producer string, `group` string, sequence bigint, node string"
    return f"{of_message}, receptions {receptions}"


def judged(messages: DataFrame, *, several: bool) -> DataFrame:
    """Receptions whose order counts: those without the mark, of messages with a group. A message received more than
    twice is judged by its first and its last. `messages`: with these `columns`. Columns: id, producer, group,
    sequence, node (that confirmed it), queue, ledger, time, at (its place in that ledger), and with `several` of the
    reception `at_node` and `epoch`, null where not known."""
    first_and_last = f.expr("""case when r.fresh = 0 then array() when r.fresh = 1 then array(r.fresh_first)
        else array(r.fresh_first, r.fresh_last) end""")
    of_message = ("id", "producer", "group", "sequence", "node")
    life = (f.col("one.node").alias("at_node"), f.col("one.epoch")) if several else ()
    each = messages.filter("sent_ms is not null and `group` != ''").select(
        *of_message, f.explode("receptions").alias("r")
    )
    return each.select(*of_message, "r.queue", "r.ledger", f.explode(first_and_last).alias("one")).select(
        *of_message, *("queue", "ledger", "one.order.time", "one.order.at"), *life
    )


def suspected(rows: DataFrame, spans: Mapping[int, tuple[float, float]]) -> DataFrame:
    """The `rows` (as of `judged`) of places where something may be out of order, which mostly is nowhere: by numbers
    alone, so that all of them are moved and sorted as a small part of what they are. Where several places have one
    hash, they are looked at together: then more is suspected, never less, for what is in order is so in every part."""
    place = f.xxhash64(*_PLACE)
    numbers = rows.select(place.alias("place"), _stretch(spans).alias("stretch"), "time", "at", "sequence").withColumn(
        "part", f.xxhash64("place", "stretch")
    )
    one_before = f.lag("sequence").over(Window.partitionBy("part").orderBy("time", "at"))
    stretches = (
        numbers.withColumn("behind", f.col("sequence") < one_before)
        .groupBy("part", "place", "stretch")
        .agg(f.max("behind").alias("behind"), f.min("sequence").alias("lowest"), f.max("sequence").alias("highest"))
    )
    earlier = Window.partitionBy("place").orderBy("stretch").rowsBetween(Window.unboundedPreceding, -1)
    found = stretches.withColumn("before", f.max("highest").over(earlier)).filter("behind or lowest < before")
    # In an order, for then it is one job.
    places = [row.place for row in found.select("place").distinct().orderBy("place").limit(_SUSPECTS + 1).collect()]
    return rows if len(places) > _SUSPECTS else rows.filter(place.isin(places))


def violations(rows: DataFrame, spans: Mapping[int, tuple[float, float]], *, large: bool, several: bool) -> DataFrame:
    """Findings: receptions behind a later message of the same producer, group and queue. `rows`: as of `judged`.

    With `large` ledgers time is cut into stretches of their `spans` (ms): each row is compared with the newest message
    of all stretches before (a small table) and of its own; with `several` also with what other ledgers received in an
    earlier life of the same node.
    """
    newest = f.max(f.struct("sequence", "id"))
    known = ["within"]
    if large:
        rows = rows.withColumn("stretch", _stretch(spans))
    parts = (*_PLACE, "stretch") if large else _PLACE
    within = Window.partitionBy(*parts).orderBy("time", "at").rowsBetween(Window.unboundedPreceding, -1)
    compared = rows.withColumn("within", newest.over(within))
    if large:
        stretches = rows.groupBy(*parts).agg(newest.alias("newest"))
        earlier = Window.partitionBy(*_PLACE).orderBy("stretch").rowsBetween(Window.unboundedPreceding, -1)
        before = stretches.select(*parts, f.max("newest").over(earlier).alias("before"))
        # Behind the window, whose rows are sorted as a join wants them.
        compared = compared.join(before.filter("before is not null"), list(parts), "left")
        known.append("before")
    if several:
        lives = _by_life(rows)
        a, b = lives.alias("a"), lives.alias("b")
        there = _elsewhere() & (f.col("a.at_node") == f.col("b.at_node")) & (f.col("b.epoch") < f.col("a.epoch"))
        places = (*_PLACE, "at_node", "epoch")
        others = a.join(b, there).groupBy(*(f.col(f"a.{name}") for name in places))
        compared = compared.join(others.agg(f.max("b.newest").alias("elsewhere")), list(places), "left")
        known.append("elsewhere")
    later = f.greatest(*known) if len(known) > 1 else f.col(known[0])
    behind = compared.withColumn("later", later).filter(f.col("sequence") < f.col("later.sequence"))
    return behind.select(
        f.lit("order_violations").alias("finding"),
        *("id", "queue", "producer", "node", "ledger", "time"),
        f.concat(f.lit("came after "), f.col("later.id")).alias("detail"),
    )


def _stretch(spans: Mapping[int, tuple[float, float]]) -> Column:
    """The number of the stretch in which a reception is, by the clock of its ledger."""
    last = max(spans, default=1)
    lows, widths = [], []
    for ledger in range(1, last + 1):
        low, high = spans.get(ledger, (0.0, 0.0))
        lows.append(f.lit(low))
        widths.append(f.lit(max((high - low) / _STRETCHES, 0.001)))
    at = f.col("ledger") - 1
    return f.floor((f.col("time") - f.get(f.array(*lows), at)) / f.get(f.array(*widths), at))


def _by_life(rows: DataFrame) -> DataFrame:
    """Of each group the oldest and newest message that was received in each ledger in each life."""
    one = f.struct("sequence", "id")
    places = rows.groupBy(*_PLACE, "at_node", "epoch")
    return places.agg(f.min(one).alias("oldest"), f.max(one).alias("newest"))


def _elsewhere() -> Column:
    """Of rows `a` and `b` of `_by_life`: b is of the same group, in another ledger."""
    same = reduce(Column.__and__, (f.col(f"a.{name}") == f.col(f"b.{name}") for name in _KEY))
    return same & (f.col("a.ledger") != f.col("b.ledger"))


def unknown(rows: DataFrame) -> DataFrame:
    """Return what is told of groups that several ledgers received messages of, which no epochs order."""
    lives = _by_life(rows)
    a, b = lives.alias("a"), lives.alias("b")
    ordered = (f.col("a.at_node") == f.col("b.at_node")) & (f.col("a.epoch") != f.col("b.epoch"))
    apart = ~f.coalesce(ordered, f.lit(False)) & (f.col("a.ledger") < f.col("b.ledger"))
    oldest = f.least("a.oldest.sequence", "b.oldest.sequence")
    differ = oldest < f.greatest("a.newest.sequence", "b.newest.sequence")
    groups = a.join(b, _elsewhere() & apart & differ).groupBy(*(f.col(f"a.{name}") for name in _KEY))
    detail = f.format_string(
        "messages of group %s were received in ledgers %d and %d, maybe more: their order cannot be told between these",
        *("a.group", f.min("a.ledger"), f.max("b.ledger")),
    )
    return groups.agg(f.lit("order_unknown").alias("finding"), detail.alias("detail")).drop("group")
