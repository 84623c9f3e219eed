"""Wrong counts are noticed before they lose a message or give it twice."""

from __future__ import annotations

import pytest

from pollux.routing.level import Level

from .bench import Bench


def filled(count: int = 3) -> Level:
    level = Level(4)
    level.extend(Bench().references(count))
    return level


def test_a_level_is_not_emptied_while_it_holds_messages() -> None:
    level = filled()
    level.hot = 1
    with pytest.raises(AssertionError):
        level.take_head(1)


@pytest.mark.parametrize("positions", [(1,), (0, 1)], ids=["among those waiting", "before those waiting"])
def test_no_message_takes_the_place_of_another(positions: tuple[int, ...]) -> None:
    level = filled()
    for position in positions:
        reference = level.take(position)
    level.put_back(1, reference)
    with pytest.raises(AssertionError):
        level.put_back(1, reference)


def test_what_was_asked_for_lands_as_a_whole() -> None:
    level = Level(4)
    level.restore([1, 2])
    assert level.request(2) == [1, 2]
    with pytest.raises(AssertionError):
        level.land([None])


def test_no_message_leaves_twice() -> None:
    bench = Bench()
    consumer = bench.attach()
    bench.add(2)
    bench.dispatch()
    first, second = consumer.take()
    assert bench.queue.acknowledge([first]) == [first]
    assert bench.queue.acknowledge([first]) == []
    bench.queue._backlog.bytes -= 1
    with pytest.raises(AssertionError):
        bench.queue.acknowledge([second])
