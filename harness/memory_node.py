"""A node's locks and its state in memory, as several processes see them."""

from __future__ import annotations

import itertools
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from pollux.store.locks import LockTimeoutError
from pollux.store.port import Probe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_CLOCK = itertools.count(1)


class _Lock:
    """Hold what a name means, until it is replaced."""

    def __init__(self) -> None:
        self.nonce = f"lock {next(_CLOCK)}"
        self.holder: object = None
        self.touched = 0


class MemoryNode:
    """The node that all :class:`MemoryLocks` of it share."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.locks: dict[str, _Lock] = {}

    def at(self, name: str) -> _Lock:
        """The lock that a name means now; made when there is none."""
        return self.locks.setdefault(name, _Lock())


class MemoryLock:
    """Implements :class:`pollux.store.port.NodeLock`."""

    def __init__(self, node: MemoryNode, name: str) -> None:
        self._node = node
        self._name = name
        self._lock = node.at(name)
        self.nonce = self._lock.nonce
        self.closed = False

    def __str__(self) -> str:
        return self._name

    def try_lock(self) -> bool:
        with self._node.changed:
            if self._lock.holder is None and not self.closed:
                self._lock.holder = self
            return self._lock.holder is self

    def is_current(self) -> bool:
        return self._node.locks.get(self._name) is self._lock

    def touch(self) -> int:
        self._lock.touched = next(_CLOCK)
        return self._lock.touched

    def touched(self) -> int:
        return self._node.locks[self._name].touched

    def close(self) -> None:
        with self._node.changed:
            self.closed = True
            if self._lock.holder is self:
                self._lock.holder = None
                self._node.changed.notify_all()


class MemoryWait:
    """Implements :class:`pollux.store.port.LockWait`."""

    error: OSError | None = None

    def __init__(self, node: MemoryNode, name: str, wake: Callable[[], None]) -> None:
        self._node = node
        self._wake = wake
        self._wanted: MemoryLock | None = MemoryLock(node, name)
        self._held: MemoryLock | None = None
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with self._node.changed:
            self._node.changed.wait_for(lambda: self._wanted is None or self.poll())
        if self._held is not None:
            self._wake()

    def poll(self) -> bool:
        with self._node.changed:
            if self._wanted is not None and self._wanted.is_current() and self._wanted.try_lock():
                self._held, self._wanted = self._wanted, None
            return self._held is not None

    def is_stale(self) -> bool:
        return self._wanted is not None and not self._wanted.is_current()

    def take(self) -> MemoryLock | None:
        with self._node.changed:
            held, self._held = self._held, None
            return held

    def abandon(self) -> None:
        with self._node.changed:
            self._wanted = None
            self._node.changed.notify_all()
        if (held := self.take()) is not None:
            held.close()


class MemoryLocks:
    """Implements :class:`pollux.store.port.NodeLocks`."""

    def __init__(self, node: MemoryNode) -> None:
        self._node = node

    def open(self, name: str) -> MemoryLock:
        return MemoryLock(self._node, name)

    def replace(self, name: str) -> MemoryLock:
        with self._node.changed:
            self._node.locks[name] = _Lock()
            lock = self.open(name)
            lock.try_lock()
            return lock

    def probe(self, name: str) -> Probe | None:
        lock = self._node.locks.get(name)
        return Probe(lock.nonce, lock.holder is not None) if lock is not None else None

    def wait(self, name: str, wake: Callable[[], None]) -> MemoryWait:
        return MemoryWait(self._node, name, wake)

    @contextmanager
    def briefly(self, name: str, seconds: float) -> Iterator[None]:
        deadline = time.monotonic() + seconds
        lock = self.open(name)
        with self._node.changed:
            if not self._node.changed.wait_for(lock.try_lock, max(0.0, deadline - time.monotonic())):
                raise LockTimeoutError(f"{name}: held for {seconds:g} s")
        try:
            yield
        finally:
            lock.close()


class MemoryRecord:
    """Implements :class:`pollux.store.port.StateRecord`."""

    def __init__(self) -> None:
        self._data: bytes | None = None

    def read(self) -> bytes | None:
        return self._data

    def write(self, data: bytes) -> None:
        self._data = data
