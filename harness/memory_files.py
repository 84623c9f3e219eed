"""The store's port in memory: files that no call of the system touches, so that whatever goes past the port fails."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pollux.store.port import Entry, Status

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.store.port import Copies

#: Larger than any descriptor of the system: what is asked of the system by mistake fails.
_FIRST_DESCRIPTOR = 1 << 30


@dataclass
class _Node:
    """A file with its data, or a directory with its names."""

    inode: int
    data: bytearray = field(default_factory=bytearray)
    names: dict[str, _Node] | None = None


class MemoryFiles:
    """Implements :class:`pollux.store.port.Files`; ``room``: bytes that all files together may have."""

    def __init__(self, root: Path, room: int = 1 << 40) -> None:
        """``root`` is a directory that is there; it exists nowhere else."""
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._descriptors = itertools.count(_FIRST_DESCRIPTOR)
        self._open: dict[int, _Node] = {}
        self._room = room
        self._used = 0
        self._root = self._directory()
        node = self._root
        for name in root.parts[1:]:
            node = self._names(node).setdefault(name, self._directory())

    def _directory(self) -> _Node:
        return _Node(next(self._numbers), names={})

    @staticmethod
    def _error(number: int, path: Path | int) -> OSError:
        return OSError(number, os.strerror(number), str(path))

    @staticmethod
    def _names(node: _Node, path: Path | str = "") -> dict[str, _Node]:
        if node.names is None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        return node.names

    def _at(self, path: Path) -> _Node:
        node = self._root
        for name in path.parts[1:]:
            found = self._names(node, path).get(name)
            if found is None:
                raise self._error(errno.ENOENT, path)
            node = found
        return node

    def _file(self, fd: int) -> _Node:
        if fd not in self._open:
            raise self._error(errno.EBADF, fd)
        return self._open[fd]

    def _resize(self, node: _Node, size: int) -> None:
        grows = size - len(node.data)
        if self._used + grows > self._room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        self._used += grows
        if grows > 0:
            node.data.extend(bytes(grows))
        else:
            node.data = node.data[:size]  # another object: somebody may have a view of the old one

    # -- changing

    def open(self, path: Path, flags: int, mode: int = 0o640) -> int:
        del mode
        with self._lock:
            names = self._names(self._at(path.parent), path)
            node = names.get(path.name)
            if node is None:
                if not flags & os.O_CREAT:
                    raise self._error(errno.ENOENT, path)
                node = names[path.name] = _Node(next(self._numbers))
            elif flags & os.O_EXCL:
                raise self._error(errno.EEXIST, path)
            elif node.names is not None:
                raise self._error(errno.EISDIR, path)
            elif flags & os.O_TRUNC:
                self._resize(node, 0)
            fd = next(self._descriptors)
            self._open[fd] = node
            return fd

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        del sync
        with self._lock:
            node, end = self._file(fd), offset + len(data)
            if end > len(node.data):
                self._resize(node, end)
            node.data[offset:end] = data
            return len(data)

    def fdatasync(self, fd: int) -> None:
        self._file(fd)

    def fsync(self, fd: int) -> None:
        self._file(fd)

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            self._names(self._at(path), path)

    def fill(self, fd: int, size: int) -> None:
        self.allocate(fd, size)

    def allocate(self, fd: int, size: int) -> None:
        with self._lock:
            node = self._file(fd)
            self._resize(node, max(size, len(node.data)))

    def truncate(self, fd: int, size: int) -> None:
        with self._lock:
            self._resize(self._file(fd), size)

    def close(self, fd: int) -> None:
        with self._lock:
            node = self._file(fd)
            del self._open[fd]
            self._forget(node)

    def _forget(self, node: _Node) -> None:
        """Give back the room of a file that has no name and that nobody has open."""
        if node.names is None and node not in self._open.values() and not self._is_named(self._root, node):
            self._used -= len(node.data)

    def _is_named(self, directory: _Node, node: _Node) -> bool:
        return any(one is node or (one.names and self._is_named(one, node)) for one in self._names(directory).values())

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            node = self._at(source)
            into = self._names(self._at(target.parent), target)
            old = into.get(target.name)
            del self._names(self._at(source.parent))[source.name]
            into[target.name] = node
            if old is not None and old is not node:
                self._forget(old)

    def unlink(self, path: Path) -> None:
        with self._lock:
            names = self._names(self._at(path.parent), path)
            if path.name in names:
                self._forget(names.pop(path.name))

    def make_directory(self, path: Path, mode: int = 0o750) -> None:
        del mode
        with self._lock:
            self._names(self._names(self._at(path.parent), path).setdefault(path.name, self._directory()), path)

    def remove_directory(self, path: Path) -> None:
        with self._lock:
            if self._names(self._at(path), path):
                raise self._error(errno.ENOTEMPTY, path)
            del self._names(self._at(path.parent))[path.name]

    def adopt(self, paths: list[Path]) -> None:
        for path in paths:
            self._at(path)

    def copies(self) -> Copies | None:
        return None

    # -- looking

    def read(self, fd: int, length: int, offset: int) -> bytes:
        with self._lock:
            return bytes(self._file(fd).data[offset : offset + length])

    def size(self, fd: int) -> int:
        return len(self._file(fd).data)

    def used(self, fd: int) -> int:
        return len(self._file(fd).data)

    def view(self, path: Path) -> memoryview:
        with self._lock:
            return memoryview(bytes(self._at(path).data))

    def status(self, path: Path) -> Status:
        with self._lock:
            node = self._at(path)
            return Status(len(node.data), node.inode, node.names is not None)

    def entries(self, directory: Path) -> list[Entry]:
        with self._lock:
            found = self._names(self._at(directory), directory)
            return [Entry(name, node.inode, node.names is not None) for name, node in found.items()]

    def handle(self) -> bytes:
        return b""

    def disk(self, path: Path) -> tuple[int, int]:
        self._at(path)
        return self._room, self._room - self._used
