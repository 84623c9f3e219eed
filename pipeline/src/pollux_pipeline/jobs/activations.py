"""The lives of brokers, as ledgers and audit trails tell of them, and what each change from one to the next cost.

There are few of them, so they are judged here and not by Spark (ADR 43).
"""

from __future__ import annotations

from collections import defaultdict
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from pyspark.sql import functions as f

from pollux_pipeline.jobs.base import table
from pollux_pipeline.jobs.evidence import SERVED, node_key

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from pollux_pipeline.jobs.timeline import Fault, Life

#: What is known of one life.
_COLUMNS = (
    "node string, epoch bigint, broker string, ledger int, first_ms double, last_ms double, confirmed bigint, "
    "fault_ms double, fault string, rto_ms double, lost bigint, affected_messages bigint, affected_producers bigint, "
    "affected_groups bigint"
)
#: What trails add, but for the key and the broker's name.
_NOTED = SERVED.split(", ", 3)[3]
#: Of the table `activations`.
COLUMNS = f"{_COLUMNS}, {_NOTED}"
#: node, ledger, time, detail: what is said of two lives.
SAID = "node string, ledger int, time double, detail string"


class Gap(NamedTuple):
    """When, by the clock of one ledger, a node had no broker that confirmed: before the life of `epoch`."""

    node: str
    epoch: int
    ledger: int
    start: float
    end: float


class _Told(NamedTuple):
    """Hold what one ledger tells of a life: `before` is the one before it, where the same ledger tells of that too."""

    ledger: int
    first: float
    last: float
    confirmed: int
    before: _Told | None


def two_lives(known: Sequence[Life]) -> list[tuple[Any, ...]]:
    """Findings (SAID): two activations of one node that confirmed in one epoch; by the clock of one ledger at once, or
    in the wrong order. What different ledgers tell of different epochs cannot be compared: see `uncompared`."""
    served: dict[tuple[str, int], dict[str, Life]] = defaultdict(dict)
    in_ledger: dict[tuple[str, int], list[Life]] = defaultdict(list)
    for life in known:
        brokers = served[life.node, life.epoch]
        brokers[life.broker] = min(life, brokers.get(life.broker, life), key=lambda one: one.ledger)
        in_ledger[life.node, life.ledger].append(life)
    found: list[tuple[Any, ...]] = []
    for _, brokers in sorted(served.items()):
        for a, b in combinations((brokers[name] for name in sorted(brokers)), 2):
            # A broker that one ledger has no name of may be the other's.
            if a.ledger == b.ledger or (a.broker and b.broker):
                found.append((a.node, b.ledger, b.first, f"{_both(a, b)} both confirmed in one epoch"))
    for _, lives in sorted(in_ledger.items()):
        for a, b in combinations(sorted(lives, key=lambda one: (one.first, one.last, one.broker, one.epoch)), 2):
            if a.epoch == b.epoch:
                continue
            if b.first < a.last:
                found.append((a.node, b.ledger, b.first, f"{_both(a, b)} confirmed at once"))
            elif b.epoch < a.epoch:
                found.append((a.node, b.ledger, b.first, f"{_both(a, b)} confirmed in the wrong order"))
    return found


def uncompared(known: Iterable[Life]) -> list[tuple[Any, ...]]:
    """Tell (SAID) of lives that came one after the other and stand in several ledgers, with several clocks."""
    words = "confirmed in several ledgers: whether at once is told within each of them, not between their clocks"
    said = []
    for node, epochs in sorted(_epochs(known).items()):
        for a, b in pairwise(sorted(epochs)):
            if len({life.ledger for life in (*epochs[a], *epochs[b])}) > 1:
                names = f"{_names(epochs[a])} (epoch {a}) and {_names(epochs[b])} (epoch {b})"
                said.append((node, None, None, f"{names} {words}"))
    return said


def _epochs(known: Iterable[Life]) -> dict[str, dict[int, list[Life]]]:
    """The lives of each node, by epoch."""
    found: dict[str, dict[int, list[Life]]] = defaultdict(lambda: defaultdict(list))
    for life in known:
        found[life.node][life.epoch].append(life)
    return found


def _names(lives: Iterable[Life]) -> str:
    return ", ".join(sorted({life.broker for life in lives}))


def _both(a: Life, b: Life) -> str:
    return f"{a.broker} (epoch {a.epoch}) and {b.broker} (epoch {b.epoch})"


def _told(epochs: Mapping[int, Sequence[Life]]) -> dict[int, dict[int, _Told]]:
    """Of one node: what each ledger tells of each of its epochs."""
    found: dict[int, dict[int, _Told]] = {}
    before: dict[int, _Told] = {}
    for epoch in sorted(epochs):
        told: dict[int, _Told] = {}
        for ledger in {life.ledger for life in epochs[epoch]}:
            lives = [life for life in epochs[epoch] if life.ledger == ledger]
            ends = min(life.first for life in lives), max(life.last for life in lives)
            told[ledger] = _Told(ledger, *ends, sum(life.confirmed for life in lives), before.get(ledger))
        found[epoch] = before = told
    return found


def gaps(known: Iterable[Life]) -> list[Gap]:
    """Between each life and the one before it, as each ledger that tells of both saw it."""
    return [
        Gap(node, epoch, ledger, one.before.last, one.first)
        for node, epochs in sorted(_epochs(known).items())
        for epoch, told in _told(epochs).items()
        for ledger, one in sorted(told.items())
        if one.before is not None and one.before.last < one.first
    ]


def of_ledgers(
    known: Iterable[Life],
    faults: Iterable[Fault],
    lost: Mapping[tuple[str, int], int],
    affected: Mapping[tuple[str, int], tuple[int, int, int]],
) -> list[tuple[Any, ...]]:
    """Return the cost of each activation: how long nothing was confirmed before it (RTO), what it confirmed and nobody
    received (RPO: `lost`), and whose messages were under way meanwhile (`affected`: messages, producers, groups).

    An RTO is measured by the clock of one ledger that tells of this life and of the one before: from the fault that led
    to it, where that ledger has one, else from the last confirm before. Of several the shortest counts: each is at
    least what it was.
    """
    noted: dict[int, list[Fault]] = defaultdict(list)
    for fault in faults:
        noted[fault.ledger].append(fault)
    rows = []
    for node, epochs in sorted(_epochs(known).items()):
        for epoch, told in _told(epochs).items():
            measured = [_measured(one, noted[one.ledger]) for one in told.values()]
            best = min(measured, key=_preferred)
            one, led, rto = best
            rows.append(
                (
                    *(node, epoch, _names(epochs[epoch]), one.ledger, one.first, one.last),
                    sum(life.confirmed for life in epochs[epoch]),
                    *((led.time, led.text) if led is not None else (None, None)),
                    *(rto, lost.get((node, epoch), 0), *affected.get((node, epoch), (0, 0, 0))),
                )
            )
    return rows


_Measured = tuple[_Told, "Fault | None", "float | None"]


def _measured(one: _Told, faults: Iterable[Fault]) -> _Measured:
    """The fault that led to a life, as one ledger tells of it, and how long it took from there."""
    if one.before is None:
        return one, None, None
    between = [fault for fault in faults if one.before.first < fault.time <= one.first]
    led = max(between, key=lambda fault: (fault.time, fault.text), default=None)
    if led is not None:
        return one, led, one.first - led.time
    # Two that confirmed at once left no gap.
    return one, None, one.first - one.before.last if one.before.last < one.first else None


def _preferred(measured: _Measured) -> tuple[Any, ...]:
    one, led, rto = measured
    return rto is None, led is None, rto or 0.0, -one.confirmed, one.ledger


def alone(told: Iterable[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Return each life as ledgers (`of_ledgers`) have it, where there are no audit trails."""
    nothing = (None,) * len(_NOTED.split(", "))
    return [(*row, *nothing) for row in told]


def joined(spark: SparkSession, told: Sequence[tuple[Any, ...]], served: DataFrame) -> DataFrame:
    """Return what ledgers (`of_ledgers`) and audit trails (`evidence.activations`) say of each life, in one row."""
    keyed = table(spark, told, _COLUMNS)
    both = keyed.withColumn("node_key", node_key("node")).join(served, ["node_key", "epoch"], "full")
    return (
        both.withColumns({"node": f.coalesce("node", "node_key"), "broker": f.coalesce("broker", "live_broker")})
        .select(*keyed.columns, *served.columns[2:])
        .drop("live_broker")
    )
