"""`compare_journals`: which of two stopped journals of one node id is the newest, as a whole and for each queue."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from pyspark.sql import functions as f

from pollux_pipeline.jobs import pair as pairs
from pollux_pipeline.jobs.base import Result, Run, count_where
from pollux_pipeline.jobs.pair_lives import SIDES
from pollux_pipeline.report import page, svg

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def compare_journals(run: Run) -> Result:
    """Write `queues`, `damage` and the report. Option `sides`: {"a": directory, "b": directory}. Raises InputError."""
    pair = pairs.load(run)
    result = Result("compare_journals", run.output)
    run.step("comparing queues")
    compared = run.stage("compared", pairs.compared(pair))
    queues = run.write("queues", _queues(compared))
    ends = ends_of(pair, compared)
    told = verdict(ends, pair.compacted)
    result.findings = {
        "diverged": int(told["newest"] == "diverged"),
        "unknown": int(told["newest"] == "unknown"),
        "damage": pair.damaged,
    }
    result.compacted = pair.compacted
    result.facts = told | {"a": run.options["sides"]["a"], "b": run.options["sides"]["b"]}
    sections = [
        ("Verdict", f"<p>{escape(result.facts['answer'])}</p>"),
        ("Where they end", page.table([_end(side, ends[side]) for side in SIDES])),
    ]
    shown = run.first(queues.orderBy(f.desc(f.col("only_a") + f.col("only_b")), "queue"), 200)
    bars = [(one["queue"], {"only a": one["only_a"], "only b": one["only_b"]}) for one in shown[:20]]
    sections.append(("Queues", svg.bars(bars, description="Messages that one side has alone") + page.table(shown)))
    sections.append(("Damage", page.table(run.first(pair.damage.drop("node_id").orderBy("side", "file", "offset")))))
    result.report = page.write(run.output / "report.html", result, sections, title="comparison of two journals")
    return run.finish(result)


def ends_of(pair: pairs.Pair, compared: DataFrame) -> dict[str, Any]:
    """Return for `verdict` the ends of each side, how many messages of queues it has or had that the other never had,
    and whether its checkpoint holds something else than the other side does. `compared`: as of `pair.compared`."""
    counts = [count_where(f"only = '{side}'").alias(side) for side in SIDES]
    differing = count_where("coalesce(a_live, false) != coalesce(b_live, false)")
    (found,) = compared.agg(*counts, differing.alias("differing")).collect()
    return {
        side: end | {"messages": found[side], "folded": end["folded"] and found.differing > 0}
        for side, end in pair.ends.items()
    }


def verdict(ends: dict[str, Any], compacted: str = "") -> dict[str, Any]:
    """`newest` (a, b, same, diverged or unknown) and the answer in words. `compacted`: as of `pair.Pair`."""
    alone = {side: _wrote_alone(ends[side]) for side in SIDES}
    if compacted and not all(end["alone"] or end["alone_lives"] for end in ends.values()):
        words = (
            f"history compacted before {compacted}, by a version that kept no note of it: which side has had what the "
            "other has cannot be told. Keep both"
        )
        return {"newest": "unknown", "answer": words}
    if not alone["a"] and not alone["b"]:
        return {"newest": "same", "answer": "both hold the same records: start either"}
    told = {
        side: f"{end['alone']:,} records, {end['alone_lives']:,} lives, {end['messages']:,} messages"
        + (", and what its checkpoint holds" if end["folded"] else "")
        for side, end in ends.items()
    }
    if alone["a"] and alone["b"]:
        first = ends["a"]["first"] or ends["b"]["first"]
        where = f"behind {_place(first)}" if first else "by themselves"
        words = (
            f"both were written {where} (a alone: {told['a']}; b alone: {told['b']}): "
            "neither may be thrown away; run `pollux-pipeline split_brain`"
        )
        return {"newest": "diverged", "answer": words}
    newest = "a" if alone["a"] else "b"
    older = "b" if newest == "a" else "a"
    words = f"{newest} is the newest: it has everything {older} has, and more ({told[newest]}); start {newest}"
    return {"newest": newest, "answer": words}


def _wrote_alone(end: dict[str, Any]) -> bool:
    return bool(end["alone"] or end["alone_lives"] or end["messages"] or end["folded"])


def _place(position: dict[str, int] | None) -> str:
    if position is None:
        return "-"
    return f"epoch {position['epoch']}, segment {position['segment']}, byte {position['offset']}"


def _end(side: str, end: dict[str, Any]) -> dict[str, Any]:
    return {
        "side": side,
        "records": end["records"],
        "alone": end["alone"],
        "parts from the other at": _place(end["first"]),
        "last record": _place(end["last"]),
    }


def _queues(compared: DataFrame) -> DataFrame:
    return compared.groupBy("queue").agg(
        count_where("a_live").alias("messages_a"),
        count_where("b_live").alias("messages_b"),
        count_where("only = 'a'").alias("only_a"),
        count_where("only = 'b'").alias("only_b"),
        # No trace of a message that the other side has had: it was consumed there, and compacted.
        count_where("a_live and only is null and not coalesce(b_live, false)").alias("consumed_by_b_only"),
        count_where("b_live and only is null and not coalesce(a_live, false)").alias("consumed_by_a_only"),
        f.timestamp_millis(f.max("a_timestamp")).alias("newest_a"),
        f.timestamp_millis(f.max("b_timestamp")).alias("newest_b"),
        f.when(count_where("only = 'a'") > count_where("only = 'b'"), "a")
        .when(count_where("only = 'b'") > count_where("only = 'a'"), "b")
        .otherwise("same")
        .alias("more_alone"),
    )
