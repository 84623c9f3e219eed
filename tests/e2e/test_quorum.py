"""A pair without a coordination service among the lives of two other pairs, which vote; judged by the ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.failover import wait_until
from harness.replication import Cluster

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)
#: Votes are repeated quickly, for as long as a busy machine may need.
VOTES = (
    "<vote-retries>1000</vote-retries><vote-retry-wait>200</vote-retry-wait><quorum-vote-wait>1</quorum-vote-wait>"
    "<vote-on-replication-failure>true</vote-on-replication-failure>"
)


def test_only_a_backup_with_the_votes_of_the_others_takes_over(tmp_path: Path) -> None:
    """Cut off from the majority when its live is killed it waits; with the majority back it serves, all data there."""
    own = "<check-for-live-server>true</check-for-live-server>"
    with Cluster(tmp_path, votes=VOTES, own=own, relayed=True) as cluster:
        live, backup = cluster.start()
        cluster.start_traffic(pause=0.02)
        cluster.wait_for_confirms(30)
        for relay in cluster.relays[2:]:
            relay.cut()
        cluster.fault("the backup is cut off from the voters, then kill -9 of the live")
        live.kill()
        wait_until(lambda: "votes needed" in backup.activation.get("reason", ""), "the backup has lost a vote")
        assert backup.phase == "catching_up"
        assert "0 of 2 votes needed, 0 other lives answered" in backup.activation["reason"]
        for relay in cluster.relays[2:]:
            relay.heal()
        backup.wait_for("live")
        cluster.wait_for_confirms(30)
        # The old live follows, and once it is in sync it is given the right to serve back, without a vote.
        live.spawn()
        live.wait_for("live")
        assert backup.wait_for_end() == 0
        assert "handed over" in backup.text()
        cluster.wait_for_confirms(30)
        # This time the voters can be reached: the backup has their votes at once.
        backup.spawn()
        cluster.wait_for_sync(backup)
        cluster.fault("kill -9 of the live")
        live.kill()
        backup.wait_for("live")
        cluster.wait_for_confirms(30)
        cluster.finish()
