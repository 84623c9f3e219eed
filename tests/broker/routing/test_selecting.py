"""Queues whose consumers do not take everything: selectors, and what was skipped."""

from __future__ import annotations

from .bench import Bench, Recorder


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
