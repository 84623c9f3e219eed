"""Queues: order, sharing between consumers, and what becomes of a delivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pollux.config.address_settings import AddressSettings
from pollux.errors import LimitError

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
