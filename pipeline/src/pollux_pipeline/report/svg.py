"""Plots as inline SVG: lines over time and horizontal bars. Pure: numbers in, markup out."""

from __future__ import annotations

from datetime import UTC, datetime
from html import escape
from typing import TYPE_CHECKING

from pollux.formats.html import WIDTH, nice, svg

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

COLOURS = ("#1f77b4", "#e07b00", "#2ca02c", "#9467bd", "#8c564b", "#17becf")
#: What a mark is, as the page draws it: a fault, or something to note.
BAD, NOTE = "fault", "note"
_HEIGHT = 300
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 15, 30, 36
_BAR = 22
#: Rows of marks' texts, and the width that a letter of theirs takes.
_ROWS, _LETTER = 8, 7
_LABEL = 230


def lines(
    times: Sequence[float],
    series: Mapping[str, Sequence[float]],
    marks: Sequence[tuple[float, str, str]] = (),
    *,
    unit: str,
    description: str,
    dated: bool = False,
) -> str:
    """Lines over time: milliseconds, of which the axis shows seconds from the first; or with `dated`, milliseconds
    since the epoch, of which it shows the time of day. `marks`: (time, text, kind)."""
    if not times:
        return '<p class="soft">nothing to plot</p>'
    start, end = times[0], max(times[-1], times[0] + 1)
    top = nice(max((max(values, default=0) for values in series.values()), default=0))
    bottom = _HEIGHT - _BOTTOM

    def x(time: float) -> float:
        return _LEFT + (min(max(time, start), end) - start) / (end - start) * (WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return bottom - value / top * (bottom - _TOP)

    parts: list[str] = []
    for step in range(5):
        value = top * step / 4
        parts.append(f'<line x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="grid"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y(value) + 4:.1f}" text-anchor="end" class="tick">{value:,.6g}</text>')
    span = (end - start) / 1000
    interval = nice(span / 8)
    for tick in range(int(span / interval) + 1):
        passed = start + tick * interval * 1000
        said = f"{_moment(passed):%H:%M:%S}" if dated else f"{tick * interval:,.6g}"
        parts.append(f'<text x="{x(passed):.1f}" y="{bottom + 16}" text-anchor="middle" class="tick">{said}</text>')
    below = f"{_moment(start):%Y-%m-%d}, UTC" if dated else "seconds"
    parts.append(f'<text x="{WIDTH - _RIGHT}" y="{_HEIGHT - 4}" text-anchor="end" class="tick">{below}</text>')
    parts += _marks([(x(time), text, kind) for time, text, kind in marks], bottom)
    for index, (name, values) in enumerate(series.items()):
        colour = COLOURS[index % len(COLOURS)]
        points = " ".join(f"{x(time):.1f},{y(value):.1f}" for time, value in zip(times, values, strict=True))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        parts.append(f'<rect x="{_LEFT + 10 + 190 * index}" y="6" width="12" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + 26 + 190 * index}" y="15">{escape(name)} ({escape(unit)})</text>')
    return svg(_HEIGHT, parts, description)


def _moment(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


def _marks(marks: Sequence[tuple[float, str, str]], bottom: int) -> Iterator[str]:
    """Lines with their texts, each in the first row where it covers no other; one without room is only a title."""
    taken: list[list[tuple[float, float]]] = [[] for _ in range(_ROWS)]
    for at, whole, kind in marks:
        yield (
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{_TOP}" y2="{bottom}" class="{kind}" stroke-dasharray="4 3">'
            f"<title>{escape(whole)}</title></line>"
        )
        text = whole[:60]
        anchor, begin, away = "start", at + 4, at + 4
        if at > WIDTH * 0.75:
            anchor, begin, away = "end", at - 4 - len(text) * _LETTER, at - 4
        end = begin + len(text) * _LETTER
        free = (n for n, others in enumerate(taken) if all(end <= left or begin >= right for left, right in others))
        if (row := next(free, None)) is None:
            continue
        taken[row].append((begin, end))
        y = _TOP + 12 + 14 * row
        yield f'<text x="{away:.1f}" y="{y}" text-anchor="{anchor}" class="{kind}">{escape(text)}</text>'


def bars(rows: Sequence[tuple[str, Mapping[str, float]]], *, description: str, bad: Sequence[str] = ()) -> str:
    """For each row one bar of each of its numbers. Names in `bad` are drawn in red."""
    if not rows:
        return '<p class="soft">nothing to plot</p>'
    names = list(rows[0][1])
    top = nice(max((value for _, values in rows for value in values.values()), default=0))
    height = 24 + len(rows) * (_BAR * len(names) + 8)
    parts: list[str] = []
    colours = {name: _colour(index, bad=name in bad) for index, name in enumerate(names)}
    for index, name in enumerate(names):
        parts.append(f'<rect x="{_LABEL + 150 * index}" y="2" width="12" height="10" {colours[name]}/>')
        parts.append(f'<text x="{_LABEL + 16 + 150 * index}" y="11">{escape(name)}</text>')
    y = 24
    for label, values in rows:
        middle = y + _BAR * len(names) / 2
        shown = escape(label if len(label) <= 34 else label[:15] + "…" + label[-18:])
        title = f"<title>{escape(label)}</title>"
        parts.append(f'<text x="{_LABEL - 8}" y="{middle + 4:.1f}" text-anchor="end">{title}{shown}</text>')
        for name in names:
            value = values[name]
            width = value / top * (WIDTH - _LABEL - 90)
            parts.append(
                f'<rect x="{_LABEL}" y="{y}" width="{max(width, 0.5):.1f}" height="{_BAR - 6}" {colours[name]}/>'
            )
            parts.append(f'<text x="{_LABEL + width + 6:.1f}" y="{y + 12}" class="note">{_short(value)}</text>')
            y += _BAR
        y += 8
    return svg(height, parts, description)


def _colour(index: int, *, bad: bool) -> str:
    return f'class="{BAD}"' if bad else f'fill="{COLOURS[index % len(COLOURS)]}"'


def _short(value: float) -> str:
    """For people: no more digits than anybody compares."""
    return f"{value:,.0f}" if value == int(value) or value >= 1000 else f"{value:.3g}"
