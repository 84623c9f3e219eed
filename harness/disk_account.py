"""The account of a disk that :mod:`harness.lossy_disk` keeps: all it was told, and what of it a power cut leaves.

It is told events and draws what is left, so that one recorded run can be cut anywhere many times.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path
    from random import Random

SECTOR = 512
#: The inode of the root directory.
ROOT = 0


class Event(NamedTuple):
    """Hold what happened to the disk. ``file`` is an inode's number; for "note" ``value`` is what the test noted."""

    kind: str
    file: int = 0
    offset: int = 0
    data: bytes = b""
    value: Any = None


class _File:
    """One file's data: what is durable, and pieces of later writes by sector."""

    __slots__ = ("_settled", "data", "pending", "size", "sizes")

    def __init__(self, data: bytes = b"") -> None:
        self.data = bytearray(data)
        #: The size a process sees.
        self.size = len(data)
        #: Sizes since the last sync, in order.
        self.sizes: list[int] = []
        self.pending: dict[int, list[tuple[int, memoryview]]] = {}
        #: What is left of it whatever is drawn; None: it was not asked for since the last sync.
        self._settled: bytes | None = None

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
        self._settled = None
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

    def lose(self) -> bytes:
        """Lose the data of what is not durable, as a failed sync does; return what there is now."""
        self._settled = None
        self.pending.clear()
        del self.data[self.size :]
        return bytes(self.data).ljust(self.size, b"\0")

    def left(self, draw: Random, keep: float) -> bytes:
        """Draw what a power cut leaves: a sector's newest content with probability ``keep``, or an older one.

        A file of which nothing is pending is the same object each time.
        """
        if not self.pending and not self.sizes:
            if self._settled is None:
                self._settled = bytes(self.data[: self.size]).ljust(self.size, b"\0")
            return self._settled
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
    """Hold what is durable, and what may be. Told of events in order; ``left`` draws what a power cut leaves now."""

    def __init__(self) -> None:
        self.files: dict[int, _File] = {}
        #: Directories by inode: the durable names.
        self.directories: dict[int, dict[str, int]] = {ROOT: {}}
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
            case "lost":
                self.files[event.file].lose()
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
        """Return what a power cut leaves now, drawn: relative path -> content (None: a directory), parents first."""
        # All of one and nothing of the other finds most; between them anything goes.
        keep_data, keep_names = (draw.choice((0.0, 0.0, 0.3, 0.8, 1.0)) for _ in range(2))
        directories = self.directories
        if self._changes and keep_names:
            directories = {inode: dict(names) for inode, names in directories.items()}
            for change in self._changes:
                if keep_names >= 1 or draw.random() < keep_names:
                    self._settle(directories, change)
        found: dict[str, bytes | None] = {}
        waiting = [("", ROOT)]
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
