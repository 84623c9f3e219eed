"""`reconcile`: what happened to each message, from ledgers, journals and audit trails.

The judgement is that of `pollux.formats.ledger.check`, which tests hold it against; here it is DataFrame code that
needs no more memory on the driver for 10 million entries than for ten. Journals add what clients cannot know: messages
that wait in a queue still (`stuck`, not lost), duplicates the broker stored twice, and damaged bytes. Audit trails add
what became of messages that no ledger tells of (`explained`, not lost), and when brokers became live.

Every ledger has a clock of its own. Within one ledger times give the order; between ledgers the epochs of one node do,
and nothing else: where it is not known the output says so (`order_unknown`). Times belong to attempts: a message that
was sent again took as long as the attempt that was answered.
"""

from __future__ import annotations

from functools import reduce
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as f

from pollux_pipeline.errors import InputError
from pollux_pipeline.jobs import activations, attempts, clocks, evidence, state
from pollux_pipeline.jobs.base import NORMAL_DAMAGE, Result, Run, table
from pollux_pipeline.jobs.figures import figures
from pollux_pipeline.report import page
from pollux_pipeline.sources.ledger import numbered, read_ledgers

#: Stretches of time into which receptions are cut, so that the order within one busy group is judged by many tasks.
_STRETCHES = 64
_FINDING = (
    "finding string, id string, queue string, producer string, node string, ledger int, time double, detail string"
)
#: Findings that make a run not clean, in the order in which reports show them.
KINDS = (
    *("lost", "duplicated", "phantom", "two_lives", "order_violations", "stored_twice", "phantom_acks"),
    *("damage", "malformed_lines", "clock_skew"),
)
#: What is told of messages and is no finding.
TOLD = ("stuck", "explained", "order_unknown")
#: Sections that hold a row of figures for the result.
_FACTS = ("in_queues", "followed", "totals")
#: Damage that is no finding: what every crash leaves behind, and what a broker says of its own trail.
_TOLD_DAMAGE = (*NORMAL_DAMAGE, "trail-lost")


def reconcile(run: Run) -> Result:
    """Write `findings` and the report; of ledgers `messages` and the tables of `figures`; of journals `waiting`; of
    audit trails `fates`, `lifecycle` and `trail`; of journals and trails `damage`; of ledgers and trails `activations`.

    Option `queues`: those that each message must have been received from (default: any one).
    """
    inputs = run.inputs
    if not inputs.ledgers and not inputs.journals and not inputs.audits:
        raise InputError("--input: give a ledger, a journal, an audit trail, or a directory with any of them")
    result = Result("reconcile", run.output)
    found: list[DataFrame] = []
    damage: list[DataFrame] = []
    began: list[DataFrame] = []
    sections: dict[str, Any] = {}
    stuck, fates, served, told = None, None, None, None
    if inputs.journals:
        run.step("reading journals")
        rows = run.stage("journal", state.journal(run.spark, inputs.journals))
        damage.append(state.damage(rows))
        records = run.stage("effective", state.effective(rows))
        stuck = _waiting(run, rows, records, sections)
        found += [_stored_twice(records), _phantom_acks(rows, records)]
        began.append(clocks.of_journals(rows))
    if inputs.audits:
        run.step("reading audit trails")
        trail = run.stage("trail", evidence.trails(run.spark, inputs.audits))
        damage.append(evidence.damage(trail))
        fates, served = _trails(run, trail, sections)
        began.append(clocks.of_trails(served))
    if damage:
        found.append(_damaged(run, damage, sections))
        found.append(clocks.skewed(reduce(DataFrame.unionByName, began)))
    if inputs.ledgers:
        run.step("reading ledgers")
        events = run.stage("events", _events(run))
        lives = run.stage("lives", activations.lives(events))
        queues = run.options.get("queues") or []
        entries = events.filter("kind in ('S', 'C', 'R')")
        sources = run.write("ledgers", table(run.spark, numbered(inputs.ledgers), "ledger int, file string"))
        sections["ledgers"] = run.ask(sources.orderBy("ledger"))
        several = len(inputs.ledgers) > 1
        if several:
            of = f.broadcast(activations.nodes(lives).withColumnRenamed("node", "of"))
            entries = entries.join(of, "broker", "left").withColumn("node", f.coalesce("node", "of")).drop("of")
        entries = run.spread(entries, "id")
        messages = run.write("messages", _messages(entries, queues, stuck, fates), spread="id", key=["id"])
        judged = _judged_for_order(messages)
        disorder = run.stage("disorder", _order_violations(judged, several=several))
        found += [_malformed(events), _message_findings(messages), _disordered(disorder, messages)]
        found.append(activations.two_lives(lives))
        if several:
            found += [_order_unknown(judged), activations.uncompared(lives)]
        run.step("counting")
        figures(run, messages, events, sections)
        told = activations.of_ledgers(lives, messages, events)
    if told is not None or served is not None:
        both = run.write("activations", activations.joined(run.spark, told, served))
        sections["activations"] = run.ask(both.orderBy("node", "epoch", "broker"), 200)
    run.step("writing findings")
    _findings(run, found, result, sections)
    result.report = page.write_reconcile(run.output / "report.html", result, sections)
    return run.finish(result)


def _findings(run: Run, found: list[DataFrame], result: Result, sections: dict[str, Any]) -> None:
    """Write them, count them, and take the first of each kind for the report."""
    every = table(run.spark, (), _FINDING)
    for one in found:
        every = every.unionByName(one, allowMissingColumns=True)
    findings = run.write("findings", every, spread="id")
    kind = Window.partitionBy("finding")
    ranked = findings.withColumns(
        {"rank": f.row_number().over(kind.orderBy("time", "id", "queue", "detail")), "number": f.count("*").over(kind)}
    )
    examples = run.ask(ranked.filter("rank <= 20").orderBy("finding", "rank"), 20 * len((*KINDS, *TOLD)))
    run.answer()
    for row in (row for name in _FACTS for row in sections.get(name, ())):
        result.facts |= {name: int(value or 0) for name, value in row.items()}
    counts = {one["finding"]: one.pop("number") for one in examples if one.pop("rank")}
    result.findings = {name: counts.get(name, 0) for name in KINDS}
    result.facts |= {name: counts.get(name, 0) for name in TOLD}
    sections["examples"] = examples


# -- ledgers -------------------------------------------------------------------------------------------------------


def _events(run: Run) -> DataFrame:
    """The lines of all ledgers, with `order`: what comes before what in one ledger."""
    lines = read_ledgers(run.spark, run.inputs.ledgers)
    order = f.struct("time", "at")
    shown = f.when(f.col("kind").isNull(), f.concat_ws(": ", f.col("file"), f.substring("line", 1, 200)))
    return lines.withColumns({"order": order, "malformed": shown}).drop("at", "file", "line")


def _malformed(events: DataFrame) -> DataFrame:
    return events.filter("kind is null").select(
        f.lit("malformed_lines").alias("finding"), "ledger", f.col("malformed").alias("detail")
    )


def _messages(entries: DataFrame, queues: list[str], stuck: DataFrame | None, fates: DataFrame | None) -> DataFrame:
    """The life of each message: one row for each id. `entries`: the events of messages, spread by their ids."""
    sent = f.struct("ledger", "time", "producer", "group", "sequence")
    confirmed = f.struct("order", "time", "node", "broker", "epoch")
    got = f.struct("order", "time", "redelivered", "node", "broker", "epoch", "consumer")
    is_s, is_c, is_r = f.col("kind") == "S", f.col("kind") == "C", f.col("kind") == "R"
    fresh = is_r & ~f.col("redelivered")
    unmarked = f.when(fresh, f.struct("order", "node", "epoch"))
    by_place = entries.groupBy("id", "queue", "ledger").agg(
        f.collect_list(f.when(is_s, sent)).alias("sends"),
        f.min(f.when(is_c, confirmed)).alias("confirmed"),
        f.max(f.when(is_c, f.col("time"))).alias("confirmed_last"),
        f.min(f.when(is_r, got)).alias("first"),
        f.min(unmarked).alias("fresh_first"),
        f.max(unmarked).alias("fresh_last"),
        f.count_if(is_r).alias("count"),
        f.count_if(fresh).alias("fresh"),
    )
    receptions = f.struct("queue", "ledger", "first", "fresh_first", "fresh_last", "count", "fresh")
    confirms = f.struct("ledger", f.col("confirmed.*"), f.col("confirmed_last").alias("last"))
    by_id = by_place.groupBy("id").agg(
        f.sort_array(f.flatten(f.collect_list("sends"))).alias("sends"),
        f.collect_list(f.when(f.col("confirmed").isNotNull(), confirms)).alias("confirms"),
        f.sort_array(f.collect_list(f.when(f.col("count") > 0, receptions))).alias("receptions"),
    )
    by_id = by_id.withColumn("c", f.expr(attempts.CONFIRMED)).withColumn("s", f.expr(attempts.ATTEMPT))
    by_id = by_id.withColumn("r", f.expr(attempts.RECEIVED))
    received = f.array_distinct(f.transform("receptions", lambda one: one["queue"]))
    if queues:
        missing = f.array_except(f.array(*(f.lit(queue) for queue in queues)), received)
    else:
        missing = f.when(f.size("receptions") == 0, f.array(f.lit(""))).otherwise(f.array().cast("array<string>"))
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
        f.expr("aggregate(receptions, 0L, (total, r) -> total + r.count)").alias("received"),
        "receptions",
        f.when(f.col("c").isNotNull(), missing).otherwise(f.array().cast("array<string>")).alias("missing"),
        f.expr(attempts.DUPLICATED).alias("duplicated"),
    ).withColumn("unordered", f.expr(attempts.UNORDERED))
    held = f.lit(False)
    if stuck is not None:
        result = result.join(stuck.select("id", f.lit(1).alias("held")), "id", "left")
        held = f.col("held").isNotNull()
    if fates is not None:
        result = result.join(fates, "id", "left")
    else:
        result = result.withColumn("trail", f.lit(None).cast(evidence.TRAIL))
    # Without `queues` one queue is as good as another: then it must have left all of them.
    explained = f.expr("""coalesce(size(trail) > 0 and if(array_contains(missing, ''),
        forall(trail, one -> one.fate is not null),
        forall(missing, name -> exists(trail, one -> one.queue = name and one.fate is not null))), false)""")
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


def _message_findings(messages: DataFrame) -> DataFrame:
    """Everything that is said of single messages, in one pass."""
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
    told = "sent_ms is null or size(missing) > 0 or size(duplicated) > 0 or size(unordered) > 0"
    return messages.filter(told).select("id", "producer", "node", f.inline(f.expr(everything)))


def _judged_for_order(messages: DataFrame) -> DataFrame:
    """Receptions whose order counts: those without the mark, of messages with a group. A message received more than
    twice is judged by its first and its last. Columns: id, producer, group, sequence, node (that confirmed it), queue,
    ledger, order (in that ledger), and of the reception `at_node` and `epoch`, null where not known."""
    judged = f.expr("""case
        when r.fresh_first is null then array()
        when r.fresh_first = r.fresh_last then array(r.fresh_first)
        else array(r.fresh_first, r.fresh_last) end""")
    return (
        messages.filter("sent_ms is not null and `group` != ''")
        .select("id", "producer", "group", "sequence", "node", f.explode("receptions").alias("r"))
        .select("id", "producer", "group", "sequence", "node", "r.queue", "r.ledger", f.explode(judged).alias("one"))
        .select(
            *("id", "producer", "group", "sequence", "node", "queue", "ledger"),
            *(f.col("one.order"), f.col("one.node").alias("at_node"), f.col("one.epoch").alias("epoch")),
        )
    )


#: What order is kept within.
_KEY = ("producer", "group", "queue")


def _order_violations(rows: DataFrame, *, several: bool) -> DataFrame:
    """Receptions behind a later message of the same producer, group and queue. Columns: producer, group, queue, id,
    node, ledger, time, and of the newest message that came before it `newest`: its sequence.

    Time is cut into stretches: each row is compared with the newest message of all stretches before (a small table) and
    of its own; with `several` ledgers also with what others received in an earlier life of the same node.
    """
    span = rows.groupBy("ledger").agg(f.min("order.time").alias("low"), f.max("order.time").alias("high"))
    width = f.greatest((f.col("high") - f.col("low")) / _STRETCHES, f.lit(0.001))
    stretch = f.floor((f.col("order.time") - f.col("low")) / width)
    cut = rows.join(f.broadcast(span), "ledger").withColumn("stretch", stretch).drop("low", "high")
    key = (*_KEY, "ledger")
    newest = f.max("sequence")
    stretches = cut.groupBy(*key, "stretch").agg(newest.alias("newest"))
    earlier = Window.partitionBy(*key).orderBy("stretch").rowsBetween(Window.unboundedPreceding, -1)
    before = stretches.select(*key, "stretch", f.max("newest").over(earlier).alias("before")).filter(
        "before is not null"
    )
    within = Window.partitionBy(*key, "stretch").orderBy("order").rowsBetween(Window.unboundedPreceding, -1)
    compared = cut.withColumn("within", newest.over(within)).join(before, [*key, "stretch"], "left")
    if several:
        lives = _by_life(rows)
        a, b = lives.alias("a"), lives.alias("b")
        there = _elsewhere() & (f.col("a.at_node") == f.col("b.at_node")) & (f.col("b.epoch") < f.col("a.epoch"))
        places = (*key, "at_node", "epoch")
        others = a.join(b, there).groupBy(*(f.col(f"a.{name}") for name in places))
        compared = compared.join(others.agg(f.max("b.newest").alias("elsewhere")), list(places), "left")
    else:
        compared = compared.withColumn("elsewhere", f.lit(None).cast("bigint"))
    return (
        compared.withColumn("newest", f.greatest("before", "within", "elsewhere"))
        .filter("sequence < newest")
        .select(*_KEY, "id", "node", "ledger", f.col("order.time").alias("time"), "newest")
    )


def _by_life(rows: DataFrame) -> DataFrame:
    """Of each group the oldest and newest message that was received in each ledger in each life."""
    places = rows.groupBy(*_KEY, "ledger", "at_node", "epoch")
    return places.agg(f.min("sequence").alias("oldest"), f.max("sequence").alias("newest"))


def _elsewhere() -> Column:
    """Of rows `a` and `b` of `_by_life`: b is of the same group, in another ledger."""
    same = reduce(Column.__and__, (f.col(f"a.{name}") == f.col(f"b.{name}") for name in _KEY))
    return same & (f.col("a.ledger") != f.col("b.ledger"))


def _order_unknown(rows: DataFrame) -> DataFrame:
    """Groups that several ledgers received messages of, which no epochs order."""
    lives = _by_life(rows)
    a, b = lives.alias("a"), lives.alias("b")
    ordered = (f.col("a.at_node") == f.col("b.at_node")) & (f.col("a.epoch") != f.col("b.epoch"))
    apart = ~f.coalesce(ordered, f.lit(False)) & (f.col("a.ledger") < f.col("b.ledger"))
    differ = f.least("a.oldest", "b.oldest") < f.greatest("a.newest", "b.newest")
    groups = a.join(b, _elsewhere() & apart & differ).groupBy(*(f.col(f"a.{name}") for name in _KEY))
    detail = f.format_string(
        "messages of group %s were received in ledgers %d and %d, maybe more: their order cannot be told between these",
        *("a.group", f.min("a.ledger"), f.max("b.ledger")),
    )
    return groups.agg(f.lit("order_unknown").alias("finding"), detail.alias("detail")).drop("group")


def _disordered(violations: DataFrame, messages: DataFrame) -> DataFrame:
    """The findings of `_order_violations`, with the id of the message that was overtaken: few rows look for theirs."""
    newer = messages.select("producer", "group", f.col("sequence").alias("newest"), f.col("id").alias("later"))
    named = violations.join(newer, ["producer", "group", "newest"]).groupBy(*violations.columns)
    return named.agg(f.max("later").alias("later")).select(
        f.lit("order_violations").alias("finding"),
        *("id", "queue", "producer", "node", "ledger", "time"),
        f.concat(f.lit("came after "), f.col("later")).alias("detail"),
    )


# -- journals and trails -------------------------------------------------------------------------------------------


def _trails(run: Run, trail: DataFrame, sections: dict[str, Any]) -> tuple[DataFrame, DataFrame]:
    """What became of the messages whose duplicate ids are known, and the lives that the brokers tell of."""
    fates = run.write("fates", evidence.fates(trail), spread="message_id")
    events = run.write("lifecycle", evidence.lifecycle(trail))
    sections["trail"] = run.ask(run.write("trail", evidence.throughput(trail)).orderBy("at_ms"), 400)
    sections["followed"] = run.ask(fates.agg(f.count("*").alias("followed_in_queues")))
    return evidence.by_id(fates), evidence.activations(events)


def _damaged(run: Run, parts: list[DataFrame], sections: dict[str, Any]) -> DataFrame:
    """The findings of all damage but what every crash leaves behind."""
    every = parts[0]
    for part in parts[1:]:
        every = every.unionByName(part)
    damage = run.write("damage", every)
    sections["damage"] = run.ask(damage.orderBy("file", "offset"))
    none = f.lit(None).cast("string")
    return damage.filter(~f.col("damage").isin(*_TOLD_DAMAGE)).select(
        f.lit("damage").alias("finding"),
        none.alias("id"),
        none.alias("queue"),
        none.alias("producer"),
        f.col("node_id").alias("node"),
        f.lit(None).cast("double").alias("time"),
        f.concat(
            f.col("file"), f.lit(":"), f.col("offset"), f.lit(": "), f.col("damage"), f.lit(": "), f.col("detail")
        ).alias("detail"),
    )


def _waiting(run: Run, rows: DataFrame, records: DataFrame, sections: dict[str, Any]) -> DataFrame:
    """The ids (duplicate ids) of messages that wait in a queue."""
    messages = rows.filter(
        (rows.record_type == "MESSAGE") & rows.kind.isin("journal", "bodies", "page") & ~rows.fenced
    ).select("node_id", "message_id", "address", "timestamp", "size", "duplicate_id")
    held = state.in_queues(rows, records).filter("live")
    queues = state.queue_names(rows)
    waiting = held.join(messages.dropDuplicates(["node_id", "message_id"]), ["node_id", "message_id"], "left").join(
        f.broadcast(queues), ["node_id", "queue_id"], "left"
    )
    waiting = run.write(
        "waiting",
        waiting.select(
            *("node_id", "queue_id", "queue", "message_id", "address", "timestamp", "size"),
            f.col("duplicate_id").cast("string").alias("duplicate_id"),
        ),
        spread="message_id",
    )
    depth = waiting.groupBy(f.coalesce("queue", f.col("queue_id").cast("string")).alias("queue")).agg(
        f.count("*").alias("messages"), f.sum("size").alias("bytes")
    )
    sections["waiting"] = run.ask(depth.orderBy(f.desc("messages"), "queue"))
    sections["in_queues"] = run.ask(waiting.agg(f.count("*").alias("waiting_in_queues")))
    return waiting.filter("duplicate_id is not null").select(f.col("duplicate_id").alias("id")).distinct()


def _stored_twice(records: DataFrame) -> DataFrame:
    """Messages of one duplicate id and address that a node stored under several ids, in records that took effect."""
    accepted = records.filter((f.col("record_type") == "MESSAGE") & f.col("duplicate_id").isNotNull())
    doubled = accepted.groupBy("node_id", "address", "duplicate_id").agg(f.count_distinct("message_id").alias("times"))
    return doubled.filter("times > 1").select(
        f.lit("stored_twice").alias("finding"),
        f.col("duplicate_id").cast("string").alias("id"),
        f.col("address").alias("queue"),
        f.lit(None).cast("string").alias("producer"),
        f.col("node_id").alias("node"),
        f.lit(None).cast("double").alias("time"),
        f.concat(f.lit("stored "), f.col("times"), f.lit(" times")).alias("detail"),
    )


def _phantom_acks(rows: DataFrame, records: DataFrame) -> DataFrame:
    """Acknowledgements of messages that no file has, in journals that are complete (nothing was folded or deleted)."""
    complete = (
        rows.filter(rows.kind.isin("journal", "checkpoint"))
        .groupBy("node_id")
        .agg(f.min("segment").alias("first"), f.count_if(rows.kind == "checkpoint").alias("checkpoints"))
        .filter("first = 1 and checkpoints = 0")
        .select("node_id")
    )
    acked = records.filter(records.record_type == "ACKS").select(
        "node_id", "queue_id", f.explode("message_ids").alias("message_id")
    )
    known = rows.filter((rows.record_type == "MESSAGE") | (rows.record_type == "REFERENCES")).select(
        "node_id", "message_id"
    )
    strange = acked.join(f.broadcast(complete), "node_id", "left_semi").join(
        known, ["node_id", "message_id"], "left_anti"
    )
    return strange.select(
        f.lit("phantom_acks").alias("finding"),
        f.col("message_id").cast("string").alias("id"),
        f.col("queue_id").cast("string").alias("queue"),
        f.lit(None).cast("string").alias("producer"),
        f.col("node_id").alias("node"),
        f.lit(None).cast("double").alias("time"),
        f.lit("acknowledged, never stored").alias("detail"),
    )
