"""Reports: what was found comes first, marks do not overprint each other, a plot by a broker's clock has dates."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pollux_pipeline.jobs.base import Result
from pollux_pipeline.report import page, svg

if TYPE_CHECKING:
    from pathlib import Path

#: 2026-11-26 10:00:00 UTC.
MORNING = 1_795_687_200_000


def labels(plot: str) -> list[tuple[float, float, float]]:
    """Row, left and right end of the text of each mark; a character takes 6 units at least."""
    found = []
    for x, y, anchor, text in re.findall(
        r'<text x="([\d.]+)" y="([\d.]+)" text-anchor="(start|end)" class="fault">(.*?)<', plot
    ):
        length = len(text) * 6.0
        left = float(x) - (length if anchor == "end" else 0)
        found.append((float(y), left, left + length))
    return sorted(found)


def test_marks_do_not_overprint_each_other() -> None:
    marks = [(1000.0 * number, f"kill -9 of broker number {number}", svg.BAD) for number in range(12)]
    plot = svg.lines([0.0, 60_000.0], {"confirmed": [1.0, 2.0]}, marks, unit="messages/s", description="over time")
    shown = labels(plot)
    assert len(shown) >= 4
    for (row, _, end), (following, begin, _) in pairwise(shown):
        assert row != following or begin >= end
    for number in range(12):
        assert f"<title>kill -9 of broker number {number}</title>" in plot, "also where there is no room for its text"


def test_a_plot_by_the_clock_of_a_broker_has_times_of_day() -> None:
    times = [float(MORNING + 60_000 * number) for number in range(11)]
    plot = svg.lines(times, {"accepted": [1.0] * 11}, unit="messages/s", description="over time", dated=True)
    axis = re.findall(r'text-anchor="middle" class="tick">([^<]*)<', plot)
    assert axis[0] == "10:00:00"
    assert "10:05:00" in axis
    assert "2026-11-26, UTC" in plot
    assert ">seconds<" not in plot


def test_findings_are_the_first_section(tmp_path: Path) -> None:
    result = Result("reconcile", tmp_path, findings={"damage": 1})
    found: dict[str, Any] = {
        "damage": [{"file": "f", "offset": 0, "length": 1, "damage": "cut", "detail": "short"}],
        "waiting": [],
        "examples": [{"finding": "damage", "detail": "f:0: cut: short"}],
    }
    page.write_reconcile(tmp_path / "report.html", result, found)
    text = (tmp_path / "report.html").read_text()
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings[0].startswith("Findings")
    assert len(headings) == 3


def test_a_table_that_no_page_is_wide_enough_for_is_turned() -> None:
    rows = [{f"column_{number}": f"{row}.{number}" for number in range(20)} for row in range(6)]
    lines = re.findall(r"<tr>(.*?)</tr>", page.table(rows))
    assert {line.count("<td") + line.count("<th") for line in lines} == {5, 3}, "a name, and four rows, then two"
    assert "column 7</th><td>0.7</td><td>1.7</td><td>2.7</td><td>3.7</td>" in "".join(lines)
    assert page.table([]) == '<p class="soft">none</p>'


def test_a_table_that_fits_is_left_as_it_is() -> None:
    lines = re.findall(r"<tr>(.*?)</tr>", page.table([{"a": 1, "b": "x"}]))
    assert lines == ['<th class="n">a</th><th>b</th>', '<td class="n">1</td><td>x</td>']
