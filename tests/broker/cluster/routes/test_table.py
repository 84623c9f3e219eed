"""Paths to the queues of other nodes: the shortest connected one, and none that loops."""

from __future__ import annotations

from msgspec.structs import replace

from pollux.cluster.routes.records import QueueRecord, Teller
from pollux.cluster.routes.table import RoutingTable

ME, A, B, C = (letter * 16 for letter in (b"M", b"A", b"B", b"C"))


def record(owner: bytes, *path: bytes, name: str = "q", version: int = 1) -> QueueRecord:
    return QueueRecord(owner, name, version, "q", False, path or (owner,))


def table(hops: int = 4) -> RoutingTable:
    made = RoutingTable(ME, hops=hops)
    for peer in (A, B):
        made.connected(peer)
    return made


def test_the_shortest_connected_path_is_used() -> None:
    made = table()
    made.hear(A, Teller().all([record(C, A, B, C)]))
    made.hear(B, Teller().all([record(C, B, C)]))
    assert [(path.peer, path.distance) for path in made.paths((C, "q"))] == [(B, 2), (A, 3)]
    assert made.disconnected(B) == {(C, "q")}
    best = made.path((C, "q"))
    assert best is not None
    assert (best.peer, best.connected) == (A, True)
    made.disconnected(A)
    best = made.path((C, "q"))
    assert best is not None
    assert (best.peer, best.connected) == (B, False)


def test_a_path_with_a_broken_link_further_on_counts_as_not_connected() -> None:
    made = table()
    made.hear(A, Teller().all([replace(record(C, A, C), reachable=False)]))
    made.hear(B, Teller().all([record(C, B, A, C)]))
    best = made.path((C, "q"))
    assert best is not None
    assert best.peer == B


def test_a_peer_that_is_there_again_and_tells_the_same() -> None:
    made = table()
    made.hear(A, Teller().all([record(A)]))
    made.disconnected(A)
    made.connected(A)
    best = made.path((A, "q"))
    assert best is not None
    assert not best.connected
    assert made.hear(A, Teller().all([record(A)])) == {(A, "q")}
    best = made.path((A, "q"))
    assert best is not None
    assert best.connected


def test_what_is_further_than_max_hops_is_not_known() -> None:
    made = table(hops=1)
    made.hear(A, Teller().all([record(A), record(C, A, C)]))
    assert set(made.queues) == {(A, "q")}
    assert not RoutingTable(ME, hops=0).hear(A, Teller().all([record(A)]))


def test_a_queue_that_comes_back_is_left_out() -> None:
    made = table()
    assert made.hear(A, Teller().all([record(ME, A, ME), record(C, A, ME, B, C)])) == set()


def test_split_horizon() -> None:
    made = table()
    made.hear(A, Teller().all([record(A), record(C, A, C)]))
    assert made.told(A, (A, "q")) is None
    assert made.told(A, (C, "q")) is None
    assert made.told(C, (C, "q")) is None
    told = made.told(B, (C, "q"))
    assert told is not None
    assert told.path == (ME, A, C)


def test_a_path_around_nodes_that_were_visited() -> None:
    made = table()
    made.hear(A, Teller().all([record(C, A, C)]))
    made.hear(B, Teller().all([record(C, B, C)]))
    around = made.path((C, "q"), without=(A,))
    assert around is not None
    assert around.peer == B
    assert made.path((C, "q"), without=(A, B)) is None


def test_groups_and_forgetting() -> None:
    made = table()
    made.hear(A, Teller().all([record(A, name="x")]))
    made.hear(B, Teller().all([record(B, name="y")]))
    assert set(made.group(("q", ""))) == {(A, "x"), (B, "y")}
    version = made.version
    assert made.forget(A) == {(A, "x")}
    assert set(made.group(("q", ""))) == {(B, "y")}
    assert made.version > version
    made.forget(B)
    assert not list(made.groups)


def test_a_record_that_changes_its_address_changes_its_group() -> None:
    made, teller = table(), Teller()
    made.hear(A, teller.all([record(A)]))
    changed = replace(record(A, version=2), address="p")
    telling = teller.changes({changed.key: changed}, [changed.key])
    assert telling is not None
    made.hear(A, telling)
    assert not made.group(("q", ""))
    assert set(made.group(("p", ""))) == {(A, "q")}
