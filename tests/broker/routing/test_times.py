"""Queues: messages for later, delays of those that failed, and those whose time is over."""

from __future__ import annotations

import pytest

from pollux.config.address_settings import AddressSettings
from pollux.routing.redelivery import RedeliveryPolicy

from .bench import Bench, ids


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
