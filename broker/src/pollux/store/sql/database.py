"""Transactions on a store's database: each proves its epoch, and one whose answer was lost is asked about.

Knows PostgreSQL and SQLite, and nothing of files. Errors of the database become those of the store's port (OSError), so
that whoever uses it needs to know of no database. What it says never contains what broker.xml has as a password.
"""

from __future__ import annotations

import errno
import logging
import os
import secrets
import threading
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from sqlalchemy import bindparam, create_engine, event, insert, select, text, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from pollux.errors import PolluxError
from pollux.store.sql.tables import FORMAT, TableNames, Tables

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy.engine import Connection

logger = logging.getLogger("pollux.store")

Result = TypeVar("Result")

#: Between two attempts to reach a database that does not answer, seconds.
_RETRY_SECONDS = 0.05
#: SQLSTATEs after which the same transaction is done again: a deadlock, and one that could not be put in an order.
_AGAIN = frozenset(("40001", "40P01"))
_NO_ROOM = frozenset(("53100",))
#: How long a process may do nothing within a transaction, ms: whoever takes over waits for that transaction's end.
_IDLE_MS = 2000
#: Connections of one process.
_CONNECTIONS = 12
#: Writers whose rows a life has from the start: a transaction for each would be waited for by who takes over.
_FIRST_WRITERS = 4


class DatabaseError(PolluxError):
    """The database cannot be used for this store; the text says why and what to do."""


class Target(NamedTuple):
    """Where a store is. ``url`` is SQLAlchemy's; ``timeout``: how long a database may not answer, seconds."""

    url: str
    names: TableNames = TableNames()
    timeout: float = 20.0

    def __repr__(self) -> str:
        return f"Target({make_url(self.url).render_as_string(hide_password=True)}, {self.names}, {self.timeout})"


class _Writer:
    """Does one transaction at a time, whose number its row has once it was committed."""

    def __init__(self, *, has_row: bool = False) -> None:
        self.id = secrets.token_hex(16)
        self.number = 0
        self.has_row = has_row


class Database:
    """Connections to one store's database. Any thread may use it; close it at the end."""

    def __init__(self, target: Target, clock: Callable[[], float] = time.monotonic) -> None:
        """Nothing is connected before something is asked for. Raises DatabaseError for a URL that cannot be used."""
        self.target = target
        self.tables = Tables(target.names)
        self._clock = clock
        url = make_url(target.url)
        self.where = url.render_as_string(hide_password=True)
        self.is_sqlite = url.get_backend_name() == "sqlite"
        options: dict[str, Any] = {}
        if self.is_sqlite:
            #: The file of a database that is one.
            self.path = url.database or ""
            if not self.path or self.path == ":memory:":
                raise DatabaseError(f"{self.where}: a store needs a file: sqlite:///directory/file")
            options["connect_args"] = {"timeout": target.timeout, "isolation_level": None, "check_same_thread": False}
        else:
            options["connect_args"] = self._postgresql_options(target.timeout)
        self._engine = create_engine(
            url, pool_size=_CONNECTIONS, max_overflow=0, pool_timeout=target.timeout, **options
        )
        if self.is_sqlite:
            event.listen(self._engine, "connect", _prepare_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)
        self._writing = self._engine.execution_options(pollux_writes=True)
        # One question is one round trip; in SQLite several of them are one snapshot.
        self._reading = self._engine if self.is_sqlite else self._engine.execution_options(isolation_level="AUTOCOMMIT")
        #: The epoch of our life; None: this process has the store for reading only.
        self.epoch: int | None = None
        self._writers: list[_Writer] = []
        self._proof = self._proving()
        self._lock = threading.Lock()

    @staticmethod
    def _postgresql_options(timeout: float) -> dict[str, Any]:
        """A server that is gone is noticed within ``timeout``; a transaction of a process that stands still it ends."""
        milliseconds = int(timeout * 1000)
        limits = dict.fromkeys(("statement_timeout", "lock_timeout"), milliseconds)
        limits["idle_in_transaction_session_timeout"] = min(milliseconds, _IDLE_MS)
        return {
            "connect_timeout": max(2, int(timeout)),
            "keepalives_idle": max(1, int(timeout / 3)),
            "keepalives_interval": max(1, int(timeout / 6)),
            "keepalives_count": 3,
            "tcp_user_timeout": milliseconds,
            # Nobody else's: whoever takes over ends the sessions of this process by their name.
            "application_name": f"pollux {os.getpid()} {secrets.token_hex(4)}",
            "cursor_factory": _binary_cursor(),
            "options": " ".join(f"-c {name}={value}" for name, value in limits.items()),
        }

    def close(self) -> None:
        """End the connections; one that another thread has in use ends when that thread is done with it."""
        event.listen(self._engine.pool, "checkin", lambda _connection, record: record.invalidate())
        self._engine.dispose()

    # -- the store

    def prepare(self) -> None:
        """Make the tables where there are none, and see whether they are ours. Raises DatabaseError, OSError."""

        def work(connection: Connection) -> Any:
            if not self.is_sqlite:
                # Two that make tables at once would meet in the catalogue.
                connection.execute(text("SELECT pg_advisory_xact_lock(hashtext('pollux'))"))
            tables = self.tables
            new = not _has_table(connection, tables.store.name)
            tables.metadata.create_all(connection)
            if new and not self.is_sqlite:
                for table in tables.pieces:  # records of messages: compressing them costs more than their room
                    connection.execute(text(f'ALTER TABLE "{table.name}" ALTER COLUMN data SET STORAGE EXTERNAL'))
            row = connection.execute(select(tables.store)).mappings().first()
            if row is None:
                connection.execute(insert(tables.store).values(tables.first_row()))
                return tables.first_row()
            return dict(row)

        self._judge(self.change(work))

    def check(self) -> None:
        """Check whether there is a store that is ours; nothing is made. Raises DatabaseError, OSError."""

        def work(connection: Connection) -> Any:
            store = self.tables.store
            if not _has_table(connection, store.name):
                return None
            row = connection.execute(select(store)).mappings().first()
            return dict(row) if row is not None else None

        # SQLite makes the file that it is asked about.
        row = None if self.is_sqlite and not Path(self.path).exists() else self.look(work)
        if row is None:
            raise DatabaseError(f"{self.where}: there is no store with the tables {' '.join(self.tables.names)}")
        self._judge(row)

    def _judge(self, row: dict[str, Any]) -> None:
        if row["format"] > FORMAT:
            raise DatabaseError(
                f"{self.where}: the tables have format {row['format']}, this Pollux knows up to {FORMAT}; update it"
            )
        expected = self.tables.first_row()["tables"]
        if row["tables"] != expected:
            raise DatabaseError(
                f"{self.where}: {self.tables.names.node_manager} belongs to a store with the tables {row['tables']},"
                f" broker.xml names {expected}; give each store a node-manager-store-table-name of its own"
            )

    def begin_life(self, proof: Callable[[Connection], bool] | None = None) -> None:
        """Raise the epoch: from now on no earlier life can change a file, and this process can.

        ``proof`` looks, in the same transaction, whether this process may. Raises OSError when it may not.
        """

        def work(connection: Connection) -> int:
            store, written = self.tables.store, self.tables.written
            # Waits for the transactions of earlier lives that hold the row, and makes those that come later see it.
            connection.execute(update(store).values(epoch=store.c.epoch + 1))
            epoch = connection.execute(select(store.c.epoch)).scalar_one()
            if proof is not None and not proof(connection):
                raise OSError(errno.EPERM, "another process has the store", self.where)
            connection.execute(written.delete().where(written.c.epoch < epoch))
            if writers:
                rows = [{"writer": writer.id, "epoch": epoch, "number": 0} for writer in writers]
                connection.execute(insert(written), rows)
            return int(epoch)

        writers = [] if self.is_sqlite else [_Writer(has_row=True) for _ in range(_FIRST_WRITERS)]
        self.epoch = self.change(work)
        self._writers = writers

    # -- transactions

    def write(self, work: Callable[[Connection], Result], *, shared: bool = False) -> Result:
        """Carry out ``work`` in one transaction of our life: it is on stable storage, once, when this returns.

        ``shared``: what all members of a group change; who has a life proves it there as well.

        ``work`` may be called several times, and what it does when it is called again is what counts. Raises OSError:
        EROFS without a life, EIO when another life has the store, ENOSPC, and EIO when nobody knows what became of it.
        """
        epoch = self.epoch
        if epoch is None and shared:
            return self.change(work)
        if epoch is None:
            raise OSError(errno.EROFS, "this process has the store for reading only", self.where)
        with self._lock:
            writer = self._writers.pop() if self._writers else _Writer()
        writer.number += 1
        values = {} if self.is_sqlite else {"who": writer.id, "which": writer.number}

        def proven(connection: Connection) -> Result:
            if connection.execute(self._proof, values).scalar_one_or_none() != epoch:
                current = connection.execute(select(self.tables.store.c.epoch)).scalar_one_or_none()
                raise OSError(errno.EIO, f"fenced: epoch {epoch} is over, the store is at epoch {current}", self.where)
            return work(connection)

        try:
            if not self.is_sqlite and not writer.has_row:
                self._make_row(writer, epoch)
            return self.change(proven, None if self.is_sqlite else partial(self._is_committed, writer))
        finally:
            with self._lock:
                self._writers.append(writer)

    def _proving(self) -> Any:
        """Return the statement that every write begins with, which has the epoch: nothing, if the writer is over.

        It locks the row of the epoch, and then, in PostgreSQL, notes the writer's number: one round trip for both.
        """
        store, written = self.tables.store, self.tables.written
        epoch = select(store.c.epoch).with_for_update(read=True)
        if self.is_sqlite:
            return epoch
        held = epoch.cte("held")
        mine = (written.c.writer == bindparam("who"), held.c.epoch == written.c.epoch)
        return update(written).where(*mine).values(number=bindparam("which")).returning(held.c.epoch)

    def _make_row(self, writer: _Writer, epoch: int) -> None:
        from sqlalchemy.dialects.postgresql import insert as insert_once

        row = {"writer": writer.id, "epoch": epoch, "number": 0}
        self.change(
            lambda connection: connection.execute(insert_once(self.tables.written).values(row).on_conflict_do_nothing())
        )
        writer.has_row = True

    def _is_committed(self, writer: _Writer, connection: Connection) -> bool:
        """Waits for a transaction that the server has not ended yet: it holds the row."""
        written = self.tables.written
        found = select(written.c.number).where(written.c.writer == writer.id).with_for_update()
        return connection.execute(found).scalar_one_or_none() == writer.number

    def change(
        self, work: Callable[[Connection], Result], committed: Callable[[Connection], bool] | None = None
    ) -> Result:
        """Carry out ``work`` in one transaction that proves nothing. Raises OSError.

        When the connection is lost it is done again, which is harmless, or ``committed`` tells whether it was done.
        """
        deadline = self._clock() + self.target.timeout
        result: list[Result] = []
        while True:
            lost = False
            try:
                if result and committed is not None:
                    with self._writing.begin() as connection:
                        done = committed(connection)
                    logger.info(
                        "%s: an answer was lost: the commit %s", self.where, "was done" if done else "is repeated"
                    )
                    if done:
                        return result[0]
                result.clear()
                with self._writing.begin() as connection:
                    result.append(work(connection))
                return result[0]
            except SQLAlchemyError as error:
                lost = is_lost(error)
                if not (lost or state_of(error) in _AGAIN) or self._clock() >= deadline:
                    raise self._as_os_error(error) from None
                if not lost:
                    result.clear()  # it was rolled back
                logger.debug("%s: once more: %s", self.where, _words(error))
            if lost:
                time.sleep(_RETRY_SECONDS)

    def session(self, begin: Callable[[Connection], object]) -> Connection:
        """Return a connection of the caller's own, in which ``begin`` was done, outside of transactions.

        It is none of the pool's: closing it ends the session. Raises OSError.
        """

        def work(connection: Connection) -> Connection:
            connection.detach()
            begin(connection)
            return connection

        return self._retried(work, keep=True)

    def look(self, work: Callable[[Connection], Result]) -> Result:
        """Read. ``work`` may be called several times. Raises OSError."""
        return self._retried(work)

    def repeat(self, work: Callable[[Connection], Result]) -> Result:
        """Do what may be done twice and needs no transaction: each statement counts by itself. Raises OSError."""
        return self._retried(work)

    def _retried(self, work: Callable[[Connection], Result], *, keep: bool = False) -> Result:
        """Do what may be done twice, again when the connection is lost. ``keep``: leave the connection open."""
        deadline = self._clock() + self.target.timeout
        while True:
            connection: Connection | None = None
            done = False
            try:
                connection = self._reading.connect()
                result = work(connection)
                done = True
            except SQLAlchemyError as error:
                if not is_lost(error) or self._clock() >= deadline:
                    raise self._as_os_error(error) from None
            finally:
                if connection is not None and not (keep and done):
                    with suppress(SQLAlchemyError):
                        connection.close()
            if done:
                return result
            time.sleep(_RETRY_SECONDS)

    def _as_os_error(self, error: SQLAlchemyError) -> OSError:
        number = errno.ENOSPC if _says_no_room(error) else errno.EIO
        if isinstance(error, IntegrityError):
            number = errno.EEXIST  # somebody else made what has this name
        return OSError(number, _words(error), self.where)


def _binary_cursor() -> type[Any]:
    """Return a cursor that gets bytes as they are: as text they would be twice as long, and have to be decoded."""
    import psycopg

    class BinaryCursor(psycopg.Cursor[Any]):
        def __init__(self, *values: Any, **options: Any) -> None:
            super().__init__(*values, **options)
            self.format = psycopg.pq.Format.BINARY

    return BinaryCursor


def _prepare_sqlite(connection: Any, _record: object) -> None:
    # FULL: in this mode NORMAL may drop the last transactions when the machine loses power.
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON", "journal_size_limit=67108864"):
        connection.execute(f"PRAGMA {pragma}").fetchall()


def _begin_sqlite(connection: Connection) -> None:
    # A transaction that begins by reading and then writes can fail at once when somebody else writes.
    writes = connection.get_execution_options().get("pollux_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _has_table(connection: Connection, name: str) -> bool:
    return bool(connection.dialect.has_table(connection, name))


def state_of(error: SQLAlchemyError) -> str:
    """Return the SQLSTATE of an error, empty where there is none."""
    original = getattr(error, "orig", None)
    return str(getattr(original, "sqlstate", None) or "")


def is_lost(error: SQLAlchemyError) -> bool:
    """Whether the connection was lost, or none could be had: nobody knows whether a commit was done."""
    if isinstance(error, IntegrityError) or not isinstance(error, DBAPIError):
        return False
    state = state_of(error)
    # 57P: the server shuts down, or this session was ended; 08: the connection; 25P03: we were idle too long.
    if error.connection_invalidated or state[:2] == "08" or state.startswith("57P") or state == "25P03":
        return True
    # An error of the driver's own, which the server did not send: it was not reached.
    return not state and type(error.orig).__module__.startswith("psycopg")


def _says_no_room(error: SQLAlchemyError) -> bool:
    if state_of(error) in _NO_ROOM:
        return True
    return getattr(getattr(error, "orig", None), "sqlite_errorname", "") == "SQLITE_FULL"


def _words(error: SQLAlchemyError) -> str:
    """An error in one line, without the statement and its values."""
    words = str(getattr(error, "orig", None) or error)
    with suppress(IndexError):
        words = words.strip().splitlines()[0]
    return f"the database says: {words}"
