"""Named files as rows of a database (:class:`pollux.store.port.Files`).

A file's content is pieces that do not overlap, in the table of its directory; its size and name are a row of another.
What is written without a sync waits in memory, a little of it, until a sync puts all of it into one transaction. A name
is on stable storage as soon as it is made, changed or deleted. Files are changed by one process alone, which is the one
that has the store (:mod:`pollux.store.sql.database`), and its children make new ones.
"""

from __future__ import annotations

import errno
import itertools
import mmap
import os
import tempfile
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec
from sqlalchemy import bindparam, delete, insert, select, update

from pollux.store.port import Entry, Status
from pollux.store.sql.database import Database, Target
from pollux.store.sql.open_file import OpenFile
from pollux.store.sql.pieces import joined, overlay
from pollux.store.sql.rows import Rows
from pollux.store.sql.tables import PIECE, TableNames

if TYPE_CHECKING:
    from collections.abc import Callable

    from sqlalchemy import Table
    from sqlalchemy.engine import Connection, Row

    from pollux.store.port import Copies

Result = TypeVar("Result")

#: Larger than any descriptor of the system: what is asked of the system by mistake fails.
_FIRST_DESCRIPTOR = 1 << 30
#: Bytes that wait in memory for the sync of a file, at most: more is written before.
DIRTY_BYTES = 1 << 20
#: The directory of what belongs to the group, not to the one that has the store.
NODE = "node"
#: Files larger than this are looked at in a temporary file.
_VIEW_BYTES = 1 << 20


class SqlFiles:
    """The files below ``root``, which need not exist on any disk.

    Those in the directory NODE are changed by every member of a group, the others only by the one that has the store.
    """

    def __init__(self, database: Database, root: Path) -> None:
        self._database = database
        self._root = root
        self._files = database.tables.files
        self._lock = threading.RLock()
        self._numbers = itertools.count(_FIRST_DESCRIPTOR)
        self._descriptors: dict[int, OpenFile] = {}
        self._open: dict[int, OpenFile] = {}
        self._rows = Rows(database.tables)
        files = self._files
        self._resize = update(files).where(files.c.id == bindparam("key")).values(size=bindparam("bytes"))

    # -- names

    def _split(self, path: Path) -> tuple[str, str]:
        """(directory, name) of a path, below the root; both empty for the root itself."""
        try:
            parts = path.relative_to(self._root).parts
        except ValueError:
            raise _error(errno.ENOENT, path) from None
        return "/".join(parts[:-1]), parts[-1] if parts else ""

    def _row(self, connection: Connection, path: Path) -> Row[int, bool, int] | None:
        files, (directory, name) = self._files, self._split(path)
        found = select(files.c.id, files.c.is_directory, files.c.size)
        return connection.execute(found.where(files.c.directory == directory, files.c.name == name)).first()

    def _check_directory(self, connection: Connection, path: Path) -> None:
        if path == self._root:
            return
        row = self._row(connection, path)
        if row is None:
            raise _error(errno.ENOENT, path)
        if not row.is_directory:
            raise _error(errno.ENOTDIR, path)

    def _add(self, connection: Connection, path: Path, *, is_directory: bool) -> int:
        self._check_directory(connection, path.parent)
        directory, name = self._split(path)
        values = {"directory": directory, "name": name, "is_directory": is_directory, "size": 0}
        added = connection.execute(insert(self._files).values(values).returning(self._files.c.id))
        return int(added.scalar_one())

    def _drop(self, connection: Connection, identity: int, table: Table) -> None:
        """Delete a file, or only its name while this process has it open."""
        files = self._files
        if identity in self._open:
            connection.execute(update(files).where(files.c.id == identity).values(name=None))
            return
        connection.execute(delete(table).where(table.c.file == identity))
        connection.execute(delete(files).where(files.c.id == identity))

    def _write(self, path: Path, work: Callable[[Connection], Result]) -> Result:
        return self._database.write(work, shared=self._is_shared(path))

    def _is_shared(self, path: Path) -> bool:
        return self._name(path).partition("/")[0] == NODE

    def _table(self, path: Path) -> Table:
        directory, name = self._split(path)
        return self._database.tables.of(f"{directory}/{name}" if directory else name)

    # -- changing

    def open(self, path: Path, flags: int, mode: int = 0o640) -> int:
        """Open a file; its mode is the database's affair."""
        del mode
        writes = flags & (os.O_RDWR | os.O_WRONLY | os.O_CREAT | os.O_TRUNC) != 0

        def find(connection: Connection) -> tuple[int, int, int] | None:
            row = self._row(connection, path)
            if row is None:
                if flags & os.O_CREAT:
                    return None
                self._check_directory(connection, path.parent)
                raise _error(errno.ENOENT, path)
            if flags & os.O_EXCL:
                raise _error(errno.EEXIST, path)
            if row.is_directory:
                raise _error(errno.EISDIR, path)
            return row.id, row.size, self._rows.end(connection, row.id, table) if writes else 0

        table = self._table(path)
        with self._lock:
            found = self._database.look(find)  # a file that is there is opened without proving anything
            if found is None:
                found = self._write(path, lambda it: find(it) or (self._add(it, path, is_directory=False), 0, 0))
            identity, size, end = found
            file = self._open.get(identity)
            if file is None:
                file = self._open[identity] = OpenFile(identity, table)
                file.shared = self._is_shared(path)
            file.descriptors += 1
            fd = next(self._numbers)
            self._descriptors[fd] = file
            if writes and not file.writes:
                file.writes, file.size, file.stored, file.end = True, size, size, end
        if flags & os.O_TRUNC and file.size:
            self.truncate(fd, 0)
        return fd

    def _file(self, fd: int) -> OpenFile:
        try:
            return self._descriptors[fd]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        """Write all of it; what waits for a sync of the file is written with it."""
        file = self._file(fd)
        if not file.writes:
            raise OSError(errno.EBADF, "the file is open for reading only")
        with file.lock:
            size, waiting, bytes_waiting = file.size, len(file.dirty), file.dirty_bytes
            # Zeros behind all that was written need no piece: they make a page as long as it will be, and what comes
            # into it afterwards would have to look for pieces to take the place of.
            if data[:1] != b"\0" or offset < file.written or bytes(data).strip(b"\0"):
                file.dirty.append((offset, bytes(data)))
                file.dirty_bytes += len(data)
            file.size = max(file.size, offset + len(data))
            if sync or file.dirty_bytes >= DIRTY_BYTES:
                try:
                    self._flush(file)
                except BaseException:
                    # It was not written, as the caller is told; what waited before it still does.
                    del file.dirty[waiting:]
                    file.size, file.dirty_bytes = size, bytes_waiting
                    raise
        return len(data)

    def _flush(self, file: OpenFile) -> None:
        """Put what waits into one transaction. With the file's lock held."""
        if not file.dirty and file.size == file.stored:
            return

        def work(connection: Connection) -> int:
            end = file.end
            pieces: list[tuple[int, bytes]] = []
            for start, data in joined(file.dirty):
                if start < end:
                    if self._rows.overwrite(connection, file, start, data):
                        continue
                    self._rows.add(connection, file, pieces)
                    pieces.clear()
                    self._rows.clear(connection, file, start, start + len(data))
                pieces += [(start + at, data[at : at + PIECE]) for at in range(0, len(data), PIECE)]
                end = max(end, start + len(data))
            self._rows.add(connection, file, pieces)
            if file.size != file.stored:
                connection.execute(self._resize, {"key": file.id, "bytes": file.size})
            return end

        file.end = self._database.write(work, shared=file.shared)
        file.stored = file.size
        file.dirty.clear()
        file.dirty_bytes = 0

    def fdatasync(self, fd: int) -> None:
        """Put all that waits into one transaction."""
        file = self._file(fd)
        with file.lock:
            self._flush(file)

    def fsync(self, fd: int) -> None:
        """The same: a file has nothing else."""
        self.fdatasync(fd)

    def sync_directory(self, path: Path) -> None:
        """Look whether the directory is there: its names are on stable storage."""
        self._database.look(lambda connection: self._check_directory(connection, path))

    def fill(self, fd: int, size: int) -> None:
        """Set the size: a database keeps no room for rows that are not there, and has it with the first of them."""
        file = self._file(fd)
        with file.lock:
            file.size = max(file.size, size)

    def allocate(self, fd: int, size: int) -> None:
        """Set the size when it is smaller."""
        file = self._file(fd)
        with file.lock:
            file.size = max(file.size, size)
            self._flush(file)

    def truncate(self, fd: int, size: int) -> None:
        """Cut off what is behind, in one transaction."""
        file = self._file(fd)
        with file.lock:
            self._flush(file)

            def work(connection: Connection) -> None:
                if size < file.end:
                    self._rows.clear(connection, file, size, max(file.end, size))
                connection.execute(self._resize, {"key": file.id, "bytes": size})

            self._database.write(work, shared=file.shared)
            file.size = file.stored = size
            file.end = min(file.end, size)

    def close(self, fd: int) -> None:
        """Let go of a file; what waits for a sync is written, or it would be gone for every reader."""
        file = self._file(fd)
        with self._lock:
            del self._descriptors[fd]
            file.descriptors -= 1
            last = not file.descriptors
            if last and not file.gone:
                with file.lock:
                    try:
                        self._flush(file)
                    finally:
                        self._open.pop(file.id, None)
            elif last:
                self._open.pop(file.id, None)
                if file.shared or self._database.epoch is not None:
                    work = partial(self._drop, identity=file.id, table=file.table)
                    self._database.write(work, shared=file.shared)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in one transaction."""
        table, other = self._table(source), self._table(target)

        def work(connection: Connection) -> int | None:
            row, old = self._row(connection, source), self._row(connection, target)
            if row is None:
                raise _error(errno.ENOENT, source)
            if table is not other:
                raise _error(errno.EXDEV, target)
            self._check_directory(connection, target.parent)
            if old is not None and old.id != row.id:
                self._drop(connection, old.id, table)
            directory, name = self._split(target)
            files = self._files
            connection.execute(update(files).where(files.c.id == row.id).values(directory=directory, name=name))
            return old.id if old is not None and old.id != row.id else None

        with self._lock:
            self._forget_name(self._write(source, work))

    def unlink(self, path: Path) -> None:
        """Delete a file, in one transaction."""
        table = self._table(path)

        def work(connection: Connection) -> int | None:
            row = self._row(connection, path)
            if row is None:
                return None
            if row.is_directory:
                raise _error(errno.EISDIR, path)
            self._drop(connection, row.id, table)
            return int(row.id)

        with self._lock:
            # A name that is not there needs no transaction, of which each takes a write and a sync of the server.
            if self._database.look(lambda connection: self._row(connection, path)) is not None:
                self._forget_name(self._write(path, work))

    def _forget_name(self, identity: int | None) -> None:
        if identity is not None and identity in self._open:
            self._open[identity].gone = True

    def make_directory(self, path: Path, mode: int = 0o750) -> None:
        """Make a directory."""
        del mode

        def work(connection: Connection) -> None:
            row = self._row(connection, path)
            if row is None:
                self._add(connection, path, is_directory=True)
            elif not row.is_directory:
                raise _error(errno.EEXIST, path)

        if path != self._root:
            self._write(path, work)

    def remove_directory(self, path: Path) -> None:
        """Delete an empty directory."""

        def work(connection: Connection) -> None:
            self._check_directory(connection, path)
            files, directory = self._files, self._name(path)
            held = select(files.c.id).where(files.c.directory == directory, files.c.name.is_not(None)).limit(1)
            if connection.execute(held).first() is not None:
                raise _error(errno.ENOTEMPTY, path)
            row = self._row(connection, path)
            if row is not None:
                connection.execute(delete(files).where(files.c.id == row.id))

        self._write(path, work)

    def adopt(self, paths: list[Path]) -> None:
        """Look whether they are there: another process of this broker made them."""
        for path in paths:
            self.status(path)

    def copies(self) -> Copies | None:
        """The database keeps its own."""
        return None

    # -- looking

    def _name(self, path: Path) -> str:
        directory, name = self._split(path)
        return f"{directory}/{name}" if directory else name

    def _size(self, file: OpenFile) -> int:
        return file.size if file.writes else self._size_and_pieces(file, 0, 0)[0]

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """Read from the database, and what waits for a sync from memory."""
        file = self._file(fd)
        with file.lock:
            near: list[tuple[int, bytes]] = []
            size = file.size
            if not file.writes:
                size, near = self._size_and_pieces(file, offset, length)
            length = max(0, min(length, size - offset))
            if not length:
                return b""
            if file.writes and offset < file.end:
                _, near = self._size_and_pieces(file, offset, length)
            buffer = bytearray(length)
            overlay(buffer, offset, near)
            overlay(buffer, offset, file.dirty)
            return bytes(buffer)

    def _size_and_pieces(self, file: OpenFile, offset: int, length: int) -> tuple[int, list[tuple[int, bytes]]]:
        """Return the size in the database and the pieces near a range, in one question."""
        rows = self._database.look(lambda connection: self._rows.near(connection, file, offset, length))
        if not rows:
            raise OSError(errno.ENOENT, "the file was deleted by another process")
        return int(rows[0][0]), [(start, data) for _, start, data in rows if data is not None]

    def size(self, fd: int) -> int:
        """Return the size of an open file, bytes."""
        return self._size(self._file(fd))

    def used(self, fd: int) -> int:
        """Return the end of the last piece: what no piece has is zeros, and of these there is nothing to read."""
        file = self._file(fd)
        with file.lock:
            if file.writes:
                return file.written
            return self._database.look(lambda connection: self._rows.end(connection, file.id, file.table))

    def view(self, path: Path) -> memoryview:
        """Read a small file into memory, and a large one into a temporary file that is mapped."""
        fd = self.open(path, os.O_RDONLY)
        try:
            size = self.size(fd)
            if size <= _VIEW_BYTES:
                return memoryview(self.read(fd, size, 0))
            with tempfile.TemporaryFile() as copy:
                for at in range(0, size, _VIEW_BYTES):
                    copy.write(self.read(fd, _VIEW_BYTES, at))
                copy.flush()
                return memoryview(mmap.mmap(copy.fileno(), size, prot=mmap.PROT_READ))
        finally:
            self.close(fd)

    def status(self, path: Path) -> Status:
        """Return what the database has under a name."""
        if path == self._root:
            return Status(0, 0, is_directory=True)
        row = self._database.look(lambda connection: self._row(connection, path))
        if row is None:
            raise _error(errno.ENOENT, path)
        file = self._open.get(row.id)
        size = file.size if file is not None and file.writes else row.size
        return Status(size, row.id, row.is_directory)

    def entries(self, directory: Path) -> list[Entry]:
        """Return the names in a directory."""
        files = self._files
        found = select(files.c.name, files.c.id, files.c.is_directory).where(
            files.c.directory == self._name(directory), files.c.name.is_not(None)
        )

        def work(connection: Connection) -> list[Entry]:
            names = [Entry(*row) for row in connection.execute(found)]
            if not names:  # or there is no such directory
                self._check_directory(connection, directory)
            return names

        return self._database.look(work)

    def handle(self) -> bytes:
        """Return where the database is, and the epoch of our life."""
        target = self._database.target
        where = [target.url, list(target.names), target.timeout]
        return msgspec.msgpack.encode([*where, str(self._root), self._database.epoch])

    @classmethod
    def found(cls, handle: bytes) -> SqlFiles:
        """Return the files of a handle: those of the life that gave it."""
        url, names, timeout, root, epoch = msgspec.msgpack.decode(handle)
        database = Database(Target(url, TableNames(*names), timeout))
        database.epoch = epoch
        return cls(database, Path(root))

    def disk(self, path: Path) -> tuple[int, int]:
        """Return the room of the file system that SQLite is on; a server does not tell."""
        del path
        if not self._database.is_sqlite:
            return 0, 0
        stat = os.statvfs(self._database.path)
        return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def _error(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))
