"""The other side: repeats the changes of a live's files in its own directories, and says what is safe.

One thread at a time. Nothing is believed of a path or an order that would leave the store's directories.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from typing import TYPE_CHECKING

from pollux.store.files import FileOperations, make_directories, write_all
from pollux.store.mirror.operations import ROOTS, Operation, OperationType, path_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from pollux.store.port import Files

#: Files kept open.
_OPEN = 64
#: Bytes written to a copy that is not complete before they are synced.
INCOMPLETE_SYNC = 16 << 20


class Replica:
    """A copy of a live's files. ``on_mark`` gets the data of MARK operations, after everything before them is safe."""

    def __init__(self, roots: Mapping[str, Path], on_mark: Callable[[bytes], None], files: Files | None = None) -> None:
        self.roots = dict(roots)
        self._files = files or FileOperations()
        self._on_mark = on_mark
        self._open: OrderedDict[str, int] = OrderedDict()
        #: Files with bytes that are not synced yet and have to be before the next confirmation.
        self._dirty: dict[str, None] = {}
        #: Whether the copy is complete. Nobody waits for what is synced before, so one sync for much is enough.
        self._complete = False
        self._unsynced = 0
        self.applied = 0

    def apply(self, operations: Iterable[Operation]) -> int:
        """Repeat the changes; returns the number to confirm. Raises StoreError and OSError: the copy is of no use."""
        for operation in operations:
            self._apply(operation)
            self.applied = operation.number
        if self._complete or self._unsynced >= INCOMPLETE_SYNC:
            self._sync()
        return self.applied

    def close(self) -> None:
        """Let go of the files."""
        while self._open:
            self._files.close(self._open.popitem()[1])

    def _apply(self, operation: Operation) -> None:
        kind, name = operation.type, operation.path
        if kind is OperationType.MARK:
            self._sync()
            if not self._complete:
                self._sync_directories()
            self._complete = True
            self._on_mark(bytes(operation.data))
        elif kind is OperationType.SYNC_DIRECTORY:
            directory = path_of(self.roots, name).parent  # the name is that of some file in it
            if directory.is_dir():
                self._files.sync_directory(directory)
        elif kind is OperationType.UNLINK:
            self._forget(name)
            self._files.unlink(path_of(self.roots, name))
        elif kind is OperationType.RENAME:
            target = bytes(operation.data).decode()
            self._forget(name)
            self._forget(target)
            self._files.rename(path_of(self.roots, name), path_of(self.roots, target))
        else:
            self._change(operation)

    def _sync_directories(self) -> None:
        """Make the names of all files stable, also of those that an earlier process received."""
        for root, depth in ROOTS.items():
            directory = self.roots[root]
            if not directory.is_dir():
                continue
            self._files.sync_directory(directory.parent)
            self._files.sync_directory(directory)
            if depth > 1:
                for below in directory.iterdir():
                    if below.is_dir():
                        self._files.sync_directory(below)

    def _change(self, operation: Operation) -> None:
        kind, name = operation.type, operation.path
        if kind is OperationType.CREATE:
            self._forget(name)
            self._descriptor(name, os.O_TRUNC)
            return
        descriptor = self._descriptor(name)
        if kind is OperationType.WRITE:
            if self._complete and name in self._dirty:
                # Its live wrote it when what is before it was on stable storage, and recovery takes a hole for damage.
                self._files.fdatasync(descriptor)
                del self._dirty[name]
            write_all(self._files, descriptor, operation.data, operation.value, sync=False)
            self._unsynced += len(operation.data)
            if operation.synced:
                self._dirty[name] = None
        elif kind is OperationType.FILL:
            # Room without writing zeros: they would hold up the confirmations behind them.
            self._files.truncate(descriptor, 0)
            self._files.allocate(descriptor, operation.value)
        elif kind is OperationType.SIZE:
            # One that is as it should be keeps its times: what is known of it by them stays known.
            if self._files.size(descriptor) != operation.value:
                self._files.truncate(descriptor, operation.value)
        else:
            self._dirty[name] = None

    def _descriptor(self, name: str, flags: int = 0) -> int:
        known = self._open.get(name)
        if known is not None:
            self._open.move_to_end(name)
            return known
        path = path_of(self.roots, name)
        if not path.parent.exists():
            make_directories(self._files, path.parent)
        descriptor = self._files.open(path, os.O_RDWR | os.O_CREAT | flags)
        self._open[name] = descriptor
        while len(self._open) > _OPEN:
            oldest, old = self._open.popitem(last=False)
            if oldest in self._dirty:
                self._files.fsync(old)
                del self._dirty[oldest]
            self._files.close(old)
        return descriptor

    def _forget(self, name: str) -> None:
        descriptor = self._open.pop(name, None)
        if descriptor is not None:
            if self._dirty.pop(name, 1) is None:
                self._files.fsync(descriptor)
            self._files.close(descriptor)

    def _sync(self) -> None:
        for name in self._dirty:
            self._files.fdatasync(self._descriptor(name))
        self._dirty.clear()
        self._unsynced = 0
