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
from pollux.store.locks import LockFile, close, is_current, is_locked, probe

if TYPE_CHECKING:
    from pathlib import Path

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

    def __init__(self, directory: Path, identity: str) -> None:
        self._directory = directory / MEMBERS
        self.path = self._directory / f"{identity}.json"
        self._lock: LockFile | None = None
        self._written = b""

    def lock(self) -> str:
        """Create and lock it; returns the lock file's nonce.

        Raises PolluxError when another process runs with the same configuration.
        """
        self._directory.mkdir(mode=0o750, exist_ok=True)
        if self._lock is not None:
            return self._lock.nonce
        guard = LockFile.open(self.path.with_suffix(".lock"))
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
        if (data == self._written and self.path.exists()) or self._lock is None:
            return
        temporary = self.path.with_suffix(".tmp")
        try:
            temporary.write_bytes(data)
            temporary.replace(self.path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        self._written = data

    def close(self) -> None:
        """Unlock it: the process leaves the group."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def is_alive(directory: Path, identity: str) -> bool:
    """Whether the member's process exists, as far as its lock tells."""
    return is_locked(directory / MEMBERS / f"{identity}.lock")


def has_ended(directory: Path, identity: str, nonce: str) -> bool:
    """Whether the member's process has certainly ended: the very lock file it held (``nonce``) is free.

    A lock file that is missing, or that was made since, proves nothing: its holder may still serve.
    """
    found = probe(directory / MEMBERS / f"{identity}.lock")
    return found is not None and not found.locked and nonce in ("", found.nonce)


def members(directory: Path) -> list[Member]:
    """Return everybody who ever joined and left a readable file, by id."""
    found: list[Member] = []
    try:
        paths = sorted((directory / MEMBERS).glob("*.json"))
    except OSError:
        return found
    for path in paths:
        try:
            value = json.loads(path.read_bytes())
            found.append(
                Member(
                    path.stem,
                    str(value.get("name", "")),
                    str(value.get("host", "")),
                    int(value.get("pid", 0)),
                    str(value.get("role", "")),
                    str(value.get("phase", "")),
                    str(value.get("management", "")),
                    alive=is_alive(directory, path.stem),
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

    def __init__(self, directory: Path) -> None:
        self._path = directory / HEARTBEAT
        self._descriptor = -1
        self._count = 0
        self._session = secrets.token_hex(4)

    def write(self, epoch: int, holder: str, *, ended: bool = False) -> None:
        """One more sign of life, on stable storage when this returns; a file that is gone is made anew.

        Raises OSError.
        """
        if self._descriptor >= 0 and not is_current(self._path, self._descriptor):
            self.close()  # nobody would see it, and take the holder for silent
        if self._descriptor < 0:
            self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        self._count += 1
        line = json.dumps([epoch, holder, self._count, ended, self._session])
        os.pwrite(self._descriptor, line.ljust(_HEARTBEAT_SIZE - 1).encode() + b"\n", 0)
        os.fdatasync(self._descriptor)

    def read(self) -> Beat | None:
        """The last sign of life; None when there is none that can be read."""
        try:
            value = json.loads(self._path.read_bytes())
            return Beat(int(value[0]), str(value[1]), int(value[2]), bool(value[3]))
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def close(self) -> None:
        """Let go of the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close(descriptor)
