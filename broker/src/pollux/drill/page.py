"""The report as one HTML page that needs nothing else: inline styles and SVG, no scripts, no links. Pure."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from pollux.drill import plots

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
_RIGHT = ' class="n"'
_STYLE = """
:root{--bg:#fff;--fg:#1d2330;--soft:#5d6675;--line:#dfe3ea;--card:#f7f8fa;--good:#177245;--goodbg:#e7f5ec;
--bad:#b3261e;--badbg:#fdecea;--amqp:#3b6fd4;--stomp:#1f9e89;--mqtt:#8b5fbf;--received:#1d2330;--live:#177245;
--ready:#3b6fd4;--down:#b3261e;--other:#8b93a1}
@media(prefers-color-scheme:dark){:root{--bg:#12151b;--fg:#e6e9ef;--soft:#9aa4b5;--line:#2c323d;--card:#1a1f28;
--good:#6fd19c;--goodbg:#14301f;--bad:#ff8a80;--badbg:#3b1714;--amqp:#6f9bf0;--stomp:#4cc4b0;--mqtt:#b48ee0;
--received:#e6e9ef;--live:#2e8b5b;--ready:#3f6fc4;--down:#b5483f;--other:#606a7a}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;max-width:1080px;margin:0 auto;
padding:2rem 1.25rem 3rem;color:var(--fg);background:var(--bg)}
h1{font-size:1.6rem;line-height:1.2;margin:0}h2{font-size:1.05rem;margin:2.2rem 0 .4rem}
p{margin:.3rem 0}.soft{color:var(--soft)}
.verdict{display:flex;gap:1rem;align-items:baseline;flex-wrap:wrap;padding:1rem 1.2rem;border-radius:.6rem;
border-left:6px solid;margin-bottom:1rem}
.clean{background:var(--goodbg);border-color:var(--good)}.broken{background:var(--badbg);border-color:var(--bad)}
.verdict b{text-transform:uppercase;letter-spacing:.06em}.clean b{color:var(--good)}.broken b{color:var(--bad)}
.verdict p{margin:0;flex-basis:100%}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:.6rem;margin:1rem 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.5rem .8rem}
.card b{display:block;font-size:1.35rem;line-height:1.3;font-variant-numeric:tabular-nums;white-space:nowrap}
.card span{color:var(--soft);font-size:.85rem;line-height:1.25;display:block}
.card.bad{background:var(--badbg);border-color:var(--bad)}.card.bad b{color:var(--bad)}
ul.problems{margin:.5rem 0;padding:.6rem 1.2rem .6rem 2rem;background:var(--badbg);border-radius:.5rem}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
td,th{padding:.3rem .9rem .3rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600;font-size:.85rem;white-space:nowrap}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums;white-space:nowrap}
tr:last-child td{border-bottom:0}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.1rem;color:var(--soft);font-size:.85rem}
.legend i{display:inline-block;width:.8rem;height:.8rem;border-radius:.15rem;margin-right:.35rem;vertical-align:-.08rem}
.legend i.thin{height:.2rem;vertical-align:.22rem}
svg{width:100%;height:auto;display:block;font:12px system-ui,-apple-system,"Segoe UI",sans-serif}
svg .grid{stroke:var(--line)}svg .axis{stroke:var(--soft)}svg .tick{fill:var(--soft)}
svg .name{fill:var(--fg);font-weight:600}
svg .note{fill:var(--soft)}svg text.fault{fill:var(--bad);font-weight:600}
svg line.fault{stroke:var(--bad);stroke-width:2}
svg .outage{fill:var(--bad);opacity:.13}svg .received{fill:none;stroke:var(--received);stroke-width:1.2}
svg .area{opacity:.75}svg .on{fill:#fff}
.amqp{fill:var(--amqp);background:var(--amqp)}.stomp{fill:var(--stomp);background:var(--stomp)}
.mqtt{fill:var(--mqtt);background:var(--mqtt)}i.received{background:var(--received)}i.outage{background:var(--badbg);
border:1px solid var(--bad)}.live{fill:var(--live);background:var(--live)}
.ready{fill:var(--ready);background:var(--ready)}
.down{fill:var(--down);background:var(--down)}.other{fill:var(--other);background:var(--other)}
.confirms{fill:var(--fg);background:var(--fg)}
@media print{body{max-width:none}}
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
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>Pollux {escape(title)}, {escape(report['result'])}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


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
    return (
        f'<div class="verdict {escape(result)}"><h1>{escape(title)}</h1><b>{escape(result)}</b>'
        f'<p>{escape(sentence(report))}</p></div><p class="soft">{escape(" · ".join(words))}</p>'
    )


def _cards(report: dict[str, Any]) -> str:
    cards = [(f"RTO {name}", milliseconds(value), "", False) for name, value in report["rto_ms"].items()]
    cards.append(("acknowledged", f"{report['confirmed']:,}", "confirmed by a broker", False))
    backlog = report["backlog"]
    if backlog["per_protocol"]:
        whole = f"{backlog['received']:,} / {backlog['confirmed']:,}"
        tip = "messages that stood in queues during the fault"
        cards.append(("backlog received", whole, tip, backlog["received"] < backlog["confirmed"]))
    cards += [(_TITLES[name], f"{report[name]:,}", what, report[name] > 0) for name, what in _VIOLATIONS.items()]
    inside = "".join(
        f'<div class="card{" bad" if bad else ""}" title="{escape(tip)}"><b>{escape(value)}</b>'
        f"<span>{escape(name)}</span></div>"
        for name, value, tip, bad in cards
    )
    return f'<div class="cards">{inside}</div>'


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
        table = _table(("kind", "number", "the first of them (all are in ledger.txt)"), rows, numbers=(1,))
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
    return _table(head, rows, numbers=range(1, 7))


def _events(report: dict[str, Any]) -> str:
    fault = report["faults"][0]["at_ms"] if report["faults"] else None
    rows = []
    for each in report["notes"]:
        since = "" if fault is None or each["at_ms"] < fault else f"+{milliseconds(each['at_ms'] - fault)}"
        rows.append((f"{each['at_ms'] / 1000:.3f} s", since, each["text"]))
    return _table(("time", "since the fault", "event"), rows, numbers=range(2))


def _activations(found: list[dict[str, Any]]) -> str:
    keys = list(dict.fromkeys(key for each in found for key in each))
    return _table(keys, (["–" if each.get(key) is None else str(each[key]) for key in keys] for each in found))  # noqa: RUF001


def _table(head: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: Iterable[int] = ()) -> str:
    """`numbers` are the columns to be aligned at the right."""
    right = set(numbers)

    def cells(tag: str, values: Iterable[str]) -> str:
        found = (
            f"<{tag}{_RIGHT if index in right else ''}>{escape(value)}</{tag}>" for index, value in enumerate(values)
        )
        return "<tr>" + "".join(found) + "</tr>"

    body = "".join(cells("td", row) for row in rows)
    return f'<div class="scroll"><table>{cells("th", head)}{body}</table></div>'
