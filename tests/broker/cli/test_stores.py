"""``pollux store copy`` as an operator runs it, and what ``pollux journal`` tells of a store in a database."""

from __future__ import annotations

import json
import os
import shutil
import socket
from contextlib import closing
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

from broker.conftest import PASSWORD, TIMEOUT, Stomp
from harness import forked
from harness.broker import POLLUX
from harness.databases import DATABASES, postgresql
from harness.failover import wait_until
from harness.store import without_names
from pollux.process import exits
from pollux.store.sql.database import Database, Target

if TYPE_CHECKING:
    from collections.abc import Callable

    from broker.conftest import Instance
    from harness.postgresql import Server

__all__ = ["postgresql"]

STORE = """<store><database-store><jdbc-connection-url>{url}</jdbc-connection-url>{user}
  <message-table-name>MESSAGES</message-table-name><bindings-table-name>BINDINGS</bindings-table-name>
  <large-message-table-name>LARGE_MESSAGES</large-message-table-name>
  <page-store-table-name>PAGE_STORE</page-store-table-name></database-store></store>"""
BODIES = [f"order {number}" for number in range(5)]
#: More than goes into a record: a file of its own.
LARGE = "large" * 100_000


class Places:
    """A broker with its store in files, and the empty database that the same broker.xml names elsewhere."""

    def __init__(self, instance: Instance, store: str, name: str = "") -> None:
        self.instance = instance
        #: Of the database.
        self.name = name
        self.files = str(instance.file)
        instance.configure(core=store)
        text = instance.file.read_text()
        self.database = str(instance.directory / "database.xml")
        (instance.directory / "database.xml").write_text(text)
        self.again = str(instance.directory / "again.xml")
        instance.configure()
        (instance.directory / "again.xml").write_text(instance.file.read_text().replace("data/", "again/"))

    def copy(self, source: str, target: str, *, code: int = exits.EXIT_OK) -> Any:
        done = self.instance.pollux("store", "copy", source, target, "--json")
        assert done.returncode == code, (done.stdout, done.stderr)
        return json.loads(done.stdout) if code == exits.EXIT_OK else done.stderr

    def verify(self, config: str) -> Any:
        done = self.instance.pollux("journal", "verify", "--json", "--config", config)
        assert done.returncode == exits.EXIT_OK, (done.stdout, done.stderr)
        return json.loads(done.stdout)

    def run(self, config: str) -> None:
        """Start the broker with another broker.xml than its own."""
        self.instance.file.write_text((self.instance.directory / config).read_text())
        self.instance.start()


@pytest.fixture
def make_places(request: pytest.FixtureRequest, make_instance: Callable[[], Instance]) -> Callable[[str], Places]:
    """A function that makes a broker, and an empty database of a kind."""

    def make(kind: str) -> Places:
        instance = make_instance()
        if kind == "sqlite":
            return Places(instance, STORE.format(url=f"jdbc:sqlite:{instance.directory}/store.db", user=""))
        server: Server = request.getfixturevalue("postgresql")
        name = server.create(f"copy_{abs(hash(request.node.name))}")
        return Places(instance, STORE.format(url=server.jdbc(name), user="<jdbc-user>pollux</jdbc-user>"), name)

    return make


def client_of(instance: Instance) -> Stomp:
    """A client; the ports are asked of the process, which has no data directory when its store is in a database."""
    ports = instance.directory / "ports.json"
    wait_until(ports.exists, "the broker tells its ports")
    port = json.loads(ports.read_text())["all"]
    return Stomp(socket.create_connection(("127.0.0.1", port), TIMEOUT), "ada", PASSWORD)


def fill(instance: Instance) -> None:
    with client_of(instance) as client:
        for body in (*BODIES, LARGE):
            client.publish("orders", body)


def receive(client: Stomp, count: int) -> list[str]:
    """The bodies of so many messages of the queue."""
    client.send("SUBSCRIBE", {"destination": "orders", "id": "1", "ack": "auto"})
    return [client.receive()[2] for _ in range(count)]


@pytest.mark.parametrize("kind", DATABASES)
def test_a_store_goes_to_a_database_is_served_there_and_goes_back(
    kind: str, make_places: Callable[[str], Places]
) -> None:
    places = make_places(kind)
    instance = places.instance
    instance.start()
    fill(instance)
    assert "stop that broker" in places.copy(places.files, places.database, code=exits.EXIT_LOCKED)
    assert instance.stop() == 0
    before = places.verify(places.files)
    found = places.copy(places.files, places.database)
    assert found["files"] >= 3
    assert found["bytes"] > len(LARGE)
    # What counts is the same; the source is as it was.
    there = places.verify(places.database)
    assert {name: there[name] for name in ("sound", "liveMessages")} == {
        name: before[name] for name in ("sound", "liveMessages")
    }
    assert places.verify(places.files) == before
    assert "is not empty" in places.copy(places.files, places.database, code=exits.EXIT_FAILED)
    assert "is not empty" in places.copy(places.database, places.files, code=exits.EXIT_FAILED)
    # The broker serves it there, and what it has then goes back.
    original = instance.file.read_text()
    places.run("database.xml")
    with client_of(instance) as client:
        client.publish("orders", "later")
    assert "a broker has this store" in places.copy(places.database, places.again, code=exits.EXIT_LOCKED)
    assert instance.stop() == 0
    instance.file.write_text(original)
    places.copy(places.database, places.again)
    assert places.verify(places.again)["liveMessages"] == len(BODIES) + 2
    places.run("again.xml")
    with client_of(instance) as client:
        assert receive(client, len(BODIES) + 2) == [*BODIES, LARGE, "later"]


def test_a_copy_that_was_killed_is_no_store_and_is_made_anew(
    make_places: Callable[[str], Places], postgresql: Server
) -> None:
    """It has written the large messages, and stands before the journal."""
    places = make_places("postgresql")
    instance = places.instance
    instance.start()
    fill(instance)
    assert instance.stop() == 0
    database = Database(Target(postgresql.url(places.name)))
    database.prepare()
    database.close()
    with closing(psycopg.connect(host=str(postgresql.directory), user="pollux", dbname=places.name)) as holder:
        holder.execute("LOCK TABLE messages IN ACCESS EXCLUSIVE MODE")
        with (instance.directory / "copy.log").open("wb") as log:
            copying = forked.spawn(
                [POLLUX, "store", "copy", places.files, places.database],
                cwd=instance.directory,
                output=log.fileno(),
                environment=dict(os.environ),
            )
        waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'messages'::regclass"
        wait_until(lambda: postgresql.sql(waits, places.name) == "1", "the copy waits for the table of the journal")
        copying.kill()
        copying.wait(TIMEOUT)
    left = postgresql.sql("SELECT name FROM node_manager_store_files WHERE name LIKE '%.copying'", places.name)
    assert len(left.splitlines()) >= 2
    assert places.verify(places.database)["files"] == 0
    places.copy(places.files, places.database)
    assert places.verify(places.database)["liveMessages"] == len(BODIES) + 1
    left = postgresql.sql("SELECT count(*) FROM node_manager_store_files WHERE name LIKE '%.copying'", places.name)
    assert left == "0"


def test_what_cannot_be_copied_is_said(make_places: Callable[[str], Places]) -> None:
    places = make_places("sqlite")
    instance = places.instance
    instance.start()
    fill(instance)
    assert instance.stop() == 0
    assert "the same store" in places.copy(places.files, places.files, code=exits.EXIT_FAILED)
    same = instance.directory / "same.xml"
    shutil.copy(places.database, same)
    assert "the same store" in places.copy(places.database, str(same), code=exits.EXIT_FAILED)
    # Nothing was made where there was nothing to copy.
    assert not (instance.directory / "store.db").exists()
    assert "no store" in places.copy(places.database, places.again, code=exits.EXIT_FAILED)
    assert not (instance.directory / "store.db").exists()
    assert not (instance.directory / "again").exists()


@pytest.mark.parametrize("kind", DATABASES)
def test_orphans_are_found_in_a_database_as_in_files(kind: str, make_places: Callable[[str], Places]) -> None:
    places = make_places(kind)
    instance = places.instance
    instance.start()
    fill(instance)
    instance.kill()
    data = instance.directory / "data"
    without_names(data / "journal")
    for path in (data / "bindings").iterdir():
        path.unlink()
    places.copy(places.files, places.database)
    found = []
    for config in (places.files, places.database):
        done = instance.pollux("journal", "orphans", "list", "--json", "--config", config)
        assert done.returncode == exits.EXIT_FAILED, (done.stdout, done.stderr)
        found.append(json.loads(done.stdout))
    assert found[1] == found[0]
    assert [(one["messages"], one["fate"]) for one in found[1]] == [(len(BODIES) + 1, "kept as orphans")]
