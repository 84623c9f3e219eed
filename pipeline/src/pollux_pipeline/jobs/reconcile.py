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

from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pollux_pipeline import spark_settings
from pollux_pipeline.errors import InputError
from pollux_pipeline.jobs import activations, clocks, costs, evidence, figures, hops, messages, order, state, timeline
from pollux_pipeline.jobs.base import NORMAL_DAMAGE, SHOWN, Result, Run, at_once, table
from pollux_pipeline.report import page
from pollux_pipeline.sources.ledger import numbered, read_ledgers

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
#: Findings of each kind that a report shows.
_EXAMPLES = 20
#: Sections that hold a row of figures for the result.
_FACTS = ("in_queues", "forwarded", "followed", "totals")
#: Damage that is no finding: what every crash leaves behind, and what a broker says of its own trail.
_TOLD_DAMAGE = (*NORMAL_DAMAGE, "trail-lost")


def reconcile(run: Run) -> Result:
    """Write `findings` and the report; of ledgers `messages` and the tables of `figures`; of journals `waiting`, and
    `hops` of a cluster's; of audit trails `fates`, `lifecycle` and `trail`; of journals and trails `damage`; of ledgers
    and trails `activations`.

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
    stuck, fates, served = None, None, None
    known, lives = timeline.Timeline(), None
    if inputs.journals:
        run.step("reading journals")
        rows = run.stage("journal", state.journal(run.spark, inputs.journals))
        damage.append(state.damage(rows))
        records = run.stage("effective", state.effective(rows))
        waiting = _waiting(run, rows, records, sections)
        stuck = waiting.filter("duplicate_id is not null").select(f.col("duplicate_id").alias("id")).distinct()
        moved = _hops(run, rows, records, waiting, sections)
        begins = state.begins(rows)
        gone = [(node, *one.folded) for node, one in begins.items() if one.gone and one.folded]
        result.compacted = state.before(gone)
        found.append(_stored_twice(records, moved))
        if complete := [node for node, one in begins.items() if one.first == 1 and one.folded is None]:
            found.append(_phantom_acks(rows, records, complete))
        began.append(clocks.of_journals(rows))
    if inputs.audits:
        run.step("reading audit trails")
        trail = run.stage("trail", evidence.trails(run.spark, inputs.audits))
        damage.append(evidence.damage(trail))
        fates, served = _trails(run, trail, sections)
        began.append(clocks.of_trails(served))
    if damage:
        found += _damaged(run, damage, sections)
        found.append(clocks.skewed(reduce(DataFrame.unionByName, began)))
    if inputs.ledgers:
        run.step("reading ledgers")
        known, lives, more = _ledgers(run, stuck, fates, sections)
        found += more
    run.step("writing findings")
    with at_once() as threads:
        beside = []
        if lives is not None:
            beside.append(threads.submit(figures.by_address, run, lives, sections))
        if lives is not None or served is not None:
            beside.append(threads.submit(_activations, run, known, lives, served, sections))
        if lives is not None:
            found += _out_of_order(run, known)
        examples = _findings(run, found, result)
        for one in beside:
            one.result()
    run.answer()
    sections["examples"] = [row for rows in examples for row in rows]
    for row in (row for name in _FACTS for row in sections.get(name, ())):
        result.facts |= {name: int(value or 0) for name, value in row.items()}
    result.report = page.write_reconcile(run.output / "report.html", result, sections)
    return run.finish(result)


def _findings(run: Run, found: list[DataFrame], result: Result) -> list[list[dict[str, Any]]]:
    """Write them, count them, and ask for the first of each kind for the report."""
    every = table(run.spark, (), _FINDING)
    for one in found:
        every = every.unionByName(one, allowMissingColumns=True)
    kinds = sorted((*KINDS, *TOLD))
    counts = {name: f"count_if(finding = '{name}')" for name in kinds}
    findings = run.write("findings", every, spread="id", count=counts)
    counted = run.counts["findings"]
    of_kind = [findings.filter(f.col("finding") == name) for name in kinds if counted[name]]
    result.findings = {name: counted[name] for name in KINDS}
    result.facts |= {name: counted[name] for name in TOLD}
    return [run.ask(one.orderBy("time", "id", "queue", "detail"), _EXAMPLES) for one in of_kind]


# -- ledgers -------------------------------------------------------------------------------------------------------


def _ledgers(
    run: Run, stuck: DataFrame | None, fates: DataFrame | None, sections: dict[str, Any]
) -> tuple[timeline.Timeline, DataFrame, list[DataFrame]]:
    """Write the tables of ledgers but for those of addresses. What was counted, `messages`, and the findings."""
    paths = run.inputs.ledgers
    several = len(paths) > 1
    sources = numbered(paths)
    run.write_rows("ledgers", sources, "ledger int, file string")
    sections["ledgers"] = [{"ledger": number, "file": path} for number, path in sources[:SHOWN]]
    lines = read_ledgers(run.spark, paths)
    with at_once() as threads:
        counting = threads.submit(timeline.counted, lines, paths)
        nodes = counting.result().nodes if several else {}
        # Sorted as their table is: Spark then moves and sorts each line once.
        entries = run.spread(messages.entries(lines, nodes), "id").sortWithinPartitions("id")
        lives = messages.of_entries(entries, run.options.get("queues") or [], stuck, fates)
        lives = run.write("messages", lives, spread="id", key=["id"], count=messages.COUNTED)
        known = counting.result()
    counted = run.counts["messages"]
    sections["totals"] = [{name: counted[name] for name in ("sent", "confirmed", "received")}]
    run.step("counting")
    figures.over_time(run, known, sections)
    found = [_said(run, "two_lives", activations.two_lives(known.lives))]
    if known.malformed:
        found.append(_malformed(lines))
    if counted["told"] or several:
        found.append(messages.findings(lives, several=several))
    if several:
        found.append(_said(run, "order_unknown", activations.uncompared(known.lives)))
    return known, lives, found


def _out_of_order(run: Run, known: timeline.Timeline) -> list[DataFrame]:
    """Return what is found of the order of messages.

    Of a large ledger only what is suspected is looked at closely, but where there are several: what came earlier is
    then in other ledgers too.
    """
    if not run.counts["messages"]["grouped"]:
        return []
    several, large = len(run.inputs.ledgers) > 1, run.inputs.size() > spark_settings.SMALL
    judged = order.judged(run.part("messages", order.columns(several=several)), several=several)
    if large and not several:
        judged = order.suspected(judged, known.spans)
    found = [order.violations(judged, known.spans, large=large, several=several)]
    return [*found, order.unknown(judged)] if several else found


def _activations(
    run: Run,
    known: timeline.Timeline,
    lives: DataFrame | None,
    served: DataFrame | None,
    sections: dict[str, Any],
) -> None:
    """Write what each life of a broker was and cost. `lives`: the table `messages`; `served`: lives of trails."""
    told: list[tuple[Any, ...]] = []
    if lives is not None:
        cost = costs.of_lives(lives, activations.gaps(known.lives))
        told = activations.of_ledgers(known.lives, known.faults, *cost)
    if served is None:
        both = run.write_rows("activations", activations.alone(told), activations.COLUMNS)
    else:
        both = run.write("activations", activations.joined(run.spark, told, served))
    sections["activations"] = run.ask(both.orderBy("node", "epoch", "broker"), 200)


def _said(run: Run, finding: str, rows: list[tuple[Any, ...]]) -> DataFrame:
    return table(run.spark, rows, activations.SAID).withColumn("finding", f.lit(finding))


def _malformed(lines: DataFrame) -> DataFrame:
    shown = f.concat_ws(": ", "file", f.substring("line", 1, 200))
    return lines.filter("kind is null").select(
        f.lit("malformed_lines").alias("finding"), "ledger", shown.alias("detail")
    )


# -- journals and trails -------------------------------------------------------------------------------------------


def _trails(run: Run, trail: DataFrame, sections: dict[str, Any]) -> tuple[DataFrame, DataFrame]:
    """Return what became of the messages whose duplicate ids are known, and the lives that the brokers tell of."""
    count = {"followed_in_queues": "count(*)"}
    fates = run.write("fates", evidence.fates(trail), spread="message_id", count=count)
    events = run.write("lifecycle", evidence.lifecycle(trail))
    sections["trail"] = run.ask(run.write("trail", evidence.throughput(trail)).orderBy("at_ms"), 400)
    sections["followed"] = [dict(run.counts["fates"])]
    return evidence.by_id(fates), evidence.activations(events)


def _damaged(run: Run, parts: list[DataFrame], sections: dict[str, Any]) -> list[DataFrame]:
    """The findings of all damage but what every crash leaves behind."""
    counts = {"all": "count(*)", "unsound": f"count_if(damage not in {_TOLD_DAMAGE})"}
    damage = run.write("damage", reduce(DataFrame.unionByName, parts), count=counts)
    sections["damage"] = run.ask(damage.orderBy("file", "offset")) if run.counts["damage"]["all"] else []
    if not run.counts["damage"]["unsound"]:
        return []
    detail = f.concat_ws(": ", f.concat_ws(":", "file", "offset"), "damage", "detail")
    found = damage.filter(~f.col("damage").isin(*_TOLD_DAMAGE))
    return [found.select(f.lit("damage").alias("finding"), f.col("node_id").alias("node"), detail.alias("detail"))]


def _waiting(run: Run, rows: DataFrame, records: DataFrame, sections: dict[str, Any]) -> DataFrame:
    """Write and return the messages that wait in a queue (docs/pipeline-tables.md, `waiting`)."""
    messages = rows.filter(
        (rows.record_type == "MESSAGE") & rows.kind.isin("journal", "bodies", "page") & ~rows.fenced
    ).select("node_id", "message_id", "address", "timestamp", "size", hops.duplicate_id().alias("duplicate_id"))
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
        count={"waiting_in_queues": "count(*)"},
    )
    depth = waiting.groupBy(f.coalesce("queue", f.col("queue_id").cast("string")).alias("queue")).agg(
        f.count("*").alias("messages"), f.sum("size").alias("bytes")
    )
    sections["waiting"] = run.ask(depth.orderBy(f.desc("messages"), "queue"))
    sections["in_queues"] = [dict(run.counts["waiting"])]
    return waiting


def _hops(
    run: Run, rows: DataFrame, records: DataFrame, waiting: DataFrame, sections: dict[str, Any]
) -> DataFrame | None:
    """Write how messages went between the nodes of a cluster, where they did; return those that left a queue for it."""
    found = hops.of_journals(rows, records)
    if found.isEmpty():
        return None
    count = {"forwarded": "count(*)", "redistributed": "count_if(moved)", "between_nodes": "count_if(waits)"}
    found = run.write("hops", hops.with_state(found, waiting), spread="message_id", count=count)
    sections["forwarded"] = [dict(run.counts["hops"])]
    sections["hops"] = run.ask(hops.ways(found).orderBy(f.desc("messages"), "path"))
    return found.filter("moved and id is not null").select("node_id", "address", f.col("id").alias("moved_id"))


def _stored_twice(records: DataFrame, moved: DataFrame | None) -> DataFrame:
    """Messages of one duplicate id and address that a node stored under several ids, in records that took effect.

    One that was `moved` to another node may come back under another id: it is the same one.
    """
    accepted = records.filter((f.col("record_type") == "MESSAGE") & f.col("duplicate_id").isNotNull())
    doubled = accepted.groupBy("node_id", "address", "duplicate_id").agg(f.count_distinct("message_id").alias("times"))
    doubled = doubled.filter("times > 1")
    if moved is not None:
        left = moved.groupBy("node_id", "address", "moved_id").agg(f.count("*").alias("gone"))
        doubled = doubled.withColumn("moved_id", f.col("duplicate_id").cast("string"))
        doubled = doubled.join(left, ["node_id", "address", "moved_id"], "left").filter("times > 1 + coalesce(gone, 0)")
    return doubled.select(
        f.lit("stored_twice").alias("finding"),
        f.col("duplicate_id").cast("string").alias("id"),
        f.col("address").alias("queue"),
        f.col("node_id").alias("node"),
        f.concat(f.lit("stored "), f.col("times"), f.lit(" times")).alias("detail"),
    )


def _phantom_acks(rows: DataFrame, records: DataFrame, nodes: list[str]) -> DataFrame:
    """Acknowledgements of messages that no file has. `nodes`: those whose journal is complete."""
    acked = records.filter((records.record_type == "ACKS") & records.node_id.isin(nodes)).select(
        "node_id", "queue_id", f.explode("message_ids").alias("message_id")
    )
    known = rows.filter(rows.record_type.isin("MESSAGE", "REFERENCES")).select("node_id", "message_id")
    return acked.join(known, ["node_id", "message_id"], "left_anti").select(
        f.lit("phantom_acks").alias("finding"),
        f.col("message_id").cast("string").alias("id"),
        f.col("queue_id").cast("string").alias("queue"),
        f.col("node_id").alias("node"),
        f.lit("acknowledged, never stored").alias("detail"),
    )
