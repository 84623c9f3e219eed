"""Single steps of a member, without what it is connected with."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from pollux.ha.active_passive.activation import ActivePassiveActivation
from pollux.ha.active_passive.grant import Grant
from pollux.ha.active_passive.policy import UNCONFIRMED, StandbySnapshot
from pollux.ha.active_passive.promotion import Number, Record, Verdict, Why
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


async def test_one_that_is_being_promoted_notes_who_says_that_it_serves(backup: Any) -> None:
    """One that waits follows it at once, and a primary does neither."""
    turned: list[str] = []
    backup._joined, backup._follow = True, SimpleNamespace(turn=turned.append)
    backup.settings = SimpleNamespace(others={"castor": "where it is"})
    backup._standby.told, backup._standby.is_behind = {}, lambda _: True
    backup.heard_of("castor", 2)
    assert (turned, backup._standby.told) == (["where it is"], {})
    async with backup._promoting:
        backup.heard_of("castor", 3)
        assert (turned, backup._standby.told) == (["where it is"], {"castor": 3})
        backup.status = Status.RECOVERING
        backup.heard_of("castor", 4)
    assert (len(turned), backup._standby.told) == (1, {"castor": 3})


@pytest.mark.parametrize(("epoch", "waits"), [(2, True), (1, False)])
async def test_whose_promotion_is_written_as_another_one_serves_outlasts_its_grant(
    backup: Any, epoch: int, waits: bool
) -> None:
    """Nobody can tell which of them the resource manager has chosen last; an old word says nothing."""
    record = Record("0c" * 16, Number(1, 1), complete=True, primary="helena", heirs=frozenset())
    backup._standby.record, backup._standby.told, backup._backups = record, {}, SimpleNamespace()
    backup._primary = SimpleNamespace(grant=Grant(3.0))
    opened: list[float] = []

    async def take(_verdict: Verdict) -> str:
        backup._standby.told["castor"] = epoch
        return "right"

    async def opens(_right: str, at: float, now: float) -> None:
        opened.append(at - now)

    backup._promoter, backup._open = SimpleNamespace(take=take), opens
    await backup._take(Verdict(Why.PROMOTED, "its data is the newest", epoch=2), boot_clock())
    assert backup.status is Status.RECOVERING
    assert (opened[0] > 0) is waits


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
