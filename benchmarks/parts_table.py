"""The table of what each part of a failover under pacemaker costs, from the summaries of the lab's drills. Pure."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from benchmarks.failover_table import figures

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: As molecule/lab/parts.py names them, in the order in which they follow each other.
PARTS = ("token", "consensus", "told", "fencing", "controller", "promotion", "address", "clients")
COLUMNS = ("fault", "trials", "p50 (ms)", "p99 (ms)", "max (ms)", *PARTS, "load average", "measured")


def rows(summaries: Sequence[Mapping[str, Any]], load: float, day: str) -> list[tuple[str, ...]]:
    """A row for each step by its name: its times, and the median of each part (- where it does not happen).

    `load` is the machine's average before; `day` YYYY-MM-DD. ValueError for a trial that was not clean.
    """
    if broken := [one["step"] for one in summaries if one["result"] != "clean" or one["rto_ms"] is None]:
        raise ValueError(f"not clean: {', '.join(broken)}")
    found = []
    for step in dict.fromkeys(one["step"] for one in summaries):
        trials = [one for one in summaries if one["step"] == step]
        cells = []
        for part in PARTS:
            times = [one["parts"][part] for one in trials if part in one.get("parts", {})]
            cells.append(f"{statistics.median(times):,.0f}" if times else "-")
        found.append((step, *figures([one["rto_ms"] for one in trials]), *cells, f"{load:.1f}", day))
    return found
