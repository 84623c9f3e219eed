"""Reports of jobs as one HTML page (:mod:`pollux.formats.html`)."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING, Any

from pollux.formats import html
from pollux_pipeline.places import write_text
from pollux_pipeline.report import svg

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pollux_pipeline.jobs.base import Result
    from pollux_pipeline.places import Output

_STYLE = """
td,th{overflow-wrap:anywhere}td:not(.n){min-width:7.5em}th{overflow-wrap:normal}.turned th{border:0;white-space:nowrap}
"""
#: Of the words of a result.
_KINDS = {"clean": "clean", "findings": "broken", "compacted": "part"}

#: Columns that fit on a page that is 1200 pixels wide, and rows beside each other where there are more.
_WIDE, _TURNED = 12, 4


def number(value: Any) -> str:
    """A figure for people."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.1f}"
    return str(value)


def cards(values: Mapping[str, Any], *, bad: Iterable[str] = ()) -> str:
    """Figures in boxes; those in `bad` are red when they are not zero."""
    red = set(bad)
    return html.cards(
        (name.replace("_", " "), number(value), "", bool(name in red and value)) for name, value in values.items()
    )


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> str:
    """Rows as a table; numbers to the right. With more columns than a page is wide for, rows become columns."""
    if not rows:
        return '<p class="soft">none</p>'
    names = list(columns or rows[0])
    if len(names) > _WIDE:
        return "".join(_turned(rows[start : start + _TURNED], names) for start in range(0, len(rows), _TURNED))
    numbers = [
        index
        for index, name in enumerate(names)
        if all(isinstance(row[name], (int, float, type(None))) for row in rows)
    ]
    head = [name.replace("_", " ") for name in names]
    return html.table(head, ([number(row[name]) for name in names] for row in rows), numbers=numbers)


def _turned(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> str:
    lines = (
        f"<tr><th>{escape(name.replace('_', ' '))}</th>"
        + "".join(f"<td>{escape(number(row[name]))}</td>" for row in rows)
        + "</tr>"
        for name in names
    )
    return f'<div class="scroll"><table class="turned">{"".join(lines)}</table></div>'


def write(path: Output, result: Result, sections: Iterable[tuple[str, str]], *, title: str) -> Output:
    """Write a page: title with the verdict, figures, then sections of (heading, markup)."""
    word = "history compacted" if result.word == "compacted" else result.word
    facts = {name: value for name, value in result.facts.items() if isinstance(value, (int, float))}
    body = [
        html.verdict(title, word, result.verdict, kind=_KINDS[result.word]),
        cards({**result.findings, **facts}, bad=result.findings),
        *(f"<h2>{escape(heading)}</h2>\n{markup}" for heading, markup in sections if markup),
    ]
    write_text(path, html.document(f"{title}: {word}", body, style=_STYLE))
    return path


def write_reconcile(path: Output, result: Result, found: Mapping[str, Any]) -> Output:
    """The report of `reconcile`."""
    sections: list[tuple[str, str]] = []
    throughput = found.get("throughput") or []
    clocks: dict[int, list[Mapping[str, Any]]] = {}
    for row in throughput:
        clocks.setdefault(row["ledger"], []).append(row)
    starts = {ledger: rows[0]["at_ms"] for ledger, rows in clocks.items()}
    activations = [_activation(one, starts.get(one["ledger"], 0.0)) for one in found.get("activations") or []]
    for ledger, rows in clocks.items():
        marks = [(one["at_ms"], one["text"], svg.BAD) for one in found["faults"] if one["ledger"] == ledger][:10]
        marks += [
            (one["first_ms"] + starts[ledger], f"{one['broker']}, epoch {one['epoch']}", svg.NOTE)
            for one in activations
            if one["ledger"] == ledger and one["first_ms"] is not None
        ][:10]
        marks.sort()
        where = f" (ledger {ledger}, by its clock)" if len(clocks) > 1 else ""
        sections.append((f"Throughput, with faults and activations{where}", _throughput(rows, marks)))
    if throughput:
        sections.append(("Latency in ms by address", _latency(found["latency"])))
        hit = [
            (one["address"], {"lost": one["lost"], "duplicated": one["duplicated"]}) for one in found["by_address"][:20]
        ]
        plot = svg.bars(hit, description="Lost and duplicated messages of each address", bad=("lost",))
        hurt = any(values["lost"] or values["duplicated"] for _, values in hit)
        sections.append(("Loss and duplicates by address", (plot if hurt else "") + table(found["by_address"])))
        served = [
            (one["broker"], {"confirmed": one["confirmed"], "received": one["received"]}) for one in found["by_broker"]
        ]
        sections.append(("Skew: messages by broker", svg.bars(served, description="Messages of each broker")))
    if "activations" in found:
        title = "Activations (first, last and fault in ms from the ledger's first entry)"
        sections.insert(min(1, len(sections)), (title, table(activations)))
    if found.get("trail"):
        sections.append(("As the brokers noted it, with activations", _noted(found["trail"], found["activations"])))
    if "waiting" in found:
        deep = [(str(one["queue"]), {"messages": one["messages"]}) for one in found["waiting"][:20]]
        plot = svg.bars(deep, description="Messages waiting in each queue") if deep else ""
        sections.append(("Waiting in queues, as the journals say", plot or '<p class="soft">nothing waits</p>'))
    if "hops" in found:
        sections.append(("Ways between the nodes of a cluster", table(found["hops"])))
    if "damage" in found:
        sections.append(("Damage", table(found["damage"], ("file", "offset", "length", "damage", "detail"))))
    if len(clocks) > 1:
        sections.append(("Ledgers, each with a clock of its own", table(found["ledgers"])))
    sections.insert(0, ("Findings (up to 20 of each kind; all are in findings/)", table(found["examples"])))
    return write(path, result, sections, title="reconciliation")


def _activation(one: Mapping[str, Any], start: float) -> dict[str, Any]:
    """A row for people: short node id, times from the first entry, the brokers' clocks as dates."""
    shown: dict[str, Any] = {**one, "node": str(one["node"] or "")[:8]}
    for name in ("first_ms", "last_ms", "fault_ms"):
        shown[name] = None if one[name] is None else one[name] - start
    for name in ("live_at", "stopped_at"):
        shown[name] = None if one[name] is None else clock(one[name])
    return shown


def clock(milliseconds: int) -> str:
    """A moment of a broker's clock, in UTC."""
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def _noted(rows: Sequence[Mapping[str, Any]], activations: Sequence[Mapping[str, Any]]) -> str:
    """Messages over time, or clients where no message is noted, with activations at the brokers' own times."""
    messages = any(row[name] for row in rows for name in ("accepted", "delivered", "acknowledged"))
    names = ("accepted", "acknowledged") if messages else ("connected", "disconnected")
    live = [one for one in activations if one["live_at"] is not None]
    marks = sorted((float(one["live_at"]), f"{one['broker']}, epoch {one['epoch']}", svg.BAD) for one in live)[-12:]
    words = "Messages" if messages else "Clients that connected and disconnected"
    unit = f"{'messages' if messages else 'clients'}/s"
    return _over_time(rows, names, marks, unit=unit, description=words, dated=True)


def _throughput(rows: Sequence[Mapping[str, Any]], marks: Sequence[tuple[float, str, str]]) -> str:
    words = "Messages confirmed and received over time"
    return _over_time(rows, ("confirmed", "received"), marks, unit="messages/s", description=words)


def _over_time(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    marks: Sequence[tuple[float, str, str]],
    *,
    unit: str,
    description: str,
    dated: bool = False,
) -> str:
    """Rates in stretches of equal width (`at_ms`, `width_ms`); those without a row are zero."""
    width = float(rows[0]["width_ms"])
    start, last = rows[0]["at_ms"], rows[-1]["at_ms"]
    by_time = {round((row["at_ms"] - start) / width): row for row in rows}
    count = min(round((last - start) / width), 2000)
    times = [float(start + index * width) for index in range(count + 1)]
    series = {
        name: [by_time[index][name] * 1000 / width if index in by_time else 0.0 for index in range(count + 1)]
        for name in names
    }
    return svg.lines(times, series, marks, unit=unit, description=description, dated=dated)


def _latency(rows: Sequence[Mapping[str, Any]]) -> str:
    flat = [
        {
            "address": row["address"],
            **{
                f"{name} {label}": (row[name] or [None] * 4)[index]
                for name in ("confirm", "receive")
                for index, label in enumerate(("p50", "p90", "p99", "p99.9"))
            },
            "confirm max": row["confirm_max"],
            "receive max": row["receive_max"],
        }
        for row in rows
    ]
    plotted = [
        (row["address"], {name: row[name] or 0.0 for name in ("confirm p50", "confirm p99", "receive p99")})
        for row in flat[:12]
    ]
    return svg.bars(plotted, description="Latency percentiles of each address in milliseconds") + table(flat)
