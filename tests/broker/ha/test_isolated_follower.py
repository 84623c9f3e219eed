"""A ZooKeeper follower that is cut off from its leader answers with what was once true: nobody may serve by that."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.ha.group import wait_until
from broker.ha.test_member import Listener
from harness.ensemble import Ensemble
from pollux.config.manager import ZooKeeperTimes
from pollux.ha.machine import Machine
from pollux.ha.replication.coordination import CoordinationError
from pollux.ha.replication.member import Member
from pollux.ha.replication.zookeeper import ZooKeeperCoordinator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from pollux.ha.lease import Right

#: The lease is 2 s of it; the follower believes in its leader for a minute.
TIMES = ZooKeeperTimes(session=3.0)
TIMEOUT = 60.0


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[Ensemble]:
    made = Ensemble(tmp_path)
    try:
        yield made.start()
    finally:
        made.stop()


class Broker:
    """A member that serves as soon as it may, and stays so until it is fenced."""

    def __init__(self, directory: Path, connect_string: str, name: str) -> None:
        self.journal = directory / name
        self.journal.mkdir()
        self.listener = Listener()
        self.listener.fences = []
        self.coordinator = ZooKeeperCoordinator(connect_string, "pair", times=TIMES, holder=name)
        self.member = Member(
            self.journal,
            lambda _: self.coordinator,
            Machine(lambda: 0),
            self.listener,
            identity="pair",
            equal=True,
            data_node_id=lambda: "0b" * 16,
            session=TIMES.session,
            part=TIMES.part,
            name=name,
        )


def test_a_live_that_asks_a_follower_that_is_cut_off_stops_before_the_next_one_serves(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    """Breaks when the right to serve is proven by a read: the follower still has the lock's node, and says so."""
    castor, pollux = Broker(tmp_path, ensemble.follower, "castor"), Broker(tmp_path, ensemble.majority, "pollux")
    try:
        castor.member.start()
        assert castor.listener.said.wait(TIMEOUT)
        assert castor.listener.right is not None, castor.listener.error
        # The copy is complete: whoever gets the lock may serve.
        for path in castor.journal.iterdir():
            (pollux.journal / path.name).write_bytes(path.read_bytes())
        held: list[bool] = []
        granted = pollux.listener.granted

        def look(right: Right) -> None:
            held.append(castor.member.lease.held())
            granted(right)

        pollux.listener.granted = look  # type: ignore[method-assign]
        pollux.member.start()
        wait_until(lambda: pollux.member.coordinated == 1, "the other one waits for the lock")
        assert castor.member.lease.held()
        ensemble.isolate()
        assert pollux.listener.said.wait(TIMEOUT)
        assert pollux.listener.right is not None, pollux.listener.error
        assert held == [False], "two lives: the one that was cut off may still confirm"
        wait_until(lambda: castor.listener.fences, "it has stopped")
        with pytest.raises(CoordinationError):
            castor.coordinator.prove()
        assert pollux.member.lease.held()
    finally:
        castor.member.stop(release=False)
        pollux.member.stop(release=False)
