"""The pictures of a drill's report, as inline SVG. Pure: numbers in, markup out.

Colours are CSS classes and variables of :mod:`pollux.drill.page`, which has a light and a dark set of them. Both
pictures have the same time axis, so that what is above each other happened at the same time.
"""

from __future__ import annotations

from html import escape
from statistics import median
from typing import TYPE_CHECKING, Any

from pollux.formats.html import WIDTH, nice, svg

if TYPE_CHECKING:
    from collections.abc import Sequence

_LEFT, _RIGHT = 78, 12
_HEAD, _FOOT = 26, 30
_PLOT = 240
_ROW, _BAR = 34, 24
#: Points of a picture at the most.
_POINTS = 400
#: A peak (what was held up comes all at once) is cut at so many times the usual rate.
_CUT = 3.0


class Axis:
    """Milliseconds to x."""

    def __init__(self, start: float, end: float) -> None:
        self.start = start
        self.end = max(end, start + 1)

    def x(self, milliseconds: float) -> float:
        """A place in the picture, within its edges."""
        part = (milliseconds - self.start) / (self.end - self.start)
        return _LEFT + (WIDTH - _LEFT - _RIGHT) * min(max(part, 0.0), 1.0)

    def shows(self, milliseconds: float) -> bool:
        """Whether a moment lies within the picture."""
        return self.start <= milliseconds <= self.end

    def ticks(self, top: float, bottom: float) -> list[str]:
        """Lines and labels of whole, round seconds."""
        step = nice((self.end - self.start) / 1000 / 9)
        first = int(self.start / 1000 // step)
        parts = [f'<line class="axis" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{bottom}" y2="{bottom}"/>']
        number = first
        while number * step * 1000 <= self.end:
            at = number * step * 1000
            if at >= self.start:
                x = self.x(at)
                parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top}" y2="{bottom}"/>')
                anchor = "end" if x > WIDTH - 40 else "middle"
                label = f"{number * step:g} s"
                parts.append(f'<text class="tick" x="{x:.1f}" y="{bottom + 18}" text-anchor="{anchor}">{label}</text>')
            number += 1
        return parts


def throughput(report: dict[str, Any], axis: Axis) -> str:
    """Confirmed messages a second, stacked by protocol, and received ones as a line."""
    found = report["throughput"]
    bucket = found["bucket_ms"]
    first = max(int(axis.start // bucket), 0)
    last = max(int(axis.end // bucket) + 1, first + 1)
    size = max((last - first + _POINTS - 1) // _POINTS, 1)
    names = [name for name in report["protocols"] if name in found["confirmed"]]
    lines = [_rates(found["confirmed"][name][first:last], bucket, size) for name in names]
    received = _rates(found["received"][first:last], bucket, size)
    times = [(first + (index + 0.5) * size) * bucket for index in range(len(received))]
    totals = [sum(values) for values in zip(*lines, strict=True)] if lines else [0.0] * len(received)
    peak = max((*totals, *received, 0.0))
    usual = median([value for value in totals if value] or [0.0])
    cut = nice(usual * _CUT)
    top = cut if usual and peak > cut * 1.3 else nice(peak)
    bottom = _HEAD + _PLOT

    def y(value: float) -> float:
        return bottom - _PLOT * min(value / top, 1.0)

    parts = [*_marks(report, axis, bottom), *axis.ticks(_HEAD, bottom)]
    for step in range(1, 5):
        value = top * step / 4
        at = y(value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 8}" y="{at + 4:.1f}" text-anchor="end">{value:,.0f}/s</text>')
    below = [0.0] * len(times)
    for name, values in zip(names, lines, strict=True):
        above = [low + value for low, value in zip(below, values, strict=True)]
        edge = [f"{axis.x(at):.1f},{y(value):.1f}" for at, value in zip(times, above, strict=True)]
        back = [f"{axis.x(at):.1f},{y(value):.1f}" for at, value in zip(times, below, strict=True)]
        parts.append(f'<polygon class="area {escape(name)}" points="{" ".join((*edge, *reversed(back)))}"/>')
        below = above
    points = " ".join(f"{axis.x(at):.1f},{y(value):.1f}" for at, value in zip(times, received, strict=True))
    parts.append(f'<polyline class="received" points="{points}"/>')
    if peak > top:
        index = max(range(len(times)), key=lambda one: max(totals[one], received[one]))
        x = axis.x(times[index])
        anchor, shift = ("end", -6) if x > WIDTH / 2 else ("start", 6)
        text = f"peak {peak:,.0f}/s (cut)"
        parts.append(f'<text class="note" x="{x + shift:.1f}" y="{_HEAD + 14}" text-anchor="{anchor}">{text}</text>')
    return svg(bottom + _FOOT, parts, "Messages confirmed and received a second over time, with the fault marked")


def lives(report: dict[str, Any], axis: Axis) -> str:
    """For each member what its management said, and below it when it confirmed, by activation."""
    members = list(dict.fromkeys(each["member"] for each in report["states"]))
    bottom = _HEAD + _ROW * len(members)
    parts = [*_marks(report, axis, bottom), *axis.ticks(_HEAD, bottom)]
    for row, member in enumerate(members):
        top = _HEAD + _ROW * row + (_ROW - _BAR) / 2
        name = escape(member[:10])
        parts.append(f'<text class="name" x="{_LEFT - 8}" y="{top + 16}" text-anchor="end">{name}</text>')
        changes = [each for each in report["states"] if each["member"] == member]
        ends = [*(each["at_ms"] for each in changes[1:]), axis.end]
        for each, end in zip(changes, ends, strict=True):
            x, width = axis.x(each["at_ms"]), axis.x(end) - axis.x(each["at_ms"])
            if width > 0:
                parts += _bar(each, x, top, width)
        for life in report["lives"]:
            if life["broker"] == member:
                x, width = axis.x(life["from_ms"]), axis.x(life["to_ms"]) - axis.x(life["from_ms"])
                tip = f"{life['confirmed']:,} confirmed in epoch {life['epoch']}"
                parts.append(
                    f'<rect class="confirms" x="{x:.1f}" y="{top + _BAR}" width="{max(width, 2):.1f}" height="4">'
                    f"<title>{tip}</title></rect>"
                )
    return svg(bottom + _FOOT, parts, "State of each broker over time, and when it confirmed messages")


def _bar(state: dict[str, Any], x: float, top: float, width: float) -> list[str]:
    """One state of a member."""
    kind = state["state"] if state["state"] in ("live", "ready", "down") else "other"
    label = state["state"] if state["epoch"] is None else f"{state['state']}, epoch {state['epoch']}"
    place = f'x="{x:.1f}" y="{top}" width="{width:.1f}" height="{_BAR}"'
    parts = [f'<rect class="state {kind}" {place}><title>{escape(label)}</title></rect>']
    if width > 7.5 * len(label) + 10:
        parts.append(f'<text class="on" x="{x + 6:.1f}" y="{top + 16}">{escape(label)}</text>')
    return parts


def _marks(report: dict[str, Any], axis: Axis, bottom: float) -> list[str]:
    """The fault, and the stretch until clients were served again."""
    parts = []
    for fault in report["faults"]:
        at = fault["at_ms"]
        if not axis.shows(at):
            continue
        x = axis.x(at)
        until = report["recovered_ms"]
        if until is not None and until > at:
            width = max(axis.x(until) - x, 1)
            parts.append(
                f'<rect class="outage" x="{x:.1f}" y="{_HEAD}" width="{width:.1f}" height="{bottom - _HEAD}"/>'
            )
        parts.append(f'<line class="fault" x1="{x:.1f}" x2="{x:.1f}" y1="{_HEAD - 6}" y2="{bottom}"/>')
        anchor, shift = ("end", 4) if x > WIDTH * 0.6 else ("start", -4)
        text = escape(fault["text"])
        parts.append(f'<text class="fault" x="{x + shift:.1f}" y="{_HEAD - 11}" text-anchor="{anchor}">{text}</text>')
    return parts


def _rates(counts: Sequence[int], bucket: float, size: int) -> list[float]:
    """Messages a second, `size` buckets in one."""
    groups = [counts[start : start + size] for start in range(0, len(counts), size)]
    return [sum(group) * 1000 / (bucket * len(group)) for group in groups]


__all__ = ["Axis", "lives", "throughput"]
