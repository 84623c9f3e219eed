"""Bytes that are given back twice are noticed: a message would have left twice, or limits would not hold."""

from __future__ import annotations

import pytest

from pollux.engine.memory import Memory
from pollux.routing.paging import Gauge


@pytest.mark.parametrize(("size", "messages"), [(11, 1), (10, 2)])
def test_no_more_leaves_an_address_than_came(size: int, messages: int) -> None:
    gauge = Gauge()
    gauge.add(10)
    with pytest.raises(AssertionError):
        gauge.remove(size, messages)


def test_nobody_gives_back_more_than_they_hold() -> None:
    memory = Memory(lambda _: None, 1 << 20)
    memory.opened(1, "castor")
    memory.user("castor").take(100)
    holder = memory.holder(1)
    holder.take(10)
    with pytest.raises(AssertionError):
        holder.give(11)
    with pytest.raises(AssertionError):
        memory.user("castor").give(111)
    with pytest.raises(AssertionError):
        memory.change(-111)
