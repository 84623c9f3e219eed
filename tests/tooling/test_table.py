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


def test_only_what_is_between_the_marks_is_replaced_and_what_was_not_measured_anew_stays(tmp_path: Path) -> None:
    """Breaks when scenarios without a report on this machine lose their rows, or one that has some keeps an old one."""
    page = tmp_path / "page.md"
    head = "| scenario | fault |\n|---|---|\n"
    page.write_text(f"before\n{table.BEGIN}\n{head}| a | old |\n| b | old |\n| b | gone |\n{table.END}\nafter\n")
    table.write(page, f"{head}| b | new |\n| c | new |\n")
    expected = f"{head}| a | old |\n| b | new |\n| c | new |\n"
    assert page.read_text() == f"before\n{table.BEGIN}\n{expected}{table.END}\nafter\n"
    page.write_text("nothing")
    with pytest.raises(LabError, match="no place"):
        table.write(page, f"{head}| b | new |\n")
