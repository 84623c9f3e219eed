"""From what a drill saw to `report.json` (docs/drill.md describes every field). Pure but for writing files."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from pollux.drill import measure
from pollux.formats.ledger import Fault, Verdict, check

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.drill.run import Outcome, Plan

FORMAT = 1
#: Violations listed as examples; the counts count all.
EXAMPLES = 20


def build(plan: Plan, out: Outcome) -> dict[str, Any]:
    """The report. Times are milliseconds since traffic began, unless a name says otherwise."""
    entries = out.entries
    verdict = check(entries)
    producers = list(dict.fromkeys(flow.name for flow in out.flows))
    rows = measure.counts_by_producer(entries, producers)
    for name in producers:
        rows[name]["rto_ms"] = _rounded(measure.interruption(entries, {name}, out.recovered))
    protocols = [wire.value for wire in plan.protocols]
    faults = [entry for entry in entries if isinstance(entry, Fault)]
    problems = list(out.problems)
    if faults:
        problems += [
            f"nothing sent by {name} after the fault was ever confirmed"
            for name, row in rows.items()
            if row["rto_ms"] is None
        ]
    if verdict.confirmed == 0:
        problems.append("nothing was confirmed: there was no traffic to judge")
    return {
        "format": FORMAT,
        "result": "clean" if verdict.ok and not problems else "broken",
        "started_at": out.started.isoformat(timespec="milliseconds"),
        "duration_ms": round(out.ended - out.began, 1),
        "fault": plan.breaker_name or (plan.fault.value if plan.fault is not None else None),
        "protocols": protocols,
        "brokers": [str(endpoint) for endpoint in plan.target.endpoints],
        "message_size": plan.size,
        "rate": plan.rate,
        "backlog": {"per_protocol": plan.backlog, **measure.standing(entries, verdict.lost)},
        **counts(verdict),
        "rto_ms": {name: _worst(rows, name) for name in protocols},
        "rto_ms_overall": _rounded(measure.interruption(entries, set(producers), out.recovered)),
        "problems": problems,
        "examples": examples(verdict),
        "per_protocol": rows,
        "faults": [{"at_ms": round(each.time - out.began, 1), "text": each.text} for each in faults],
        "notes": [{"at_ms": round(at - out.began, 1), "text": text} for at, text in out.notes],
        "states": [
            {"at_ms": round(at - out.began, 1), "member": member, "state": state, "epoch": epoch}
            for at, member, state, epoch in out.states
        ],
        "recovered_ms": None if out.recovered is None else round(out.recovered - out.began, 1),
        "lives": [
            {**each, "from_ms": round(each["from_ms"] - out.began, 1), "to_ms": round(each["to_ms"] - out.began, 1)}
            for each in measure.lives(entries)
        ],
        "activations": out.history,
        "throughput": measure.throughput(entries, out.began, out.ended),
    }


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 1)


def _worst(rows: dict[str, dict[str, Any]], protocol: str) -> float | None:
    """The longest interruption of a protocol's producers; None when one of them did not recover."""
    times = [row["rto_ms"] for name, row in rows.items() if name.partition(".")[0] == protocol]
    return None if None in times else max(times)


def counts(verdict: Verdict) -> dict[str, int]:
    """The ledger's counts."""
    return {
        "sent": verdict.sent,
        "confirmed": verdict.confirmed,
        "received": verdict.received,
        "lost": len(verdict.lost),
        "duplicated": len(verdict.duplicated),
        "phantom": len(verdict.phantom),
        "two_lives": len(verdict.two_lives),
        "order_violations": len(verdict.order_violations),
    }


def examples(verdict: Verdict) -> dict[str, list[Any]]:
    """The first of each violation."""
    names = ("lost", "duplicated", "phantom", "two_lives", "order_violations")
    found = {name: list(getattr(verdict, name)[:EXAMPLES]) for name in names}
    return {name: values for name, values in found.items() if values}


def write(directory: Path, report: dict[str, Any]) -> None:
    """Write `report.json` and `report.html`."""
    from pollux.drill.page import render

    (directory / "report.json").write_text(json.dumps(report, indent=2, ensure_ascii=False) + "\n")
    (directory / "report.html").write_text(render(report))
