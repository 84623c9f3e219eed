"""Reads figures out of a drill's ledger: interruptions, counts for each producer, throughput. Pure.

Times are milliseconds of the ledger's clock.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

from pollux.drill.flows import Kind
from pollux.formats.ledger import Confirmed, Fault, Received, Sent

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from pollux.formats.ledger import Entry

#: Milliseconds of one point of the throughput series.
BUCKET = 100


def is_standing(producer: str) -> bool:
    """Whether a producer of the ledger made a backlog."""
    return producer.endswith(f".{Kind.BACKLOG}")


def interruption(entries: Iterable[Entry], producers: Collection[str], until: float | None = None) -> float | None:
    """For how long at most, from the first fault on, none of these producers got an answer.

    What a client feels: with something sent and not confirmed, the longest time until the next confirm. A live that
    leaves in an orderly way confirms for a while after it was asked to, so the time from the fault to the first
    confirm would be that of the old live; therefore the longest gap behind the fault. Gaps that begin after `until`
    (when all was well again: a failback may follow) do not count. None without a fault, or when nothing sent after it
    was ever confirmed.
    """
    fault: float | None = None
    waiting_since: float | None = None
    longest = 0.0
    recovered = False
    sent: dict[str, float] = {}
    outstanding: set[str] = set()
    for entry in sorted(entries, key=lambda one: one.time):
        if isinstance(entry, Fault):
            fault = entry.time if fault is None else fault
        elif isinstance(entry, Sent) and entry.producer in producers:
            sent[entry.id] = entry.time
            outstanding.add(entry.id)
            waiting_since = entry.time if waiting_since is None else waiting_since
        elif isinstance(entry, Confirmed) and entry.id in sent:
            outstanding.discard(entry.id)
            if fault is not None:
                recovered = recovered or sent[entry.id] >= fault
                began = max(entry.time if waiting_since is None else waiting_since, fault)
                if until is None or began <= until:
                    longest = max(longest, entry.time - began)
            waiting_since = entry.time if outstanding else None
    return longest if recovered else None


def counts_by_producer(entries: Collection[Entry], names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Counts for each producer, and the longest time without a confirm."""
    producers = {entry.id: entry.producer for entry in entries if isinstance(entry, Sent)}
    found: dict[str, dict[str, Any]] = {
        name: {"sent": 0, "confirmed": 0, "received": 0, "redelivered": 0, "longest_gap_ms": 0.0} for name in names
    }
    last: dict[str, float] = {}
    for entry in sorted(entries, key=lambda one: one.time):
        if isinstance(entry, Fault) or (row := found.get(producers.get(entry.id, ""))) is None:
            continue
        name = producers[entry.id]
        if isinstance(entry, Sent):
            row["sent"] += 1
        elif isinstance(entry, Received):
            row["received"] += 1
            row["redelivered"] += entry.redelivered
        elif isinstance(entry, Confirmed):
            row["confirmed"] += 1
            gap = entry.time - last.get(name, entry.time)
            row["longest_gap_ms"] = round(max(row["longest_gap_ms"], gap), 1)
            last[name] = entry.time
    return found


def standing(entries: Collection[Entry], lost: Iterable[tuple[str, str]]) -> dict[str, int]:
    """Return what became of the messages that stood in queues while the broker was broken; each counts once."""
    ids = {entry.id for entry in entries if isinstance(entry, Sent) and is_standing(entry.producer)}
    return {
        "confirmed": len(ids & {entry.id for entry in entries if isinstance(entry, Confirmed)}),
        "received": len(ids & {entry.id for entry in entries if isinstance(entry, Received)}),
        "lost": sum(name in ids for name, _ in lost),
    }


def lives(entries: Iterable[Entry]) -> list[dict[str, Any]]:
    """For each activation of a broker the time of its first and its last confirm, and their number."""
    found: dict[tuple[str, str, int | None], dict[str, Any]] = {}
    for entry in entries:
        if not isinstance(entry, Confirmed) or entry.epoch is None:
            continue
        life = found.setdefault(
            (entry.node, entry.broker, entry.epoch),
            {
                "node": entry.node,
                "broker": entry.broker,
                "epoch": entry.epoch,
                "from_ms": entry.time,
                "to_ms": entry.time,
                "confirmed": 0,
            },
        )
        life["from_ms"], life["to_ms"] = min(life["from_ms"], entry.time), max(life["to_ms"], entry.time)
        life["confirmed"] += 1
    return sorted(found.values(), key=lambda life: life["from_ms"])


def throughput(entries: Collection[Entry], began: float, ended: float) -> dict[str, Any]:
    """Messages confirmed (for each protocol) and received in each stretch of :data:`BUCKET` milliseconds.

    The backlog is left out: it comes and goes as fast as the broker can, before and after what is to be seen.
    """
    size = max(int((ended - began) // BUCKET) + 1, 1)
    protocols = {
        entry.id: entry.producer.partition(".")[0]
        for entry in entries
        if isinstance(entry, Sent) and not is_standing(entry.producer)
    }
    confirmed: dict[str, list[int]] = defaultdict(lambda: [0] * size)
    received = [0] * size
    for entry in entries:
        if isinstance(entry, Fault) or entry.id not in protocols:
            continue
        index = min(max(int((entry.time - began) // BUCKET), 0), size - 1)
        if isinstance(entry, Confirmed):
            confirmed[protocols[entry.id]][index] += 1
        elif isinstance(entry, Received):
            received[index] += 1
    return {"bucket_ms": BUCKET, "confirmed": dict(confirmed), "received": received}
