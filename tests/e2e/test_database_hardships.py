"""A store in a database of which the surroundings are wrong: the clocks of its hosts, the rights of its user."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from e2e.test_database_store import FENCED, STORE
from harness import stomp
from harness.broker import BrokerProcess
from harness.databases import postgresql
from harness.failover import BACKUP, PRIMARY, Group, wait_until
from pollux.process.exits import EXIT_STORE

if TYPE_CHECKING:
    from harness.postgresql import Server

__all__ = ["postgresql"]

pytestmark = pytest.mark.timeout(600)


@pytest.mark.parametrize(("ahead", "behind"), [(3, -3), (-3, 3)])
def test_clocks_that_are_hours_apart_decide_nothing(
    postgresql: Server, tmp_path: Path, ahead: int, behind: int
) -> None:
    """The lock's time is the database's, and a standby counts by what passes: nobody takes over early, or never."""
    url = postgresql.jdbc(postgresql.create(f"clocks_{ahead + 3}"))
    core = STORE.format(url=url, driver="org.postgresql.Driver", login="<jdbc-user>pollux</jdbc-user>")
    runner = str(Path(__file__).with_name("wrong_clock_runner.py"))
    with Group(tmp_path, PRIMARY.format(""), BACKUP.format(""), core=core, runner=runner) as group:
        live, backup = group.members
        for member, hours in ((live, ahead), (backup, behind)):
            (member.directory / "hours").write_text(str(hours))
        group.begin()
        group.wait_for_confirms(30)
        assert (live.activation["epoch"], backup.phase) == (1, "ready")
        group.fault("SIGSTOP")
        live.signal(signal.SIGSTOP)
        backup.wait_for("live")
        group.wait_for_confirms(30)
        live.signal(signal.SIGCONT)
        assert live.wait_for_end() == FENCED
        group.finish()


def test_a_user_that_lost_its_rights_confirms_nothing_and_serves_again_when_it_has_them(
    postgresql: Server, tmp_path: Path
) -> None:
    name = postgresql.create("rights")
    postgresql.sql("CREATE ROLE plain LOGIN")
    postgresql.sql("GRANT CREATE ON SCHEMA public TO plain", name)
    core = STORE.format(url=postgresql.jdbc(name), driver="org.postgresql.Driver", login="<jdbc-user>plain</jdbc-user>")
    orders = '<address name="orders"><anycast><queue name="orders"/></anycast></address>'
    broker = BrokerProcess(tmp_path, addresses=orders, core=core)
    broker.start()
    try:
        with stomp.connect(broker) as client:
            for number in range(10):
                client.send("orders", str(number), persistent="true")
            postgresql.sql("REVOKE ALL ON messages FROM plain", name)
            client.raw.send("orders", "unconfirmed", headers={"persistent": "true", "receipt": "never"})
            wait_until(lambda: not broker.running, "it ends")
            assert client.frames.receipts.empty()
        assert broker.process is not None
        assert broker.process.wait(30) == EXIT_STORE
        broker.process = None
        assert "permission denied for table messages" in broker.log_tail(20_000)
        postgresql.sql("GRANT ALL ON messages TO plain", name)
        broker.start()
        with stomp.connect(broker) as client:
            client.subscribe("orders")
            assert [client.message().body for _ in range(10)] == [str(number) for number in range(10)]
    finally:
        broker.close()
