"""A disk that keeps only what was synced: file operations for tests, with an account of what is durable.

Reads and writes go to files below a root directory, of any implementation of the store's port, which show what a
process sees. Beside them an account says what a power cut leaves. It is as bad as POSIX allows:

* Data: each sector of a file has the content it had at its last sync, or that of any write since; each by itself.
  A write with ``sync`` (RWF_DSYNC) makes the sectors it touches durable and says nothing of others. fdatasync and fsync
  make all of the file's data and its size durable. One that fails loses what is not, and nobody is told again.
* Size: that of the last sync, or any since. What lies between data that was not kept is zeros.
* Entries: a creation, rename or deletion is there as a whole or not at all, each by itself, until its directory (a
  rename from one to another: both) is synced. Syncing a file does not make its name durable.

:class:`harness.disk_account.Account` is that account. :class:`LossyDisk` makes the calls, records the events, and has
the faults.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from typing import TYPE_CHECKING, Any

from harness.disk_account import ROOT, Account, Event, materialise
from pollux.store.files import FileOperations, exists, is_directory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from random import Random

    from pollux.store.port import Copies, Entry, Files, Status


class PowerCutError(OSError):
    """The machine is off: this call and each later one does nothing."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the power was cut")


def torn(disk: LossyDisk, draw: Random, cuts: int) -> Iterator[dict[str, bytes | None]]:
    """Draw what is left when the power is cut so often while something is written, since something was noted."""
    noted = next(number for number, event in enumerate(disk.events) if event.kind == "note")
    writes = [number for number, event in enumerate(disk.events) if number > noted and event.kind == "write"]
    account, done = Account(), 0
    for place in sorted(draw.choices(writes, k=cuts)):
        for event in disk.events[done : place + 1]:
            account.apply(event)
        done = place + 1
        yield account.left(draw)


def lay_out(left: dict[str, bytes | None], directory: Path) -> None:
    """Have in ``directory`` what is left, and nothing else."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    materialise(left, directory)


class LossyDisk:
    """The files of ``inner`` below ``root``, the account of them, and faults. What is there already is durable.

    A test notes what was promised with :meth:`note`, cuts the power with ``cut_at`` or between two calls, and restarts
    on ``materialise(disk.account.left(draw), elsewhere)``; or it replays :attr:`events` into an :class:`Account` of its
    own and cuts that wherever it likes. A process that is killed loses nothing here: :meth:`power_on` and go on.
    """

    def __init__(self, root: Path, inner: Files | None = None, *, syncs: bool = False) -> None:
        """``syncs``: ``inner`` is synced too, as it keeps what is not only as long as the process lives."""
        self._inner = inner or FileOperations()
        self._syncs = syncs
        self.root = root
        self.account = Account()
        self.events: list[Event] = []
        #: Calls that change something, or sync, so far; and the number of the one at which the power is cut.
        self.calls = 0
        self.cut_at: int | None = None
        #: Whether it was: each later call fails.
        self.off = False
        #: Every changing call fails with this error while it is set (EIO for a while).
        self.failing: int | None = None
        #: Calls, by their number, that fail with EIO.
        self.failing_calls = range(0)
        #: Bytes by which files may still grow: what is beyond is not written, and then there is no room (ENOSPC).
        self.room: int | None = None
        #: Decides how much less than asked is written; None: all is.
        self.short_writes: Random | None = None
        self._lock = threading.RLock()
        self._inodes = 0
        #: Open descriptors: their inode, -1 for a file that was made without us.
        self._open: dict[int, int] = {}
        #: What a process sees: directory inode -> name -> inode.
        self._names: dict[int, dict[str, int]] = {ROOT: {}}
        self._adopt(root, ROOT)
        self._sync_all()
        #: How many of the events only tell what was there already.
        self.adopted = len(self.events)

    def _adopt(self, path: Path, directory: int) -> None:
        for entry in sorted(self._inner.entries(path)):
            inode = self._new_inode()
            if entry.is_directory:
                self._names[inode] = {}
                self._record(Event("directory", inode))
                self._adopt(path / entry.name, inode)
            else:
                self._record(Event("file", inode, data=bytes(self._inner.view(path / entry.name))))
            self._rename([(directory, entry.name, inode)])

    def _sync_all(self) -> None:
        for inode in self._names:
            self._record(Event("sync-directory", inode))

    def _new_inode(self) -> int:
        self._inodes += 1
        return self._inodes

    def _record(self, event: Event) -> None:
        self.events.append(event)
        self.account.apply(event)

    def _rename(self, names: list[tuple[int, str, int | None]]) -> None:
        for directory, name, inode in names:
            if inode is None:
                self._names[directory].pop(name, None)
            else:
                self._names[directory][name] = inode
        self._record(Event("names", value=names))

    def _place(self, path: Path) -> tuple[int, str]:
        """The directory (inode) of a path below the root, and the name there."""
        *parents, name = path.absolute().relative_to(self.root).parts
        directory = ROOT
        for parent in parents:
            inode = self._names[directory].get(parent)
            if inode is None:  # made without us: evidence that is copied aside, say
                inode = self._new_inode()
                self._names[inode] = {}
                self._record(Event("directory", inode))
                self._rename([(directory, parent, inode)])
            directory = inode
        return directory, name

    def _inode(self, path: Path) -> int:
        directory, name = self._place(path)
        return self._names[directory][name]

    def _call(self) -> None:
        if self.off or (self.cut_at is not None and self.calls >= self.cut_at):
            self.off = True
            raise PowerCutError
        self.calls += 1
        if self.failing is not None:
            raise OSError(self.failing, os.strerror(self.failing))
        if self.calls in self.failing_calls:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def power_on(self) -> None:
        """Go on with what the system has in memory: only the process was killed. The disk is sound again."""
        self.cut_at = self.failing = self.room = self.short_writes = None
        self.failing_calls = range(0)
        self.off = False

    def make_room(self) -> None:
        """There is as much room again as anybody wants."""
        with self._lock:
            self.room = None

    def note(self, value: Any) -> None:
        """Put down, between the events, what somebody outside now relies on."""
        with self._lock:
            if not self.off:
                self.events.append(Event("note", value=value))

    # -- files

    def open(self, path: Path, flags: int, mode: int = 0o640) -> int:
        """``os.open``."""
        if not flags & (os.O_WRONLY | os.O_RDWR):
            with self._lock:
                fd = self._inner.open(path, flags, mode)
                # Whoever only reads may sync what somebody else wrote.
                directory, name = self._place(path)
                self._open[fd] = self._names[directory].get(name, -1)
                return fd
        with self._lock:
            self._call()
            existed = exists(self._inner, path)
            fd = self._inner.open(path, flags, mode)
            if existed:
                inode = self._inode(path)
                if flags & os.O_TRUNC:
                    self._record(Event("size", inode, 0))
            else:
                inode = self._new_inode()
                self._record(Event("file", inode))
                self._rename([(*self._place(path), inode)])
            self._open[fd] = inode
            return fd

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        """Write at an offset; with ``sync`` the sectors it touches are durable when it returns."""
        with self._lock:
            # Of the call at which a process ends the system has the bytes, if it is a write; they are not synced.
            last = self.calls == self.cut_at and not self.off
            if last:
                self.off = True
            else:
                self._call()
            inode = self._open[fd]
            if self.short_writes is not None and len(data) > 1:
                data = memoryview(data)[: self.short_writes.randint(1, len(data))]
            data = bytes(self._fitting(inode, data, offset))
            written = self._inner.write(fd, data, offset, sync=sync and self._syncs)
            self._record(Event("write", inode, offset, data))
            if last:
                raise PowerCutError
            if sync:
                self._record(Event("sync-range", inode, offset, value=written))
            return written

    def _fitting(self, inode: int, data: bytes | memoryview, offset: int) -> bytes | memoryview:
        if self.room is None:
            return data
        grows = max(0, offset + len(data) - self.account.files[inode].size)
        missing = grows - self.room
        if missing >= len(data):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self.room -= min(grows, self.room)
        return memoryview(data)[: len(data) - missing] if missing > 0 else data

    def truncate(self, fd: int, size: int) -> None:
        """``os.ftruncate``."""
        with self._lock:
            self._call()
            self._inner.truncate(fd, size)
            self._record(Event("size", self._open[fd], size))

    def allocate(self, fd: int, size: int) -> None:
        """Room for ``size`` bytes."""
        with self._lock:
            self._call()
            self._inner.allocate(fd, size)
            if size > self.account.files[self._open[fd]].size:
                self._record(Event("size", self._open[fd], size))

    def fdatasync(self, fd: int) -> None:
        """All of the file's data, and its size, are durable."""
        self.fsync(fd)

    def fsync(self, fd: int) -> None:
        """All of the file's data, and its size, are durable; its name is not."""
        with self._lock:
            try:
                self._call()
            except PowerCutError:
                raise
            except OSError:
                self._lose(self._open[fd])
                raise
            if self._syncs:
                self._inner.fsync(fd)
            self._record(Event("sync", self._open[fd]))

    def _lose(self, inode: int) -> None:
        """Have a file be what is durable of it: the kernel calls what a sync could not write clean, and forgets it."""
        left = self.account.files[inode].lose()
        self.events.append(Event("lost", inode))
        if (path := self._path(inode)) is not None:
            fd = self._inner.open(path, os.O_WRONLY)
            self._inner.write(fd, left, 0, sync=False)
            self._inner.close(fd)

    def _path(self, inode: int, directory: int = ROOT) -> Path | None:
        """Return where a file is; None: it has no name any more."""
        for name, one in self._names[directory].items():
            if one == inode:
                return self.root / name
            if one in self._names and (below := self._path(inode, one)) is not None:
                return self.root / name / below.relative_to(self.root)
        return None

    def close(self, fd: int) -> None:
        """``os.close``, also without power: the process has to let go of it."""
        with self._lock:
            self._open.pop(fd, None)
            self._inner.close(fd)

    # -- names

    def sync_directory(self, path: Path) -> None:
        """The names in the directory are durable."""
        with self._lock:
            self._call()
            self._record(Event("sync-directory", ROOT if path.absolute() == self.root else self._inode(path)))

    def make_directory(self, path: Path, mode: int = 0o750) -> None:
        """``os.mkdir``, unless it is there."""
        with self._lock:
            self._call()
            if is_directory(self._inner, path):
                return
            self._inner.make_directory(path, mode)
            inode = self._new_inode()
            self._names[inode] = {}
            self._record(Event("directory", inode))
            self._rename([(*self._place(path), inode)])

    def remove_directory(self, path: Path) -> None:
        """``os.rmdir``."""
        with self._lock:
            self._call()
            self._inner.remove_directory(path)
            self._rename([(*self._place(path), None)])

    def rename(self, source: Path, target: Path) -> None:
        """Atomically replace ``target``."""
        with self._lock:
            self._call()
            self._inner.rename(source, target)
            inode = self._inode(source)
            self._rename([(*self._place(source), None), (*self._place(target), inode)])

    def unlink(self, path: Path) -> None:
        """Delete a file."""
        with self._lock:
            self._call()
            if exists(self._inner, path):
                self._inner.unlink(path)
                self._rename([(*self._place(path), None)])

    def handle(self) -> bytes:
        return self._inner.handle()

    def disk(self, path: Path) -> tuple[int, int]:
        """(total, free): plenty, unless there is a limit."""
        del path
        return 1 << 40, 1 << 40 if self.room is None else self.room

    def fill(self, fd: int, size: int) -> None:
        """Zeros, and a sync; nothing at all where there is visibly no room."""
        if self.room is not None and self.room < size:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        position = 0
        while position < size:
            position += self.write(fd, bytes(min(1 << 20, size - position)), position, sync=False)
        self.fsync(fd)

    # -- looking

    def adopt(self, paths: list[Path]) -> None:
        """Another process made these files."""
        self._inner.adopt(paths)

    def copies(self) -> Copies | None:
        """Nobody keeps any."""
        return None

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """``os.pread``."""
        return self._inner.read(fd, length, offset)

    def size(self, fd: int) -> int:
        """The size of an open file."""
        return self._inner.size(fd)

    def used(self, fd: int) -> int:
        """Where the zeros at its end begin."""
        return self._inner.used(fd)

    def view(self, path: Path) -> memoryview:
        """All of a file."""
        return self._inner.view(path)

    def status(self, path: Path) -> Status:
        """``os.stat``."""
        return self._inner.status(path)

    def entries(self, directory: Path) -> list[Entry]:
        """``os.scandir``."""
        return self._inner.entries(directory)
