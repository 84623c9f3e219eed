"""A backup in the moment in which a primary accepts it, without what it is connected with."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pollux.ha.active_passive.activation import ActivePassiveActivation
from pollux.ha.active_passive.policy import Waiting
from pollux.ha.active_passive.statuses import Status
from pollux.ha.machine import Machine, Phase

ACCEPTED = {"id": "castor"}


@pytest.fixture
def backup() -> Any:
    """Return one that was ready; whoever accepts it has more than it has."""
    made: Any = ActivePassiveActivation.__new__(ActivePassiveActivation)
    made.machine = Machine(lambda: 0)
    made.machine.to(Phase.JOINING, "started")
    made.machine.to(Phase.READY, "has everything")
    made.status = Status.READY
    made._opening, made._promoting, made._prefetch = None, asyncio.Lock(), None
    made._heard = lambda _: None
    made._following = SimpleNamespace(
        ask=lambda _: None,
        accepted=lambda _: None,
        snapshot=lambda status, _: Waiting(status, follows=True, complete=False, ready=True),
    )
    return made


def test_one_that_waits_says_at_once_that_it_is_not_ready(backup: Any) -> None:
    backup._accepted(ACCEPTED)
    assert (backup.status, backup.machine.phase) == (Status.CATCHUP, Phase.CATCHING_UP)
    assert backup._live == ACCEPTED


def test_one_that_stops_takes_no_step(backup: Any) -> None:
    """Breaks when it leaves its end for what a member that waits does next."""
    backup.machine.to(Phase.STOPPING, "SIGTERM")
    backup._accepted(ACCEPTED)
    assert (backup.status, backup.machine.phase) == (Status.READY, Phase.STOPPING)


async def test_one_that_is_being_promoted_takes_no_step(backup: Any) -> None:
    async with backup._promoting:
        backup._accepted(ACCEPTED)
    assert (backup.status, backup.machine.phase) == (Status.READY, Phase.READY)
