"""Measures one change in a cluster of many nodes: bytes and processor time, with the product's own records.

    .venv/bin/python -m benchmarks.cluster_simulation [--write]

A full mesh without a network: a node tells every other one of its queues, then of one change, then of a digest as it
does every 30 s; each of them hears it. So a node's share grows with the number of nodes, and no faster.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from benchmarks.report import markdown, show, write_section
from pollux.cluster.routes.records import QueueRecord, Teller, Telling
from pollux.cluster.routes.table import RoutingTable

if TYPE_CHECKING:
    from collections.abc import Callable

SIZES = (3, 12, 50, 100)
QUEUES = 1000
CHANGES = 200
COLUMNS = (
    "nodes",
    "whole telling to one node",
    "a change, told to all: bytes",
    "a change: processor of who tells",
    "a change: processor of who hears",
    "digests in 30 s: bytes of a node",
    "digests: share of a core",
)
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Telling).decode


def timed(work: Callable[[], object]) -> float:
    """Return the processor time that something takes, seconds."""
    began = time.process_time()
    work()
    return time.process_time() - began


def measure(nodes: int) -> tuple[str, ...]:
    """Return a row of the table: one node of ``nodes`` tells, one of them hears."""
    me = bytes([1]) * 16
    records = {
        (me, f"queue.{number}"): QueueRecord(me, f"queue.{number}", 1 << 32, f"queue.{number}", False, (me,))
        for number in range(QUEUES)
    }
    tellers = [Teller() for _ in range(nodes - 1)]
    table = RoutingTable(bytes([2]) * 16)
    table.connected(me)
    told = [teller.all(records.values()) for teller in tellers]
    table.hear(me, told[0])
    whole = len(_encode(told[0]))
    size = 0
    heard: list[bytes] = []
    keys = list(records)

    def tell() -> None:
        nonlocal size
        for number in range(CHANGES):
            key = keys[number % QUEUES]
            before = records[key]
            records[key] = replace(before, version=before.version + 1, consumers=before.consumers + 1)
            for at, teller in enumerate(tellers):
                telling = teller.changes(records, (key,))
                data = _encode(telling)
                size += len(data)
                if not at:
                    heard.append(data)

    telling = timed(tell) / CHANGES
    hearing = timed(lambda: [table.hear(me, _decode(data)) for data in heard]) / CHANGES
    digests = [_encode(teller.digest()) for teller in tellers]
    again = timed(
        lambda: [(_encode(teller.digest()), _decode(data)) for teller, data in zip(tellers, digests, strict=True)]
    )
    return (
        f"{nodes}",
        f"{whole / 1024:,.0f} KiB",
        f"{size / CHANGES:,.0f}",
        f"{telling * 1e6:,.0f} us",
        f"{hearing * 1e6:,.0f} us",
        f"{sum(map(len, digests)):,}",
        f"{again / 30:.6%}",
    )


def main() -> None:
    """Measure and print; with --write also into the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    arguments = parser.parse_args()
    rows = [measure(nodes) for nodes in SIZES]
    show(COLUMNS, rows, f"a full mesh, {QUEUES:,} queues on each node", width=200)
    if arguments.write:
        write_section("cluster simulation", markdown(COLUMNS, rows))


if __name__ == "__main__":
    main()
