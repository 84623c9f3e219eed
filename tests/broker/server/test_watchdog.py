"""The critical analyzer notices a stuck loop and a stuck writer, and does what its policy says."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import TYPE_CHECKING

from pollux.config.model import CriticalAnalyzerPolicy
from pollux.server import watchdog
from pollux.server.exits import EXIT_HALTED
from pollux.server.watchdog import CriticalAnalyzer

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
    """What the analyzer did."""

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


def analyzer(
    outcome: Outcome,
    policy: CriticalAnalyzerPolicy,
    probe: Callable[[Callable[[Exception | None], None]], None],
    alive: Callable[[], None] | None = None,
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
    )


async def test_a_broker_that_answers_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    outcome = Outcome()
    beats: list[float] = []
    watched = analyzer(outcome, HALT, at_once, lambda: beats.append(time.monotonic()))
    watched.start()
    await asyncio.sleep(0.5)
    watched.stop()
    assert not outcome.happened.is_set()
    assert len(beats) > 5
    assert not caplog.records


async def test_a_stuck_loop_is_halted(caplog: pytest.LogCaptureFixture) -> None:
    outcome = Outcome()
    watched = analyzer(outcome, HALT, at_once)
    watched.start()
    assert outcome.happened.wait(5)  # this blocks the loop, which is the point
    watched.stop()
    assert outcome.halted[0] == EXIT_HALTED
    assert any("event loop has not run" in record.message for record in caplog.records)


async def test_a_stuck_writer_is_halted_and_stops_the_heart_beat(caplog: pytest.LogCaptureFixture) -> None:
    outcome = Outcome()
    beats: list[float] = []
    watched = analyzer(outcome, HALT, never, lambda: beats.append(time.monotonic()))
    watched.start()
    assert await asyncio.to_thread(outcome.happened.wait, 5)
    count = len(beats)
    await asyncio.sleep(0.1)
    watched.stop()
    assert outcome.halted[0] == EXIT_HALTED
    assert len(beats) <= count + 1
    assert any("writer has not finished" in record.message for record in caplog.records)


async def test_shutdown_is_asked_for_once_and_then_enforced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "SHUTDOWN_GRACE", 0.2)
    outcome = Outcome()
    watched = analyzer(outcome, SHUTDOWN, never)
    watched.start()
    assert await asyncio.to_thread(outcome.happened.wait, 5)
    assert outcome.asked == 1
    async with asyncio.timeout(5):
        while not outcome.halted:  # noqa: ASYNC110  (the analyzer's thread sets it)
            await asyncio.sleep(0.01)
    watched.stop()
    assert outcome.asked == 1


async def test_policy_log_reports_once_and_says_when_it_is_over(caplog: pytest.LogCaptureFixture) -> None:
    outcome = Outcome()
    watched = analyzer(outcome, LOG, at_once)
    watched.start()
    time.sleep(0.4)  # noqa: ASYNC251  (the loop is stuck, which is the point)
    async with asyncio.timeout(5):
        while not any("responds again" in record.message for record in caplog.records):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    watched.stop()
    assert sum("has not run" in record.message for record in caplog.records) == 1
    assert not outcome.happened.is_set()
    assert watched.maximum_lag > 0.2
