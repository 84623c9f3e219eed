"""Queues that are not emptied by their consumers, or keep only some messages: browsing, last value, ring."""

from __future__ import annotations

from pollux.config.address_settings import AddressSettings

from .bench import Bench, ids


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
