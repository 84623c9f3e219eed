"""Nodes tell each other of their queues: nothing twice, nothing missed unnoticed, nothing old believed."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from pollux.cluster.routes.records import Key, Listener, QueueRecord, Teller

NODE = b"A" * 16


def record(name: str = "q", version: int = 1, *, consumers: int = 0, multicast: bool = False) -> QueueRecord:
    return QueueRecord(NODE, name, version, "q", multicast, (NODE,), consumers=consumers)


def by_key(*records: QueueRecord) -> dict[Key, QueueRecord]:
    return {one.key: one for one in records}


def test_anycast_queues_of_an_address_are_one_group_multicast_ones_are_by_name() -> None:
    assert record("a").group == record("b").group
    assert record("a", multicast=True).group != record("b", multicast=True).group


def test_only_what_changed_is_told() -> None:
    teller, listener = Teller(), Listener()
    assert listener.hear(teller.all([record("a"), record("b")])) == {(NODE, "a"), (NODE, "b")}
    assert teller.changes(by_key(record("a")), [(NODE, "a")]) is None
    telling = teller.changes(by_key(record("a", 2, consumers=1)), [(NODE, "a"), (NODE, "b")])
    assert telling is not None
    assert listener.hear(telling) == {(NODE, "a"), (NODE, "b")}
    assert set(listener.records) == {(NODE, "a")}
    assert not listener.missed


def test_a_peer_of_0_1_0_agrees_about_what_it_was_told() -> None:
    """Breaks when what it does not know of a record is in the digest: everything would be told to it anew, for ever."""
    home = replace(record(version=2), home=True, user="ann")
    teller, plain = Teller(), Teller()
    old = msgspec.msgpack.decode(msgspec.msgpack.encode(home))[:13]
    known_there = msgspec.convert(old, QueueRecord)
    assert not known_there.home
    assert teller.all([home]).digest == plain.all([known_there]).digest
    telling = teller.changes(by_key(replace(home, version=3, home=False, user=None)), [home.key])
    assert telling is not None, "another version is told"


def test_a_node_before_no_local_was_told_reads_what_is_told_and_is_read() -> None:
    subscription = replace(record(version=2), home=True, user="ann", no_local=True)
    told = msgspec.msgpack.encode(subscription)
    assert msgspec.msgpack.decode(told, type=QueueRecord) == subscription
    listed = msgspec.msgpack.decode(told)
    assert listed[13:] == [True, "ann", True], "what is added comes at the end"
    assert msgspec.convert(listed[:15], QueueRecord) == replace(subscription, no_local=False)
    teller, plain = Teller(), Teller()
    assert teller.all([subscription]).digest == plain.all([replace(subscription, no_local=False)]).digest


def test_a_missing_telling_is_noticed_and_nothing_counts_until_all_was_told_again() -> None:
    teller, listener = Teller(), Listener()
    listener.hear(teller.all([record()]))
    teller.changes(by_key(record(version=2)), [(NODE, "q")])
    late = teller.changes(by_key(record(version=3, consumers=3)), [(NODE, "q")])
    assert late is not None
    assert listener.hear(late) == set()
    assert "after 1" in listener.missed
    assert listener.hear(teller.all([record(version=3, consumers=3)])) == {(NODE, "q")}
    assert not listener.missed


def test_a_telling_that_is_heard_twice_counts_once() -> None:
    teller, listener = Teller(), Listener()
    listener.hear(teller.all([]))
    telling = teller.changes(by_key(record()), [(NODE, "q")])
    assert telling is not None
    assert listener.hear(telling)
    assert listener.hear(telling) == set()
    assert not listener.missed


def test_an_old_version_is_not_believed() -> None:
    teller, listener = Teller(), Listener()
    listener.hear(teller.all([record(version=5, consumers=1)]))
    telling = teller.changes(by_key(record(version=4)), [(NODE, "q")])
    assert telling is not None
    assert listener.hear(telling) == set()
    assert listener.records[NODE, "q"].consumers == 1
    assert "version 4 after 5" in listener.missed


def test_the_digest_finds_what_went_wrong_unnoticed() -> None:
    teller, listener = Teller(), Listener()
    listener.hear(teller.all([record(consumers=1)]))
    listener.hear(teller.digest())
    assert not listener.missed
    listener.hear(replace(teller.digest(), digest=0))
    assert "digest" in listener.missed


def test_after_a_link_was_down_everything_is_told_anew() -> None:
    listener = Listener()
    listener.hear(Teller().all([record("a"), record("b")]))
    listener.disconnected()
    assert set(listener.records) == {(NODE, "a"), (NODE, "b")}
    assert listener.hear(Teller().all([record("b")])) == {(NODE, "a")}


STEPS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.sampled_from(["keep", "lose", "gone"])))


@given(STEPS)
def test_whatever_is_lost_the_listener_ends_with_what_is_so(steps: list[tuple[str, int, str]]) -> None:
    teller, listener, now = Teller(), Listener(), dict[Key, QueueRecord]()
    listener.hear(teller.all([]))
    for version, (name, consumers, what) in enumerate(steps, 1):
        one = record(name, version, consumers=consumers)
        if what == "gone":
            now.pop(one.key, None)
        else:
            now[one.key] = one
        telling = teller.changes(now, [one.key])
        if telling is not None and what != "lose":
            listener.hear(telling)
    listener.hear(teller.digest())
    if listener.missed:
        listener.hear(teller.all(now.values()))
    assert listener.records == now


@pytest.mark.parametrize("times", [1, 2])
def test_an_unknown_queue_that_is_gone_is_nothing_new(times: int) -> None:
    teller = Teller()
    teller.all([])
    for _ in range(times):
        assert teller.changes({}, [(NODE, "q")]) is None
