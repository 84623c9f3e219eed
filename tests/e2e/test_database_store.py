"""A store in a database, under traffic over three protocols and judged by the ledger.

    POLLUX_DATABASE_ROUNDS=50 .venv/bin/python -m pytest tests/e2e/test_database_store.py -k stood
    POLLUX_DATABASE_ROUNDS=20 .venv/bin/python -m pytest tests/e2e/test_database_store.py -k server_is_killed

has a live stand still, or the server killed, so often in one test.
"""

from __future__ import annotations

import json
import os
import signal
import time
from typing import TYPE_CHECKING

import pytest

from harness.databases import DATABASES, postgresql
from harness.failover import BACKUP, PRIMARY, SYMMETRIC, Group, wait_until
from harness.postgresql import running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from harness.failover import Member
    from harness.postgresql import Server

__all__ = ["postgresql"]

#: How often a live stands still, and the server is killed (twice at least).
ROUNDS = int(os.environ.get("POLLUX_DATABASE_ROUNDS", "1"))
pytestmark = pytest.mark.timeout(600 + 60 * ROUNDS)
FENCED = 10
LOCK_TIMEOUT = "<journal-lock-acquisition-timeout>1000</journal-lock-acquisition-timeout>"

STORE = """<store><database-store>
  <jdbc-driver-class-name>{driver}</jdbc-driver-class-name>
  <jdbc-connection-url>{url}</jdbc-connection-url>
  {login}
  <message-table-name>MESSAGES</message-table-name>
  <bindings-table-name>BINDINGS</bindings-table-name>
  <large-message-table-name>LARGE_MESSAGES</large-message-table-name>
  <page-store-table-name>PAGE_STORE</page-store-table-name>
  <node-manager-store-table-name>NODE_MANAGER_STORE</node-manager-store-table-name>
</database-store></store>"""


@pytest.fixture
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], str]:
    """A function that makes an empty database of a kind, and names it as broker.xml does."""

    def make(kind: str) -> str:
        if kind == "sqlite":
            url, driver, login = f"jdbc:sqlite:{tmp_path}/store.db", "org.sqlite.JDBC", ""
        else:
            server: Server = request.getfixturevalue("postgresql")
            name = server.create(f"e2e_{abs(hash(request.node.name))}")
            url, driver, login = server.jdbc(name), "org.postgresql.Driver", "<jdbc-user>pollux</jdbc-user>"
        return STORE.format(url=url, driver=driver, login=login)

    return make


@pytest.mark.parametrize("kind", DATABASES)
def test_kill_of_the_live_under_traffic(kind: str, store: Callable[[str], str], tmp_path: Path) -> None:
    with Group(tmp_path, PRIMARY.format(""), BACKUP.format(""), core=store(kind)) as group:
        live, backup = group.members
        group.begin()
        group.fault("kill -9")
        live.kill()
        backup.wait_for("live")
        group.wait_for_confirms(30)
        assert backup.activation["epoch"] == 2
        verdict = group.finish()
        assert verdict.rto_ms[0] is not None
        history = json.loads(backup.command("history", "--json", "--config", str(backup.configuration)))
        assert [(one["epoch"], one["from"], one["to"]) for one in history] == [(1, None, "m0"), (2, "m0", "m1")]
        config = ("--config", str(backup.configuration))
        assert json.loads(backup.command("journal", "stat", "--json", *config))["epochs"]
        assert '"type": "START"' in backup.command("journal", "dump", "--json", *config)
        assert backup.stop() == 0
        assert json.loads(backup.command("journal", "verify", "--json", *config))["sound"]


def test_a_live_that_stood_still_for_two_leases_writes_and_confirms_nothing_more(
    postgresql: Server, store: Callable[[str], str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """It stands still within a transaction, which the server then ends."""
    lease = 6.0  # lease-guard and lease-margin
    core, database = store("postgresql"), f"e2e_{abs(hash(request.node.name))}"
    with Group(tmp_path, PRIMARY.format(""), BACKUP.format(""), core=core) as group:
        live, backup = group.members
        group.begin()
        for number in range(ROUNDS):
            if number:
                live.spawn()
                live.wait_for("live")  # it asked for the store, and the backup ended
                backup.wait_for_end()
                backup.spawn()
                backup.wait_for("ready")
            group.fault("SIGSTOP")
            stop_within_a_transaction(live, postgresql, database)
            stopped = time.monotonic()
            backup.wait_for("live")
            epoch = backup.activation["epoch"]
            before = written_before(epoch, postgresql, database)
            group.wait_for_confirms(30)
            time.sleep(max(0, stopped + 2 * lease - time.monotonic()))  # nothing to wait for: it stands still so long
            live.signal(signal.SIGCONT)
            assert live.wait_for_end() == FENCED
            # The new life deletes what its checkpoints hold.
            assert written_before(epoch, postgresql, database) <= before
            group.wait_for_confirms(30)
        group.finish()


def stop_within_a_transaction(live: Member, server: Server, database: str) -> None:
    """Have it stand still where a write is on its way: the statements are sent, and the commit is not."""
    assert live.process is not None
    its = f"datname = '{database}' AND application_name LIKE 'pollux {live.process.pid} %'"
    open_ones = f"SELECT count(*) FROM pg_stat_activity WHERE {its} AND state = 'idle in transaction'"  # noqa: S608  (of ours)

    def stands() -> bool:
        live.signal(signal.SIGSTOP)
        if int(server.sql(open_ones)):
            return True
        live.signal(signal.SIGCONT)
        return False

    wait_until(stands, "it stands still within a transaction")


def written_before(epoch: int, server: Server, database: str) -> set[str]:
    """Return what is in the journal of lives before an epoch: file, offset and digest of each piece."""
    return set(
        server.sql(
            "SELECT name, start, md5(data) FROM messages JOIN node_manager_store_files AS files ON files.id = file"  # noqa: S608
            f" WHERE name LIKE 'pollux-%' AND CAST(split_part(name, '-', 2) AS INTEGER) < {epoch}",
            database,
        ).splitlines()
    )


def test_master_and_slave_by_a_lock_in_the_database_change_places_as_those_by_a_file_do(
    store: Callable[[str], str], tmp_path: Path
) -> None:
    """Nobody is preferred: whoever has the lock is the master, and who comes back waits as a slave."""
    # lockKeepAlivePeriod and lockAcquireSleepInterval of ActiveMQ, by our names.
    role = SYMMETRIC.format(
        "<px:lock-keep-alive-period>1000</px:lock-keep-alive-period>"
        "<px:lock-acquire-sleep-interval>200</px:lock-acquire-sleep-interval>"
    )
    own = "<px:lease-guard>15000</px:lease-guard>"
    with Group(tmp_path, role, role, core=store("postgresql"), own=own) as group:
        master, slave = group.members
        group.begin()
        group.fault("kill -9 of the master")
        master.kill()
        slave.wait_for("live")
        group.wait_for_confirms(30)
        master.spawn()
        master.wait_for("ready")
        assert slave.phase == "live"
        group.fault("the master is stopped")
        assert slave.stop() == 0
        master.wait_for("live")
        group.wait_for_confirms(30)
        assert master.activation["epoch"] == 3
        group.finish()


def test_a_single_broker_keeps_its_store_in_a_database_and_shares_it_with_nobody(
    store: Callable[[str], str], tmp_path: Path
) -> None:
    """Without a policy, too, the lock is in the database: who comes second waits, and destroys nothing."""
    with Group(tmp_path, "", "", core=store("sqlite") + LOCK_TIMEOUT) as group:
        first, second = group.members
        first.start()
        group.start_traffic()
        group.wait_for_confirms(30)
        second.spawn()
        assert second.wait_for_end() != 0
        assert "the store's lock was not free within" in second.text()
        group.fault("kill -9")
        first.kill()
        first.start()
        group.wait_for_confirms(30)
        group.finish()


def test_a_live_goes_on_when_the_server_is_killed_and_back_within_its_lease(tmp_path: Path) -> None:
    """A commit whose answer was lost is found out; the end of all sessions moves no backup to take over."""
    with running() as server:
        core = STORE.format(url=server.jdbc(), driver="org.postgresql.Driver", login="<jdbc-user>pollux</jdbc-user>")
        own = "<px:lease-guard>15000</px:lease-guard>"
        with Group(tmp_path, PRIMARY.format(""), BACKUP.format(""), core=core, own=own) as group:
            live, backup = group.members
            group.begin()
            for _ in range(max(ROUNDS, 20)):
                group.fault("PostgreSQL is killed")
                server.stop()
                server.start()
                group.wait_for_confirms(30)
            backup.wait_for("ready")
            group.finish()
            assert live.activation["epoch"] == 1
            assert backup.phase == "ready"


def test_the_server_is_lost_and_its_standby_promoted(tmp_path: Path) -> None:
    """Nothing that was confirmed is lost with it: the server confirmed nothing that its standby had not written."""
    with running() as lost, running(of=lost) as standby:
        lost.sql("ALTER SYSTEM SET synchronous_standby_names = '*'")
        lost.sql("SELECT pg_reload_conf()")
        wait_until(lambda: lost.sql("SELECT sync_state FROM pg_stat_replication") == "sync", "the standby is asked")
        url = f"jdbc:postgresql:postgres?host={lost.directory},{standby.directory}&amp;targetServerType=primary"
        core = STORE.format(url=url, driver="org.postgresql.Driver", login="<jdbc-user>pollux</jdbc-user>")
        own = "<px:lease-guard>15000</px:lease-guard>"
        with Group(tmp_path, PRIMARY.format(""), BACKUP.format(""), core=core, own=own) as group:
            live, backup = group.members
            group.begin()
            group.fault("PostgreSQL is lost")
            lost.stop()
            standby.promote()
            group.wait_for_confirms(60)
            backup.wait_for("ready")
            group.finish()
            assert live.activation["epoch"] == 1, "who serves goes on: no session of its has ended on this server"
            assert int(standby.sql("SELECT count(*) FROM pg_stat_activity WHERE usename = 'pollux'")) > 1


#: What a server says whose disk is full, to every write of a message, as long as it is there.
FULL = """CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
  RAISE EXCEPTION 'could not extend file: No space left on device' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON messages EXECUTE FUNCTION full_disk()"""
ROOM = "DROP TRIGGER full_disk ON messages"


def test_a_full_database_takes_nothing_new_loses_nothing_and_all_goes_on_when_there_is_room(
    postgresql: Server, store: Callable[[str], str], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Producers wait, who serves goes on serving, and whoever asks is told why."""
    core = store("postgresql")
    database = f"e2e_{abs(hash(request.node.name))}"
    with Group(tmp_path, PRIMARY.format(""), BACKUP.format(""), core=core) as group:
        live, backup = group.members
        group.begin()
        group.wait_for_confirms(30)
        group.fault("the database is full")
        postgresql.sql(FULL, database)
        wait_until(lambda: live.api("/api/v1/status")["store"]["full"], "the full database is noticed")
        assert "No space left on device" in live.text()
        # Nothing is confirmed that is not written: what was on its way came before the trigger.
        before = group.confirmed()
        wait_until(lambda: not group_moves(group), "producers stand still")
        assert group.confirmed() - before < 1000
        assert (live.phase, backup.phase) == ("live", "ready"), "nobody takes over for it: the database is the same"
        postgresql.sql(ROOM, database)
        wait_until(lambda: not live.api("/api/v1/status")["store"]["full"], "the room is noticed")
        group.wait_for_confirms(30)
        group.fault("kill -9")
        live.kill()
        group.wait_for_confirms(30)
        group.finish()


def group_moves(group: Group) -> bool:
    """Whether anything is confirmed within half a second."""
    before = group.confirmed()
    time.sleep(0.5)  # nothing to wait for: it is the absence that counts
    return group.confirmed() != before
