"""A member dies at each step of raising the activation sequence: who has the newest data serves, and nobody else.

The rules are those of :mod:`pollux.cluster.sequence`; here with brokers, disks and a ZooKeeper that are real.
"""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from harness.bundle import ROOT
from harness.failover import wait_until
from harness.replication import PEER, Pair, zookeeper_manager
from harness.zookeeper import ZooKeeperProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.replication import Replica

pytestmark = pytest.mark.timeout(600)
RUNNER = str(ROOT / "harness" / "die_at_raise.py")
#: Where the one dies, and whether the other one, which comes back first, may serve: it has the number of before.
STEPS = [("before claim", True), ("after claim", True), ("before raised", True), ("after raised", False)]


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    """A ZooKeeper of this test's own."""
    server = ZooKeeperProcess(tmp_path / "zookeeper")
    try:
        yield server.start()
    finally:
        server.stop()


def newer_data_exists(member: Replica) -> bool:
    """Whether it says that it must not serve."""
    return "newer data exists" in member.activation.get("reason", "")


@pytest.mark.parametrize("takes_over", [False, True], ids=["it lost its backup", "it takes over"])
def test_a_member_dies_at_each_step(tmp_path: Path, zookeeper: ZooKeeperProcess, takes_over: bool) -> None:
    """Both run again afterwards, and what was confirmed before, meanwhile and since is there."""
    with Pair(tmp_path, zookeeper_manager(zookeeper), PEER, PEER, runner=RUNNER) as pair:
        live, backup = pair.start()
        pair.start_traffic(pause=0.02)
        for step, other_serves in STEPS:
            pair.wait_for_confirms(30)
            dies, other = (backup, live) if takes_over else (live, backup)
            (dies.directory / "die-at").write_text(step)
            pair.fault(f"kill -9 of {other.name}, and of {dies.name} {step}")
            other.kill()
            assert dies.wait_for_end() == -signal.SIGKILL
            other.spawn()
            if other_serves:
                other.wait_for("live")
                live, backup = other, dies
            else:
                wait_until(lambda: newer_data_exists(other), f"{other.name} waits for {dies.name}")  # noqa: B023
                assert other.phase != "live"
                live, backup = dies, other
            dies.spawn()
            live.wait_for("live")
            pair.wait_for_sync(backup)
        # A claim of its own: it has the number already, and only the last step is missing.
        pair.wait_for_confirms(30)
        (live.directory / "die-at").write_text("before raised")
        pair.fault("kill -9 of both; the one that has claimed comes back alone")
        backup.kill()
        assert live.wait_for_end() == -signal.SIGKILL
        live.spawn()
        live.wait_for("live")
        backup.spawn()
        pair.wait_for_sync(backup)
        pair.wait_for_confirms(30)
        pair.finish()
