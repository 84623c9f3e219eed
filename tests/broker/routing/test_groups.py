"""Message groups: who has which, and for how long."""

from __future__ import annotations

from .bench import Bench


def group(bench: Bench, *names: str | None, sequence: int = 0) -> None:
    for name in names:
        bench.add(1, group=name, group_sequence=sequence)


def test_a_group_stays_with_its_consumer() -> None:
    bench = Bench()
    first, second = bench.attach(), bench.attach()
    group(bench, "a", "b", "a", "b", "a", None)
    bench.dispatch()
    assert {1, 3, 5} <= set(first.ids)
    assert {2, 4} <= set(second.ids)


def test_a_group_waits_for_its_consumer() -> None:
    bench = Bench()
    first, second = bench.attach(credit=1), bench.attach()
    group(bench, "a", "a", "b")
    bench.dispatch()
    assert (first.ids, second.ids) == ([1], [3])
    first.credit = 1
    bench.dispatch()
    assert first.ids == [1, 2]


def test_a_group_moves_when_its_consumer_leaves() -> None:
    bench = Bench()
    first, second = bench.attach(credit=1), bench.attach()
    group(bench, "a", "a", "a")
    bench.dispatch()
    bench.queue.release(bench.queue.remove_consumer(first), failed=False)
    bench.dispatch()
    assert second.ids == [1, 2, 3]


def test_a_negative_sequence_closes_a_group() -> None:
    bench = Bench()
    first, second = bench.attach(credit=2), bench.attach(credit=0)
    group(bench, "a")
    group(bench, "a", sequence=-1)
    group(bench, "a")
    second.credit = 5
    bench.dispatch()
    assert first.ids == [1, 2]
    assert second.ids == [3], "it passed over the third while the group was the other's"


def test_group_buckets() -> None:
    bench = Bench(group_buckets=1)
    first, second = bench.attach(), bench.attach()
    group(bench, "a", "b", "c")
    bench.dispatch()
    assert sorted([first.ids, second.ids]) == [[], [1, 2, 3]]


def test_zero_group_buckets_switch_grouping_off() -> None:
    bench = Bench(group_buckets=0)
    first, second = bench.attach(), bench.attach()
    group(bench, "a", "a")
    bench.dispatch()
    assert (first.ids, second.ids) == ([1], [2])


def test_group_rebalance() -> None:
    bench = Bench(group_rebalance=True)
    first = bench.attach()
    group(bench, "a", "b")
    bench.dispatch()
    assert first.ids == [1, 2]
    second = bench.attach()
    group(bench, "a", "b")
    bench.dispatch()
    assert len(second.ids) == 1


def test_group_rebalance_with_a_pause() -> None:
    bench = Bench(group_rebalance=True, group_rebalance_pause_dispatch=True)
    first = bench.attach()
    group(bench, "a")
    bench.dispatch()
    second = bench.attach()
    group(bench, "a", "b")
    bench.dispatch()
    assert second.ids == []
    bench.queue.acknowledge(first.take())
    bench.dispatch()
    assert len(second.ids) == 1
    assert len(first.ids) == 1


def test_group_first_key() -> None:
    bench = Bench(group_first_key="first")
    consumer = bench.attach()
    group(bench, "a", "a", "b")
    bench.dispatch()
    assert [reference.notes for reference in consumer.references] == [{"first": True}, None, {"first": True}]
    first = consumer.references[0]
    bench.queue.release([first], failed=False)
    assert first.notes is None


def test_an_excluded_consumer_does_not_get_the_message_again() -> None:
    bench = Bench()
    first = bench.attach()
    bench.add(2)
    bench.dispatch()
    refused, kept = first.references
    assert not bench.queue.exclude(refused, first), "nobody else is there"
    second = bench.attach()
    assert bench.queue.exclude(refused, first)
    bench.queue.release([refused], failed=False)
    bench.dispatch()
    assert second.ids == [refused.message.id]
    assert len(first.references) == 2
    assert not bench.queue.exclude(refused, second), "everybody refused it"
    bench.queue.acknowledge([kept])
    bench.queue.acknowledge([refused])
    assert not bench.queue._dispatcher.excluded


def test_exclusions_end_with_their_consumer() -> None:
    bench = Bench()
    first = bench.attach()
    bench.add(1)
    bench.dispatch()
    bench.attach(credit=0)
    (refused,) = first.references
    assert bench.queue.exclude(refused, first)
    bench.queue.release([refused], failed=False)
    bench.queue.remove_consumer(first)
    assert not bench.queue._dispatcher.excluded


def test_the_table_of_groups_is_bounded() -> None:
    bench = Bench()
    bench.queue._dispatcher._groups.limit = bench.queue._dispatcher._groups.full_at = 100
    consumer = bench.attach(credit=10_000)
    other = bench.attach(credit=0)
    for i in range(1000):
        group(bench, str(i))
        bench.dispatch()
        bench.queue.acknowledge(consumer.take())
    assert len(bench.queue._dispatcher._groups.groups) <= 100
    assert sum(len(each.groups) for each in bench.queue._dispatcher.attached.values()) <= 100
    assert other.ids == []
