"""A group's store in a database: see docs/database-store.md."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from pollux.ha.members import MEMBERS
from pollux.ha.shared_store import filesystem
from pollux.ha.shared_store.filesystem import StoreDirectoryError
from pollux.ha.shared_store.group_store import identity_of
from pollux.ha.store_layout import LIVE_LOCK
from pollux.store.files import make_directories
from pollux.store.locks import FileLocks
from pollux.store.sql.configured import target_of
from pollux.store.sql.database import Database, DatabaseError
from pollux.store.sql.files import SqlFiles
from pollux.store.sql.locks import Session, SqlLock, SqlLocks

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection

    from pollux.config.model import DatabaseStore
    from pollux.ha import peers
    from pollux.ha.store_layout import SharedStoreLayout
    from pollux.store.port import Files, NodeLock, NodeLocks


_FUSE = ("sshfs", "glusterfs", "ceph", "s3fs", "rclone")
#: File systems on which processes of several machines could meet, where SQLite's locks and shared memory do not hold.
NETWORK = ("nfs", "cifs", "smb", "9p", "gfs", "ocfs", "ceph", "lustre", "afs", *(f"fuse.{name}" for name in _FUSE))


class DatabaseGroupStore:
    """The rows of one store, and the locks of its node: rows of PostgreSQL, or files beside SQLite's.

    SQLite is for one machine, whose kernel tells at once when a process has ended.
    """

    def __init__(self, store: DatabaseStore, layout: SharedStoreLayout) -> None:
        self._layout = layout
        self.database = Database(target_of(store))
        self.files: Files = SqlFiles(self.database, layout.journal.parent)
        self._session: Session | None = None
        if self.database.is_sqlite:
            self._directory = Path(f"{self.database.path}.locks")
            self.locks: NodeLocks = FileLocks(self._directory)
        else:
            self._session = Session(self.database)
            self.locks = SqlLocks(self.database, self._session, store.jdbc_lock_expiration / 1000)

    def name(self, directory: Path) -> str:
        """Return the database, and which part of what is in it."""
        return f"{self.database.where} ({directory.name})"

    def look(self) -> None:
        """Make the tables, and see whether they are this store's. Raises StoreDirectoryError, DatabaseError."""
        if self.database.is_sqlite:
            self._check_directory(Path(self.database.path).parent)
            (self._directory / MEMBERS).mkdir(mode=0o750, parents=True, exist_ok=True)
        try:
            self.database.prepare()
        except OSError as error:
            raise DatabaseError(
                f"{self.database.where}: the store in this database cannot be used: {error.strerror}"
            ) from error
        if isinstance(self.locks, SqlLocks):
            self.locks.keep(but=LIVE_LOCK)

    @staticmethod
    def _check_directory(directory: Path) -> None:
        if not directory.is_dir():
            raise StoreDirectoryError(f"{directory}: is not a directory; make it, and give it to the broker's user")
        filesystem.check_access(directory)
        kind = filesystem.check_kind(directory)
        if kind.startswith(NETWORK):
            raise StoreDirectoryError(
                f"{directory} is on {kind}: SQLite is for brokers of one machine; put it on a local disk, or take"
                " PostgreSQL"
            )

    def check(self) -> str:
        """Return that it is a database: whoever reaches it may share it."""
        return "database"

    def probe(self) -> None:
        """Make the directories of the store, as any member may."""
        make_directories(self.files, self._layout.node)

    def identity(self) -> peers.Identity | None:
        """Return the nonce of the store's id."""
        return identity_of(self, self._layout)

    def taken(self, lock: NodeLock) -> None:
        """Raise the epoch of the database, in a transaction in which the lock is still ours."""

        def holds(connection: Connection) -> bool:
            return lock.holds(connection) if isinstance(lock, SqlLock) else lock.is_current() and lock.try_lock()

        self.database.begin_life(holds)

    def set_room_aside(self) -> None:
        """Nothing: a database has its own ways."""

    def give_up_room(self) -> None:
        """Nothing was set aside."""

    def close(self) -> None:
        """End the connections, and with them all that this process is seen to hold."""
        if isinstance(self.locks, SqlLocks):
            self.locks.stop()
        if self._session is not None:
            self._session.close()
        self.database.close()
