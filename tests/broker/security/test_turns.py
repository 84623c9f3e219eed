"""Turns come in order, so many at a time, and leave nothing behind."""

from __future__ import annotations

import asyncio

import pytest

from pollux.engine.turns import Turns


async def test_one_at_a_time_and_in_order() -> None:
    turns = Turns(1, 10)
    inside: list[int] = []
    order: list[int] = []

    async def enter(number: int) -> None:
        async with turns.turn("ada", 30.0):
            inside.append(number)
            assert inside == [number]
            await asyncio.sleep(0)
            order.append(inside.pop())

    await asyncio.gather(*(enter(number) for number in range(8)))
    assert order == list(range(8))
    assert not len(turns)


async def test_names_do_not_wait_for_each_other() -> None:
    turns = Turns(1, 0)
    async with turns.turn("ada", 30.0), turns.turn("bob", 30.0):
        assert len(turns) == 2
    assert not len(turns)


async def test_no_more_wait_than_may() -> None:
    turns = Turns(1, 1)
    async with turns.turn("ada", 30.0):
        waiting = asyncio.create_task(turns.turn("ada", 30.0).__aenter__())
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            async with turns.turn("ada", 30.0):
                pass
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert not len(turns)


async def test_a_turn_that_does_not_come_ends_the_wait() -> None:
    turns = Turns(1, 1)
    async with turns.turn("ada", 30.0):
        with pytest.raises(TimeoutError):
            async with turns.turn("ada", 0.0):
                pass
    async with turns.turn("ada", 0.0):
        pass
    assert not len(turns)
