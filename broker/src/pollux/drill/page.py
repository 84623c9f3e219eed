"""The report as one HTML page (:mod:`pollux.formats.html`). Pure."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from pollux.drill import plots
from pollux.formats import html

if TYPE_CHECKING:
    from collections.abc import Iterable

#: A longer drill gets a second picture, of the time around the fault. Milliseconds.
_LONG = 60_000.0
_BEFORE, _AFTER = 5_000.0, 10_000.0
_VIOLATIONS = {
    "lost": "confirmed, never received",
    "duplicated": "received twice, not marked",
    "phantom": "received, never sent",
    "two_lives": "overlapping lives",
    "order_violations": "out of order",
}
_TITLES = {
    "lost": "lost",
    "duplicated": "duplicates",
    "phantom": "phantoms",
    "two_lives": "two lives",
    "order_violations": "out of order",
}
_STYLE = """
:root{--amqp:#3b6fd4;--stomp:#1f9e89;--mqtt:#8b5fbf;--received:#1d2330;--live:#177245;--ready:#3b6fd4;--down:#b3261e;
--other:#8b93a1}
@media(prefers-color-scheme:dark){:root{--amqp:#6f9bf0;--stomp:#4cc4b0;--mqtt:#b48ee0;--received:#e6e9ef;
--live:#2e8b5b;--ready:#3f6fc4;--down:#b5483f;--other:#606a7a}}
ul.problems{margin:.5rem 0;padding:.6rem 1.2rem .6rem 2rem;background:var(--badbg);border-radius:.5rem}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;color:var(--soft);font-size:.85rem}
.legend i{display:inline-block;width:.8rem;height:.8rem;border-radius:.15rem;margin-right:.35rem;vertical-align:-.08rem}
.legend i.thin{height:.2rem;vertical-align:.22rem}
svg .name{font-weight:600}
svg .outage{fill:var(--bad);opacity:.13}svg .received{fill:none;stroke:var(--received);stroke-width:1.2}
svg .area{opacity:.75}svg text.on{fill:#fff}
.amqp{fill:var(--amqp);background:var(--amqp)}.stomp{fill:var(--stomp);background:var(--stomp)}
.mqtt{fill:var(--mqtt);background:var(--mqtt)}i.received{background:var(--received)}i.outage{background:var(--badbg);
border:1px solid var(--bad)}.live{fill:var(--live);background:var(--live)}
.ready{fill:var(--ready);background:var(--ready)}
.down{fill:var(--down);background:var(--down)}.other{fill:var(--other);background:var(--other)}
.confirms{fill:var(--fg);background:var(--fg)}
"""


def render(report: dict[str, Any]) -> str:
    """The page for a report made by :func:`pollux.drill.report.build`."""
    title = f"Drill: {report['fault'] or 'no fault'}"
    parts = [
        _head(report, title),
        _cards(report),
        _problems(report),
        _pictures(report),
        "<h2>By producer</h2>",
        _producers(report),
        "<h2>What happened</h2>",
        _events(report),
    ]
    if report["activations"]:
        parts += ["<h2>Activations, as the brokers remember them</h2>", _activations(report["activations"])]
    return html.document(f"{title}, {report['result']}", parts, style=_STYLE)


def milliseconds(value: float | None) -> str:
    """A duration for people: `312 ms`, `6.20 s`, or a dash."""
    if value is None:
        return "–"  # noqa: RUF001  (a dash)
    return f"{value:.0f} ms" if value < 1000 else f"{value / 1000:,.2f} s"


def sentence(report: dict[str, Any]) -> str:
    """The result in one sentence."""
    broken = [f"{report[name]:,} {what}" for name, what in _VIOLATIONS.items() if report[name]]
    if broken:
        return f"Invariants broke: {'; '.join(broken)}."
    if report["result"] != "clean":
        return "The drill did not come to its end as it should: see below."
    worst = max((value for value in report["rto_ms"].values() if value is not None), default=None)
    felt = "" if worst is None else f" Clients waited {milliseconds(worst)} for an answer at the longest."
    return f"All {report['confirmed']:,} confirmed messages arrived, and no two brokers lived at once.{felt}"


def _head(report: dict[str, Any], title: str) -> str:
    result = report["result"]
    words = (
        report["started_at"].replace("T", " ").replace("+00:00", " UTC"),
        f"{report['duration_ms'] / 1000:.1f} s",
        f"{', '.join(report['protocols'])} on {', '.join(report['brokers'])}",
        f"{report['rate'] or 'as many as go'} messages/s for each protocol, {report['message_size']:,} bytes each",
    )
    told = f'<p class="soft">{escape(" · ".join(words))}</p>'
    return html.verdict(title, result, sentence(report), kind=result) + told


def _cards(report: dict[str, Any]) -> str:
    cards = [(f"RTO {name}", milliseconds(value), "", False) for name, value in report["rto_ms"].items()]
    cards.append(("acknowledged", f"{report['confirmed']:,}", "confirmed by a broker", False))
    backlog = report["backlog"]
    if backlog["per_protocol"]:
        whole = f"{backlog['received']:,} / {backlog['confirmed']:,}"
        tip = "messages that stood in queues during the fault"
        cards.append(("backlog received", whole, tip, backlog["received"] < backlog["confirmed"]))
    cards += [(_TITLES[name], f"{report[name]:,}", what, report[name] > 0) for name, what in _VIOLATIONS.items()]
    return html.cards(cards)


def _problems(report: dict[str, Any]) -> str:
    parts = []
    if report["problems"]:
        items = "".join(f"<li>{escape(problem)}</li>" for problem in report["problems"])
        parts.append(f'<ul class="problems">{items}</ul>')
    if report["examples"]:
        rows = (
            (_TITLES[name], f"{report[name]:,}", "; ".join(_words(each) for each in found))
            for name, found in report["examples"].items()
        )
        table = html.table(("kind", "number", "the first of them (all are in ledger.txt)"), rows, numbers=(1,))
        parts += ["<h2>Violations</h2>", table]
    return "\n".join(parts)


def _words(example: str | Iterable[object]) -> str:
    """One violation: text, or ids (with the queue, where there are several)."""
    return example if isinstance(example, str) else ", ".join(str(part) for part in example if part)


def _pictures(report: dict[str, Any]) -> str:
    whole = plots.Axis(0.0, report["duration_ms"])
    parts = []
    if report["duration_ms"] > _LONG and report["faults"]:
        first = report["faults"][0]["at_ms"]
        last = report["recovered_ms"] if report["recovered_ms"] is not None else first
        near = plots.Axis(max(first - _BEFORE, 0.0), min(last + _AFTER, report["duration_ms"]))
        parts += ["<h2>Around the fault</h2>", plots.throughput(report, near), plots.lives(report, near)]
    names = [(name, f"{name} confirmed") for name in report["protocols"]]
    parts += [
        "<h2>Throughput (messages/s, without the backlog)</h2>",
        _legend([*names, ("received thin", "received"), ("outage", "until every protocol confirmed again")]),
        plots.throughput(report, whole),
        "<h2>Who lived</h2>",
        _legend(
            [(name, name) for name in ("live", "ready", "down")]
            + [("other", "another state"), ("confirms thin", "confirmed messages (by epoch)")]
        ),
        plots.lives(report, whole),
        f'<p class="soft">{escape(_overlap(report))}</p>',
    ]
    return "\n".join(parts)


def _overlap(report: dict[str, Any]) -> str:
    if report["two_lives"]:
        return "Two brokers confirmed at once: see the violations."
    count = len(report["lives"])
    known = f"{count} activation{'' if count == 1 else 's'} confirmed messages"
    return f"{known}; none while another one did."


def _legend(entries: list[tuple[str, str]]) -> str:
    items = "".join(f'<span><i class="{escape(kind)}"></i>{escape(text)}</span>' for kind, text in entries)
    return f'<div class="legend">{items}</div>'


def _producers(report: dict[str, Any]) -> str:
    head = ("producer", "sent", "confirmed", "received", "redelivered", "longest gap", "RTO")
    rows = (
        (
            name.replace(".", ", "),
            *(f"{row[key]:,}" for key in ("sent", "confirmed", "received", "redelivered")),
            milliseconds(row["longest_gap_ms"]),
            milliseconds(row["rto_ms"]),
        )
        for name, row in report["per_protocol"].items()
    )
    return html.table(head, rows, numbers=range(1, 7))


def _events(report: dict[str, Any]) -> str:
    fault = report["faults"][0]["at_ms"] if report["faults"] else None
    rows = []
    for each in report["notes"]:
        since = "" if fault is None or each["at_ms"] < fault else f"+{milliseconds(each['at_ms'] - fault)}"
        rows.append((f"{each['at_ms'] / 1000:.3f} s", since, each["text"]))
    return html.table(("time", "since the fault", "event"), rows, numbers=range(2))


def _activations(found: list[dict[str, Any]]) -> str:
    keys = list(dict.fromkeys(key for each in found for key in each))
    return html.table(keys, (["–" if each.get(key) is None else str(each[key]) for key in keys] for each in found))  # noqa: RUF001
