"""A member that waits stops looking for a live as soon as it may serve itself, and turns to one that says it is."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pollux.cluster.connector import UnreachableError
from pollux.cluster.discovery import Others
from pollux.config.acceptors import Endpoint
from pollux.ha.copies.follow_loop import FollowLoop

if TYPE_CHECKING:
    import pytest


class Times:
    keep, connect_timeout, retry = 0, 5.0, 0.0


class LongPause(Times):
    retry = 3600.0


class MachineIsOff:
    """Nobody answers at the first address, not even that nobody listens; at others nobody listens."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.names: list[str] = []

    async def connect(self, endpoint: Endpoint, _limit: float) -> Any:
        self.names.append(endpoint.host)
        self.asked.set()
        if endpoint != OFF:
            raise UnreachableError("nobody listens")
        await asyncio.Event().wait()


OFF, NEW = Endpoint("tcp", "192.0.2.1", 1), Endpoint("tcp", "192.0.2.2", 1)


def _never(*_: object) -> None:
    raise AssertionError


def follow(monkeypatch: pytest.MonkeyPatch, others: Others, off: MachineIsOff, times: Times) -> FollowLoop:
    monkeypatch.setattr("pollux.ha.copies.follow_loop.ClusterConnector", lambda _hub: off)
    return FollowLoop(
        None,  # type: ignore[arg-type]  # nobody is reached by it
        {},
        times,
        others,
        about=dict,
        on_accepted=_never,
        on_synced=_never,
        on_lost=_never,
        on_refused=_never,
    )


async def test_who_may_serve_does_not_wait_for_a_machine_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when it waits for the attempt to connect: its votes are older than its lease by then, again and again."""
    off = MachineIsOff()
    loop = follow(monkeypatch, Others((OFF,)), off, Times())
    loop.start()
    await off.asked.wait()
    await asyncio.wait_for(loop.hold(), 30)
    off.asked.clear()
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(off.names) == 1, "nobody is followed"
    loop.again()
    await asyncio.wait_for(off.asked.wait(), 30)
    await asyncio.wait_for(loop.stop(), 30)


async def test_who_says_that_it_serves_is_tried_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when the attempt on a machine without power is waited for: each takes seconds, and comes again and again.

    It breaks, too, when the round goes on with that machine before the one that was told.
    """
    off = MachineIsOff()
    loop = follow(monkeypatch, Others((OFF, NEW)), off, Times())
    loop.start()
    await off.asked.wait()
    off.asked.clear()
    loop.turn(NEW)
    await asyncio.wait_for(off.asked.wait(), 30)
    assert off.names[:2] == [OFF.host, NEW.host]
    await asyncio.wait_for(loop.stop(), 30)


async def test_who_says_that_it_serves_ends_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a pause of an hour is waited for."""
    off = MachineIsOff()
    loop = follow(monkeypatch, Others((NEW,)), off, LongPause())
    loop.start()
    await loop.looked.wait()
    off.asked.clear()
    loop.turn(NEW)
    await asyncio.wait_for(off.asked.wait(), 30)
    await asyncio.wait_for(loop.stop(), 30)


async def test_a_member_that_may_serve_follows_nobody_whoever_says_that_it_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Breaks when the word of another one begins what was held."""
    off = MachineIsOff()
    loop = follow(monkeypatch, Others((OFF,)), off, Times())
    loop.start()
    await off.asked.wait()
    await asyncio.wait_for(loop.hold(), 30)
    loop.turn(NEW)
    for _ in range(10):
        await asyncio.sleep(0)
    assert len(off.names) == 1
    loop.again()
    await asyncio.wait_for(loop.stop(), 30)
