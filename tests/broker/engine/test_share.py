"""Work in pieces: everybody in turn, a slice of it in one turn of the loop, counted by a clock that the work moves."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from pollux.engine import share
from pollux.engine.share import (
    AT_ONCE,
    FIRST_PORTION,
    LARGEST_PORTION,
    LEAST_PORTION,
    PRESSED,
    SHORT_SLICE,
    SLICE,
    Portion,
    Share,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Work:
    """A clock, and pieces of work that take a quarter of a slice of it (or ``cost``)."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cost = SLICE / 4
        self.share = Share(asyncio.get_running_loop(), lambda: self.now, lambda: self.now)
        #: Who did a piece, in order.
        self.done: list[str] = []

    def steps(self, name: str, count: int) -> Iterator[None]:
        for _ in range(count):
            self.now += self.cost
            self.done.append(name)
            yield

    def pieces(self, name: str, count: int) -> None:
        steps = self.steps(name, count)
        self.share.add(lambda: next(steps, self) is not self)


@pytest.fixture
async def work() -> Work:
    return Work()


async def test_a_turn_has_one_slice(work: Work) -> None:
    work.pieces("a", 100)
    for turn in range(1, 6):
        await asyncio.sleep(0)
        assert len(work.done) == 4 * turn


async def test_slices_are_short_while_somebody_asks_for_too_much(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when an attack has as long slices as normal traffic, or what comes after it still has short ones."""
    monkeypatch.setattr(share, "CALM", 0.0)
    told: list[bool] = []
    over = asyncio.Event()

    def on_pressed(pressed: bool) -> None:
        told.append(pressed)
        if not pressed:
            over.set()

    work.share.on_pressed = on_pressed
    work.cost = SHORT_SLICE
    work.pieces("a", 4 * PRESSED + 5)
    for _ in range(PRESSED):
        await asyncio.sleep(0)
    assert told == [True]
    assert len(work.done) == 4 * PRESSED
    for turn in range(1, 5):
        await asyncio.sleep(0)
        assert len(work.done) == 4 * PRESSED + turn
    assert told == [True]
    await asyncio.wait_for(over.wait(), 5)
    assert len(work.done) == 4 * PRESSED + 5
    assert told == [True, False]
    assert work.share.slice == SLICE
    assert not work.share.pressed


async def test_slices_stay_short_between_two_large_requests(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when who sends one large request after the other has long slices at the begin of each."""
    monkeypatch.setattr(share, "CALM", 1000.0)
    work.cost = SHORT_SLICE
    work.pieces("a", 4 * PRESSED + 1)
    for _ in range(PRESSED + 2):
        await asyncio.sleep(0)
    assert len(work.done) == 4 * PRESSED + 1
    work.pieces("b", 10)
    for turn in range(1, 5):
        await asyncio.sleep(0)
        assert work.done.count("b") == turn
    work.share.close()
    assert not work.share.pressed, "nothing is left in the loop of what was closed"


async def test_everybody_has_a_turn(work: Work) -> None:
    work.pieces("a", 1000)
    await asyncio.sleep(0)
    work.pieces("b", 2)
    for _ in range(2):
        await asyncio.sleep(0)
    assert work.done.count("b") == 2
    assert work.done.count("a") <= 12


async def test_work_is_begun_at_once_and_ends_later(work: Work) -> None:
    work.cost = SLICE / AT_ONCE / 2
    work.share.work(work.steps("few", AT_ONCE - 1))
    assert work.done == ["few"] * (AT_ONCE - 1), "nobody is kept waiting for what is little"
    work.share.work(work.steps("many", AT_ONCE + 40))
    assert work.done.count("many") == AT_ONCE
    for _ in range(2):
        await asyncio.sleep(0)
    assert work.done.count("many") == AT_ONCE + 40
    assert work.share.room


async def test_few_steps_that_are_large_are_not_done_at_once(work: Work) -> None:
    work.share.work(work.steps("large", AT_ONCE - 1))
    assert work.done.count("large") == 5, "until it is more than a slice"
    assert not work.share.room
    await asyncio.sleep(0)
    assert work.done.count("large") == 9


class Disk:
    """One that is behind, and has done with what was written when it is told so."""

    crowded = False

    def __init__(self) -> None:
        self.behind = True
        self.waiting: list[Callable[[Exception | None], None]] = []

    def when_stable(self, callback: Callable[[Exception | None], None]) -> None:
        self.waiting.append(callback)


async def test_pieces_of_brokers_wait_for_no_disk(work: Work) -> None:
    """Breaks when replicas' confirms wait until something is on disk that waits for them: nothing goes on."""
    disk = work.share.disk = Disk()
    work.pieces("client", 100)
    for _ in range(5):
        await asyncio.sleep(0)
    held = len(work.done)
    assert held == 8, "two turns"
    steps = work.steps("replica", 10)
    work.share.add(lambda: next(steps, work.share) is not work.share, of_broker=True)
    for _ in range(5):
        await asyncio.sleep(0)
    assert work.done[held:] == ["replica"] * 10
    assert len(disk.waiting) == 2, "what came from a broker is not waited for"
    disk.behind = False
    disk.waiting.pop(0)(None)
    await asyncio.sleep(0)
    assert work.done[-1] == "client"


async def test_pieces_wait_for_a_disk_that_does_not_keep_up(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share, "PRESSED", 1000)
    disk = work.share.disk = Disk()
    work.pieces("a", 100)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(work.done) == 8, "the work of two turns is on its way to it"
    assert not work.share.room
    for turn in range(3, 6):
        disk.waiting.pop(0)(None)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(work.done) == 4 * turn, "one more turn for each that is on disk"
    disk.behind = False
    disk.waiting.pop(0)(None)
    for _ in range(5):
        await asyncio.sleep(0)
    assert len(work.done) >= 4 * 9, "nobody waits for one that keeps up"


async def test_a_piece_that_fails_ends_and_the_others_go_on(work: Work, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> bool:
        raise RuntimeError("broken")

    work.share.add(fail)
    work.pieces("a", 5)
    for _ in range(5):
        await asyncio.sleep(0)
    assert work.done == ["a"] * 5
    assert "a piece of work failed" in caplog.text


def test_a_portion_is_what_takes_a_slice() -> None:
    portion = Portion()
    portion.took(FIRST_PORTION, SLICE * 10, SLICE)
    assert portion.size == FIRST_PORTION // 10
    portion.took(portion.size, SLICE * 100, SLICE)
    assert portion.size == LEAST_PORTION
    for _ in range(40):
        portion.took(portion.size, 0.0, SLICE)
    assert portion.size == LARGEST_PORTION
    portion.took(10, SLICE / 2, SLICE)
    assert portion.size == LARGEST_PORTION, "a little that took a little time says nothing"


def test_a_portion_is_smaller_while_slices_are_short() -> None:
    """Breaks when a flood's pieces stay as long as they were before it was one: others waited 4 ms for each."""
    portion = Portion()
    portion.took(FIRST_PORTION, SLICE, SHORT_SLICE)
    assert portion.size == FIRST_PORTION // 4
