"""The table of recovery times says what the reports say."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from lab import table
from lab.places import LabError

if TYPE_CHECKING:
    from pathlib import Path


def step(rto: float | None, **different: Any) -> dict[str, Any]:
    """A summary as lab.drill writes it."""
    return {"step": "kill", "result": "clean", "confirmed": 10, "lost": 0, "rto_ms": rto, "takeover_ms": 7} | different


def test_each_fault_has_a_row_with_median_and_worst(tmp_path: Path) -> None:
    place = tmp_path / "default" / "crashes"
    place.mkdir(parents=True)
    steps = [step(100), step(900), step(200), step(None, step="quiet", takeover_ms=None), step(5, result="broken")]
    (place / "summary.json").write_text(json.dumps(steps))
    rows = table.table(table.summaries(tmp_path)).splitlines()
    assert rows[2] == "| default | kill | 3 | 200 ms / 900 ms | 7 ms / 7 ms | 30 | 0 |"
    assert rows[3] == "| default | quiet | 1 | - | - | 10 | 0 |"
    assert len(rows) == 4


def test_only_what_is_between_the_marks_is_replaced(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    table.write(page, "new\n")
    assert page.read_text() == f"before\n{table.BEGIN}\nnew\n{table.END}\nafter\n"
    page.write_text("nothing")
    with pytest.raises(LabError, match="no place"):
        table.write(page, "new\n")
