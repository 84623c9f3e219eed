"""The lease of a replicated member: what is proven when, and for how long it holds."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from pollux.ha.lease import Lease
from pollux.ha.replication.coordination import CoordinationError

from .test_member import TIMEOUT, One, make

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from pollux.ha.lease import Right

__all__ = ["make"]


class Waits(threading.Event):
    """Notes for each wait whether there was nothing to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.idle: list[bool] = []
        self.entered = threading.Condition()

    def wait(self, timeout: float | None = None) -> bool:
        with self.entered:
            self.idle.append(self.is_set())
            self.entered.notify_all()
        return super().wait(timeout)

    def until(self, count: int) -> None:
        with self.entered:
            assert self.entered.wait_for(lambda: len(self.idle) >= count, TIMEOUT)


def test_a_live_that_is_woken_proves_once_and_waits_again(make: Callable[..., One]) -> None:
    """ZooKeeper wakes it with whatever happens there: it must not go round and round from then on."""
    one = make()
    one.member._woken = waits = Waits()
    one.serve()
    waits.until(1)
    before = len(waits.idle)
    one.member.wake()
    waits.until(before + 1)
    assert not any(waits.idle)


def test_the_lease_is_a_part_of_the_session_that_was_granted(make: Callable[..., One]) -> None:
    one = make(part=0.5)
    assert one.member.lease.seconds == TIMEOUT / 2
    one.coordinator.session = TIMEOUT / 4
    one.serve()
    assert one.member.lease.seconds == TIMEOUT / 8
    assert 0 < one.member.lease.left() <= TIMEOUT / 8


def test_a_session_that_becomes_shorter_shortens_the_lease_even_if_nothing_can_be_proven(
    make: Callable[..., One], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server grants less than the one before, and then is silent: the lock ends with the shorter session."""
    one = make(part=0.5)
    asked = threading.Event()
    granted = one.listener.granted

    def silent() -> None:
        asked.set()
        raise CoordinationError("no answer")

    def other_server(right: Right) -> None:
        """In the member's thread, before the next proof."""
        monkeypatch.setattr(one.coordinator, "prove", silent)
        one.coordinator.session = TIMEOUT / 4
        granted(right)

    monkeypatch.setattr(one.listener, "granted", other_server)
    one.serve()
    assert asked.wait(TIMEOUT)
    assert 0 < one.member.lease.left() <= TIMEOUT / 8


def test_a_lease_is_shortened_and_never_lengthened() -> None:
    now = 100.0
    lease = Lease(10.0, lambda: now)
    lease.shorten(8.0)
    assert not lease.held(), "it has not begun"
    assert lease.extend(100.0)
    assert lease.left() == 8.0
    lease.shorten(9.0)
    lease.shorten(3.0)
    assert lease.left() == 3.0
    now = 103.0
    assert not lease.held()
    assert not lease.extend(now)
