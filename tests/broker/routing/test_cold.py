"""The backlog that is only on disk after a restart: order, skipping, browsing, memory."""

from __future__ import annotations

from array import array

import pytest

from pollux.config.address_settings import AddressSettings
from pollux.routing.reference import MessageReference

from .bench import Bench, Recorder, ids, make_message


def restored(count: int, bench: Bench | None = None, **arguments: object) -> Bench:
    """A queue with cold messages 1..count."""
    bench = bench or Bench()
    bench.queue.restore(4, array("Q", range(1, count + 1)), **arguments)  # type: ignore[arg-type]  # as restore has them
    bench._next = count
    return bench


def read(bench: Bench, limit: int = 100, gone: frozenset[int] = frozenset(), **fields: object) -> list[int]:
    """One round of reading what the queue wants; the ids."""
    wanted = bench.queue.wanted(limit)
    missing = bench.queue.hydrate(
        [None if number in gone else make_message(number, **fields) for number in wanted]  # type: ignore[arg-type]
    )
    assert missing == [number for number in wanted if number in gone]
    return wanted


def drain(bench: Bench, consumer: Recorder) -> None:
    while True:
        bench.dispatch()
        if not bench.queue.wanted(0) and not read(bench):
            break
    bench.dispatch()


def test_nothing_is_read_without_consumers() -> None:
    bench = restored(10)
    assert bench.queue.wanted(100) == []
    assert (bench.queue.message_count, bench.queue.cold, bench.queue.waiting) == (10, 10, 0)


def test_old_messages_before_new_ones() -> None:
    bench = restored(250)
    bench.add(3)
    consumer = bench.attach(credit=10_000)
    bench.dispatch()
    assert consumer.ids == []
    drain(bench, consumer)
    assert consumer.ids == list(range(1, 254))
    assert all(reference.redelivered for reference in consumer.references[:250])
    assert not consumer.references[250].redelivered
    bench.add(1)
    bench.dispatch()
    assert consumer.ids[-1] == 254


def test_one_request_at_a_time() -> None:
    bench = restored(10)
    bench.attach()
    assert bench.queue.wanted(4) == [1, 2, 3, 4]
    assert bench.queue.wanted(4) == []
    bench.queue.hydrate([make_message(number) for number in (1, 2, 3, 4)])
    assert bench.queue.wanted(4) == [5, 6, 7, 8]


def test_messages_gone_from_disk_are_reported_and_skipped() -> None:
    bench = restored(6)
    consumer = bench.attach()
    read(bench, 6, gone=frozenset({1, 3, 6}))
    bench.dispatch()
    assert consumer.ids == [2, 4, 5]
    assert bench.queue.message_count == 3


def test_all_gone() -> None:
    bench = restored(3)
    bench.add(1)
    consumer = bench.attach()
    read(bench, 10, gone=frozenset({1, 2, 3}))
    bench.dispatch()
    assert consumer.ids == [4]


def test_removed_while_cold_and_while_being_read() -> None:
    bench = restored(10)
    consumer = bench.attach()
    bench.add(1)
    references, cold = bench.queue.remove({2, 5, 11})
    assert (ids(references), cold) == ([11], [2, 5])
    assert bench.queue.message_count == 8
    wanted = bench.queue.wanted(4)
    assert wanted == [1, 3, 4]
    assert bench.queue.remove({3, 8})[1] == [3, 8]
    bench.queue.hydrate([make_message(number) for number in wanted])
    drain(bench, consumer)
    assert consumer.ids == [1, 4, 6, 7, 9, 10]


def test_purge_while_cold() -> None:
    bench = restored(10)
    bench.add(2)
    references, cold = bench.queue.purge()
    assert ids(references) == [11, 12]
    assert cold == list(range(1, 11))
    assert bench.queue.message_count == 0
    consumer = bench.attach()
    assert bench.queue.wanted(10) == []
    bench.add(1)
    bench.dispatch()
    assert consumer.ids == [13]


def test_priorities_while_cold() -> None:
    bench = Bench()
    bench.queue.restore(2, [1, 2])
    bench.queue.restore(8, [3, 4])
    bench._next = 4
    bench.add(1, priority=2)
    bench.add(1, priority=5)
    consumer = bench.attach()
    assert bench.queue.wanted(10) == [3, 4]
    bench.queue.hydrate([make_message(3, priority=8), make_message(4, priority=8)])
    bench.dispatch()
    assert consumer.ids == [3, 4, 6]
    assert bench.queue.wanted(10) == [1, 2]
    bench.queue.hydrate([make_message(1, priority=2), make_message(2, priority=2)])
    bench.dispatch()
    assert consumer.ids == [3, 4, 6, 1, 2, 5]


def test_released_while_cold() -> None:
    bench = restored(6)
    consumer = bench.attach(credit=2)
    read(bench, 3)
    bench.dispatch()
    bench.queue.release(consumer.take(), failed=False)
    assert bench.waiting_ids() == [1, 2, 3]
    consumer.credit = 100
    drain(bench, consumer)
    assert consumer.ids == [1, 2, 3, 4, 5, 6]


def test_delivery_counts_are_restored() -> None:
    bench = restored(2, Bench(AddressSettings(max_delivery_attempts=3)), counts={2: 2})
    consumer = bench.attach()
    read(bench)
    bench.dispatch()
    assert [reference.delivery_count for reference in consumer.references] == [0, 2]
    assert ids(bench.queue.release(consumer.take(), failed=True)) == [2]


def test_schedules_are_restored() -> None:
    bench = restored(4, schedules={2: 500, 3: 400})
    consumer = bench.attach()
    assert (bench.queue.scheduled, bench.queue.cold, bench.queue.message_count) == (2, 4, 4)
    drain(bench, consumer)
    assert consumer.ids == [1, 4]
    assert bench.queue.next_due() == 400
    assert bench.queue.due(450) == 1
    bench.add(1)
    drain(bench, consumer)
    assert consumer.ids == [1, 4, 3, 5]
    bench.queue.due(500)
    drain(bench, consumer)
    assert consumer.ids == [1, 4, 3, 5, 2]


def test_cold_ids() -> None:
    bench = restored(5, schedules={5: 1})
    bench.queue.remove({2})
    bench.attach()
    bench.queue.wanted(2)
    assert list(bench.queue.cold_ids()) == [1, 3, 4, 5]


def test_memory_bounds_what_is_read() -> None:
    bench = restored(1000)
    bench.queue._read_ahead.max_hot_messages = 50
    bench.attach(credit=0)
    assert len(read(bench, 100)) == 50
    assert bench.queue.wanted(100) == []
    bench.queue._read_ahead.max_hot_messages = -1
    bench.queue._read_ahead.max_hot_bytes = bench.queue.bytes
    assert bench.queue.wanted(100) == []


def test_no_more_is_read_than_consumers_can_use() -> None:
    bench = restored(10_000)
    bench.attach(credit=0)
    while read(bench, 500):
        pass
    assert bench.queue.waiting == 2000


def test_more_is_read_for_a_selector_that_found_nothing() -> None:
    bench = restored(5000)
    picky = bench.attach(selector="JMSPriority = 4 AND n = 1", credit=5)
    while wanted := bench.queue.wanted(500):
        bench.queue.hydrate([make_message(number, {"n": number // 4999}) for number in wanted])
        bench.dispatch()
    assert picky.ids == [4999, 5000]


def test_who_wants_more() -> None:
    bench = Bench()
    assert not bench.queue.wants_more(5), "nobody"
    taker = bench.attach(credit=0)
    assert bench.queue.wants_more(5)
    bench.add(6)
    assert not bench.queue.wants_more(5)
    picky = bench.attach(selector="n = 1", credit=1)
    bench.dispatch()
    assert bench.queue.wants_more(5)
    picky.credit = 0
    assert not bench.queue.wants_more(5)
    taker.credit = 2
    bench.dispatch()
    assert bench.queue.wants_more(5)


def test_ring_with_a_cold_backlog() -> None:
    bench = restored(3, Bench(ring_size=3))
    assert bench.add(2) == []
    wanted = bench.queue.wanted(10)
    assert wanted == [1, 2, 3], "without consumers too: two of them must go"
    bench.queue.hydrate([make_message(number) for number in wanted])
    assert ids(bench.queue.take_displaced()) == [1, 2]
    assert bench.waiting_ids() == [3, 4, 5]


def test_last_value_with_a_cold_backlog() -> None:
    bench = restored(2, Bench(last_value=True))
    bench.add(1, last_value="a")
    bench.queue.hydrate([make_message(number, last_value="ab"[number - 1]) for number in bench.queue.wanted(10)])
    assert ids(bench.queue.take_displaced()) == [1]
    assert bench.waiting_ids() == [2, 3]
    assert ids(bench.add(1, last_value="b")) == [2]
    assert ids(bench.add(1, last_value="a")) == [3]


def test_browse_cursor_reads_what_is_on_disk() -> None:
    bench = restored(7)
    bench.add(2)
    bench.add(1, priority=9)
    cursor = bench.queue.browse()
    seen: list[int] = []
    while not cursor.done:
        seen += ids(cursor.next(2))
        if wanted := cursor.wanted(3):
            seen += ids(cursor.feed(wanted, [make_message(number) for number in wanted]))
    assert seen == [10, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert bench.queue.cold == 7


def test_browse_cursor_while_the_backlog_is_read_and_consumed() -> None:
    bench = restored(9)
    bench.add(1)
    consumer = bench.attach(credit=2)
    cursor = bench.queue.browse()
    assert cursor.next(10) == []
    first = cursor.wanted(3)
    read(bench, 5)
    bench.dispatch()
    seen = ids(cursor.feed(first, [make_message(number) for number in first]))
    assert consumer.ids == [1, 2]
    assert seen == [3], "what a consumer got meanwhile is gone"
    seen += ids(cursor.next(10))
    assert seen == [3, 4, 5]
    rest = cursor.wanted(10)
    assert rest == [6, 7, 8, 9]
    read(bench, 10)
    seen += ids(cursor.feed(rest, [make_message(number) for number in rest]))
    seen += ids(cursor.next(10))
    assert seen == list(range(3, 11))
    assert cursor.next(10) == []
    assert cursor.done


def test_a_browser_is_shown_what_is_on_disk() -> None:
    bench = restored(7)
    bench.add(1)
    browser = bench.attach(browsing=True, credit=5)
    bench.dispatch()
    assert browser.ids == []
    assert bench.queue.wanted(10) == [], "for browsers nothing enters the queue"
    assert bench.queue.looks(3) == [(browser, [1, 2, 3])]
    assert bench.queue.looks(3) == []
    bench.queue.show(browser, [make_message(number) for number in (1, 2, 3)])
    assert browser.ids == [1, 2, 3]
    bench.dispatch()
    assert bench.queue.looks(3) == [(browser, [4, 5])]
    bench.queue.show(browser, [make_message(4), None])
    assert browser.ids == [1, 2, 3, 4]
    browser.credit = 10
    [(_, rest)] = bench.queue.looks(10)
    bench.queue.show(browser, [make_message(number) for number in rest])
    bench.dispatch()
    assert browser.ids == [1, 2, 3, 4, 6, 7]
    taker = bench.attach()
    drain(bench, taker)
    assert taker.ids == list(range(1, 9))


def test_a_browser_is_told_how_often_a_message_on_disk_failed() -> None:
    """Breaks when what is shown from the disk counts as never delivered."""
    bench = restored(3, counts={2: 4})
    cursor = bench.queue.browse()
    assert [each.delivery_count for each in cursor.feed(cursor.wanted(3), map(make_message, (1, 2, 3)))] == [0, 4, 0]
    browser = bench.attach(browsing=True, credit=5)
    [(_, wanted)] = bench.queue.looks(3)
    bench.queue.show(browser, [make_message(number) for number in wanted])
    assert [each.delivery_count for each in browser.references] == [0, 4, 0]
    taker = bench.attach()
    drain(bench, taker)
    assert [each.delivery_count for each in taker.references] == [0, 4, 0], "it is counted on"


def test_a_queue_that_goes_is_emptied_bit_by_bit_past_what_was_removed() -> None:
    """Breaks when a bit of which nothing is left is taken for the end: all the rest was given back in one go."""
    bench = restored(10)
    bench.queue.remove({5, 6, 7, 8})
    bits = [bench.queue.shed_cold(2) for _ in range(5)]
    assert bits == [[9, 10], [3, 4], [1, 2], [], []]
    assert bench.queue.cold == 0


def test_browsing_past_a_backlog_that_is_removed() -> None:
    bench = restored(6)
    bench.add(2)
    browser = bench.attach(browsing=True, credit=100)
    cursor = bench.queue.browse()
    [(_, first)] = bench.queue.looks(3)
    bench.queue.show(browser, [make_message(number) for number in first])
    assert cursor.next(10) == []
    assert ids(cursor.feed(cursor.wanted(2), [make_message(1), make_message(2)])) == [1, 2]
    bench.queue.remove({3, 4, 5, 6})
    [*rest] = bench.queue.looks(3)
    for _, wanted in rest:
        bench.queue.show(browser, [make_message(number) for number in wanted])
    bench.queue.remove({1, 2})
    bench.dispatch()
    assert browser.ids == [1, 2, 3, 7, 8]
    seen: list[int] = []
    for _ in range(5):
        seen += ids(cursor.next(10))
        assert cursor.wanted(10) == []
    assert seen == [7, 8]
    assert cursor.done


def test_feeding_what_was_not_asked_for() -> None:
    bench = restored(3)
    cursor = bench.queue.browse()
    cursor.wanted(2)
    with pytest.raises(ValueError, match="not the ids that were asked for"):
        cursor.feed([2], [make_message(2)])


def test_a_browser_that_left_is_not_shown_anything() -> None:
    bench = restored(3)
    browser = bench.attach(browsing=True)
    bench.queue.looks(3)
    bench.queue.remove_consumer(browser)
    bench.queue.show(browser, [make_message(1)])
    assert browser.ids == []


def test_non_destructive_with_a_cold_backlog() -> None:
    bench = restored(3, Bench(non_destructive=True))
    consumer = bench.attach()
    read(bench)
    bench.dispatch()
    assert consumer.ids == [1, 2, 3]
    assert isinstance(consumer.references[0], MessageReference)
