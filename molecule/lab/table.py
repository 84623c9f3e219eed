"""The recovery times in the reports of drills as a table, for docs/benchmarks.md. Pure but for files."""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from lab.places import LabError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

BEGIN, END = "<!-- lab: written by `molecule/lab table --write` -->", "<!-- end of lab -->"


def summaries(reports: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    """Scenario and summary of every step that was carried out last."""
    for path in sorted(reports.glob("*/*/summary.json")):
        for one in json.loads(path.read_text(encoding="utf-8")):
            yield path.parent.parent.name, one


def _milliseconds(values: Sequence[float]) -> str:
    if not values:
        return "-"
    middle = f"{statistics.median(values):,.0f} ms"
    return middle if len(values) == 1 else f"{middle} / {max(values):,.0f} ms"


def table(found: Iterable[tuple[str, dict[str, Any]]]) -> str:
    """A row for each step of each scenario: how often, and the times; a step that was not clean is in no table."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for scenario, one in found:
        if one["result"] == "clean":
            rows[scenario, one["step"]].append(one)
    lines = [
        "| scenario | fault | runs | without a confirm (median / worst) | another member live | confirmed | lost |",
        "|---|---|---|---|---|---|---|",
    ]
    for (scenario, step), runs in rows.items():
        waits = [each["rto_ms"] for each in runs if each["rto_ms"] is not None]
        takeovers = [each["takeover_ms"] for each in runs if each["takeover_ms"] is not None]
        confirmed, lost = (sum(each[name] for each in runs) for name in ("confirmed", "lost"))
        cells = [scenario, step, str(len(runs)), _milliseconds(waits), _milliseconds(takeovers), f"{confirmed:,}"]
        lines.append(f"| {' | '.join([*cells, str(lost)])} |")
    return "\n".join(lines) + "\n"


def _by_scenario(text: str) -> tuple[list[str], dict[str, list[str]]]:
    """The two lines above a table's rows, and its rows by the scenario in their first column."""
    lines = text.strip().splitlines()
    rows: dict[str, list[str]] = defaultdict(list)
    for line in lines[2:]:
        rows[line.split("|")[1].strip()].append(line)
    return lines[:2], rows


def write(page: Path, text: str) -> None:
    """Put a table between the marks of a page; rows of scenarios that it does not have are kept.

    Raises LabError when the marks are not there.
    """
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    old, end, after = rest.partition(END)
    if not begin or not end:
        raise LabError(f"{page} has no place for the table ({BEGIN} ... {END})")
    head, rows = _by_scenario(text)
    rows = _by_scenario(old)[1] | rows
    lines = head + [row for scenario in sorted(rows) for row in rows[scenario]]
    page.write_text("\n".join([before + begin, *lines, end + after]), encoding="utf-8")
