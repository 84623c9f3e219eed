"""Failed log-ins are slowed down, others are not, memory is bounded."""

from __future__ import annotations

import pytest

from pollux.engine.throttle import FORGET_AFTER, FREE_USERS, MAXIMUM_USER_DELAY, Throttle


def test_nobody_waits_without_failures() -> None:
    throttle = Throttle()
    assert [throttle.reserve("a", "ada", now) for now in (0.0, 0.0, 0.1)] == [0.0, 0.0, 0.0]


def test_each_failure_doubles_the_wait() -> None:
    throttle = Throttle(0.25, 8.0)
    now = 0.0
    waits = []
    for _ in range(7):
        wait = throttle.reserve("a", "ada", now)
        assert wait is not None
        waits.append(wait)
        now += wait
        throttle.failed("a", "ada", now)
    assert waits == pytest.approx([0, 0.25, 0.5, 1, 2, 4, 8])


def test_parallel_attempts_queue_up_and_are_then_refused() -> None:
    throttle = Throttle(1.0, 8.0)
    throttle.failed("a", "ada", 0.0)
    waits = [throttle.reserve("a", "ada", 0.0) for _ in range(12)]
    taken = [wait for wait in waits if wait is not None]
    assert taken == pytest.approx([1, 2, 3, 4, 5, 6, 7, 8])
    assert waits[8:] == [None] * 4


def test_a_program_with_an_old_password_does_not_hold_its_neighbours() -> None:
    throttle = Throttle()
    for now in range(50):
        throttle.failed("10.0.0.1", "old", float(now))
    assert throttle.reserve("10.0.0.1", "ada", 50.0) == 0.0


def test_guessing_many_names_slows_the_source_down() -> None:
    throttle = Throttle()
    for number in range(FREE_USERS + 4):
        throttle.failed("10.0.0.1", f"user{number}", 0.0)
    wait = throttle.reserve("10.0.0.1", "another", 0.0)
    assert wait is None or wait >= 1.0
    assert throttle.reserve("10.0.0.2", "another", 0.0) == 0.0


def test_who_logged_in_before_is_not_held_by_a_guessing_neighbour() -> None:
    throttle = Throttle()
    throttle.succeeded("10.0.0.1", "ada", 0.0)
    for number in range(20):
        throttle.failed("10.0.0.1", f"user{number}", 1.0)
    assert throttle.reserve("10.0.0.1", "ada", 2.0) == 0.0


def test_strangers_cannot_lock_a_user_out() -> None:
    throttle = Throttle()
    for number in range(1000):
        throttle.failed(f"10.0.{number // 250}.{number % 250}", "ada", 0.0)
    for _ in range(100):
        wait = throttle.reserve("192.0.2.1", "ada", 0.0)
        assert wait is not None
        assert wait <= MAXIMUM_USER_DELAY


def test_success_opens_the_pair_and_time_forgets() -> None:
    throttle = Throttle()
    for _ in range(5):
        throttle.failed("a", "ada", 0.0)
    throttle.succeeded("a", "ada", 10.0)
    assert throttle.reserve("a", "ada", 10.0) == 0.0
    for _ in range(5):
        throttle.failed("a", "bob", 0.0)
    assert throttle.reserve("a", "bob", FORGET_AFTER + 20) == 0.0


def test_memory_is_bounded() -> None:
    throttle = Throttle(entries=100)
    for number in range(5000):
        throttle.failed(f"source{number}", f"user{number}", 0.0)
        throttle.succeeded(f"source{number}", f"other{number}", 0.0)
    assert len(throttle) <= 400
