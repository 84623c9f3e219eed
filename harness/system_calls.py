"""System calls on the files below a directory that fail: once, or for a while. For code that calls the system itself.

``install`` puts a look in front of Python's functions for files, once for all; a :class:`Faults` counts the calls on
the files below its directory while it is armed, and lets those fail that its plan names. Several may be used at the
same time, each with a directory of its own: every call is counted where its path is, or its descriptor was opened.
"""

from __future__ import annotations

import errno
import fcntl
import io
import os
import threading
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from typing import Self

    import pytest

#: Of ``os``: those that take a path, and those that take a descriptor.
BY_PATH = (
    *("stat", "lstat", "statvfs", "access", "unlink", "remove", "mkdir", "rmdir", "listdir", "scandir"),
    *("rename", "replace", "link"),
)
BY_DESCRIPTOR = (
    *("read", "write", "pread", "preadv", "pwrite", "pwritev", "fsync", "fdatasync", "fstat", "fstatvfs"),
    *("ftruncate", "posix_fallocate"),
)


class Faults:
    """The calls below ``directory`` from ``arm`` on. ``first``: the number of the first that fails, None: none does.

    ``seconds`` 0: only that one does; else all do that begin within this time. ``calls`` names those made so far.
    """

    def __init__(self, directory: Path, first: int | None = None, seconds: float = 0.0) -> None:
        self.directory = f"{directory}/"
        self.calls: list[str] = []
        self.first = first
        self.seconds = seconds
        self.failed: list[str] = []
        self._until = 0.0
        self._armed = False

    def arm(self) -> None:
        """Let calls fail from now on."""
        self._armed = True

    def __enter__(self) -> Self:
        with _LOCK:
            _ACTIVE.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        with _LOCK:
            _ACTIVE.remove(self)

    def count(self, name: str, path: str) -> None:
        """A call is about to be made. Raises OSError for one that fails."""
        if not self._armed:
            return
        number = len(self.calls)
        said = f"{name} {path.removeprefix(self.directory)}"
        self.calls.append(said)
        now = time.monotonic()
        if number == self.first:
            self._until = now + self.seconds
        elif now >= self._until:
            return
        self.failed.append(said)
        raise OSError(errno.EIO, os.strerror(errno.EIO), path)


_LOCK = threading.RLock()
_ACTIVE: list[Faults] = []
#: Where each descriptor below one of the directories was opened.
_OPENED: dict[int, str] = {}


def _of(path: object) -> Faults | None:
    text = str(path) if isinstance(path, (str, os.PathLike)) else ""
    return next((one for one in _ACTIVE if text.startswith(one.directory)), None)


def _count(name: str, path: object) -> None:
    with _LOCK:
        faults = _of(_OPENED.get(path) if isinstance(path, int) else path)
        if faults is not None:
            faults.count(name, _OPENED[path] if isinstance(path, int) else str(path))


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on all calls are looked at."""

    def before(module: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(module, name)

        def call(what: Any, *values: Any, **more: Any) -> Any:
            _count(name, what)
            return real(what, *values, **more)

        monkeypatch.setattr(module, name, call)

    for name in (*BY_PATH, *BY_DESCRIPTOR, "utime"):
        before(os, name)
    before(fcntl, "fcntl")
    before(io, "open")
    real_open, real_close = os.open, os.close

    def opened(path: Any, *values: Any, **more: Any) -> int:
        _count("open", path)
        descriptor = real_open(path, *values, **more)
        _OPENED.pop(descriptor, None)  # what had this number was closed without os.close
        if _of(path) is not None:
            _OPENED[descriptor] = os.fspath(path)
        return descriptor

    def closed(descriptor: int) -> None:
        """Forget a descriptor, also when closing it fails: it is closed then, as Linux does it."""
        path = _OPENED.get(descriptor)
        _OPENED.pop(descriptor, None)
        real_close(descriptor)
        if path is not None:
            _count("close", path)

    monkeypatch.setattr(os, "open", opened)
    monkeypatch.setattr(os, "close", closed)
