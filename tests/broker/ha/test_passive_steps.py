"""Single steps of a member, without what it is connected with."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pollux.ha.active_passive.activation import ActivePassiveActivation
from pollux.ha.active_passive.grant import Grant
from pollux.ha.active_passive.policy import UNCONFIRMED, StandbySnapshot
from pollux.ha.active_passive.statuses import Status
from pollux.ha.lease import Lease, boot_clock
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
    made._standby = SimpleNamespace(
        ask=lambda _: None,
        accepted=lambda _: None,
        snapshot=lambda status, _: StandbySnapshot(status, follows=True, complete=False, ready=True),
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


@pytest.mark.parametrize(("in_sync", "expected"), [(0, {}), (1, {"castor": 0.0})])
def test_a_primary_that_stops_with_too_few_copies_says_that_and_no_more_is_confirmed(
    backup: Any, in_sync: int, expected: dict[str, float]
) -> None:
    """Breaks when an operator reads of a process that stood still, and a disk that is to be mended."""
    told: list[str] = []
    backup.machine = Machine(lambda: 0)
    for phase in (Phase.JOINING, Phase.ACTIVATING, Phase.LIVE):
        backup.machine.to(phase, "promoted")
    backup.fenced = told.append
    backup.settings = SimpleNamespace(min_in_sync=1)
    mirror = SimpleNamespace(withhold=lambda _: None, require=lambda _: None)
    backup._backups = SimpleNamespace(in_sync=[()] * in_sync, expected=expected, mirror=mirror)
    backup._primary = SimpleNamespace(right=object(), lease=Lease(10.0), grant=Grant(0.0))
    backup.lease.extend(boot_clock())
    backup.stopping("SIGTERM")
    assert not backup.lease.held()
    assert backup.expired() == UNCONFIRMED
    assert told == [UNCONFIRMED]
