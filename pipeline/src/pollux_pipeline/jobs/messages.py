"""The life of each message, as ledgers, journals and trails tell of it together: one row for each id."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql import functions as f

from pollux_pipeline.jobs import attempts, evidence

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pyspark.sql import Column, DataFrame

#: States in which something is said of a message.
TOLD = ("phantom", "stuck", "explained", "lost", "duplicated")
#: What is counted of them while they are written.
COUNTED = {
    "sent": "count_if(sent_ms is not null)",
    "confirmed": "count_if(confirmed_ms is not null)",
    "received": "sum(received)",
    "told": f"count_if(state in {TOLD})",
    "grouped": "count_if(`group` != '')",
}


def entries(lines: DataFrame, nodes: Mapping[str, str]) -> DataFrame:
    """The lines that tell of messages: id, and of `sent`, `confirmed` and `got` the one that a line tells of.

    So they go to where their message is put together: as a row of all columns each would take twice the room, most of
    it empty. `nodes`: of brokers whose receptions are of one node; empty where nothing asks for them.
    """
    found = lines.filter("kind in ('S', 'C', 'R')")
    if nodes:
        of = f.create_map(*(f.lit(word) for pair in sorted(nodes.items()) for word in pair))
        found = found.withColumn("node", f.coalesce("node", f.try_element_at(of, f.col("broker"))))
    order = f.struct("time", "at").alias("order")
    shapes = (
        ("S", "sent", f.struct("ledger", "time", "producer", "group", "sequence")),
        ("C", "confirmed", f.struct("ledger", order, "node", "broker", "epoch")),
        ("R", "got", f.struct("queue", "ledger", order, "redelivered", "node", "broker", "epoch", "consumer")),
    )
    return found.select("id", *(f.when(f.col("kind") == kind, one).alias(name) for kind, name, one in shapes))


def of_entries(found: DataFrame, queues: Sequence[str], stuck: DataFrame | None, fates: DataFrame | None) -> DataFrame:
    """One row for each id (docs/pipeline-tables.md, `messages`). `found`: as of `entries`, spread by id; `queues`:
    those it must have been received from; `stuck`: ids that wait in a queue; `fates`: as of `evidence.by_id`."""
    by_id = _answered(_collected(found))
    received = f.array_distinct(f.transform("receptions", lambda one: one["queue"]))
    none = f.array().cast("array<string>")
    if queues:
        missing = f.array_except(f.array(*(f.lit(queue) for queue in queues)), received)
    else:
        missing = f.when(f.size("receptions") == 0, f.array(f.lit(""))).otherwise(none)
    result = by_id.select(
        "id",
        f.col("s.ledger").alias("sent_ledger"),
        f.col("s.time").alias("sent_ms"),
        f.col("s.producer").alias("producer"),
        f.col("s.group").alias("group"),
        f.col("s.sequence").alias("sequence"),
        f.transform("sends", lambda one: f.struct(one["ledger"].alias("ledger"), one["time"].alias("time"))).alias(
            "attempts"
        ),
        f.col("c.ledger").alias("confirmed_ledger"),
        f.col("c.time").alias("confirmed_ms"),
        f.col("c.last").alias("confirmed_last"),
        f.expr(attempts.TOOK.format(answer="c")).alias("confirm_ms"),
        f.col("c.node").alias("node"),
        f.col("c.broker").alias("broker"),
        f.col("c.epoch").alias("epoch"),
        f.col("r.ledger").alias("received_ledger"),
        f.col("r.time").alias("received_ms"),
        f.expr(attempts.TOOK.format(answer="r")).alias("receive_ms"),
        f.expr(attempts.RECEIVED_TIMES).alias("received"),
        "receptions",
        f.when(f.col("c").isNotNull(), missing).otherwise(none).alias("missing"),
        f.expr(attempts.DUPLICATED).alias("duplicated"),
        _address().alias("address"),
    ).withColumn("unordered", f.expr(attempts.UNORDERED))
    return _judged(result, stuck, fates)


def _collected(found: DataFrame) -> DataFrame:
    """id, sends, confirms (one for each ledger), receptions (one for each queue and ledger)."""
    collected = (("sent", "sends"), ("confirmed", "c"), ("got", "r"))
    by_id = found.groupBy("id").agg(*(f.sort_array(f.collect_list(one)).alias(name) for one, name in collected))
    return by_id.select(
        "id", "sends", f.expr(attempts.BY_LEDGER).alias("confirms"), f.expr(attempts.BY_PLACE).alias("receptions")
    )


def _answered(by_id: DataFrame) -> DataFrame:
    """Add the attempt that was answered (s), its confirm (c) and its first reception (r)."""
    by_id = by_id.withColumn("c", f.expr(attempts.CONFIRMED)).withColumn("s", f.expr(attempts.ATTEMPT))
    return by_id.withColumn("r", f.expr(attempts.RECEIVED))


def _address() -> Column:
    """Return what its figures are told by: the queue it was received from, or else its group, or else who sent it."""
    named = (f.get("receptions", f.lit(0))["queue"], f.col("s.group"), f.col("s.producer"))
    return f.coalesce(*(f.nullif(name, f.lit("")) for name in named), f.lit("(unknown)"))


def _judged(result: DataFrame, stuck: DataFrame | None, fates: DataFrame | None) -> DataFrame:
    """Add `trail`, `stuck`, `explained` and `state`."""
    held = f.lit(False)
    if stuck is not None:
        result = result.join(stuck.select("id", f.lit(1).alias("held")), "id", "left")
        held = f.col("held").isNotNull()
    explained = f.lit(False)
    if fates is not None:
        result = result.join(fates, "id", "left")
        # Without `queues` one queue is as good as another: then it must have left all of them.
        # What was moved to another node is told by that one.
        ended = f"filter(trail, one -> not {evidence.went_on('one')})"
        explained = f.expr(f"""coalesce(size({ended}) > 0 and if(array_contains(missing, ''),
            forall({ended}, one -> one.fate is not null),
            forall(missing, name -> exists({ended}, one -> one.queue = name and one.fate is not null))), false)""")
    else:
        result = result.withColumn("trail", f.lit(None).cast(evidence.TRAIL))
    verdict = (
        f.when(f.col("sent_ms").isNull(), "phantom")
        .when((f.size("missing") > 0) & held, "stuck")
        .when((f.size("missing") > 0) & explained, "explained")
        .when(f.size("missing") > 0, "lost")
        .when(f.size("duplicated") > 0, "duplicated")
        .when(f.col("received") > 0, "delivered")
        .otherwise("unconfirmed")
    )
    result = result.withColumns({"stuck": held, "explained": explained, "state": verdict})
    return result.drop("held")


def findings(messages: DataFrame, *, several: bool) -> DataFrame:
    """Everything that is said of single messages, in one pass. `several`: ledgers, so that order may be unknown."""
    noted = f"array_join(transform(trail, t -> {evidence.words('t')}), '; ')"
    confirmed = "concat('confirmed by ', coalesce(broker, '?'), ' in epoch ', coalesce(cast(epoch as string), '?'))"
    counted = "aggregate(filter(receptions, r -> r.queue = q), 0L, (total, r) -> total + r.count)"
    unknown = "received in several ledgers: whether the one without the mark came first cannot be told"
    everything = f"""concat(
        transform(missing, q -> named_struct(
            'finding', case when stuck then 'stuck' when explained then 'explained' else 'lost' end, 'queue', q,
            'ledger', confirmed_ledger, 'time', confirmed_ms,
            'detail', case when stuck then 'waits in a queue' when explained then {noted}
                else concat_ws('; ', {confirmed}, nullif({noted}, '')) end)),
        transform(duplicated, q -> named_struct(
            'finding', 'duplicated', 'queue', q, 'ledger', received_ledger, 'time', received_ms,
            'detail', concat('received ', {counted}, ' times'))),
        transform(unordered, q -> named_struct(
            'finding', 'order_unknown', 'queue', q, 'ledger', cast(null as int), 'time', cast(null as double),
            'detail', '{unknown}')),
        if(sent_ms is not null, array(), array(named_struct(
            'finding', 'phantom', 'queue', cast(null as string), 'ledger', received_ledger, 'time', received_ms,
            'detail', concat_ws('; ', 'never sent', {evidence.SENDER})))))"""
    told = f.col("state").isin(*TOLD)  # Parquet knows it without the row
    if several:
        told |= f.size("unordered") > 0
    return messages.filter(told).select("id", "producer", "node", f.inline(f.expr(everything)))
