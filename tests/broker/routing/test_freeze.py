"""Waiting messages leave memory and are read again: in their place, whatever came and went meanwhile."""

from __future__ import annotations

import random

import pytest

from .bench import Bench, Recorder, make_message


def read(bench: Bench, consumer: Recorder) -> None:
    """Read what the queue wants until there is nothing more on disk only."""
    bench.dispatch()
    while wanted := bench.queue.wanted(100):
        assert bench.queue.hydrate([make_message(number) for number in wanted]) == []
        bench.dispatch()
    assert consumer.credit > 0


@pytest.mark.parametrize("seed", range(30))
def test_order_is_as_if_nothing_had_ever_been_frozen(seed: int) -> None:
    """Some cannot be frozen; messages come, are taken out and are frozen in any order."""
    chosen = random.Random(seed)  # noqa: S311  (the same again)
    bench = Bench()
    expected: list[int] = []
    frozen: set[int] = set()
    stay = {number for number in range(1, 400) if chosen.random() < chosen.choice((0, 0, 0.1))}
    for _ in range(40):
        match chosen.randrange(4):
            case 0 | 1:
                first = bench._next + 1
                bench.add(chosen.randrange(1, 8))
                expected += range(first, bench._next + 1)
            case 2 if expected:
                gone = set(chosen.sample(expected, min(len(expected), chosen.randrange(1, 5))))
                references, cold = bench.queue.remove(gone)
                assert {reference.message.id for reference in references} | set(cold) == gone
                assert set(cold) <= frozen
                expected = [number for number in expected if number not in gone]
            case 3:
                newest = expected[-1] if expected else 0
                left = bench.queue.freeze(lambda it: it.message.id not in stay and it.message.id < newest)  # noqa: B023
                frozen |= {reference.message.id for reference in left}
        assert bench.queue.message_count == len(expected)
        assert bench.queue.cold == len(frozen & set(expected))
        assert sorted([*bench.queue.cold_ids(), *(each.message.id for each in bench.queue.iterate())]) == expected
    assert frozen
    consumer = bench.attach(credit=10_000)
    read(bench, consumer)
    assert consumer.ids == expected


def test_memory_that_is_held_is_of_what_is_in_memory() -> None:
    bench = Bench()
    bench.add(10)
    size = bench.queue.bytes
    assert len(bench.queue.freeze(lambda it: it.message.id <= 7)) == 7
    assert bench.queue.bytes == size * 3 // 10
    assert bench.queue.freeze(lambda it: it.message.id <= 7) == []


def test_how_often_a_delivery_failed_is_still_known() -> None:
    """Breaks when a message that was given back and went to the disk begins to count from zero: it fails for ever."""
    bench = Bench()
    bench.add(1)
    bench.add(1, properties={"red": True})
    bench.add(1)
    consumer = bench.attach(selector="red")
    bench.dispatch()
    bench.queue.release(consumer.take(), failed=True)
    bench.queue.remove_consumer(consumer)
    assert len(bench.queue.freeze(lambda _: True)) == 3
    consumer = bench.attach(credit=10)
    read(bench, consumer)
    assert {each.message.id: each.delivery_count for each in consumer.references} == {1: 0, 2: 1, 3: 0}


def test_a_browser_keeps_its_place() -> None:
    """Positions may not change while somebody remembers them."""
    bench = Bench()
    bench.add(10)
    browser = bench.attach(credit=4, browsing=True)
    bench.dispatch()
    assert browser.ids == [1, 2, 3, 4]
    bench.queue.remove({2, 6})
    assert bench.queue.freeze(lambda _: True) == []
    bench.queue.remove_consumer(browser)
    assert len(bench.queue.freeze(lambda _: True)) == 8
