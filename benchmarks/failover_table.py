"""Decides for benchmarks/failover.py without any broker: when to kill, the statistics, and the table in the report."""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

COLUMNS = (
    "broker",
    "protocol",
    "messages in the journal",
    "trials",
    "p50 (ms)",
    "p99 (ms)",
    "max (ms)",
    "load average",
    "measured",
)
#: The first so many columns say what was measured: a new measurement of the same replaces the row.
IDENTITY = 3


class Circumstances(NamedTuple):
    """Hold what a row says beside its figures."""

    broker: str
    protocol: str
    #: How many were in the journal.
    messages: int
    #: Of the machine, over the minute before the pair was started.
    load: float
    #: The day, YYYY-MM-DD.
    day: str


def delays(trials: int, interval: float, seed: int = 1) -> list[float]:
    """Seconds to wait before each kill, so that the kills fall evenly over a backup's pause between looks at the lock.

    A killed broker is started again at once, and so every trial would meet the new backup at the same point of its
    `interval` (seconds), the best one or the worst one. The order is random and always the same.
    """
    found = [(number + 0.5) / trials * interval for number in range(trials)]
    random.Random(seed).shuffle(found)  # noqa: S311  (no secret)
    return found


def figures(times: Sequence[float]) -> tuple[str, ...]:
    """How many, p50, p99 and the longest; `times` in milliseconds, at least one."""
    ordered = sorted(times)
    p99 = ordered[min(int(len(ordered) * 0.99), len(ordered) - 1)]
    return (str(len(ordered)), *(f"{value:,.0f}" for value in (statistics.median(ordered), p99, ordered[-1])))


def row(about: Circumstances, times: Sequence[float]) -> tuple[str, ...]:
    """Return a row of the table; `times` in milliseconds, at least one."""
    return (
        about.broker,
        about.protocol,
        f"{about.messages:,}",
        *figures(times),
        f"{about.load:.1f}",
        about.day,
    )


def rows_of(markdown: str, columns: tuple[str, ...] = COLUMNS) -> list[tuple[str, ...]]:
    """Return the rows of a table in Markdown; ValueError when its columns are others."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    cells = [tuple(cell.strip() for cell in line.strip().strip("|").split("|")) for line in lines]
    if not cells:
        return []
    if cells[0] != columns:
        raise ValueError(f"the table has the columns {', '.join(cells[0])}, not {', '.join(columns)}")
    return cells[2:]


def merged(
    before: Sequence[tuple[str, ...]], new: Sequence[tuple[str, ...]], identity: int = IDENTITY
) -> list[tuple[str, ...]]:
    """The rows of a report after a run that may have measured only some of them: new ones replace their like."""
    found = {each[:identity]: each for each in before}
    found.update({each[:identity]: each for each in new})
    return list(found.values())
