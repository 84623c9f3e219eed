"""A symmetric group (ActiveMQ classic's master/slave): three equals on one store, real processes, under traffic."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from harness.failover import SYMMETRIC, Group, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)
KEEP_ALIVE = 0.6
ROLE = SYMMETRIC.format(
    f"<px:lock-keep-alive-period>{KEEP_ALIVE * 1000:.0f}</px:lock-keep-alive-period>"
    "<px:lock-acquire-sleep-interval>500</px:lock-acquire-sleep-interval>"
)
FENCED = 10


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """Three equals: the first one that was started is live, the others are ready."""
    with Group(tmp_path, ROLE, ROLE, ROLE) as group:
        group.begin()
        yield group


def test_whoever_gets_the_lock_is_live_and_a_restarted_one_waits(group: Group) -> None:
    first, *_ = group.members
    assert first.activation["role"] == "symmetric"
    group.fault("kill -9")
    first.kill()
    second = group.wait_for_live()
    group.wait_for_confirms(30)
    taken = group.state()["history"][-1]
    assert taken["duration_ms"] >= KEEP_ALIVE * 1000, "it waited one keep-alive period before it served"
    assert f"reason=m0 is gone: it does not hold the lock any more; one lock-keep-alive-period ({KEEP_ALIVE:g} s)" in (
        second.text().replace('"', "").replace("'", "")
    )
    first.spawn()
    first.wait_for("ready")
    group.wait_for_confirms(30)
    assert group.live() is second, "nobody is preferred: the former live waits"
    assert group.state()["epoch"] == 2
    group.finish()


def test_a_clean_stop_hands_over_and_nobody_fails_back(group: Group) -> None:
    first, *_ = group.members
    assert first.stop() == 0
    second = group.wait_for_live()
    group.wait_for_confirms(30)
    refused = second.command("failback", "--config", str(second.configuration), check=False)
    assert not refused
    answer = json.loads(second.command("switchover", "--json", "--config", str(second.configuration)))
    third = group.wait_for_live(but=second)
    assert answer["to"] == third.name
    group.wait_for_confirms(30)
    group.finish()


def test_a_lock_file_that_somebody_else_touched_or_deleted_ends_the_live(group: Group) -> None:
    first, *_ = group.members
    os.utime(group.node / "live.lock", (1, 1))  # a time that no clock tick of the live can equal
    assert first.wait_for_end() == FENCED
    assert "somebody else changed the lock file" in first.text()
    second = group.wait_for_live()
    group.wait_for_confirms(30)
    (group.node / "live.lock").unlink()
    assert second.wait_for_end() == FENCED
    assert "was deleted or replaced" in second.text()
    third = group.wait_for_live()
    assert third not in (first, second)
    wait_until((group.node / "live.lock").exists, "the lock file was made again")
    group.wait_for_confirms(30)
    group.finish()
