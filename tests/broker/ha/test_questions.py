"""Members of an active-passive cluster ask each other: who is waited for, and what a wrong word costs."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pollux.config.acceptors import Endpoint
from pollux.ha.active_passive import questions
from pollux.ha.active_passive.promotion import Answer
from pollux.ha.active_passive.statuses import Status

NEAR, OFF = "10.0.0.1:5672", "10.0.0.2:5672"
OTHERS = {name: Endpoint("tcp", name.partition(":")[0], 5672) for name in (NEAR, OFF)}
#: As long as it may take to find a machine without power by its silence.
SECONDS = 3600.0


def answering(monkeypatch: pytest.MonkeyPatch, **answers: Status) -> None:
    """Have members answer, by the last number of their addresses; the others say nothing."""

    async def ask(_: object, member: str, endpoint: Endpoint, seconds: float) -> Answer:
        if (status := answers.get("m" + endpoint.host[-1])) is None:
            await asyncio.sleep(seconds)
        return Answer(member, status)

    monkeypatch.setattr(questions, "ask", ask)


def others() -> questions.OtherMembers:
    hub: Any = None
    settings: Any = SimpleNamespace(others=OTHERS, connect_timeout=SECONDS)
    return questions.OtherMembers(hub, settings)


async def asked(off: set[str]) -> dict[str, Status | None]:
    found = await asyncio.wait_for(others().ask(off=off), 30)
    return {one.member: one.status for one in found}


async def test_a_machine_that_is_off_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a promotion takes as long as a connection to a machine that says nothing may take."""
    answering(monkeypatch, m1=Status.READY)
    assert await asked({OFF}) == {NEAR: Status.READY, OFF: None}


async def test_who_is_said_to_be_off_and_answers_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when it is not asked at all: then a primary that nobody has fenced is not seen."""
    answering(monkeypatch, m1=Status.READY, m2=Status.ACTIVE)
    assert await asked({OFF}) == {NEAR: Status.READY, OFF: Status.ACTIVE}


async def test_who_is_not_said_to_be_off_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when the others' answers are enough: one that may have newer data would not be heard."""
    answering(monkeypatch, m1=Status.READY)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(others().ask(), 3 * questions.AT_ONCE)
