"""Whether a stop is to be quick, because somebody is ready to serve: else the last checkpoint is written."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from pollux.errors import StoreError
from pollux.ha import activation
from pollux.ha.machine import Phase

if TYPE_CHECKING:
    import pytest


async def awaited(others: Any, *, elsewhere: bool = True, fast: bool = False) -> bool:
    """``others``: what is answered for the other members, an error, or None: nothing ever is."""

    async def answer() -> Any:
        if isinstance(others, Exception):
            raise others
        if others is None:
            await asyncio.Event().wait()
        return others

    member: Any = SimpleNamespace(fast_stop=fast, _goes_on_elsewhere=elsewhere, others=answer)
    return await asyncio.wait_for(activation.Activation.awaited(member), 30)


def one(phase: Phase, *, alive: bool = True) -> Any:
    return SimpleNamespace(phase=phase.value, alive=alive)


READY = one(Phase.READY)


async def test_who_is_ready_and_there_is_not_kept_waiting() -> None:
    assert await awaited([one(Phase.CATCHING_UP), READY])
    assert not await awaited([])
    assert not await awaited([one(Phase.CATCHING_UP), one(Phase.READY, alive=False)])


async def test_nobody_waits_where_a_clean_stop_is_no_failover() -> None:
    assert not await awaited([READY], elsewhere=False)
    assert await awaited([], elsewhere=False, fast=True), "a switchover was asked for"


async def test_a_store_that_does_not_answer_holds_no_stop_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a directory of members on a server that hangs, or an error of it, is waited for or ends the stop."""
    monkeypatch.setattr(activation, "LOOK_TIMEOUT", 0.01)
    for found in (None, OSError(5, "Input/output error"), StoreError("gone")):
        assert not await awaited(found)
