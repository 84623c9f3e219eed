"""A store in a database of which the surroundings are wrong: the clocks of its hosts, the rights of its user."""

from __future__ import annotations

import signal
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from e2e.test_database_store import FENCED, STORE
from harness import stomp
from harness.broker import BrokerProcess
from harness.databases import postgresql
from harness.failover import BACKUP, PRIMARY, Group, Member, wait_until
from pollux.process.exits import EXIT_OK, EXIT_STORE, EXIT_STORE_REFUSED

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


def alone(tmp_path: Path, name: str) -> Group:
    """A live that waits for nobody, with a database of its own."""
    (tmp_path / name).mkdir(exist_ok=True)
    return Group(tmp_path / name, PRIMARY.format(""), core=sqlite(tmp_path, name))


def sqlite(tmp_path: Path, name: str) -> str:
    return STORE.format(url=f"jdbc:sqlite:{tmp_path}/{name}.db", driver="org.sqlite.JDBC", login="")


def refused(member: Member) -> str:
    """Run it until it ends by itself; the line that says why."""
    member.spawn()
    assert member.wait_for_end() == EXIT_STORE_REFUSED, member.text()
    (line,) = [one for one in member.text().splitlines() if " ERROR " in one]
    return line


FILES = "node_manager_store_files"
#: Tables, and the files in them that a node's own id is in.
PARTS = {"messages": "directory = 'journal' AND name LIKE 'pollux-%'", "bindings": "directory = 'bindings'"}


@pytest.mark.parametrize("table", PARTS)
def test_tables_of_two_nodes_are_no_store(tmp_path: Path, table: str) -> None:
    """As when one table was restored from another node's backup."""
    for name in ("mine", "other"):
        with alone(tmp_path, name) as group:
            assert group.members[0].start().stop() == EXIT_OK
    path = tmp_path / "mine.db"
    with closing(sqlite3.connect(path)) as database:
        those = f"SELECT id FROM {{}}{FILES} WHERE {PARTS[table]}"  # noqa: S608  (of ours)
        database.executescript(
            f"ATTACH '{tmp_path}/other.db' AS other; BEGIN;"  # noqa: S608
            f"DELETE FROM {table} WHERE file IN ({those.format('')}); DELETE FROM {FILES} WHERE {PARTS[table]};"
            f"INSERT INTO {FILES} SELECT id + 1000, directory, name, is_directory, size FROM other.{FILES}"
            f" WHERE {PARTS[table]};"
            f"INSERT INTO {table} SELECT file + 1000, start, data FROM other.{table}"
            f" WHERE file IN ({those.format('other.')}); COMMIT"
        )
    before = rows(path)
    with alone(tmp_path, "mine") as group:
        line = refused(group.members[0])
    part = {"messages": "journal"}.get(table, table)
    assert f"{path} ({part}): belongs to node" in line
    assert f"{path} (node) to node" in line
    assert "all parts of one broker's store must stay together" in line
    assert rows(path) == before


def rows(path: Path) -> list[Any]:
    """Return all that is in the files of a store."""
    with closing(sqlite3.connect(path)) as database:
        names = (FILES, "messages", "bindings", "large_messages", "page_store")
        return [database.execute(f"SELECT * FROM {name} ORDER BY 1, 2").fetchall() for name in names]  # noqa: S608


def test_a_member_that_was_given_another_nodes_database_is_refused(tmp_path: Path) -> None:
    with alone(tmp_path, "other") as group:
        assert group.members[0].start().stop() == EXIT_OK
    before = rows(tmp_path / "other.db")
    with alone(tmp_path, "mine") as group:
        live = group.members[0].start()
        own = f"<px:peers>http://127.0.0.1:{live.management_port}</px:peers>"
        lost = Member(tmp_path / "lost", group.shared, "m1", BACKUP.format(""), core=sqlite(tmp_path, "other"), own=own)
        group.members.append(lost)
        line = refused(lost)
        assert f"{tmp_path}/other.db (node): is not shared with m0: here is the store" in line
        assert live.phase == "live"
    assert rows(tmp_path / "other.db") == before
