"""Tables of benchmarks: on the terminal, and in docs/benchmarks.md between the marks of a section."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

REPORT = Path(__file__).resolve().parents[1] / "docs" / "benchmarks.md"


def show(columns: Sequence[str], rows: Iterable[Sequence[str]], title: str | None = None, width: int = 160) -> None:
    """Print a table, so many characters wide."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*row)
    Console(width=width).print(table)


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table as the report has it."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (columns, ("---",) * len(columns), *rows))


def section(name: str) -> tuple[str, re.Match[str]]:
    """Return the report and where a section of it stands, markers included; its first group is what is in between."""
    begin, end = f"<!-- {name}: written by benchmarks -->", f"<!-- end of {name} -->"
    report = REPORT.read_text()
    found = re.search(re.escape(begin) + "\n(.*?)" + re.escape(end), report, re.DOTALL)
    if not found:
        raise SystemExit(f"{REPORT} has no section {begin}")
    return report, found


def read_section(name: str) -> str:
    """Return what is between the markers of a section of the report."""
    return section(name)[1][1]


def write_section(name: str, text: str) -> None:
    """Replace what is between the markers of a section of the report."""
    report, found = section(name)
    REPORT.write_text(f"{report[: found.start(1)]}{text}\n{report[found.end(1) :]}")


def write_measured(name: str, words: str, load: float, table: str) -> None:
    """Replace a section by a table and how it was measured; ``load``: the load average before."""
    head = f"Measured {datetime.now(UTC):%Y-%m-%d}; {words}. Load average before: {load:.1f}."
    write_section(name, f"{head}\n\n{table}")
