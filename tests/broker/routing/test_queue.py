"""Queues: order, sharing between consumers, and what becomes of a delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pollux.config.address_settings import AddressSettings
from pollux.errors import LimitError
from pollux.routing.redelivery import RedeliveryPolicy

from .bench import Bench, Recorder, ids

if TYPE_CHECKING:
    from pollux.routing.reference import MessageReference


def test_first_in_first_out() -> None:
    bench = Bench()
    bench.add(5)
    consumer = bench.attach(credit=3)
    bench.dispatch()
    assert consumer.ids == [1, 2, 3]
    assert consumer.credit == 0
    assert bench.queue.waiting == 2
    assert bench.queue.delivering == 3
    assert bench.queue.message_count == 5
    consumer.credit = 10
    bench.dispatch()
    assert consumer.ids == [1, 2, 3, 4, 5]


def test_higher_priorities_first() -> None:
    bench = Bench()
    for priority in (0, 9, 4, 9, 5):
        bench.add(1, priority=priority)
    consumer = bench.attach()
    bench.dispatch()
    assert consumer.ids == [2, 4, 5, 3, 1]


def test_round_robin_gives_equal_shares_in_turn() -> None:
    bench = Bench()
    consumers = [bench.attach() for _ in range(3)]
    bench.add(7)
    bench.dispatch()
    assert [consumer.ids for consumer in consumers] == [[1, 4, 7], [2, 5], [3, 6]]
    bench.add(1)
    bench.dispatch()
    assert consumers[1].ids == [2, 5, 8], "the turn goes on where it ended"


def test_round_robin_of_single_messages() -> None:
    bench = Bench()
    consumers = [bench.attach() for _ in range(3)]
    for _ in range(6):
        bench.add(1)
        bench.dispatch()
    assert [len(consumer.ids) for consumer in consumers] == [2, 2, 2]


def test_unequal_credit() -> None:
    bench = Bench()
    small, large = bench.attach(credit=1), bench.attach(credit=10)
    bench.add(6)
    bench.dispatch()
    assert small.ids == [1]
    assert large.ids == [2, 3, 4, 5, 6]


def test_consumer_priority() -> None:
    bench = Bench()
    low, high = bench.attach(priority=0), bench.attach(priority=5, credit=2)
    bench.add(3)
    bench.dispatch()
    assert high.ids == [1, 2]
    assert low.ids == [3]


def test_a_large_credit_is_used_in_parts() -> None:
    bench = Bench()
    consumer = bench.attach(credit=5000)
    bench.add(2500)
    assert bench.queue.dispatch()
    assert len(consumer.ids) == 1000
    bench.dispatch()
    assert consumer.ids == list(range(1, 2501))
    assert not bench.queue.dispatch()


def test_a_batch_is_bounded_in_bytes() -> None:
    """A session that does not keep up says so between batches: credit alone must not buy 50 MB at once."""
    bench = Bench()
    consumer = bench.attach(credit=1000)
    bench.add(500, size=100_000)
    assert bench.queue.dispatch()
    assert 5 <= len(consumer.ids) <= 10, "one MiB"
    consumer.credit = 0
    assert not bench.queue.dispatch()
    consumer.credit = 1000
    bench.dispatch()
    assert consumer.ids == list(range(1, 501))


def test_a_batch_of_unequal_messages_is_bounded_in_bytes() -> None:
    bench = Bench()
    consumer = bench.attach(credit=2000)
    bench.add(500, size=100_000)
    bench.add(100_000, size=100)
    assert bench.queue.dispatch()
    assert len(consumer.ids) <= 83, "the largest fills 8 MiB"


def test_a_message_beyond_every_batch_is_delivered() -> None:
    bench = Bench()
    consumer = bench.attach(credit=10)
    bench.add(2, size=20_000_000)
    bench.dispatch()
    assert consumer.ids == [1, 2]


def test_a_large_credit_keeps_its_priority() -> None:
    bench = Bench()
    low, high = bench.attach(credit=5000), bench.attach(credit=5000, priority=1)
    bench.add(2500)
    bench.dispatch()
    assert len(high.ids) == 2500
    assert low.ids == []
    browser = bench.attach(browsing=True, credit=5000)
    bench.queue.release(high.take(), failed=False)
    high.credit = 0
    low.credit = 0
    assert bench.queue.dispatch()
    bench.dispatch()
    assert len(browser.ids) == 2500


def test_no_credit_no_delivery() -> None:
    bench = Bench()
    consumer = bench.attach(credit=0)
    bench.add(1)
    bench.dispatch()
    assert consumer.ids == []


def test_pause_and_resume() -> None:
    bench = Bench()
    consumer = bench.attach()
    bench.queue.pause()
    bench.add(2)
    bench.dispatch()
    assert consumer.ids == []
    bench.queue.resume()
    bench.dispatch()
    assert consumer.ids == [1, 2]


def test_acknowledge() -> None:
    bench = Bench()
    consumer = bench.attach()
    bench.add(3)
    bench.dispatch()
    first = consumer.take(2)
    assert bench.queue.acknowledge(first) == first
    assert bench.queue.delivering == 1
    assert bench.queue.counters.acknowledged == 2
    assert bench.queue.bytes == consumer.references[0].message.size
    assert bench.queue.acknowledge(first) == [], "twice changes nothing"
    assert ids(bench.queue.acknowledge([first[0], *consumer.references])) == [3]
    assert bench.queue.bytes == 0
    assert bench.queue.message_count == 0


def test_released_messages_return_to_their_places() -> None:
    bench = Bench()
    one, other = bench.attach(credit=2), bench.attach(credit=2)
    bench.add(6)
    bench.dispatch()
    assert (one.ids, other.ids) == ([1, 3], [2, 4])
    assert bench.queue.release(one.take(), failed=False) == []
    assert bench.waiting_ids() == [1, 3, 5, 6]
    assert bench.queue.release(other.take(), failed=False) == []
    assert bench.waiting_ids() == [1, 2, 3, 4, 5, 6]
    one.credit = 10
    bench.dispatch()
    assert one.ids == [1, 2, 3, 4, 5, 6]
    assert all(reference.redelivered for reference in one.references[:4])
    assert not one.references[4].redelivered
    assert [reference.delivery_count for reference in one.references[:4]] == [0] * 4


def test_a_failed_delivery_counts_until_the_message_is_dead() -> None:
    bench = Bench(AddressSettings(max_delivery_attempts=3))
    consumer = bench.attach()
    bench.add(2)
    for attempt in (1, 2, 3):
        bench.dispatch()
        [first, second] = consumer.take()
        dead = bench.queue.release([first], failed=True)
        assert first.delivery_count == attempt
        bench.queue.release([second], failed=False)
        if attempt < 3:
            assert dead == []
    assert ids(dead) == [1]
    assert bench.waiting_ids() == [2]
    assert bench.queue.counters.killed == 1
    assert bench.queue.bytes == second.message.size


@pytest.mark.parametrize("attempts", [-1, 0])
def test_delivery_attempts_without_limit(attempts: int) -> None:
    bench = Bench(AddressSettings(max_delivery_attempts=attempts))
    consumer = bench.attach()
    bench.add(1)
    for _ in range(20):
        bench.dispatch()
        assert bench.queue.release(consumer.take(), failed=True) == []


def test_kill() -> None:
    bench = Bench()
    consumer = bench.attach()
    bench.add(2)
    bench.dispatch()
    assert ids(bench.queue.kill(consumer.take(1))) == [1]
    assert bench.queue.counters.killed == 1
    assert bench.queue.message_count == 1


def test_a_consumer_leaves() -> None:
    bench = Bench()
    leaving, staying = bench.attach(credit=2), bench.attach(credit=1)
    bench.add(4)
    bench.dispatch()
    held = bench.queue.remove_consumer(leaving)
    assert ids(held) == [1, 3]
    assert bench.queue.delivering == 3, "until the caller says what becomes of them"
    assert bench.queue.acknowledge(held[:1]) == held[:1]
    bench.queue.release(held[1:], failed=False)
    staying.credit = 5
    bench.dispatch()
    assert staying.ids == [2, 3, 4]
    assert bench.queue.remove_consumer(leaving) == []


def test_max_consumers() -> None:
    bench = Bench(max_consumers=1)
    first = bench.attach()
    with pytest.raises(LimitError, match="allows 1 consumers"):
        bench.attach()
    bench.attach(browsing=True)
    bench.queue.remove_consumer(first)
    bench.attach()


def test_a_consumer_attaches_once() -> None:
    bench = Bench()
    consumer = bench.attach()
    with pytest.raises(ValueError, match="already attached"):
        bench.attach(consumer)


def test_many_messages_come_back_out_of_order() -> None:
    bench = Bench()
    consumers = [bench.attach(credit=10_000) for _ in range(4)]
    bench.add(40_000)
    bench.dispatch()
    for consumer in consumers:
        held = bench.queue.remove_consumer(consumer)
        assert len(held) == 10_000
        bench.queue.release(list(reversed(held)), failed=False)
    late = bench.attach(credit=40_000)
    bench.dispatch()
    assert late.ids == list(range(1, 40_001))


class Broken(Recorder):
    def deliver(self, references: list[MessageReference]) -> None:
        raise OSError("gone")


def test_a_broken_consumer_does_not_keep_others_from_their_messages() -> None:
    bench = Bench()
    broken = Broken()
    bench.attach(broken)
    sound = bench.attach()
    bench.add(4)
    with pytest.raises(OSError, match="gone"):
        bench.queue.dispatch()
    assert sound.ids == [2, 4]
    assert ids(bench.queue.remove_consumer(broken)) == [1, 3]


def test_no_local() -> None:
    bench = Bench()
    own = bench.attach(origin=5, no_local=True)
    bench.add(1, origin=5)
    bench.add(1, origin=6)
    bench.dispatch()
    assert own.ids == [2]
    other = bench.attach(origin=6)
    bench.dispatch()
    assert other.ids == [1]


def test_exclusive() -> None:
    bench = Bench(exclusive=True)
    first, second = bench.attach(credit=2), bench.attach()
    bench.add(4)
    bench.dispatch()
    assert (first.ids, second.ids) == ([1, 2], [])
    held = bench.queue.remove_consumer(first)
    bench.queue.release(held, failed=False)
    bench.dispatch()
    assert second.ids == [1, 2, 3, 4]


def test_consumers_before_dispatch() -> None:
    bench = Bench(consumers_before_dispatch=2, delay_before_dispatch=-1)
    first = bench.attach(now=1000)
    bench.add(2)
    bench.dispatch(9_999_999)
    assert first.ids == []
    second = bench.attach(now=2000)
    bench.dispatch(2000)
    assert (first.ids, second.ids) == ([1], [2])
    bench.queue.remove_consumer(second)
    bench.add(1)
    bench.dispatch(2001)
    assert first.ids == [1, 3], "once started it goes on"
    bench.queue.remove_consumer(first)
    third = bench.attach(now=3000)
    bench.add(1)
    bench.dispatch(3000)
    assert third.ids == [], "it starts anew when all left"


def test_delay_before_dispatch() -> None:
    bench = Bench(consumers_before_dispatch=2, delay_before_dispatch=500)
    first = bench.attach(now=1000)
    bench.add(1)
    assert bench.queue.next_due() == 1500
    bench.dispatch(1499)
    assert first.ids == []
    bench.dispatch(1500)
    assert first.ids == [1]
    assert bench.queue.next_due() == 0


# -- selectors


def test_selectors() -> None:
    bench = Bench()
    red = bench.attach(selector="color = 'red'")
    blue = bench.attach(selector="color = 'blue'")
    for color in ("red", "blue", "green", "red"):
        bench.add(1, properties={"color": color})
    bench.dispatch()
    assert (red.ids, blue.ids) == ([1, 4], [2])
    rest = bench.attach()
    bench.dispatch()
    assert rest.ids == [3]


def test_a_released_message_is_offered_again_to_all_who_skipped_what_is_behind_it() -> None:
    bench = Bench()
    picky = bench.attach(selector="n = 5", credit=1)
    greedy = bench.attach(credit=3)
    for n in range(6):
        bench.add(1, properties={"n": n})
    bench.dispatch()
    assert picky.ids == [6]
    assert greedy.ids == [1, 2, 3]
    picky.credit = 5
    bench.dispatch()
    bench.queue.release(picky.take(), failed=False)
    bench.dispatch()
    assert picky.ids == [6]


class CountingSelector:
    text = "counting"

    def __init__(self) -> None:
        self.calls = 0

    def matches(self, message: object) -> bool:
        self.calls += 1
        return False


def test_a_consumer_that_matches_nothing_looks_at_each_message_once() -> None:
    bench = Bench()
    picky = Recorder()
    counting = CountingSelector()
    picky.selector = counting  # type: ignore[assignment]  # all that is asked of it
    bench.attach(picky)
    taker = bench.attach(credit=0)
    for _ in range(500):
        bench.add(2)
        taker.credit = 1
        bench.dispatch()
        bench.queue.acknowledge(taker.take())
    assert counting.calls <= 1000


def test_many_skipped_messages_are_folded_and_stay_in_order() -> None:
    bench = Bench()
    every_hundredth = bench.attach(selector="n = 0", credit=100_000)
    for block in range(60):
        bench.add(1, properties={"n": 0})
        bench.add(99, properties={"n": block + 1})
    rest = bench.attach(selector="n <> 0 AND n < 60", credit=100_000)
    bench.dispatch()
    assert len(every_hundredth.ids) == 60
    assert rest.ids == [i for i in range(1, 5901) if (i - 1) % 100]
    assert bench.waiting_ids() == list(range(5902, 6001))
    level = bench.queue._backlog._default
    assert len(level.items) < 2000, "what consumers left behind does not hold on to what is gone"


# -- scheduled and delayed


def test_scheduled_delivery() -> None:
    bench = Bench()
    consumer = bench.attach()
    bench.add(1, now=100, deliver_at=300)
    bench.add(1, now=100, deliver_at=200)
    bench.add(1, now=100, deliver_at=50)
    bench.dispatch(100)
    assert consumer.ids == [3]
    assert bench.queue.scheduled == 2
    assert bench.queue.message_count == 3
    assert bench.queue.next_due() == 200
    assert bench.queue.due(199) == 0
    assert bench.queue.due(300) == 2
    bench.dispatch(300)
    assert consumer.ids == [3, 2, 1]
    assert bench.queue.next_due() == 0


def test_redelivery_delay() -> None:
    bench = Bench(AddressSettings(redelivery_delay=100, redelivery_delay_multiplier=2.0, max_delivery_attempts=-1))
    consumer = bench.attach()
    bench.add(2)
    bench.dispatch()
    [first, second] = consumer.take()
    assert bench.queue.release([first], failed=True, now=1000) == []
    assert first.deliver_at == 1100
    bench.queue.release([second], failed=False, now=1000)
    bench.dispatch(1000)
    assert consumer.ids == [2], "only failed deliveries are delayed"
    bench.queue.release(consumer.take(), failed=False)
    bench.queue.due(1100)
    assert bench.waiting_ids() == [1, 2], "back to its place"
    bench.dispatch(1100)
    bench.queue.release(consumer.take(1), failed=True, now=2000)
    assert bench.queue.next_due() == 2200


@pytest.mark.parametrize(
    ("policy", "failures", "delay"),
    [
        (RedeliveryPolicy(), 3, 0),
        (RedeliveryPolicy(base_delay=100), 5, 100),
        (RedeliveryPolicy(base_delay=100, multiplier=2.0), 1, 100),
        (RedeliveryPolicy(base_delay=100, multiplier=2.0), 3, 400),
        (RedeliveryPolicy(base_delay=100, multiplier=2.0), 9, 1000),
        (RedeliveryPolicy(base_delay=100, multiplier=2.0, max_delay=250), 9, 250),
        (RedeliveryPolicy(base_delay=100, multiplier=1e9, max_delay=5000), 1_000_000, 5000),
        (RedeliveryPolicy(base_delay=100, collision_avoidance=0.5, chance=lambda: 0.0), 1, 50),
        (RedeliveryPolicy(base_delay=100, collision_avoidance=0.5, chance=lambda: 0.75), 1, 125),
        (RedeliveryPolicy(base_delay=100, collision_avoidance=0.5, max_delay=110, chance=lambda: 1.0), 1, 110),
    ],
)
def test_redelivery_policy(policy: RedeliveryPolicy, failures: int, delay: int) -> None:
    assert policy.delay(failures) == delay


def test_collision_avoidance_spreads_delays() -> None:
    settings = AddressSettings(
        redelivery_delay=1000, redelivery_collision_avoidance_factor=0.2, max_delivery_attempts=-1
    )
    bench = Bench(settings)
    consumer = bench.attach()
    bench.add(50)
    bench.dispatch()
    references = consumer.take()
    bench.queue.release(references, failed=True, now=0)
    delays = [reference.deliver_at for reference in references]
    assert min(delays) >= 800
    assert max(delays) <= 1200
    assert len(set(delays)) > 40
    assert max(delays) - min(delays) > 300


# -- expiry


def test_expired_messages_are_not_delivered() -> None:
    bench = Bench()
    consumer = bench.attach()
    bench.add(1, expiration=500)
    bench.add(1, expiration=1500)
    bench.add(1)
    bench.dispatch(1000)
    assert consumer.ids == [2, 3]
    assert ids(bench.queue.expired(1000)) == [1]
    assert bench.queue.expired(1000) == []
    assert bench.queue.counters.expired == 1


def test_the_expiry_scan_is_bounded_and_finds_all() -> None:
    bench = Bench()
    bench.add(10)
    bench.add(10, expiration=100)
    bench.add(10, expiration=100, priority=7)
    found: list[int] = []
    for _ in range(20):
        step = bench.queue.expired(100, limit=5)
        assert len(step) <= 5
        found += ids(step)
    assert sorted(found) == list(range(11, 31))
    assert bench.queue.message_count == 10
    assert bench.queue.bytes == sum(reference.message.size for reference in bench.queue.iterate())


def test_a_scheduled_message_that_expired_meanwhile() -> None:
    bench = Bench()
    bench.add(1, now=0, deliver_at=100, expiration=50)
    bench.queue.due(100)
    assert ids(bench.queue.expired(100)) == [1]


# -- non-destructive, browsing


def test_non_destructive() -> None:
    bench = Bench(non_destructive=True)
    bench.add(2)
    first, second = bench.attach(), bench.attach()
    bench.dispatch()
    assert first.ids == second.ids == [1, 2]
    assert bench.queue.acknowledge(first.take()) == []
    assert bench.queue.message_count == 2
    bench.add(1)
    bench.dispatch()
    assert first.ids == [3]
    bench.queue.release(first.take(), failed=False)
    bench.dispatch()
    assert first.ids == [3], "given back, it is seen again"
    third = bench.attach()
    bench.dispatch()
    assert third.ids == [1, 2, 3]


def test_rejected_from_a_non_destructive_queue() -> None:
    bench = Bench(AddressSettings(max_delivery_attempts=1), non_destructive=True)
    bench.add(3)
    consumer = bench.attach()
    bench.dispatch()
    assert ids(bench.queue.kill(consumer.take(1))) == [1]
    assert ids(bench.queue.release(consumer.take(1), failed=True)) == [2]
    assert bench.waiting_ids() == [3]
    assert bench.queue.bytes == consumer.references[0].message.size


def test_a_browser_takes_nothing_and_sees_everything_once() -> None:
    bench = Bench()
    bench.add(3)
    browser = bench.attach(browsing=True, credit=2)
    bench.dispatch()
    assert browser.ids == [1, 2]
    consumer = bench.attach()
    bench.dispatch()
    assert consumer.ids == [1, 2, 3]
    bench.add(1, priority=9)
    browser.credit = 5
    bench.queue.remove_consumer(consumer)
    bench.queue.release(consumer.take(), failed=False)
    bench.dispatch()
    assert browser.ids == [1, 2, 4, 3]
    assert bench.queue.acknowledge(browser.take()) == []
    assert bench.queue.consumer_count == 0


def test_browse_cursor_while_the_queue_changes() -> None:
    bench = Bench()
    bench.add(6)
    bench.add(2, priority=8)
    cursor = bench.queue.browse()
    assert ids(cursor.next(3)) == [7, 8, 1]
    bench.add(1)
    bench.queue.remove({2, 3})
    assert ids(cursor.next(2)) == [4, 5]
    assert ids(cursor.next(5)) == [6], "what came later is not shown"
    assert cursor.done


def test_browse_cursor_with_a_selector() -> None:
    from pollux.routing.selector import parse

    bench = Bench()
    for n in range(10):
        bench.add(1, properties={"n": n})
    cursor = bench.queue.browse(parse("n >= 7"))
    assert ids(cursor.next(100)) == [8, 9, 10]
    assert cursor.done


# -- last value, ring


def test_last_value() -> None:
    bench = Bench(last_value=True)
    assert bench.add(1, last_value="a") == []
    assert bench.add(1, last_value="b") == []
    assert bench.add(1) == []
    assert ids(bench.add(1, last_value="a")) == [1]
    assert bench.waiting_ids() == [4, 2, 3], "the newer value keeps the place"
    consumer = bench.attach()
    bench.dispatch()
    assert consumer.ids == [4, 2, 3]
    assert bench.add(1, last_value="a") == [], "the older one is with a consumer"
    bench.queue.release(consumer.take(), failed=False)
    assert ids(bench.queue.take_displaced()) == [4]
    assert sorted(bench.waiting_ids()) == [2, 3, 5]
    bench.dispatch()
    bench.queue.acknowledge(consumer.take())
    assert bench.queue.bytes == 0
    assert bench.add(1, last_value="a") == []


def test_last_value_key() -> None:
    bench = Bench(last_value_key="symbol")
    assert bench.queue.attributes.last_value
    bench.add(1, properties={"symbol": "X"})
    bench.add(1, properties={"symbol": "Y"})
    assert ids(bench.add(1, properties={"symbol": "X"})) == [1]


def test_last_value_with_another_priority() -> None:
    bench = Bench(last_value=True)
    bench.add(1, last_value="a", priority=2)
    bench.add(1)
    assert ids(bench.add(1, last_value="a", priority=8)) == [1]
    assert bench.waiting_ids() == [3, 2]


def test_non_destructive_last_value_shows_each_new_value() -> None:
    bench = Bench(last_value=True, non_destructive=True)
    consumer = bench.attach()
    bench.add(1, last_value="a")
    bench.dispatch()
    assert ids(bench.add(1, last_value="a")) == [1]
    bench.dispatch()
    assert consumer.ids == [1, 2]
    late = bench.attach()
    bench.dispatch()
    assert late.ids == [2]


def test_a_selective_consumer_sees_a_replaced_value() -> None:
    bench = Bench(last_value=True)
    picky = bench.attach(selector="n = 2")
    bench.add(1, last_value="a", properties={"n": 1})
    bench.add(1)
    bench.dispatch()
    assert picky.ids == []
    bench.add(1, last_value="a", properties={"n": 2})
    bench.dispatch()
    assert picky.ids == [3]


def test_ring() -> None:
    bench = Bench(ring_size=3)
    assert bench.add(3) == []
    assert ids(bench.add(2)) == [1, 2]
    assert bench.waiting_ids() == [3, 4, 5]
    consumer = bench.attach(credit=2)
    bench.dispatch()
    assert bench.add(2) == [], "messages with consumers are not counted"
    bench.queue.release(consumer.take(), failed=False)
    assert ids(bench.queue.take_displaced()) == [3, 4], "the oldest go, though they just came back"
    assert bench.waiting_ids() == [5, 6, 7]
    assert bench.queue.counters.replaced == 4


def test_ring_drops_the_lowest_priority_first() -> None:
    bench = Bench(ring_size=2)
    bench.add(1, priority=9)
    bench.add(1, priority=1)
    assert ids(bench.add(1, priority=4)) == [2]


def test_ring_of_size_zero_keeps_nothing() -> None:
    bench = Bench(ring_size=0)
    assert ids(bench.add(2)) == [1, 2]


# -- groups


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


# -- management


def test_remove_and_purge() -> None:
    bench = Bench()
    consumer = bench.attach(credit=1)
    bench.add(5)
    bench.add(1, deliver_at=100)
    bench.dispatch()
    references, cold = bench.queue.remove({1, 3, 6, 99})
    assert (ids(references), cold) == ([3, 6], []), "not what is with a consumer"
    references, cold = bench.queue.purge()
    assert (ids(references), cold) == ([2, 4, 5], [])
    assert bench.queue.message_count == bench.queue.delivering == 1
    assert bench.queue.counters.removed == 5
    bench.queue.acknowledge(consumer.take())
    assert bench.queue.bytes == 0


def test_in_delivery() -> None:
    bench = Bench()
    consumer = bench.attach()
    bench.add(1)
    bench.dispatch()
    assert [(who, reference.message.id) for who, reference in bench.queue.in_delivery()] == [(consumer, 1)]
    bench.queue.remove_consumer(consumer)
    assert [(who, reference.message.id) for who, reference in bench.queue.in_delivery()] == [(None, 1)]


def test_counters() -> None:
    bench = Bench()
    bench.add(3)
    assert bench.queue.counters.added == 3
    bench.queue.reset_counters()
    assert bench.queue.counters.added == 0
