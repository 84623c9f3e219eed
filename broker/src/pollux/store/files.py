"""Every system call the store makes on a file, in one object, so that tests can make them fail."""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

#: Written to new segments block by block; also what a free block looks like.
_ZEROS = bytes(1 << 20)


class FileOperations:
    """The real thing. A test subclasses it and raises OSError, writes less, or lies about room."""

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
                    raise
                self._dsync = False
        written = os.pwrite(fd, data, offset)
        if sync:
            self.fdatasync(fd)
        return written

    def fdatasync(self, fd: int) -> None:
        """Put a file's data on stable storage."""
        os.fdatasync(fd)

    def fsync(self, fd: int) -> None:
        """Put a file's data and metadata on stable storage."""
        os.fsync(fd)

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
        position = 0
        while position < size:
            part = memoryview(_ZEROS)[: size - position]
            position += self.write(fd, part, position, sync=False)
        self.fsync(fd)

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

    def adopt(self, paths: list[Path]) -> None:
        """Another process of this broker made these files."""

    def disk(self, path: Path) -> tuple[int, int]:
        """(total, free for us) bytes of the file system ``path`` is on."""
        stat = os.statvfs(path)
        return stat.f_blocks * stat.f_frsize, stat.f_bavail * stat.f_frsize


def write_all(files: FileOperations, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> None:
    """Write all of ``data`` however often the system writes less; zero progress is an error."""
    view = memoryview(data)
    while view:
        written = files.write(fd, view, offset, sync=sync)
        if written <= 0:
            raise OSError(errno.EIO, "the file system wrote nothing and gave no reason")
        view = view[written:]
        offset += written
