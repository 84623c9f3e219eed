"""Counts the lines of ledgers by stretches of time: one query, whose rows the driver judges.

There are some hundred rows for each ledger and life of a broker, however many lines there are (ADR 43).
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from pyspark.sql import functions as f

from pollux_pipeline.sources.ledger import numbered, rough_span

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pyspark.sql import DataFrame, Row

#: Stretches of time that a plot has, and ms that one has at least.
_STRETCHES, _SHORTEST = 200, 100


class Life(NamedTuple):
    """An activation that confirmed something, as one ledger tells of it; `first` and `last` are of this one's clock."""

    node: str
    broker: str
    epoch: int
    ledger: int
    first: float
    last: float
    confirmed: int


class Fault(NamedTuple):
    """Hold what whoever did the drill noted."""

    ledger: int
    time: float
    text: str


class Stretch(NamedTuple):
    """A row of the table `throughput`."""

    ledger: int
    at_ms: float
    width_ms: int
    confirmed: int
    received: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """Hold what was counted."""

    lives: list[Life] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    throughput: list[Stretch] = field(default_factory=list)
    #: Name, confirmed, received.
    brokers: list[tuple[str, int, int]] = field(default_factory=list)
    #: The first and the last moment of each ledger.
    spans: dict[int, tuple[float, float]] = field(default_factory=dict)
    #: How many lines are no entries.
    malformed: int = 0

    @property
    def nodes(self) -> dict[str, str]:
        """The node of each broker that confirmed for one node only: what else it did was of that node."""
        found: dict[str, set[str]] = defaultdict(set)
        for life in self.lives:
            found[life.broker].add(life.node)
        return {broker: min(nodes) for broker, nodes in found.items() if broker and len(nodes) == 1}


def width_of(span: float) -> int:
    """How long (ms) the stretches of a time of `span` ms are."""
    return max(math.ceil(span / _STRETCHES / _SHORTEST) * _SHORTEST, _SHORTEST)


def counted(lines: DataFrame, paths: Sequence[str]) -> Timeline:
    """Count the lines (as of `read_ledgers`) of the ledgers at `paths`."""
    steps = {ledger: width_of(rough_span(path)) for ledger, path in numbered(paths)}
    step = f.get(f.array(*(f.lit(float(steps[ledger])) for ledger in sorted(steps))), f.col("ledger") - 1)
    confirm, fault = f.col("kind") == "C", f.col("kind") == "F"
    answer = f.col("kind").isin("C", "R")
    groups = lines.groupBy(
        "ledger",
        "kind",
        f.when(confirm, f.col("node")).alias("node"),
        f.when(answer, f.col("broker")).alias("broker"),
        f.when(confirm, f.col("epoch")).alias("epoch"),
        f.when(answer, f.floor(f.col("time") / step)).alias("step"),
        f.when(fault, f.col("time")).alias("moment"),
        f.when(fault, f.col("text")).alias("text"),
    )
    rows = groups.agg(f.min("time").alias("first"), f.max("time").alias("last"), f.count("*").alias("n")).collect()
    return _timeline(rows, steps)


def _timeline(rows: Iterable[Row], steps: dict[int, int]) -> Timeline:
    lives: dict[tuple[str, str, int, int], list[tuple[float, float, int]]] = defaultdict(list)
    spans: dict[int, list[float]] = defaultdict(list)
    brokers: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    by_step: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    faults: list[Fault] = []
    malformed = 0
    for row in rows:
        if row.kind is None:
            malformed += row.n
            continue
        if row.kind == "F":
            faults += [Fault(row.ledger, row.moment, row.text)] * row.n
            continue
        spans[row.ledger] += (row.first, row.last)
        if row.kind == "S":
            continue
        brokers[row.broker or "(unknown)"][row.kind == "R"] += row.n
        by_step[row.ledger, row.step][row.kind == "R"] += row.n
        if row.epoch is not None:
            lives[row.node, row.broker, row.epoch, row.ledger].append((row.first, row.last, row.n))
    ends = {ledger: (min(times), max(times)) for ledger, times in spans.items()}
    return Timeline(
        [
            Life(*key, min(first for first, *_ in told), max(last for _, last, _ in told), sum(n for *_, n in told))
            for key, told in sorted(lives.items())
        ],
        sorted(faults),
        _throughput(by_step, steps, ends),
        sorted((broker, confirmed, received) for broker, (confirmed, received) in brokers.items()),
        ends,
        malformed,
    )


def _throughput(
    by_step: dict[tuple[int, int], list[int]], steps: dict[int, int], spans: dict[int, tuple[float, float]]
) -> list[Stretch]:
    """Stretches of the width that the time really asks for, which is a multiple of the one that was counted by."""
    factors = {
        ledger: math.ceil(width_of(spans[ledger][1] - spans[ledger][0]) / steps[ledger]) for ledger, _ in by_step
    }
    wide: dict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
    for (ledger, step), (confirmed, received) in by_step.items():
        sums = wide[ledger, step // factors[ledger]]
        sums[0] += confirmed
        sums[1] += received
    widths = {ledger: factor * steps[ledger] for ledger, factor in factors.items()}
    return [
        Stretch(ledger, float(at * widths[ledger]), widths[ledger], *counts)
        for (ledger, at), counts in sorted(wide.items())
    ]
