"""How long a lock in PostgreSQL holds: by its time, by its holder's session, and after a restart of the server."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

import psycopg
import pytest
from sqlalchemy import event, select, text

from harness.postgresql import running
from pollux.store.sql.database import Database, Target
from pollux.store.sql.locks import Session, SqlLocks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.postgresql import Server

pytestmark = pytest.mark.processes
#: Nobody waits so long here; and a time that is soon over, seconds.
FAR, SOON_OVER = 600.0, 0.05
PATIENCE = 30


class Process(NamedTuple):
    """Holds what one broker has."""

    database: Database
    session: Session
    locks: SqlLocks

    @classmethod
    def on(cls, database: Database, expiration: float) -> Process:
        session = Session(database)
        return cls(database, session, SqlLocks(database, session, expiration))


@pytest.fixture
def processes(databases: Callable[..., Database]) -> Iterator[Callable[[float], Process]]:
    """A function that makes a process whose locks expire after so many seconds, all on one database."""
    made: list[Process] = []

    def make(expiration: float) -> Process:
        target = made[0].database.target if made else "postgresql"
        made.append(Process.on(databases(target), expiration))
        return made[-1]

    yield make
    for one in made:
        one.session.close()


def wait_until_ended(session: Session, seen_by: Database) -> None:
    """A session that was closed is there until the server has read that."""
    gone = text("SELECT pg_advisory_xact_lock_shared(:key)")
    seen_by.look(lambda connection: connection.execute(gone, {"key": session.key}))


def wait_until_replayed(server: Server, standby: Server) -> None:
    """Wait until a standby has all that was committed."""
    written = server.sql("SELECT pg_current_wal_lsn()")
    deadline = time.monotonic() + PATIENCE
    while standby.sql(f"SELECT pg_last_wal_replay_lsn() >= '{written}'") != "t":
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_over(process: Process, name: str) -> None:
    """Wait until the time of a lock is over, by the database's clock."""
    deadline = time.monotonic() + PATIENCE
    while (found := process.locks.probe(name)) is not None and found.locked:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def wait_until_gone(process: Process, session: Session) -> None:
    """Wait until the server has ended a session that was closed, which it does after the closing has returned."""
    there = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND objid = :key")
    low = {"key": session.key & 0xFFFFFFFF}
    deadline = time.monotonic() + PATIENCE
    while process.database.look(lambda connection: connection.execute(there, low).scalar_one()):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_a_lock_is_free_when_its_holders_session_ends(processes: Callable[[float], Process]) -> None:
    """Breaks when the end of a session says nothing: then the lock holds for ten minutes more."""
    live, backup = processes(FAR), processes(FAR)
    assert live.locks.open("a").try_lock()
    woken = threading.Event()
    wait = backup.locks.wait("a", woken.set)
    assert not woken.wait(0.3)
    live.session.close()
    assert woken.wait(PATIENCE)
    lock = wait.take()
    assert lock is not None
    assert lock.try_lock()


def test_a_holder_whose_session_was_ended_keeps_the_lock_if_nobody_took_it(
    processes: Callable[[float], Process],
) -> None:
    live, backup = processes(FAR), processes(FAR)
    lock = live.locks.open("a")
    assert lock.try_lock()
    ended = text("SELECT count(pg_terminate_backend(pid)) FROM pg_locks WHERE locktype = 'advisory' AND objid = :key")
    low = live.session.key & 0xFFFFFFFF
    backup.database.look(lambda connection: connection.execute(ended, {"key": low}).scalar_one())
    wait_until_gone(backup, live.session)  # until then it still says that its holder lives
    assert lock.try_lock()
    assert not backup.locks.open("a").try_lock()


def test_a_lock_whose_time_is_over_is_taken_and_its_holder_knows(processes: Callable[[float], Process]) -> None:
    live, backup = processes(SOON_OVER), processes(FAR)
    old = live.locks.open("a")
    assert old.try_lock()
    wait_until_over(backup, "a")
    new = backup.locks.open("a")
    assert new.try_lock()
    assert not old.try_lock()
    assert old.is_current()  # it is the same lock, and another's
    with pytest.raises(OSError, match="another process has the store"):
        live.database.begin_life(old.holds)
    backup.database.begin_life(new.holds)
    assert backup.database.epoch == 1


def test_who_takes_over_waits_for_no_transaction_of_a_holder_that_stands_still(
    processes: Callable[[float], Process],
) -> None:
    """Breaks when rows stay locked by it: no limit of the server's ends what is half sent."""
    live, backup = processes(SOON_OVER), processes(FAR)
    old = live.locks.open("a")
    assert old.try_lock()
    wait_until_over(backup, "a")
    raw = live.database._engine.raw_connection()
    held = raw.driver_connection
    assert held is not None
    held.execute("SET LOCAL statement_timeout = 0")
    held.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
    held.execute(select(live.locks.table).with_for_update().compile(live.database._engine).string)
    assert backup.locks.replace("a").try_lock()
    assert not old.is_current()
    with pytest.raises(psycopg.OperationalError, match="terminating connection"):
        held.execute("SELECT 1")
    raw.invalidate()
    assert not old.try_lock(), "it knows, by new sessions"


def test_a_lock_whose_time_is_over_is_still_its_holders_if_nobody_took_it(
    processes: Callable[[float], Process],
) -> None:
    live, backup = processes(SOON_OVER), processes(FAR)
    lock = live.locks.open("a")
    assert lock.try_lock()
    wait_until_over(backup, "a")
    assert lock.try_lock()


def test_a_restart_of_the_server_ends_sessions_and_says_nothing_of_their_holders() -> None:
    """Breaks when the end of a session counts although the server ended it: a backup would take a live's lock."""
    with running() as server:
        both = [Process.on(Database(Target(server.url(), timeout=PATIENCE)), expiration) for expiration in (5.0, FAR)]
        live = both[0]
        live.database.prepare()
        lock, other = (one.locks.open("a") for one in both)
        assert lock.try_lock()
        server.stop()
        server.start()
        assert not other.try_lock()
        assert lock.try_lock()  # it has a session again, and has given a sign of life since the restart
        assert not other.try_lock()
        live.session.close()
        wait_until_ended(live.session, both[1].database)
        assert other.try_lock()
        for one in both:
            one.session.close()
            one.database.close()


def test_a_promotion_of_a_standby_says_nothing_of_holders() -> None:
    """Breaks when only a start of the server counts as one: a standby was started long before it is promoted."""
    with running() as lost, running(of=lost) as standby:
        url = f"{lost.url()}&host={standby.directory}&target_session_attrs=read-write"
        both = [Process.on(Database(Target(url, timeout=PATIENCE)), FAR) for _ in range(2)]
        live, backup = both
        live.database.prepare()
        lock, other = (one.locks.open("a") for one in both)
        assert lock.try_lock()
        wait_until_replayed(lost, standby)
        lost.stop()
        standby.promote()
        assert not other.try_lock()
        assert lock.try_lock()  # it has a session there, too, and has given a sign of life since
        assert not other.try_lock()
        live.session.close()
        wait_until_ended(live.session, backup.database)
        assert other.try_lock()
        for one in both:
            one.session.close()
            one.database.close()


def test_a_sign_of_life_is_given_only_with_a_session(
    processes: Callable[[float], Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that is restarted between the two would else have a holder that seems to have died since."""
    live, backup = processes(FAR), processes(FAR)
    lock = live.locks.open("a")
    assert lock.try_lock()
    ensure = live.session.ensure
    ended: list[str] = []

    def ends_once() -> None:
        ensure()
        if not ended:
            ended.append("once")
            live.session.close()
            wait_until_gone(backup, live.session)

    monkeypatch.setattr(live.session, "ensure", ends_once)
    live.session.close()
    wait_until_ended(live.session, backup.database)
    assert lock.try_lock()
    assert ended
    assert not backup.locks.open("a").try_lock()


def test_a_lock_holds_as_long_as_its_process_lives_unless_its_holder_has_to_prove_it(
    processes: Callable[[float], Process],
) -> None:
    """Breaks when nobody renews what is held only: a member would seem to have ended after a while."""
    live, backup = processes(1.0), processes(FAR)
    held, proven = live.locks.open("members/a.lock"), live.locks.open("live.lock")
    assert held.try_lock()
    assert proven.try_lock()
    live.locks.keep(but="live.lock")
    try:
        wait_until_over(backup, "live.lock")
        over = time.monotonic() + 1.0
        while time.monotonic() < over:
            found = backup.locks.probe("members/a.lock")
            assert found is not None
            assert found.locked
            time.sleep(0.05)
    finally:
        live.locks.stop()
    wait_until_over(backup, "members/a.lock")


def test_a_lock_is_renewed_in_one_round_trip(processes: Callable[[float], Process]) -> None:
    """On a machine that has no time a proof of ten of them would take longer than the lease."""
    live, backup = processes(FAR), processes(FAR)
    lock, other = live.locks.open("a"), backup.locks.open("a")
    assert lock.try_lock()
    asked: list[str] = []
    event.listen(live.database._engine, "after_cursor_execute", lambda *values: asked.append(values[2]))
    renewed = select(live.locks.table.c.renewed).where(live.locks.table.c.name == "a")
    before = backup.database.look(lambda connection: connection.execute(renewed).scalar_one())
    assert lock.try_lock()
    assert len(asked) == 1
    assert backup.database.look(lambda connection: connection.execute(renewed).scalar_one()) > before
    assert not other.try_lock()
    lock.close()
    assert other.try_lock()
    assert not lock.try_lock()
