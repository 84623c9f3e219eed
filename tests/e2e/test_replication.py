"""Every fault a replicated pair must survive, under traffic over three protocols, judged by the ledger."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from harness.failover import wait_until
from harness.replication import BACKUP, PEER, PRIMARY, Pair, file_manager, zookeeper_manager
from harness.zookeeper import ZooKeeperProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from harness.replication import Replica

pytestmark = pytest.mark.timeout(600)
#: Milliseconds; the longest that the tests' ZooKeeper grants.
SESSION_OF_AN_HOUR = 3_600_000


@pytest.fixture
def zookeeper(tmp_path: Path) -> Iterator[ZooKeeperProcess]:
    """A ZooKeeper of this test's own."""
    server = ZooKeeperProcess(tmp_path / "zookeeper")
    try:
        yield server.start()
    finally:
        server.stop()


def under_traffic(pair: Pair) -> tuple[Replica, Replica]:
    """Start a pair and its traffic."""
    live, backup = pair.start()
    pair.start_traffic(pause=0.02)
    pair.wait_for_confirms(30)
    return live, backup


def test_a_backup_takes_over_and_the_old_live_becomes_its_backup(tmp_path: Path, zookeeper: ZooKeeperProcess) -> None:
    """kill -9 twice, so that both serve after the other, with all that was confirmed before.

    The session would last longer than the test: it is ended for the killed ones.
    """
    with Pair(tmp_path, zookeeper_manager(zookeeper, session_ms=SESSION_OF_AN_HOUR), PEER, PEER) as pair:
        first, second = under_traffic(pair)
        pair.fault("kill -9 of the first")
        first.kill()
        second.wait_for("live")
        pair.wait_for_confirms(30)
        first.spawn()
        pair.wait_for_sync(first)
        wait_until(lambda: first.replication["standby_prefetch"], "the copy is read, for the next takeover")
        # It served with its data: that is kept, and everything copied anew.
        assert (first.journal / "oldreplica.1").is_dir()
        pair.wait_for_confirms(30)
        pair.fault("kill -9 of the second")
        second.kill()
        first.wait_for("live")
        pair.wait_for_confirms(30)
        history = json.loads(first.command("history", "--json", "--config", str(first.configuration)))
        assert [(one["from"], one["to"]) for one in history] == [(None, "m0"), ("m0", "m1"), ("m1", "m0")]
        epochs = [one["epoch"] for one in history]
        assert epochs == sorted(set(epochs))
        pair.finish()


def test_a_backup_that_comes_back_is_completed(tmp_path: Path) -> None:
    """The live goes on without it, with a higher sequence; what it has is kept, and it can take over again."""
    with Pair(tmp_path, file_manager(tmp_path / "locks"), PRIMARY, BACKUP) as pair:
        live, backup = under_traffic(pair)
        assert live.local is not None
        before = live.local.sequence
        pair.fault("kill -9 of the backup")
        backup.kill()
        # What the backup had taken before its end is confirmed yet.
        wait_until(lambda: "no backup is in sync" in str(live.activation.get("warnings")), "the live knows")
        pair.wait_for_confirms(30)
        assert live.local.sequence == before + 1
        backup.spawn()
        pair.wait_for_sync(backup)
        assert not (backup.journal / "oldreplica.1").exists()
        assert backup.local is not None
        assert backup.local.sequence == before + 1
        pair.wait_for_confirms(30)
        pair.fault("kill -9 of the live")
        live.kill()
        backup.wait_for("live")
        pair.wait_for_confirms(30)
        pair.finish()
