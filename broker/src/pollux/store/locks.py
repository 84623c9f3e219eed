"""Locks on whole files that belong to an open file description (fcntl(2), F_OFD_SETLK), and waiting for them.

They are the locks of the store's port where a node is files. POSIX locks belong to the process and go when any
descriptor of the file is closed; these do not. They are released by the kernel when their holder's last descriptor is
closed, so a killed process releases them within milliseconds. On NFSv4 they are the server's byte-range locks. Knows
nothing of brokers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import struct
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from pollux.errors import PolluxError
from pollux.store.files import DISK, FileOperations, read_all, replace_file
from pollux.store.port import Probe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.store.port import Files

#: struct flock of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid (0 is required for OFD locks).
_FLOCK = struct.Struct("hhqqi4x")
_WRITE_LOCK = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
#: Constants of <fcntl.h>; the fcntl module has them from Python 3.9 on.
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW = 36, 37, 38
_BUSY = frozenset((errno.EAGAIN, errno.EACCES))
_NONCE_LIMIT = 256
_RETRY_SECONDS = 0.005


class LockTimeoutError(PolluxError):
    """A short-lived lock was not released in time."""


def try_lock(descriptor: int) -> bool:
    """Take the exclusive lock on the whole file; False when another open file description holds it.

    Taking it again through the same descriptor succeeds, which is how a holder proves that it still has it.
    """
    try:
        fcntl.fcntl(descriptor, F_OFD_SETLK, _WRITE_LOCK)
    except OSError as error:
        if error.errno in _BUSY:
            return False
        raise
    return True


def close(descriptor: int) -> None:
    """Close a descriptor, which releases the locks of its description; it is closed after an error, too (close(2))."""
    with suppress(OSError):
        os.close(descriptor)


def is_current(path: Path, descriptor: int) -> bool:
    """Whether ``path`` names the open file. Raises OSError."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def probe(path: Path) -> Probe | None:
    """Look at a lock file without touching its lock; None when there is no such file. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        found = fcntl.fcntl(descriptor, F_OFD_GETLK, _WRITE_LOCK)
        return Probe(_nonce(descriptor), bool(_FLOCK.unpack(found)[0] != fcntl.F_UNLCK))
    finally:
        close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether somebody (this process included) holds the lock of ``path``; a missing file is not locked."""
    found = probe(path)
    return found is not None and found.locked


def _nonce(descriptor: int) -> str:
    """Return a file's content with its inode: a copy of a lock file is another one."""
    text = os.pread(descriptor, _NONCE_LIMIT, 0).decode("ascii", "replace").strip()
    return f"{text}@{os.fstat(descriptor).st_ino}"


class LockFile:
    """An open lock file. Its nonce is made with the file, so that a re-created or copied one is told apart."""

    def __init__(self, path: Path, descriptor: int) -> None:
        """``descriptor`` is this object's, also when it cannot be made: a lock that nobody can let go of any more would
        be held for as long as the process lives."""
        self.path = path
        self.descriptor = descriptor
        try:
            self.nonce = _nonce(descriptor)
        except BaseException:
            self.close()
            raise

    def __str__(self) -> str:
        return str(self.path)

    @classmethod
    def open(cls, path: Path) -> LockFile:
        """Open ``path``, creating it (with its content, in one step) when it is missing."""
        for _ in range(100):
            try:
                return cls(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))
            except FileNotFoundError:
                cls._create(path)
        raise LockTimeoutError(f"{path}: the lock file is deleted again and again")

    @staticmethod
    def _make(path: Path) -> tuple[Path, int]:
        nonce = secrets.token_hex(16)
        temporary = path.with_name(f".{path.name}.{nonce}")
        descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            os.pwrite(descriptor, f"{nonce}\n".encode(), 0)
            os.fsync(descriptor)
        except BaseException:
            close(descriptor)
            temporary.unlink(missing_ok=True)
            raise
        return temporary, descriptor

    @classmethod
    def _create(cls, path: Path) -> None:
        temporary, descriptor = cls._make(path)
        os.close(descriptor)
        try:
            os.link(temporary, path)
        except FileExistsError:
            return
        finally:
            temporary.unlink(missing_ok=True)

    @classmethod
    def replace(cls, path: Path) -> LockFile:
        """Put a new file, already locked by the caller, in the place of one whose holder does not answer any more."""
        temporary, descriptor = cls._make(path)
        try:
            ours = try_lock(descriptor)
            if ours:
                temporary.replace(path)
        except BaseException:
            close(descriptor)
            temporary.unlink(missing_ok=True)
            raise
        if not ours:
            close(descriptor)
            raise LockTimeoutError(f"{temporary}: somebody else locked a file that was just made")
        return cls(path, descriptor)

    def try_lock(self) -> bool:
        """Take the lock without waiting."""
        return try_lock(self.descriptor)

    def is_current(self) -> bool:
        """Whether the path still names this file: one that was deleted or replaced protects nothing."""
        return is_current(self.path, self.descriptor)

    def touch(self) -> int:
        """Set the modification time to now; returns it in nanoseconds as the file system keeps it."""
        os.utime(self.descriptor)
        return os.fstat(self.descriptor).st_mtime_ns

    def touched(self) -> int:
        """Return the modification time, ns, of the file that the path names now. Raises OSError."""
        return self.path.stat().st_mtime_ns

    @property
    def closed(self) -> bool:
        """Whether the lock was let go of."""
        return self.descriptor < 0

    def close(self) -> None:
        """Let go of the lock and the file; the file stays."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            close(descriptor)


class ShortLock:
    """A lock held for the moment of reading or writing a small file; waiting for it is bounded."""

    def __init__(self, path: Path, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._seconds = seconds
        self._clock = clock
        self._file: LockFile | None = None

    def __enter__(self) -> None:
        deadline = self._clock() + self._seconds
        while True:
            file = LockFile.open(self._path)
            try:
                if file.try_lock() and file.is_current():
                    self._file = file
                    return
            finally:
                if self._file is not file:
                    file.close()
            if self._clock() >= deadline:
                raise LockTimeoutError(f"{self._path}: another broker has held this lock for {self._seconds:g} s")
            time.sleep(_RETRY_SECONDS)

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class LockWaiter:
    """Waits in a thread of its own until a lock file's lock is ours; may be abandoned while the kernel still waits.

    ``lock`` is the file once it is ours (and still the one its path names). ``wake`` is called when something
    happened: the lock was obtained, or waiting failed (``error``).
    """

    def __init__(self, path: Path, wake: Callable[[], None]) -> None:
        self._path = path
        self._wake = wake
        self._mutex = threading.Lock()
        self._abandoned = False
        self.lock: LockFile | None = None
        self.error: OSError | None = None
        self.waits_on: LockFile | None = None
        self._thread = threading.Thread(target=self._run, name="pollux-lock", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        file: LockFile | None = None
        try:
            while True:
                file = LockFile.open(self._path)
                self.waits_on = file
                fcntl.fcntl(file.descriptor, F_OFD_SETLKW, _WRITE_LOCK)
                if file.is_current():
                    break
                file.close()
        except Exception as error:
            # Whatever it is: a thread that ended without a word would be waited for for ever.
            if file is not None:
                file.close()
            self.error = error if isinstance(error, OSError) else OSError(f"{self._path}: {error}")
        with self._mutex:
            if self._abandoned:
                if file is not None and self.error is None:
                    file.close()
                return
            if self.error is None:
                self.lock = file
        self._wake()

    def is_stale(self) -> bool:
        """Whether the thread waits for a file that its path does not name any more."""
        file = self.waits_on
        return self.lock is None and file is not None and file.descriptor >= 0 and not file.is_current()

    def poll(self) -> bool:
        """Try the lock without waiting, besides the kernel's queue; True when it is ours now.

        An NFS client that waits in the kernel asks its server again after up to 30 s (the server need not tell it that
        the lock is free), so the one that waits has to ask by itself. Raises OSError.
        """
        file = LockFile.open(self._path)
        try:
            if file.try_lock() and file.is_current():
                with self._mutex:
                    if self.lock is None and not self._abandoned:
                        # The thread goes on waiting, now for us: what it gets later is let go of at once.
                        self._abandoned = True
                        self.lock = file
        finally:
            if self.lock is not file:
                file.close()
        return self.lock is not None

    def take(self) -> LockFile | None:
        """The lock, once it was obtained; it is the caller's from then on."""
        with self._mutex:
            lock, self.lock = self.lock, None
            return lock

    def abandon(self) -> None:
        """Do not wait any longer: if the lock comes all the same it is released at once."""
        with self._mutex:
            self._abandoned = True
            if self.lock is not None:
                self.lock.close()
                self.lock = None


class FileLocks:
    """The locks of a node as files of one directory (:class:`pollux.store.port.NodeLocks`)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def open(self, name: str) -> LockFile:
        """Open a lock file; one that is missing is made."""
        return LockFile.open(self._directory / name)

    def replace(self, name: str) -> LockFile:
        """Put a new file, already locked by the caller, in the place of one; its name is on stable storage then."""
        lock = LockFile.replace(self._directory / name)
        try:
            FileOperations().sync_directory(self._directory)
        except BaseException:
            lock.close()  # else it would be nobody's for as long as this process lives
            raise
        return lock

    def probe(self, name: str) -> Probe | None:
        """Look at a lock file without touching its lock."""
        return probe(self._directory / name)

    def wait(self, name: str, wake: Callable[[], None]) -> LockWaiter:
        """Wait for a lock in a thread."""
        return LockWaiter(self._directory / name, wake)

    def briefly(self, name: str, seconds: float) -> ShortLock:
        """Hold a lock for a moment."""
        return ShortLock(self._directory / name, seconds)


class StateFile:
    """The record that says whose a store is as a file (:class:`pollux.store.port.StateRecord`)."""

    def __init__(self, path: Path, files: Files = DISK) -> None:
        self._path = path
        self._files = files

    def read(self) -> bytes | None:
        """Return the file's content, None when there is no file."""
        try:
            return read_all(self._path, self._files)
        except FileNotFoundError:
            return None

    def write(self, data: bytes) -> None:
        """Replace the file whole."""
        replace_file(self._files, self._path, data)
