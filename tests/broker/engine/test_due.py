"""The timer of what is due at a time of the day: it knows only how time passes."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import pytest

from pollux.engine.due import LONGEST, DueQueues

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pollux.engine.share import Share
    from pollux.routing.queue import Queue
    from pollux.routing.space import AddressSpace

HOUR = 3_600_000


class Times:
    """A loop's timers and the clock on the wall, which moves with them but for when it is set."""

    def __init__(self) -> None:
        self.passed, self.wall = 0.0, 1_000_000
        self._timers: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay: float, callback: Callable[[], None]) -> Times:
        self._timers.append((self.passed + delay, callback))
        return self

    def cancel(self) -> None:
        self._timers.clear()

    def run(self, seconds: float) -> None:
        """Have time pass, and do what falls into it."""
        end = self.passed + seconds
        while self._timers and min(self._timers)[0] <= end:
            at, callback = self._timers.pop()
            self.wall += round((at - self.passed) * 1000)
            self.passed = at
            callback()
        self.wall += round((end - self.passed) * 1000)
        self.passed = end


class Scheduled:
    """A queue with one message for later."""

    id = 1

    def __init__(self, at: int) -> None:
        self.at = at

    def next_due(self) -> int:
        return self.at

    def due(self, now: int) -> None:
        assert now >= self.at
        self.at = 0


def plan(times: Times, queue: Scheduled, ready: Callable[[], None]) -> None:
    """Have a queue do what is due in it, and ``ready`` be called then."""
    due = DueQueues(
        cast("asyncio.AbstractEventLoop", times),
        cast("Share", type("AtOnce", (), {"work": lambda _, steps: list(steps)})()),
        cast("AddressSpace", type("Space", (), {"queue_by_id": lambda _, __: queue})()),
        lambda: times.wall,
        lambda _: ready(),
    )
    due.plan(cast("Queue", queue))


@pytest.mark.parametrize("jump", [0, HOUR // 2, HOUR, 2 * HOUR])
def test_what_is_due_does_not_wait_for_a_clock_that_was_set_forward(jump: int) -> None:
    times = Times()
    queue = Scheduled(times.wall + HOUR)
    done: list[float] = []
    plan(times, queue, lambda: done.append(times.passed))
    times.run(60)
    times.wall += jump
    times.run(2 * HOUR / 1000)
    right = max(60.0, (HOUR - jump) / 1000)
    assert len(done) == 1
    assert right <= done[0] <= right + LONGEST


def test_a_clock_that_was_set_back_has_it_wait_for_its_time() -> None:
    times = Times()
    queue = Scheduled(times.wall + HOUR)
    done: list[int] = []
    expected = queue.at
    plan(times, queue, lambda: done.append(times.wall))
    times.run(60)
    times.wall -= HOUR
    times.run(3 * HOUR / 1000)
    assert done == [expected]
