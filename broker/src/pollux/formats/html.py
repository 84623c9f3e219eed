"""Reports as one HTML page that needs nothing else: inline styles and SVG, no scripts, no links; light and dark. Pure.

It is what the reports of drills and those of the pipeline have in common.
"""

from __future__ import annotations

from html import escape
from math import floor, log10
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

#: Of every picture; it is scaled to the page.
WIDTH = 1000
_RIGHT = ' class="n"'
_STYLE = """
:root{--bg:#fff;--fg:#1d2330;--soft:#5d6675;--line:#dfe3ea;--card:#f7f8fa;--good:#177245;--goodbg:#e7f5ec;
--bad:#b3261e;--badbg:#fdecea;--part:#8a6d00;--partbg:#fbf3d9}
@media(prefers-color-scheme:dark){:root{--bg:#12151b;--fg:#e6e9ef;--soft:#9aa4b5;--line:#2c323d;--card:#1a1f28;
--good:#6fd19c;--goodbg:#14301f;--bad:#ff8a80;--badbg:#3b1714;--part:#e0c060;--partbg:#332a0f}}
*{box-sizing:border-box}
body{font:15px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif;max-width:1080px;margin:0 auto;
padding:2rem 1.25rem 3rem;color:var(--fg);background:var(--bg)}
h1{font-size:1.6rem;line-height:1.2;margin:0}h2{font-size:1.05rem;margin:2.2rem 0 .4rem}
p{margin:.3rem 0}.soft{color:var(--soft)}
.verdict{display:flex;gap:1rem;align-items:baseline;flex-wrap:wrap;padding:1rem 1.2rem;border-radius:.6rem;
border-left:6px solid;margin-bottom:1rem}
.clean{background:var(--goodbg);border-color:var(--good)}.broken{background:var(--badbg);border-color:var(--bad)}
.part{background:var(--partbg);border-color:var(--part)}
.verdict b{text-transform:uppercase;letter-spacing:.06em}.clean b{color:var(--good)}.broken b{color:var(--bad)}
.part b{color:var(--part)}.verdict p{margin:0;flex-basis:100%}
.cards{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:.6rem;margin:1rem 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:.5rem;padding:.5rem .8rem}
.card b{display:block;font-size:1.35rem;line-height:1.3;font-variant-numeric:tabular-nums;white-space:nowrap}
.card span{color:var(--soft);font-size:.85rem;line-height:1.25;display:block}
.card.bad{background:var(--badbg);border-color:var(--bad)}.card.bad b{color:var(--bad)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
td,th{padding:.3rem .9rem .3rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line)}
th{color:var(--soft);font-weight:600;font-size:.85rem}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}td.n{white-space:nowrap}
tr:last-child td{border-bottom:0}
svg{width:100%;height:auto;display:block;font:12px system-ui,-apple-system,"Segoe UI",sans-serif}
svg text{fill:var(--fg)}svg .grid{stroke:var(--line)}svg .axis{stroke:var(--soft)}svg text.tick{fill:var(--soft)}
svg text.note{fill:var(--soft)}svg line.note{stroke:var(--soft)}svg text.fault{fill:var(--bad);font-weight:600}
svg line.fault{stroke:var(--bad);stroke-width:2}svg rect.fault{fill:var(--bad)}
@media print{body{max-width:none}}
"""


def document(title: str, parts: Iterable[str], *, style: str = "") -> str:
    """The whole page; ``style`` is what it has besides."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>Pollux {escape(title)}</title><style>{_STYLE}{style}</style></head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body></html>\n"
    )


def verdict(title: str, word: str, sentence: str, *, kind: str) -> str:
    """The head of a page. ``kind`` is ``clean``, ``broken`` or ``part``."""
    return f'<div class="verdict {kind}"><h1>{escape(title)}</h1><b>{escape(word)}</b><p>{escape(sentence)}</p></div>'


def cards(found: Iterable[tuple[str, str, str, bool]]) -> str:
    """Figures in boxes: name, value, what is said of it on a closer look, and whether it is bad."""
    inside = "".join(
        f'<div class="card{" bad" if bad else ""}" title="{escape(tip)}"><b>{escape(value)}</b>'
        f"<span>{escape(name)}</span></div>"
        for name, value, tip, bad in found
    )
    return f'<div class="cards">{inside}</div>'


def table(head: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: Iterable[int] = ()) -> str:
    """A table; ``numbers`` are the columns to be aligned at the right."""
    right = set(numbers)

    def cells(tag: str, values: Iterable[str]) -> str:
        found = (
            f"<{tag}{_RIGHT if index in right else ''}>{escape(value)}</{tag}>" for index, value in enumerate(values)
        )
        return f"<tr>{''.join(found)}</tr>"

    body = "".join(cells("td", row) for row in rows)
    return f'<div class="scroll"><table>{cells("th", head)}{body}</table></div>'


def svg(height: float, parts: Iterable[str], title: str) -> str:
    """A picture :data:`WIDTH` wide. ``title`` is read to who does not see it."""
    label = escape(title)
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}"><title>{label}</title>'
        f"{''.join(parts)}</svg>"
    )


def nice(value: float) -> float:
    """The next of 1, 2, 2.5, 4, 5 times a power of ten; 1 for nothing."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(factor * power for factor in (1, 2, 2.5, 4, 5, 10) if factor * power >= value * (1 - 1e-9))
