"""Locks of a node as rows of a PostgreSQL database (:class:`pollux.store.port.NodeLocks`).

A lock is held by who is written in its row, as long as its time is not over by the database's clock. Its holder has
besides a session of its own with an advisory lock in it. When that session ends, as it does when the process is killed,
the holder has ended, and nobody waits for the time to run out; unless the server itself has been started, or was
promoted, since the holder's last sign of life: that ends every session, and says nothing of anybody.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import func, insert, literal_column, not_, select, text, update
from sqlalchemy.dialects.postgresql import insert as insert_once
from sqlalchemy.exc import SQLAlchemyError

from pollux.store.locks import LockTimeoutError
from pollux.store.port import Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from sqlalchemy import ColumnElement
    from sqlalchemy.engine import Connection

    from pollux.store.sql.database import Database

logger = logging.getLogger("pollux.store")

#: The database's clock now, milliseconds; now() would be that of the transaction's beginning.
_NOW: ColumnElement[int] = literal_column("CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000 AS BIGINT)")
#: Since when this server has had sessions that write. A standby was started long before it was promoted: what it
#: replayed last was committed on the server that it followed, whose sessions it never had.
_BEGAN: ColumnElement[int] = literal_column(
    "CAST(EXTRACT(EPOCH FROM greatest(pg_postmaster_start_time(), pg_last_xact_replay_timestamp())) * 1000 AS BIGINT)"
)
#: Ends all sessions of the process that has this advisory lock. Of another user's nothing is seen.
_END = text(
    "SELECT count(pg_terminate_backend(one.pid)) FROM pg_stat_activity AS one"
    " JOIN pg_stat_activity AS holder ON holder.application_name = one.application_name"
    " AND holder.client_addr IS NOT DISTINCT FROM one.client_addr"
    " JOIN pg_locks ON pg_locks.pid = holder.pid AND pg_locks.locktype = 'advisory' AND pg_locks.mode = 'ExclusiveLock'"
    " AND pg_locks.granted AND pg_locks.objsubid = 1"
    " AND pg_locks.classid = CAST(CAST(:high AS BIGINT) AS OID) AND pg_locks.objid = CAST(CAST(:low AS BIGINT) AS OID)"
    " WHERE one.datname = current_database() AND one.pid <> pg_backend_pid()"
)
#: How often somebody who waits looks, seconds.
WAIT_SECONDS = 0.1
_RETRY_SECONDS = 0.01
#: How often within its time a lock that is only held is renewed.
_RENEWALS = 4


def _is_free(connection: Connection, key: int) -> bool:
    """Whether no session has this advisory lock; if so we have it until the transaction's end, as others may."""
    wanted = text("SELECT pg_try_advisory_xact_lock_shared(:key)")
    return bool(connection.execute(wanted, {"key": key}).scalar_one())


class Session:
    """A connection that tells others that this process lives, by an advisory lock."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.Lock()
        self._connection: Connection | None = None
        #: The number of the advisory lock.
        self.key = secrets.randbits(62)

    def ensure(self) -> None:
        """Have the session; one that was lost is begun anew. Raises OSError."""
        with self._lock:
            if self._connection is not None:
                with suppress(SQLAlchemyError):
                    self._connection.execute(text("SELECT 1"))
                    return
                self._end()
            self._connection = self._database.session(
                lambda connection: connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": self.key})
            )

    def _end(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError):
                connection.close()

    def close(self) -> None:
        """End the session: nobody waits for what this process held."""
        with self._lock:
            self._end()


class SqlLock:
    """A row that was looked up (:class:`pollux.store.port.NodeLock`)."""

    def __init__(self, locks: SqlLocks, name: str, nonce: str) -> None:
        self._locks = locks
        self._name = name
        self.nonce = nonce
        self.holder = secrets.token_hex(16)
        self.closed = False
        self._had = False

    def __str__(self) -> str:
        return f"{self._locks.where} {self._name}"

    def try_lock(self) -> bool:
        """Take the lock, or prove that we have it, which makes its time begin anew."""
        if self.closed:
            return False
        what = (self._name, self.nonce, self.holder)
        # A proof has to be had within the lease: on a busy machine each round trip counts.
        self._had = (self._had and self._locks.renew(*what)) or self._locks.acquire(*what)
        return self._had

    def holds(self, connection: Connection) -> bool:
        """Whether it is ours, in a transaction of the caller's, until whose end nobody else can take it."""
        locks = self._locks.table
        mine = select(locks.c.holder).where(locks.c.name == self._name, locks.c.nonce == self.nonce)
        return bool(connection.execute(mine.with_for_update()).scalar_one_or_none() == self.holder)

    def is_current(self) -> bool:
        """Whether the row is still this one."""
        return self._locks.nonce_of(self._name) == self.nonce

    def touch(self) -> int:
        """Set the time of the last change, by the database's clock."""
        return self._locks.touch(self._name)

    def touched(self) -> int:
        """Return that time."""
        return self._locks.touched(self._name)

    def close(self) -> None:
        """Let go of it."""
        if not self.closed:
            self.closed = True
            with suppress(OSError):
                self._locks.release(self._name, self.holder)


class SqlLocks:
    """The locks of one node. ``expiration``: seconds for which a lock holds without another proof."""

    def __init__(self, database: Database, session: Session, expiration: float) -> None:
        self._database = database
        self._session = session
        self._expiration = int(expiration * 1000)
        self._stopped = threading.Event()
        self.table = database.tables.locks
        self.where = f"{database.where} {self.table.name}"

    def keep(self, *, but: str) -> None:
        """Renew all that this process holds from now on, in a thread, ``but`` one lock that is renewed when proven."""
        threading.Thread(target=self._keep, args=(but,), name="pollux-locks", daemon=True).start()

    def _keep(self, but: str) -> None:
        locks = self.table
        held = update(locks).where(locks.c.session == self._session.key, locks.c.name != but)
        change = held.values(renewed=_NOW, expires=_NOW + self._expiration)
        while not self._stopped.wait(self._expiration / 1000 / _RENEWALS):
            try:
                self._session.ensure()
                self._database.change(lambda connection: connection.execute(change))
            except OSError as error:
                logger.debug("%s: the locks cannot be renewed now: %s", self.where, error)

    def stop(self) -> None:
        """Renew nothing any more."""
        self._stopped.set()

    def _values(self, nonce: str, holder: str | None) -> dict[str, Any]:
        return {
            "nonce": nonce,
            "holder": holder,
            "session": self._session.key if holder else None,
            "renewed": _NOW,
            "expires": _NOW + self._expiration if holder else 0,
        }

    def open(self, name: str) -> SqlLock:
        """Look a lock up; one that is missing is made."""
        return SqlLock(self, name, self.nonce_of(name) or self._make(name))

    def _make(self, name: str) -> str:
        values = self._values(secrets.token_hex(16), None) | {"name": name, "touched": _NOW * 1_000_000}

        def work(connection: Connection) -> str:
            connection.execute(insert_once(self.table).values(values).on_conflict_do_nothing())
            return str(connection.execute(select(self.table.c.nonce).where(self.table.c.name == name)).scalar_one())

        return self._database.change(work)

    def nonce_of(self, name: str) -> str | None:
        """Return what tells a lock from others of its name, None when there is none. Raises OSError."""
        found = select(self.table.c.nonce).where(self.table.c.name == name)
        return self._database.look(lambda connection: connection.execute(found).scalar_one_or_none())

    def renew(self, name: str, nonce: str, holder: str) -> bool:
        """Renew a lock that this holder has, in one round trip; False when there is more to it. Raises OSError."""
        locks = self.table
        mine = (locks.c.name == name, locks.c.nonce == nonce, locks.c.holder == holder)
        # Without the session it would be a sign of life of one who seems to have died.
        there = (locks.c.session == self._session.key, not_(func.pg_try_advisory_xact_lock_shared(self._session.key)))
        change = update(locks).where(*mine, *there).values(renewed=_NOW, expires=_NOW + self._expiration)
        return self._database.repeat(lambda connection: connection.execute(change).rowcount == 1)

    def acquire(self, name: str, nonce: str, holder: str) -> bool:
        """Take a lock for a holder, or renew it; False when another has it. Raises OSError."""
        locks = self.table
        row = select(locks.c.holder, locks.c.session, locks.c.renewed, (locks.c.expires > _NOW).label("counts")).where(
            locks.c.name == name, locks.c.nonce == nonce
        )

        def work(connection: Connection) -> bool | None:
            found = connection.execute(row.with_for_update()).first()
            if found is None:
                return False
            if found.holder not in (None, holder) and found.counts and self._lives(connection, found):
                return False
            if _is_free(connection, self._session.key):
                # The server was restarted since we looked, or is another: this would be a sign of life of one who
                # seems to have died.
                return None
            connection.execute(update(locks).where(locks.c.name == name).values(self._values(nonce, holder)))
            return True

        while True:
            self._session.ensure()
            done = self._database.change(work)
            if done is not None:
                return done

    def _lives(self, connection: Connection, row: Any) -> bool:
        """Whether the session of a lock's holder is there, or nobody can tell."""
        if row.renewed <= connection.execute(select(_BEGAN)).scalar_one():
            return True  # the server has ended every session since, or never had it
        return row.session == self._session.key or not _is_free(connection, row.session)

    def release(self, name: str, holder: str) -> None:
        """Let go of a lock. Raises OSError."""
        locks = self.table
        free = update(locks).where(locks.c.name == name, locks.c.holder == holder)
        self._database.change(lambda connection: connection.execute(free.values(holder=None, session=None, expires=0)))

    def replace(self, name: str) -> SqlLock:
        """Put a new lock, which is ours, in the place of one whose holder gives no sign of life."""
        self._session.ensure()
        self._end_holder(name)
        lock = SqlLock(self, name, secrets.token_hex(16))
        values = self._values(lock.nonce, lock.holder)

        def work(connection: Connection) -> None:
            done = connection.execute(update(self.table).where(self.table.c.name == name).values(values))
            if not done.rowcount:
                added = values | {"name": name, "touched": _NOW * 1_000_000}
                connection.execute(insert(self.table).values(added))

        self._database.change(work)
        return lock

    def _end_holder(self, name: str) -> None:
        """End the sessions of who has a lock.

        It may stand still while it sends something in a transaction. Then the server waits for the rest, with all rows
        locked that were changed before, and no limit of its own ends that.
        """
        found = select(self.table.c.session).where(self.table.c.name == name)
        key = self._database.look(lambda connection: connection.execute(found).scalar_one_or_none())
        if key is None or key == self._session.key:
            return
        which = {"high": key >> 32, "low": key & 0xFFFFFFFF}
        try:
            ended = self._database.repeat(lambda connection: connection.execute(_END, which).scalar_one())
        except OSError as error:
            logger.warning("%s: the sessions of the lock's holder cannot be ended: %s", self.where, error)
        else:
            logger.info("%s: %d sessions of the lock's holder were ended", self.where, ended)

    def probe(self, name: str) -> Probe | None:
        """Look at a lock."""
        locks = self.table
        row = select(
            locks.c.nonce, locks.c.holder, locks.c.session, locks.c.renewed, (locks.c.expires > _NOW).label("counts")
        ).where(locks.c.name == name)

        def work(connection: Connection) -> Probe | None:
            found = connection.execute(row).first()
            if found is None:
                return None
            return Probe(found.nonce, found.holder is not None and found.counts and self._lives(connection, found))

        return self._database.look(work)

    def touch(self, name: str) -> int:
        """Set the time of a lock's last change, ns, later than any before. Raises OSError."""
        locks = self.table
        later = func.greatest(locks.c.touched + 1, _NOW * 1_000_000)
        change = update(locks).where(locks.c.name == name).values(touched=later).returning(locks.c.touched)
        return int(self._database.change(lambda connection: connection.execute(change).scalar_one()))

    def touched(self, name: str) -> int:
        """Return the time of a lock's last change, ns. Raises OSError."""
        found = select(self.table.c.touched).where(self.table.c.name == name)
        touched = self._database.look(lambda connection: connection.execute(found).scalar_one_or_none())
        if touched is None:
            raise FileNotFoundError(f"{self.where}: there is no lock {name}")
        return int(touched)

    def wait(self, name: str, wake: Callable[[], None]) -> SqlWait:
        """Wait for a lock in a thread."""
        return SqlWait(self.open(name), wake)

    @contextlib.contextmanager
    def briefly(self, name: str, seconds: float) -> Iterator[None]:
        """Hold a lock for a moment."""
        deadline = time.monotonic() + seconds
        lock = self.open(name)
        while not lock.try_lock():
            if time.monotonic() >= deadline:
                raise LockTimeoutError(f"{lock}: another broker has held this lock for {seconds:g} s")
            time.sleep(_RETRY_SECONDS)
        try:
            yield
        finally:
            lock.close()


class SqlWait:
    """Looks for a lock again and again (:class:`pollux.store.port.LockWait`)."""

    def __init__(self, lock: SqlLock, wake: Callable[[], None]) -> None:
        self._lock = lock
        self._wake = wake
        self._mutex = threading.Lock()
        self._ended = threading.Event()
        self._ours = False
        self.error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="pollux-lock", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                done = self.poll()
            except OSError as error:
                self.error, done = error, True
            if done:
                if not self._ended.is_set() or self.error is not None:
                    self._wake()
                return
            self._ended.wait(WAIT_SECONDS)

    def poll(self) -> bool:
        """Try the lock now."""
        with self._mutex:
            if not self._ended.is_set() and not self._ours:
                self._ours = self._lock.try_lock()
            return self._ours

    def is_stale(self) -> bool:
        """Whether the row is another one by now."""
        return not self._ours and not self._lock.is_current()

    def take(self) -> SqlLock | None:
        """Return the lock once it is ours."""
        with self._mutex:
            if not self._ours or self._ended.is_set():
                return None
            self._ended.set()
            return self._lock

    def abandon(self) -> None:
        """Wait no longer; what came meanwhile is let go of."""
        with self._mutex:
            if not self._ended.is_set():
                self._ended.set()
                self._lock.close()
