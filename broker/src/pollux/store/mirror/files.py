"""The store's system calls, that tell a mirror what they change.

A call that syncs returns when the change is on this disk and on those of all replicas in sync; ``write_here`` returns
when it is on this disk, and whoever calls it asks later whether the replicas have it. Calls are made in threads of the
store, never in the event loop's.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from pollux.store.files import FileOperations
from pollux.store.mirror.first_copy import adopt, copy_renamed
from pollux.store.mirror.operations import Operation, OperationType, mirrored_name

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.store.mirror.mirror import Mirror
    from pollux.store.port import Copies, Entry, Files, Status


class MirroredFiles:
    """File operations that are repeated elsewhere. ``inner`` makes the real calls."""

    def __init__(self, mirror: Mirror, inner: Files | None = None) -> None:
        self._mirror = mirror
        self._inner = inner or FileOperations()
        #: Descriptors of files that are written, with their mirrored path; None once the file has no name any more.
        self._names: dict[int, str | None] = {}

    def open(self, path: Path, flags: int, mode: int = 0o640) -> int:
        """``os.open`` with O_CLOEXEC."""
        if not flags & (os.O_WRONLY | os.O_RDWR):
            return self._inner.open(path, flags, mode)
        name = mirrored_name(self._mirror.roots, path)
        with self._mirror.lock:
            fd = self._inner.open(path, flags, mode)
            self._names[fd] = name
            if name is not None and flags & (os.O_TRUNC | os.O_EXCL):
                self._mirror.submit(Operation(OperationType.CREATE, name))
        return fd

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        """Write at an offset; with ``sync`` the bytes are on stable storage everywhere when it returns."""
        written, number = self._write(fd, data, offset, sync=sync)
        if sync:
            self._mirror.wait(number)
        self._mirror.throttle()
        return written

    def write_here(self, fd: int, data: bytes | memoryview, offset: int) -> tuple[int, int]:
        """Write and sync here; the replicas get it. How many bytes were written, and the number of the change."""
        written = self._write(fd, data, offset, sync=True)
        self._mirror.throttle()
        return written

    def _write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> tuple[int, int]:
        mirror = self._mirror
        number = 0
        with mirror.lock:
            written = self._inner.write(fd, data, offset, sync=False)
            name = self._names.get(fd)
            if name is not None:
                copy = bytes(data[:written]) if mirror.links else b""
                number = mirror.submit(Operation(OperationType.WRITE, name, offset, copy, synced=sync))
        if sync:
            self._inner.fdatasync(fd)
        return written, number

    # -- copies (:class:`pollux.store.port.Copies`)

    def copies(self) -> Copies:
        """Return what is known of the replicas."""
        return self

    def settled(self) -> int:
        """Return the newest change that no replica has to be waited for any more. Raises OSError."""
        return self._mirror.settled

    def wait(self, number: int, since: float) -> None:
        """Return when the replicas that count have it. Raises OSError."""
        self._mirror.wait(number, since)

    def clock(self) -> float:
        """Return the time that ``wait`` counts by."""
        return self._mirror.clock()

    @property
    def patience(self) -> float:
        """How long a replica is waited for, seconds."""
        return self._mirror.patience

    def listen(self, told: Callable[[], None]) -> None:
        """Have this called, in any thread, whenever more may be settled."""
        self._mirror.listen(told)

    # -- the other calls

    def fdatasync(self, fd: int) -> None:
        """Put a file's data on stable storage, everywhere."""
        number = self._submit_sync(fd)
        self._inner.fdatasync(fd)
        self._mirror.wait(number)

    def fsync(self, fd: int) -> None:
        """Put a file's data and metadata on stable storage, everywhere."""
        number = self._submit_sync(fd)
        self._inner.fsync(fd)
        self._mirror.wait(number)

    def _submit_sync(self, fd: int) -> int:
        with self._mirror.lock:
            name = self._names.get(fd)
            return self._mirror.submit(Operation(OperationType.SYNC, name)) if name is not None else 0

    def sync_directory(self, path: Path) -> None:
        """Make creations, renames and deletions in a directory durable, everywhere."""
        number = 0
        name = mirrored_name(self._mirror.roots, path / "x")
        if name is not None:
            with self._mirror.lock:
                number = self._mirror.submit(Operation(OperationType.SYNC_DIRECTORY, name))
        self._inner.sync_directory(path)
        self._mirror.wait(number)

    def fill(self, fd: int, size: int) -> None:
        """Make a file ``size`` bytes of real zeros."""
        # Without the lock: it takes long, and nobody writes to a segment that is being prepared.
        self._inner.fill(fd, size)
        with self._mirror.lock:
            name = self._names.get(fd)
            if name is not None:
                self._mirror.submit(Operation(OperationType.FILL, name, size))

    def allocate(self, fd: int, size: int) -> None:
        """Make a file at least ``size`` bytes, without writing them."""
        self._resize(fd, self._inner.allocate, size)

    def truncate(self, fd: int, size: int) -> None:
        """Make a file ``size`` bytes."""
        self._resize(fd, self._inner.truncate, size)

    def _resize(self, fd: int, resize: Callable[[int, int], None], size: int) -> None:
        with self._mirror.lock:
            resize(fd, size)
            name = self._names.get(fd)
            if name is not None:
                self._mirror.submit(Operation(OperationType.SIZE, name, self._inner.size(fd)))

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """``os.pread``."""
        return self._inner.read(fd, length, offset)

    def size(self, fd: int) -> int:
        """Return the size of an open file, bytes."""
        return self._inner.size(fd)

    def used(self, fd: int) -> int:
        """Return where the zeros at an open file's end begin."""
        return self._inner.used(fd)

    def view(self, path: Path) -> memoryview:
        """Return all of a file."""
        return self._inner.view(path)

    def status(self, path: Path) -> Status:
        """``os.stat``."""
        return self._inner.status(path)

    def entries(self, directory: Path) -> list[Entry]:
        """``os.scandir``."""
        return self._inner.entries(directory)

    def close(self, fd: int) -> None:
        """``os.close``."""
        self._names.pop(fd, None)
        self._inner.close(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Atomically replace ``target``."""
        old, new = mirrored_name(self._mirror.roots, source), mirrored_name(self._mirror.roots, target)
        with self._mirror.lock:
            self._inner.rename(source, target)
            for fd, name in self._names.items():
                if name is not None and name == new:
                    self._names[fd] = None
                elif name is not None and name == old:
                    self._names[fd] = new
            if old is not None and new is not None:
                renamed = Operation(OperationType.RENAME, old, data=new.encode())
                self._mirror.submit(renamed, only=lambda link: link.in_sync)
                for link in self._mirror.links:
                    if not link.in_sync:  # it may not have the file yet, or an older one
                        copy_renamed(self._mirror, link, old, new, target)

    def unlink(self, path: Path) -> None:
        """Delete a file; one that is already gone is fine."""
        name = mirrored_name(self._mirror.roots, path)
        with self._mirror.lock:
            self._inner.unlink(path)
            if name is not None:
                for fd, known in self._names.items():
                    if known == name:
                        self._names[fd] = None
                self._mirror.submit(Operation(OperationType.UNLINK, name))

    def make_directory(self, path: Path, mode: int = 0o750) -> None:
        """Make a directory; a replica makes those of the files it is told of."""
        self._inner.make_directory(path, mode)

    def remove_directory(self, path: Path) -> None:
        """Delete an empty directory."""
        self._inner.remove_directory(path)

    def adopt(self, paths: list[Path]) -> None:
        """Another process made these files: tell the mirror what is in them."""
        for path in paths:
            adopt(self._mirror, path)

    def handle(self) -> bytes:
        return self._inner.handle()

    def disk(self, path: Path) -> tuple[int, int]:
        """(total, free for us) bytes of the file system ``path`` is on."""
        return self._inner.disk(path)
