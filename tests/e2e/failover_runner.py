"""Runs `pollux` with a shared store that can be made to misbehave: a program for tests, no part of the broker.

A file `faults/hang` in the working directory makes every write to the store wait for ever, as a hard-mounted NFS does
when its server is gone; `faults/full` makes it answer ENOSPC. The system calls are replaced, nothing else.
"""

from __future__ import annotations

import errno
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pollux.cli import main
from pollux.ha.members import Heartbeat
from pollux.store.files import FileOperations
from pollux.store.locks import LockFile

if TYPE_CHECKING:
    from collections.abc import Callable

HANG, FULL = Path("faults/hang"), Path("faults/full")


def faulty(function: Callable[..., Any], *, needs_room: bool = False) -> Callable[..., Any]:
    """The same call on a store with faults."""

    def call(*values: Any, **named: Any) -> Any:
        if HANG.exists():
            threading.Event().wait()
        if needs_room and FULL.exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return function(*values, **named)

    return call


def disk(files: FileOperations, path: Path) -> tuple[int, int]:
    """Return the words of statvfs."""
    total, free = real_disk(files, path)
    return (total, 0) if FULL.exists() else (total, free)


real_disk = FileOperations.disk
for owner, name, needs_room in (
    (FileOperations, "write", True),
    (FileOperations, "fill", True),
    (FileOperations, "fdatasync", False),
    (FileOperations, "fsync", False),
    (Heartbeat, "write", False),
    (LockFile, "is_current", False),
):
    setattr(owner, name, faulty(getattr(owner, name), needs_room=needs_room))
setattr(FileOperations, "disk", disk)  # noqa: B010  (mypy refuses to assign to a method)
sys.argv[0] = "pollux"
main()
