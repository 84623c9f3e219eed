"""Keeps two brokers from opening one data directory, and keeps the broker's node id.

One lock file per directory, held by an open-file-description lock (fcntl(2), F_OFD_SETLK): it belongs to the
open file, not to the process, so closing another descriptor of the same file does not drop it, and it works
between hosts on NFSv4. Members of a group that shares a store are kept apart by
:mod:`pollux.ha`; these locks then only keep single brokers out.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import time
import uuid
from typing import TYPE_CHECKING

from pollux.errors import PolluxError
from pollux.store.journal_facts import read_facts
from pollux.store.locks import close, is_locked, try_lock

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

logger = logging.getLogger("pollux.broker")

LOCK_FILE = "pollux.lock"
NODE_FILE = "pollux.node-id"
_HOLDER_LIMIT = 4096
_HOLDER_SECONDS = 0.5


class DirectoryLockedError(PolluxError):
    """Another broker has the directory open."""


class DirectoryLock:
    """The locks on a broker's directories; ``acquire`` before anything in them is read."""

    def __init__(self, directories: Iterable[Path]) -> None:
        self._directories = sorted(set(directories))
        self._descriptors: dict[Path, int] = {}

    def acquire(self, name: str, policy: str = "") -> None:
        """Create the directories where missing and lock each; all or none.

        ``policy``: the high availability policy that keeps its members apart itself. A directory that a member of
        the same policy still has locked (one that stands still, whose right to serve is over) is used all the same.
        Raises DirectoryLockedError naming the holder, or PolluxError when a directory cannot be used.
        """
        try:
            for directory in self._directories:
                self._acquire(directory, name, policy)
        except BaseException:
            self.release()
            raise

    def _acquire(self, directory: Path, name: str, policy: str) -> None:
        path = directory / LOCK_FILE
        try:
            directory.mkdir(mode=0o750, parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise PolluxError(
                f"{path}: cannot be opened: {error.strerror}; the broker's user must be able to write to {directory}"
            ) from error
        self._descriptors[directory] = descriptor
        try:
            locked = try_lock(descriptor)
        except OSError as error:
            raise PolluxError(f"{path}: this file system cannot lock files: {error.strerror}") from error
        if not locked:
            holder = _holder(descriptor)
            if policy and policy_of(holder) == policy:
                os.close(self._descriptors.pop(directory))
                return
            raise DirectoryLockedError(
                f"{directory}: another broker has it open ({holder or 'holder unknown'}); "
                "stop that broker, or give this one directories of its own in broker.xml"
            )
        holder = json.dumps({"name": name, "pid": os.getpid(), "host": socket.gethostname(), "policy": policy})
        data = (holder + "\n").encode()
        os.pwrite(descriptor, data, 0)
        os.ftruncate(descriptor, len(data))

    @property
    def held(self) -> bool:
        """Whether the directories are locked by this object."""
        return bool(self._descriptors)

    def release(self) -> None:
        """Let go of every lock. The files stay: removing one would let two brokers lock different files."""
        descriptors, self._descriptors = list(self._descriptors.values()), {}
        for descriptor in descriptors:
            close(descriptor)


def _holder(descriptor: int) -> str:
    """Who holds a lock, in the words of its file; who has only just got it has not written them yet."""
    deadline = time.monotonic() + _HOLDER_SECONDS
    while True:
        holder = os.pread(descriptor, _HOLDER_LIMIT, 0).decode("utf-8", "replace").strip()
        if holder or time.monotonic() >= deadline:
            return holder
        time.sleep(0.01)


def policy_of(holder: str) -> str:
    """The high availability policy of the broker that wrote a lock file's text; empty for a single broker."""
    try:
        value = json.loads(holder.partition("\n")[0])  # behind it there may be the rest of a longer text
    except ValueError:
        return ""
    return str(value.get("policy", "")) if isinstance(value, dict) else ""


def check_no_single_broker(directories: Iterable[Path]) -> None:
    """Raise DirectoryLockedError when a broker without high availability has one of the directories open."""
    for directory in directories:
        path = directory / LOCK_FILE
        if not is_locked(path):
            continue
        with path.open("rb") as file:
            holder = _holder(file.fileno())
        if not policy_of(holder) and is_locked(path):
            raise DirectoryLockedError(
                f"{directory}: a broker without high availability has it open ({holder or 'holder unknown'});"
                " stop that broker first"
            )


def node_id(directory: Path) -> bytes:
    """The 16-byte id of the broker whose journal is in ``directory``, made and kept there at first use.

    A journal without that file tells the id itself. Call with the directory's lock held. Raises PolluxError when the
    file is damaged: inventing another id would make the journal a stranger's.
    """
    path = directory / NODE_FILE
    try:
        return uuid.UUID(path.read_text("ascii").strip()).bytes
    except FileNotFoundError:
        pass
    except ValueError:
        raise PolluxError(
            f"{path}: does not hold a node id; restore it from a backup, "
            "or write the id that `pollux journal stat` shows for the journal"
        ) from None
    known = read_facts(directory, directory).node_id
    if known is not None:
        logger.warning("%s is missing: it is written again with the id that the journal has", path)
    identity = uuid.UUID(bytes=known) if known is not None else uuid.uuid4()
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="ascii") as file:
        file.write(f"{identity}\n")
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return identity.bytes
