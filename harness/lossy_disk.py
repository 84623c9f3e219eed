"""A disk that keeps only what was synced: file operations for tests, with an account of what is durable.

Reads and writes go to files below a root directory, of any implementation of the store's port, which show what a
process sees. Beside them an account says what a power cut leaves. It is as bad as POSIX allows:

* Data: each sector of a file has the content it had at its last sync, or that of any write since; each by itself.
  A write with ``sync`` (RWF_DSYNC) makes the sectors it touches durable and says nothing of others. fdatasync and fsync
  make all of the file's data and its size durable.
* Size: that of the last sync, or any since. What lies between data that was not kept is zeros.
* Entries: a creation, rename or deletion is there as a whole or not at all, each by itself, until its directory (a
  rename from one to another: both) is synced. Syncing a file does not make its name durable.

:class:`Account` is that account; it is told events and draws what is left, so that one recorded run can be cut anywhere
many times. :class:`LossyDisk` makes the calls, records the events, and has the faults.
"""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from pollux.store.files import FileOperations, exists, is_directory

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

    from pollux.store.port import Entry, Files, Status

SECTOR = 512
_ROOT = 0


class PowerCutError(OSError):
    """The machine is off: this call and each later one does nothing."""

    def __init__(self) -> None:
        super().__init__(errno.EIO, "the power was cut")


class Event(NamedTuple):
    """What happened to the disk. ``file`` is an inode's number; for "note" ``value`` is what the test noted."""

    kind: str
    file: int = 0
    offset: int = 0
    data: bytes = b""
    value: Any = None


class _File:
    """One file's data: what is durable, and pieces of later writes by sector."""

    __slots__ = ("data", "pending", "size", "sizes")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        #: The size a process sees.
        self.size = len(data)
        #: Sizes since the last sync, in order.
        self.sizes: list[int] = []
        self.pending: dict[int, list[tuple[int, memoryview]]] = {}

    def write(self, offset: int, data: bytes) -> None:
        view = memoryview(data)
        end = offset + len(data)
        at = offset
        pending = self.pending
        while at < end:
            sector = at // SECTOR
            upto = min((sector + 1) * SECTOR, end)
            pending.setdefault(sector, []).append((at, view[at - offset : upto - offset]))
            at = upto
        if end > self.size:
            self.resize(end)

    def resize(self, size: int) -> None:
        if size < self.size:
            # What was cut off reads as zeros if the file grows again.
            for sector in range(size // SECTOR, (self.size + SECTOR - 1) // SECTOR):
                start = max(size, sector * SECTOR)
                blank = memoryview(bytes((sector + 1) * SECTOR - start))
                self.pending.setdefault(sector, []).append((start, blank))
        self.size = size
        self.sizes.append(size)

    def sync(self, first: int = 0, last: int | None = None) -> None:
        """Make sectors ``first`` to ``last`` (all of them: None) durable, and the size."""
        if last is None:
            sectors = list(self.pending)
        else:
            sectors = [sector for sector in range(first, last + 1) if sector in self.pending]
        for sector in sectors:
            for at, piece in self.pending.pop(sector):
                _put(self.data, at, piece)
        self.sizes.clear()
        if len(self.data) < self.size:
            self.data.extend(bytes(self.size - len(self.data)))
        del self.data[self.size :]

    def left(self, draw: Random, keep: float) -> bytes:
        """What a power cut leaves: each sector's newest content with a probability of ``keep``, else an older one."""
        data = bytearray(self.data)
        for pieces in self.pending.values():
            count = len(pieces) if keep >= 1 or draw.random() < keep else draw.randrange(len(pieces)) if keep else 0
            for at, piece in pieces[:count]:
                _put(data, at, piece)
        # Without a change of its size the file has the one it had when it was synced last.
        size = self.size
        if self.sizes and (keep < 1 and draw.random() >= keep):
            older = [len(self.data), *self.sizes[:-1]]
            size = older[draw.randrange(len(older))] if keep else len(self.data)
        if len(data) < size:
            data.extend(bytes(size - len(data)))
        return bytes(data[:size])


def _put(data: bytearray, at: int, piece: memoryview) -> None:
    if len(data) < at:
        data.extend(bytes(at - len(data)))
    data[at : at + len(piece)] = piece


class _Change:
    """Names that change together: (directory, name, inode or None)."""

    __slots__ = ("directories", "names")

    def __init__(self, names: list[tuple[int, str, int | None]]) -> None:
        self.names = names
        #: Those that have to be synced before it is durable.
        self.directories = {directory for directory, _, _ in names}


class Account:
    """What is durable, and what may be. Told of events in their order; ``left`` draws what a power cut leaves now."""

    def __init__(self) -> None:
        self.files: dict[int, _File] = {}
        #: Directories by inode: the durable names.
        self.directories: dict[int, dict[str, int]] = {_ROOT: {}}
        self._changes: list[_Change] = []

    def apply(self, event: Event) -> None:
        """Take in what happened."""
        match event.kind:
            case "write":
                self.files[event.file].write(event.offset, event.data)
            case "size":
                self.files[event.file].resize(event.offset)
            case "sync-range":
                first, last = event.offset // SECTOR, (event.offset + max(event.value, 1) - 1) // SECTOR
                self.files[event.file].sync(first, last)
            case "sync":
                self.files[event.file].sync()
            case "file":
                self.files[event.file] = _File(event.data)
            case "directory":
                self.directories[event.file] = {}
            case "names":
                self._changes.append(_Change(event.value))
            case "sync-directory":
                self._sync_directory(event.file)

    def _sync_directory(self, directory: int) -> None:
        kept = []
        for change in self._changes:
            change.directories.discard(directory)
            if change.directories:
                kept.append(change)
            else:
                self._settle(self.directories, change)
        self._changes = kept

    @staticmethod
    def _settle(directories: dict[int, dict[str, int]], change: _Change) -> None:
        for directory, name, inode in change.names:
            if inode is None:
                directories[directory].pop(name, None)
            else:
                directories[directory][name] = inode

    @property
    def pending(self) -> bool:
        """Whether anything could be lost now."""
        return bool(self._changes) or any(file.pending or file.sizes for file in self.files.values())

    def left(self, draw: Random) -> dict[str, bytes | None]:
        """What a power cut leaves now, drawn: relative path -> content (None: a directory), parents first."""
        # All of one and nothing of the other finds most; between them anything goes.
        keep_data, keep_names = (draw.choice((0.0, 0.0, 0.3, 0.8, 1.0)) for _ in range(2))
        directories = self.directories
        if self._changes and keep_names:
            directories = {inode: dict(names) for inode, names in directories.items()}
            for change in self._changes:
                if keep_names >= 1 or draw.random() < keep_names:
                    self._settle(directories, change)
        found: dict[str, bytes | None] = {}
        waiting = [("", _ROOT)]
        while waiting:
            prefix, directory = waiting.pop()
            for name, inode in sorted(directories[directory].items()):
                path = f"{prefix}{name}"
                if inode in directories:
                    found[path] = None
                    waiting.append((f"{path}/", inode))
                else:
                    found[path] = self.files[inode].left(draw, keep_data)
        return found


def materialise(left: dict[str, bytes | None], target: Path) -> None:
    """Make files of what was drawn, in an empty directory."""
    base = str(target)
    for name, content in left.items():
        path = f"{base}/{name}"
        if content is None:
            os.mkdir(path)  # noqa: PTH102  (a hundred thousand times)
            continue
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640)
        written = os.write(fd, content)
        os.close(fd)
        if written != len(content):
            raise OSError(errno.ENOSPC, f"{path}: no room for what a test needs")


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
        self._names: dict[int, dict[str, int]] = {_ROOT: {}}
        self._adopt(root, _ROOT)
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
        directory = _ROOT
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
            self._call()
            if self._syncs:
                self._inner.fsync(fd)
            self._record(Event("sync", self._open[fd]))

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
            self._record(Event("sync-directory", _ROOT if path.absolute() == self.root else self._inode(path)))

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

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """``os.pread``."""
        return self._inner.read(fd, length, offset)

    def size(self, fd: int) -> int:
        """The size of an open file."""
        return self._inner.size(fd)

    def view(self, path: Path) -> memoryview:
        """All of a file."""
        return self._inner.view(path)

    def status(self, path: Path) -> Status:
        """``os.stat``."""
        return self._inner.status(path)

    def entries(self, directory: Path) -> list[Entry]:
        """``os.scandir``."""
        return self._inner.entries(directory)
