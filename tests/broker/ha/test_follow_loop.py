"""A member that waits stops looking for a live as soon as it may serve itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from pollux.cluster.discovery import Others
from pollux.config.acceptors import Endpoint
from pollux.ha.copies.follow_loop import FollowLoop

if TYPE_CHECKING:
    import pytest


class Times:
    keep, connect_timeout, retry = 0, 5.0, 0.0


class MachineIsOff:
    """Nobody answers there, not even that nobody listens."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.count = 0

    async def connect(self, _endpoint: Endpoint, _limit: float) -> Any:
        self.count += 1
        self.asked.set()
        await asyncio.Event().wait()


def _never(*_: object) -> None:
    raise AssertionError


async def test_who_may_serve_does_not_wait_for_a_machine_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when it waits for the attempt to connect: its votes are older than its lease by then, again and again."""
    off = MachineIsOff()
    monkeypatch.setattr("pollux.ha.copies.follow_loop.ClusterConnector", lambda _hub: off)
    loop = FollowLoop(
        None,  # type: ignore[arg-type]  # nobody is reached by it
        {},
        Times(),
        Others((Endpoint("live", "192.0.2.1", 1),)),
        about=dict,
        on_accepted=_never,
        on_synced=_never,
        on_lost=_never,
        on_refused=_never,
    )
    loop.start()
    await off.asked.wait()
    await asyncio.wait_for(loop.hold(), 30)
    off.asked.clear()
    for _ in range(10):
        await asyncio.sleep(0)
    assert off.count == 1, "nobody is followed"
    loop.again()
    await asyncio.wait_for(off.asked.wait(), 30)
    await asyncio.wait_for(loop.stop(), 30)
