"""The cost of each part of a failover under pacemaker, as a table."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.failover_table import rows_of
from benchmarks.parts_table import COLUMNS, PARTS, rows
from benchmarks.report import markdown, read_section
from lab import parts as lab_parts


def trial(step: str, rto_ms: float | None, result: str = "clean", **parts: int) -> dict[str, Any]:
    return {"step": step, "result": result, "rto_ms": rto_ms, "parts": parts}


def test_a_row_for_each_fault_with_the_median_of_each_part() -> None:
    given = [
        trial("process", 700.4, told=300, promotion=200, address=100, clients=100),
        trial("process", 900.0, told=500, promotion=200, address=100, clients=100),
        trial("host", 4400.0, token=1000, consensus=1200, fencing=70, clients=130),
    ]
    process, host = rows(given, 0.25, "2026-11-26")
    assert process == (
        *("process", "2", "800", "900", "900"),
        *("-", "-", "400", "-", "-", "200", "100", "100"),
        *("0.2", "2026-11-26"),
    )
    assert host[:8] == ("host", "1", "4,400", "4,400", "4,400", "1,000", "1,200", "-")
    assert rows_of(markdown(COLUMNS, [process, host]), COLUMNS) == [process, host]


@pytest.mark.parametrize("broken", [trial("host", 4400.0, "broken"), trial("host", None)])
def test_a_trial_that_was_not_clean_is_no_figure(broken: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not clean: host"):
        rows([trial("process", 700.0), broken], 0.0, "2026-11-26")


def test_all_parts_that_the_lab_tells_are_in_the_table() -> None:
    said = (
        "A processor failed, forming new configuration",
        "A new membership (1.2) was formed. Members left: 1",
        "Requesting peer fencing (reboot) targeting passive-1",
        "Operation 'reboot' targeting passive-1 by passive-2: OK; passive-1 was terminated (reboot) by passive-2",
        "Initiating promote operation pollux_promote_0 on passive-2",
        "Result of promote operation for pollux on passive-2: ok",
        "Result of start operation for pollux-address on passive-2: ok",
    )
    lines = [f"{1000 + number}.0 passive-2 pacemaker: {text}" for number, text in enumerate(said, start=1)]
    found = lab_parts.parts(lines, 1_000_000.0, 8_000.0)
    assert tuple(found) == PARTS
    assert set(found.values()) == {1000}


def test_the_table_in_the_report_has_these_columns() -> None:
    rows_of(read_section("active-passive failover"), COLUMNS)
