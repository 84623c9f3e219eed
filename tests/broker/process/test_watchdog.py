"""The critical analyzer notices a stuck loop and a stuck writer, and does what its policy says."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

from pollux.config.model import CriticalAnalyzerPolicy
from pollux.process import watchdog
from pollux.process.exits import EXIT_HALTED
from pollux.process.watchdog import CriticalAnalyzer

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

LOG, HALT, SHUTDOWN = (CriticalAnalyzerPolicy(name) for name in ("LOG", "HALT", "SHUTDOWN"))

Stable = "Callable[[Exception | None], None]"


def at_once(callback: Callable[[Exception | None], None]) -> None:
    callback(None)


def never(callback: Callable[[Exception | None], None]) -> None:
    del callback


class Outcome:
    """Notes what the analyzer did."""

    def __init__(self) -> None:
        self.halted: list[int] = []
        self.asked = 0
        self.happened = threading.Event()

    def halt(self, code: int) -> None:
        self.halted.append(code)
        self.happened.set()

    def shutdown(self) -> None:
        self.asked += 1
        self.happened.set()


class Clock:
    """Time that passes when a test says so; counts how often it was read."""

    def __init__(self) -> None:
        self.now = 0.0
        self.reads = 0

    def __call__(self) -> float:
        self.reads += 1
        return self.now


def analyzer(
    outcome: Outcome,
    policy: CriticalAnalyzerPolicy,
    probe: Callable[[Callable[[Exception | None], None]], None],
    alive: Callable[[], None] | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> CriticalAnalyzer:
    return CriticalAnalyzer(
        asyncio.get_running_loop(),
        timeout=0.15,
        period=0.02,
        policy=policy,
        probe=probe,
        alive=alive,
        halt=outcome.halt,
        shutdown=outcome.shutdown,
        clock=clock,
    )


async def test_a_broker_that_answers_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    """Breaks when a beat or an answer of the store does not count: time passes with every beat."""
    outcome, clock, enough = Outcome(), Clock(), asyncio.Event()

    def alive() -> None:
        clock.now += 0.1
        if clock.now > 3:
            enough.set()

    watched = analyzer(outcome, HALT, at_once, alive, clock)
    watched.start()
    async with asyncio.timeout(30):
        await enough.wait()
    watched.stop()
    assert not outcome.happened.is_set()
    assert not caplog.records


async def test_a_stuck_loop_is_halted(caplog: pytest.LogCaptureFixture) -> None:
    outcome = Outcome()
    watched = analyzer(outcome, HALT, at_once)
    watched.start()
    assert outcome.happened.wait(30)  # this blocks the loop, which is the point
    watched.stop()
    assert outcome.halted[0] == EXIT_HALTED
    assert any("event loop has not run" in record.message for record in caplog.records)


async def test_a_stuck_writer_is_halted_and_stops_the_heart_beat(caplog: pytest.LogCaptureFixture) -> None:
    outcome, clock = Outcome(), Clock()
    beats: list[float] = []

    def alive() -> None:
        beats.append(clock.now)
        clock.now += 0.1

    watched = analyzer(outcome, HALT, never, alive, clock)
    watched.start()
    async with asyncio.timeout(30):
        while len(outcome.halted) < 3:  # noqa: ASYNC110  (the analyzer's thread adds to it)
            await asyncio.sleep(0.01)
    watched.stop()
    assert outcome.halted[0] == EXIT_HALTED
    assert beats == [0, 0.1], "at 0.2 the store owes an answer for longer than the limit"
    assert any("writer has not finished" in record.message for record in caplog.records)


async def test_shutdown_is_asked_for_once_and_then_enforced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "SHUTDOWN_GRACE", 0.2)
    outcome = Outcome()
    watched = analyzer(outcome, SHUTDOWN, never)
    watched.start()
    async with asyncio.timeout(30):
        while not outcome.halted:  # noqa: ASYNC110  (the analyzer's thread sets it)
            await asyncio.sleep(0.01)
    watched.stop()
    assert outcome.asked == 1


async def test_policy_log_reports_once_and_says_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    outcome, clock = Outcome(), Clock()

    def said(text: str) -> int:
        return sum(text in record.message for record in caplog.records)

    watched = analyzer(outcome, LOG, at_once, clock=clock)
    watched.start()
    clock.now = 1.0
    assert not outcome.happened.wait(0.3)  # the loop is stuck, which is the point
    looks = clock.reads
    deadline = time.monotonic() + 30
    while clock.reads < looks + 5 or not said("has not run"):
        assert time.monotonic() < deadline, caplog.text
    async with asyncio.timeout(30):
        while not said("responds again"):  # noqa: ASYNC110  (the analyzer's thread logs)
            await asyncio.sleep(0.01)
    watched.stop()
    assert said("has not run") == 1
    assert not outcome.happened.is_set()
    assert watched.maximum_lag > 0.2
