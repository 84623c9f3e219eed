"""Who belongs to the group: one small file per member in the node directory, locked while its process lives.

The lock proves life without any timeout: the kernel releases it when the process has ended. The heartbeat says that
a process which is alive still does its work. Both are on the shared store, so they also prove that it is shared.
"""

from __future__ import annotations

import json
import os
import secrets
import socket
import zlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from pollux.errors import PolluxError
from pollux.store.files import DISK, exists, make_directories, names_in, read_all, write_all
from pollux.store.locks import FileLocks

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.store.port import Files, NodeLock, NodeLocks

MEMBERS = "members"
HEARTBEAT = "heartbeat"
#: The heartbeat is one line padded to this size, so that one write replaces it whole.
_HEARTBEAT_SIZE = 512


def member_id(configuration_path: Path | None, host: str | None = None) -> str:
    """Return a name for the broker that is started from this file on this host: the same after each restart."""
    place = zlib.crc32(str(configuration_path.resolve() if configuration_path else "").encode())
    return f"{host or socket.gethostname()}-{place:08x}"


class Member(NamedTuple):
    """A member as the others see it."""

    id: str
    name: str
    host: str
    pid: int
    role: str
    phase: str
    management: str
    alive: bool
    #: Where clients find it, as it is written: whoever uses it checks it.
    clients: object = None


class MemberFile:
    """The file by which a member describes itself, and the lock that says that its process lives."""

    def __init__(self, directory: Path, identity: str, files: Files = DISK, locks: NodeLocks | None = None) -> None:
        self._directory = directory / MEMBERS
        self._files = files
        self._locks = locks or FileLocks(directory)
        self._name = _lock_name(identity)
        self.path = self._directory / f"{identity}.json"
        self._lock: NodeLock | None = None
        self._written = b""

    def lock(self) -> str:
        """Create and lock it; returns the lock file's nonce.

        Raises PolluxError when another process runs with the same configuration.
        """
        make_directories(self._files, self._directory)
        if self._lock is not None:
            return self._lock.nonce
        guard = self._locks.open(self._name)
        try:
            if not guard.try_lock():
                raise PolluxError(f"{self.path}: a broker with this configuration runs already on this host")
            self._lock = guard
        finally:
            if self._lock is None:
                guard.close()
        return guard.nonce

    def write(self, values: dict[str, Any]) -> None:
        """Tell the others; nothing is written when nothing changed. Raises OSError: the next call tries again."""
        data = json.dumps(values, sort_keys=True).encode()
        files = self._files
        if (data == self._written and exists(files, self.path)) or self._lock is None:
            return
        temporary = self.path.with_suffix(".tmp")
        try:
            fd = files.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            try:
                write_all(files, fd, data, 0, sync=False)
            finally:
                files.close(fd)
            files.rename(temporary, self.path)
        except OSError:
            with suppress(OSError):
                files.unlink(temporary)
            raise
        self._written = data

    def close(self) -> None:
        """Unlock it: the process leaves the group."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def _lock_name(identity: str) -> str:
    return f"{MEMBERS}/{identity}.lock"


def is_alive(locks: NodeLocks, identity: str) -> bool:
    """Whether the member's process exists, as far as its lock tells."""
    found = locks.probe(_lock_name(identity))
    return found is not None and found.locked


def has_ended(locks: NodeLocks, identity: str, nonce: str) -> bool:
    """Whether the member's process has certainly ended: the very lock file it held (``nonce``) is free.

    A lock file that is missing, or that was made since, proves nothing: its holder may still serve.
    """
    found = locks.probe(_lock_name(identity))
    return found is not None and not found.locked and nonce in ("", found.nonce)


def members(directory: Path, files: Files = DISK, locks: NodeLocks | None = None) -> list[Member]:
    """Return everybody who ever joined and left a readable file, by id."""
    found: list[Member] = []
    locks = locks or FileLocks(directory)
    try:
        names = sorted(name for name in names_in(files, directory / MEMBERS) if name.endswith(".json"))
    except OSError:
        return found
    for path in [directory / MEMBERS / name for name in names]:
        try:
            value = json.loads(read_all(path, files))
            found.append(
                Member(
                    path.stem,
                    str(value.get("name", "")),
                    str(value.get("host", "")),
                    int(value.get("pid", 0)),
                    str(value.get("role", "")),
                    str(value.get("phase", "")),
                    str(value.get("management", "")),
                    alive=is_alive(locks, path.stem),
                    clients=value.get("clients"),
                )
            )
        except (OSError, ValueError, AttributeError, TypeError):
            continue
    return found


class Beat(NamedTuple):
    """The heartbeat as read: two that differ are two signs of life."""

    epoch: int
    holder: str
    number: int
    ended: bool


class Heartbeat:
    """The live's sign of life: one synced write into a file of fixed size. Read by everybody who waits."""

    def __init__(self, directory: Path, files: Files = DISK) -> None:
        self._path = directory / HEARTBEAT
        self._files = files
        self._descriptor = -1
        self._inode = 0
        self._count = 0
        self._session = secrets.token_hex(4)

    def write(self, epoch: int, holder: str, *, ended: bool = False) -> None:
        """One more sign of life, on stable storage when this returns; a file that is gone is made anew.

        Raises OSError.
        """
        if self._descriptor >= 0 and not self._is_current():
            self.close()  # nobody would see it, and take the holder for silent
        if self._descriptor < 0:
            self._descriptor = self._files.open(self._path, os.O_RDWR | os.O_CREAT)
            self._inode = self._files.status(self._path).inode
        self._count += 1
        line = json.dumps([epoch, holder, self._count, ended, self._session])
        data = line.ljust(_HEARTBEAT_SIZE - 1).encode() + b"\n"
        write_all(self._files, self._descriptor, data, 0, sync=True)

    def _is_current(self) -> bool:
        try:
            return self._files.status(self._path).inode == self._inode
        except FileNotFoundError:
            return False

    def read(self) -> Beat | None:
        """The last sign of life; None when there is none that can be read."""
        try:
            value = json.loads(read_all(self._path, self._files))
            return Beat(int(value[0]), str(value[1]), int(value[2]), bool(value[3]))
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def close(self) -> None:
        """Let go of the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with suppress(OSError):
                self._files.close(descriptor)
