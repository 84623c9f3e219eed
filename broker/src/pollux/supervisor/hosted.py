"""Which backups a host has, on disk: a supervisor that starts again starts them again."""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from pollux.errors import PolluxError
from pollux.ha.colocated.life import Life  # noqa: TC001  (read by msgspec)
from pollux.store.data_lock import DirectoryLockedError

if TYPE_CHECKING:
    from pathlib import Path

FILE = "hosted.json"
LOCK = "supervisor.lock"


class Hosted(Struct, frozen=True):
    """Hold what is remembered. ``node``: the id (hex) of the host's own live; empty: not known yet.

    ``removed``: nodes that an operator removed; they come back with a live of their own host.
    """

    node: str = ""
    lives: tuple[Life, ...] = ()
    removed: tuple[str, ...] = ()


def read(directory: Path) -> Hosted:
    """Return what is remembered. Raises PolluxError when it cannot be read. Blocking."""
    path = directory / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Hosted)
    except FileNotFoundError:
        return Hosted()
    except (OSError, msgspec.MsgspecError) as error:
        raise PolluxError(
            f"{path}: which backups this host has cannot be read: {error}; delete the file, and their lives ask again"
        ) from error


def write(directory: Path, hosted: Hosted) -> None:
    """Remember it, whatever ends this process. Raises OSError. Blocking."""
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    beside = directory / f"{FILE}.new"
    with beside.open("wb") as file:
        file.write(msgspec.json.encode(hosted))
        file.flush()
        os.fsync(file.fileno())
    beside.replace(directory / FILE)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def lock(directory: Path) -> int:
    """Return a descriptor of the host's lock; DirectoryLockedError. Lives inherit it.

    So it is free when the last of them is gone, too: one that outlives a supervisor meets no second one of its node.
    """
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    descriptor = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise DirectoryLockedError(
            f"{directory / LOCK}: a supervisor with this configuration runs already, or a life of it"
        ) from None
    return descriptor
