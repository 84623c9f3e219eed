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


def write(page: Path, text: str) -> None:
    """Replace what is between the marks of a page. Raises LabError when they are not there."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise LabError(f"{page} has no place for the table ({BEGIN} ... {END})")
    page.write_text(f"{before}{begin}\n{text}{end}{after}", encoding="utf-8")
