"""Messages that go from node to node of a cluster are one message each, wherever they are stored on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.histories import History
from harness.journals import JournalFile
from harness.trails import TrailFile
from pollux.config.resolve import INTERNAL_PREFIX
from pollux.formats.audit import Event, Messages
from pollux.formats.audit import Run as Entry
from pollux.formats.forwards import OUTLETS, ROUTE_TO, Note, described, encode
from pollux.formats.ledger import Confirmed, Received, Sent
from pollux_pipeline.jobs.base import Run
from pollux_pipeline.jobs.reconcile import reconcile
from pollux_pipeline.jobs.sizing import sizing
from pollux_pipeline.sources.inputs import find

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

A, B, C = (letter * 16 for letter in (b"A", b"B", b"C"))
#: Queues of each node: `orders`, and those for the others.
ORDERS, OUT = 7, {A: 91, B: 92, C: 93}


class Node:
    """A node's journal. `take`: a message for its queue; `send`: one for another node, which waits still or is gone."""

    def __init__(self, directory: Path, name: bytes) -> None:
        self.name = name
        self.journal = JournalFile(directory / name[:1].decode() / "journal", node=name)
        self.number = 0

    def take(self, identity: bytes, *, consumed: bool = True) -> int:
        message = self.journal.message("orders", [ORDERS], duplicate_id=identity)
        if consumed:
            self.journal.acks(ORDERS, [message])
        return message

    def send(
        self,
        identity: bytes | None,
        to: bytes,
        *,
        owner: bytes = b"",
        visited: tuple[bytes, ...] = (),
        moved: int = 0,
        waits: bool = False,
        tx: int = 0,
    ) -> int:
        self.number += 1
        way = (*visited, self.name)
        acts_on = (4, 0, 0, None, 0, None, identity, None)
        note = Note(b"life" * 2, self.number, ("orders",), way, "orders", *acts_on, owner, bool(moved))
        address = f"{OUTLETS}my-cluster.{to.hex()}"
        copy = self.journal.message(address, [OUT[to]], annotations={ROUTE_TO: encode(note)}, tx=tx)
        if moved:
            self.journal.acks(ORDERS, [moved], tx)
        if not waits and not tx:
            self.journal.acks(OUT[to], [copy])
        return copy


def make_cluster(directory: Path) -> None:
    """Six messages: sent on, over two nodes, there and back, on its way, stored twice, and in no transaction."""
    a, b, c = (Node(directory, name) for name in (A, B, C))
    a.send(b"sent on", B)
    b.take(b"sent on")
    a.send(b"over two", B, owner=C)
    b.send(b"over two", C, visited=(A,))
    c.take(b"over two")
    first = a.take(b"there and back", consumed=False)
    copy = a.send(b"there and back", B, moved=first, tx=4711)
    a.journal.commit(4711, 2)
    a.journal.acks(OUT[B], [copy])
    second = b.take(b"there and back", consumed=False)
    b.send(b"there and back", A, moved=second)
    a.take(b"there and back")
    a.send(b"on its way", C, waits=True)
    a.take(b"twice")
    a.take(b"twice")
    a.send(b"never", B, tx=4712, waits=True)
    gone = a.take(b"moved and lost", consumed=False)
    a.send(b"moved and lost", B, moved=gone)
    for node in (a, b, c):
        node.journal.write()
        node.journal.close()


def make_ledger(path: Path) -> None:
    history = History()
    for at, name in enumerate(("sent on", "over two", "there and back", "on its way", "twice", "moved and lost")):
        history.entries += [Sent(at, name, "p"), Confirmed(at + 0.5, name, A.hex(), "a", 1)]
    for at, name in enumerate(("sent on", "over two", "there and back", "twice")):
        history.entries.append(Received(20 + at, name, "orders"))
    history.write(path)


def make_trail(directory: Path) -> None:
    """The first node's trail: it moved a message away, which is not the end of it."""
    trail = TrailFile(directory, broker="a", node_id=A.hex(), epoch=1)
    runs = [
        Entry(Event.ACCEPTED, 0, 1_795_219_200_000, "orders", "orders", None, 1, 0),
        Entry(Event.MOVED, 0, 1_795_219_200_001, "orders", "orders", f"{OUTLETS}my-cluster.{B.hex()}", 1, 0),
    ]
    trail.messages(Messages(runs, [5, 5], [10], [9], [(5, b"moved and lost")]), 1_795_219_200_000)
    trail.close()


def test_a_message_is_followed_over_the_nodes_that_it_went_through(spark: SparkSession, tmp_path: Path) -> None:
    make_cluster(tmp_path / "data")
    make_ledger(tmp_path / "data" / "ledger.txt")
    make_trail(tmp_path / "data" / "audit")
    result = reconcile(Run(spark, find([str(tmp_path / "data")]), tmp_path / "out"))

    findings = spark.read.parquet(str(tmp_path / "out" / "findings")).collect()
    assert {(row.finding, row.id) for row in findings} == {
        ("stuck", "on its way"),
        ("stored_twice", "twice"),
        ("lost", "moved and lost"),
    }
    (lost,) = (row for row in findings if row.finding == "lost")
    assert f"moved in queue orders, went to {OUTLETS}my-cluster" in lost.detail
    hops = spark.read.parquet(str(tmp_path / "out" / "hops")).collect()
    ways = {(row.id, "".join(chr(bytes.fromhex(node)[0]) for node in row.path), row.moved, row.waits) for row in hops}
    assert ways == {
        ("sent on", "AB", False, False),
        ("over two", "AB", False, False),
        ("over two", "ABC", False, False),
        ("there and back", "AB", True, False),
        ("there and back", "BA", True, False),
        ("on its way", "AC", False, True),
        ("moved and lost", "AB", True, False),
    }
    assert {row.id: row.owner for row in hops if row.node_id == A.hex()}["over two"] == C.hex()
    facts = {name: result.facts[name] for name in ("forwarded", "redistributed", "between_nodes")}
    assert facts == {"forwarded": 7, "redistributed": 3, "between_nodes": 1}
    assert "Ways between the nodes" in (tmp_path / "out" / "report.html").read_text()


def test_sizing_counts_a_message_where_its_queue_is_and_says_how_even_nodes_are(
    spark: SparkSession, tmp_path: Path
) -> None:
    make_cluster(tmp_path / "data")
    result = sizing(Run(spark, find([str(tmp_path / "data")]), tmp_path / "out"))
    nodes = {row.node_id: row for row in spark.read.parquet(str(tmp_path / "out" / "nodes")).collect()}
    columns = ("messages", "forwarded", "redistributed", "from_others")
    assert {name: tuple(getattr(nodes[name.hex()], column) for column in columns) for name in (A, B, C)} == {
        A: (5, 4, 2, 1),
        B: (2, 1, 1, 5),
        C: (1, 0, 0, 2),
    }
    assert nodes[A.hex()].share == pytest.approx(5 / 8 * 3)
    assert result.facts["messages"] == 8
    assert (result.facts["nodes"], result.facts["node_skew"]) == (3, pytest.approx(5 / 8 * 3))
    assert (result.facts["forwarded"], result.facts["redistributed"]) == (5, 3)
    addresses = spark.read.parquet(str(tmp_path / "out" / "addresses")).collect()
    assert [row.address for row in addresses] == ["orders"]


def test_a_note_is_read_where_there_is_one() -> None:
    assert f"{INTERNAL_PREFIX}sf." == OUTLETS
    for other in (None, "text", b"", b"\xc1", encode(["too", "short"])):
        assert described(other) is None
    short = [b"life", 3, ["q"], [A], "orders", 4, 0, 0, None, 0, None, None, None]
    found = described(encode(short))
    assert found is not None
    assert (found["number"], found["visited"], found["owner"], found["moved"]) == (3, [A.hex()], None, False)
