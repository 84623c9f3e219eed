"""Files on a disk, the first implementation of the store's port: every system call it makes on a file.

In one object, so that tests can make them fail. Beside it what can be done with the files of any implementation.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from contextlib import suppress
from typing import TYPE_CHECKING

from pollux.store.port import Entry, Status

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Self

    from pollux.store.port import Copies, Files

#: Written to new segments block by block; also what a free block looks like.
_ZEROS = bytes(1 << 20)


class FileOperations:
    """Files on a disk. A test subclasses it and raises OSError, writes less, or lies about room."""

    def __init__(self) -> None:
        #: Whether the file system takes RWF_DSYNC; found out at the first write it refuses.
        self._dsync = hasattr(os, "RWF_DSYNC")

    def open(self, path: Path, flags: int, mode: int = 0o640) -> int:
        """``os.open`` with O_CLOEXEC."""
        return os.open(path, flags | os.O_CLOEXEC, mode)

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        """Write at an offset; with ``sync`` the bytes are on stable storage when it returns. May write less."""
        if sync and self._dsync:
            try:
                return os.pwritev(fd, (data,), offset, os.RWF_DSYNC)
            except OSError as error:
                if error.errno != errno.EOPNOTSUPP:
                    _forget(fd)
                    raise
                self._dsync = False
        written = os.pwrite(fd, data, offset)
        if sync:
            self.fdatasync(fd)
        return written

    def fdatasync(self, fd: int) -> None:
        """Put a file's data on stable storage."""
        try:
            os.fdatasync(fd)
        except OSError:
            _forget(fd)
            raise

    def fsync(self, fd: int) -> None:
        """Put a file's data and metadata on stable storage."""
        try:
            os.fsync(fd)
        except OSError:
            _forget(fd)
            raise

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and deletions in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            self.fsync(fd)
        finally:
            os.close(fd)

    def fill(self, fd: int, size: int) -> None:
        """Make a file ``size`` bytes of real zeros, so that later writes change no metadata.

        Where there is visibly no room nothing is written (ENOSPC): the last blocks are for what was accepted.

        Not with posix_fallocate(): NFS below 4.2 has no such call, and the C library then writes a byte into every
        block, each with two round trips (8 s instead of 0.1 s for 1 MiB, measured on emulated machines).
        """
        room = os.fstatvfs(fd)
        # A file system that tells no size at all (some do, in user space) has as much room as it turns out to have.
        if room.f_blocks and room.f_bavail * room.f_frsize < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._fill(fd, size)

    def _fill(self, fd: int, size: int) -> None:
        position = 0
        while position < size:
            part = memoryview(_ZEROS)[: size - position]
            position += self.write(fd, part, position, sync=False)
        self.fsync(fd)

    def allocate(self, fd: int, size: int) -> None:
        """Make a file at least ``size`` bytes, without writing them: what was not written reads as zeros."""
        os.posix_fallocate(fd, 0, size)

    def truncate(self, fd: int, size: int) -> None:
        """Make a file ``size`` bytes."""
        os.ftruncate(fd, size)

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """``os.pread``."""
        return os.pread(fd, length, offset)

    def close(self, fd: int) -> None:
        """``os.close``."""
        os.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Atomically replace ``target``."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Delete a file; one that is already gone is fine."""
        path.unlink(missing_ok=True)

    def make_directory(self, path: Path, mode: int = 0o750) -> None:
        """Make a directory; one that is there already is fine."""
        path.mkdir(mode, exist_ok=True)

    def remove_directory(self, path: Path) -> None:
        """Delete an empty directory."""
        path.rmdir()

    def adopt(self, paths: list[Path]) -> None:
        """Another process of this broker made these files: they are there."""

    def copies(self) -> Copies | None:
        """Nobody keeps any."""
        return None

    def size(self, fd: int) -> int:
        """Return the size of an open file, bytes."""
        return os.fstat(fd).st_size

    def used(self, fd: int) -> int:
        """All of it: a disk has its zeros to be read, and damage among them to be found."""
        return os.fstat(fd).st_size

    def view(self, path: Path) -> memoryview:
        """Map a file into memory."""
        with path.open("rb") as stream:
            if not os.fstat(stream.fileno()).st_size:
                return memoryview(b"")
            return memoryview(mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ))

    def status(self, path: Path) -> Status:
        """``os.stat``."""
        found = path.stat()
        return Status(found.st_size, found.st_ino, stat.S_ISDIR(found.st_mode))

    def entries(self, directory: Path) -> list[Entry]:
        """``os.scandir``."""
        with os.scandir(directory) as found:
            return [Entry(entry.name, entry.inode(), entry.is_dir()) for entry in found]

    def handle(self) -> bytes:
        """Every process finds these."""
        return b""

    def disk(self, path: Path) -> tuple[int, int]:
        """(total, free) bytes of the file system ``path`` is on, without what root alone may use: as df counts."""
        stat = os.statvfs(path)
        reserved = stat.f_bfree - stat.f_bavail
        return (stat.f_blocks - reserved) * stat.f_frsize, stat.f_bavail * stat.f_frsize


def _forget(fd: int) -> None:
    """Have a file be read from the disk again: a sync of it failed.

    The kernel tells once of what it could not write, calls it clean and goes on showing it. Whoever starts next would
    build on it, and be told by a sync of its own that it is on stable storage.
    """
    with suppress(OSError):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


#: The files of the disk, for whoever is told of no others.
DISK: Files = FileOperations()


class FileReader:
    """A file that is read from a position on. Raises FileNotFoundError when there is none of this name."""

    def __init__(self, path: Path, files: Files) -> None:
        self._files = files
        self._fd = files.open(path, os.O_RDONLY)
        self._position = 0
        self.size = 0
        try:
            self.size = files.size(self._fd)
        except BaseException:
            files.close(self._fd)
            raise

    @property
    def used(self) -> int:
        """The offset behind which there are zeros only, as far as that is known without reading."""
        return self._files.used(self._fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._files.close(self._fd)

    def seek(self, position: int) -> None:
        """Go on at a position."""
        self._position = position

    def read(self, length: int) -> bytes:
        """Return ``length`` bytes, fewer at the file's end."""
        data = self._files.read(self._fd, length, self._position)
        self._position += len(data)
        while data and len(data) < length and (more := self._files.read(self._fd, length - len(data), self._position)):
            self._position += len(more)
            data += more
        return data


def read_all(path: Path, files: Files) -> bytes:
    """Return a file's content. Raises FileNotFoundError, OSError."""
    while True:
        try:
            with FileReader(path, files) as reader:
                return reader.read(reader.size)
        except FileNotFoundError:
            # A disk keeps a file for those who have it open, a database does not: was another one put in its place?
            if not exists(files, path):
                raise


def write_all(files: Files, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> None:
    """Write all of ``data`` however often the system writes less; zero progress is an error."""
    view = memoryview(data)
    while view:
        written = files.write(fd, view, offset, sync=sync)
        if written <= 0:
            raise OSError(errno.EIO, "the file system wrote nothing and gave no reason")
        view = view[written:]
        offset += written


def make_directories(files: Files, path: Path, mode: int = 0o750) -> None:
    """Make a directory and what is missing above it; their names are on stable storage when it returns."""
    missing = []
    while not is_directory(files, path):
        missing.append(path)
        path = path.parent
    for directory in reversed(missing):
        files.make_directory(directory, mode)
        files.sync_directory(directory.parent)


def replace_file(files: Files, path: Path, data: bytes, mode: int = 0o640) -> None:
    """Put ``data`` in the place of a file: after a crash at any moment the old content is there, or all of the new.

    The new content is on stable storage when this returns. Raises OSError, with the old content in its place.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        fd = files.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            write_all(files, fd, data, 0, sync=False)
            files.fsync(fd)
        finally:
            files.close(fd)
        files.rename(unfinished, path)
    except BaseException:
        with suppress(OSError):
            files.unlink(unfinished)
        raise
    files.sync_directory(path.parent)


def exists(files: Files, path: Path) -> bool:
    """Return whether there is a file or directory of this name."""
    try:
        files.status(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def is_directory(files: Files, path: Path) -> bool:
    """Return whether there is a directory of this name."""
    try:
        return files.status(path).is_directory
    except (FileNotFoundError, NotADirectoryError):
        return False


def names_in(files: Files, directory: Path) -> list[str]:
    """Return the names in a directory; none where there is no such directory."""
    try:
        return [entry.name for entry in files.entries(directory)]
    except (FileNotFoundError, NotADirectoryError):
        return []
