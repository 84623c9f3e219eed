"""Appends blocks to audit files in a thread of its own, which sits in system calls only.

Everything is bounded: what waits for the disk, how many files there are. A write that fails costs the rest of its file,
is counted (:meth:`Writer.take_lost`) and logged once; the next file is tried again.
"""

from __future__ import annotations

import errno
import logging
import os
import queue
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from pollux.formats.audit import file_name, safe_name
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

log = logging.getLogger("pollux.audit")

#: Bytes that may wait for the disk; beyond that blocks are dropped.
MAXIMUM_WAITING = 32 << 20
#: Seconds a stop waits for the disk.
CLOSE_TIMEOUT = 2.0


class Lost(NamedTuple):
    """Count what was dropped."""

    blocks: int
    bytes: int


class Writer:
    """Write in a thread of its own. :meth:`begin`, :meth:`write` and :meth:`take_lost` return at once."""

    def __init__(self, directory: Path, broker: str, maximum_files: int) -> None:
        self._directory = directory
        self._broker = broker
        self._maximum_files = maximum_files
        now = time.time()
        self._started = time.strftime("%Y%m%dT%H%M%S", time.gmtime(now)) + f"{int(now * 1000) % 1000:03d}Z"
        self._number = 0
        self._lock = threading.Lock()
        self._waiting = 0
        self._lost = Lost(0, 0)
        self._complained = False
        self._descriptor = -1
        self._path: Path | None = None
        self._work: queue.SimpleQueue[tuple[Path | None, bytes] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="pollux-audit", daemon=True)
        self._thread.start()

    def begin(self, header: Callable[[int], bytes]) -> int:
        """Make a new file; ``header`` makes its first bytes from its number. Returns their length."""
        self._number += 1
        data = header(self._number)
        with self._lock:
            self._waiting += len(data)
        self._work.put((self._directory / file_name(self._broker, self._started, self._number), data))
        return len(data)

    def write(self, block: bytes) -> None:
        """Append a block to the file begun last; dropped when too much waits."""
        with self._lock:
            if self._waiting + len(block) > MAXIMUM_WAITING:
                self._lost = Lost(self._lost.blocks + 1, self._lost.bytes + len(block))
                return
            self._waiting += len(block)
        self._work.put((None, block))

    def take_lost(self) -> Lost:
        """Return what was lost since the last call."""
        with self._lock:
            lost, self._lost = self._lost, Lost(0, 0)
        return lost

    def close(self) -> None:
        """Write what waits, for a moment at most."""
        self._work.put(None)
        self._thread.join(CLOSE_TIMEOUT)

    # -- in the thread

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            path, data = work
            try:
                if path is not None:
                    self._open(path)
                if self._descriptor < 0:
                    self._count_lost(data)
                else:
                    self._append(data)
            except OSError as error:
                self._failed(error, path, data)
            finally:
                with self._lock:
                    self._waiting -= len(data)
        self._leave()

    def _open(self, path: Path) -> None:
        self._leave()
        try:
            self._directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        except FileExistsError as error:
            words = "it is a file, not a directory: move it away, or give px:audit another directory"
            raise NotADirectoryError(errno.ENOTDIR, words, str(self._directory)) from error
        self._prune()
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o640)

    def _prune(self) -> None:
        """Delete the oldest files of this broker, so that there is room for one more."""
        mine = sorted(self._directory.glob(f"{safe_name(self._broker)}-*-*.audit"))
        for path in mine[: max(0, len(mine) - self._maximum_files + 1)]:
            path.unlink(missing_ok=True)

    def _append(self, data: bytes) -> None:
        before = os.fstat(self._descriptor).st_size
        written = 0
        try:
            while written < len(data):
                written += os.write(self._descriptor, data[written:])
        except OSError:
            os.ftruncate(self._descriptor, before)  # half a block is of no use to anybody
            raise
        self._complained = False

    def _failed(self, error: OSError, path: Path | None, data: bytes) -> None:
        if not self._complained:
            self._complained = True
            fields = {"file": str(path or self._path), "reason": str(error)}
            event(log, logging.ERROR, "the audit trail cannot be written", **fields)
        self._count_lost(data)
        self._leave()
        if path is not None:
            with suppress(OSError):  # the disk may refuse this as well: the thread must outlive it
                path.unlink(missing_ok=True)  # it has no header

    def _count_lost(self, data: bytes) -> None:
        """A block for nothing; a file that could not even begin counts as one, so that it is tried again."""
        with self._lock:
            self._lost = Lost(self._lost.blocks + 1, self._lost.bytes + len(data))

    def _leave(self) -> None:
        if self._descriptor >= 0:
            try:
                os.fdatasync(self._descriptor)
            except OSError as error:
                event(log, logging.WARNING, "an audit file could not be synced", reason=str(error))
            descriptor, self._descriptor = self._descriptor, -1
            with suppress(OSError):  # it is closed even then; the thread must outlive it
                os.close(descriptor)
