"""Runs `pollux` on a disk that misbehaves while it is told to: a program for tests, no part of the broker.

In the working directory, `faults/store` names the directories whose files are concerned, one a line. While `faults/eio`
exists every system call on them fails with EIO. While `faults/full` exists the disk has as many bytes left as stand in
it: a write puts down what fits, and the next one fails with ENOSPC. While `faults/hang` exists no call ends on a file
whose path begins with what stands in it. The functions of :mod:`os` are replaced, so that it concerns every file of the
product's, however it is written; :class:`BadDisk` is the side of the test.
"""

from __future__ import annotations

import errno
import os
import runpy
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

#: Calls that take a path or a descriptor first; of renames and links the second path is in the same store.
_CALLS = (
    *("open", "read", "pread", "preadv", "write", "pwrite", "pwritev", "fsync", "fdatasync", "ftruncate"),
    *("posix_fallocate", "stat", "lstat", "fstat", "statvfs", "fstatvfs", "listdir", "scandir", "mkdir", "unlink"),
    *("rename", "replace", "link", "utime"),
)
#: Those that put bytes down.
_WRITES = ("write", "pwrite", "pwritev")
#: How often a call that hangs looks whether it may go on, seconds.
_PAUSE = 0.05


class BadDisk:
    """The disk of one broker, as a test breaks and mends it."""

    def __init__(self, directory: Path, *stores: Path) -> None:
        """``directory``: the broker's; ``stores``: the directories on the disk."""
        self._faults = directory / "faults"
        self._faults.mkdir(parents=True, exist_ok=True)
        (self._faults / "store").write_text("\n".join(map(str, stores)))

    def fail(self) -> None:
        """Every call fails from now on."""
        (self._faults / "eio").touch()

    def fill(self, left: int) -> None:
        """There is room for so many bytes from now on."""
        draft = self._faults / "draft"
        draft.write_text(str(left))
        draft.rename(self._faults / "full")

    def hang(self, path: Path) -> None:
        """No call on this file, or on what is in this directory, ends from now on."""
        draft = self._faults / "draft"
        draft.write_text(str(path))
        draft.rename(self._faults / "hang")

    def mend(self) -> None:
        """Let it work again, and have room."""
        for name in ("eio", "full", "hang"):
            (self._faults / name).unlink(missing_ok=True)


class _Disk:
    """The same disk, within the broker."""

    def __init__(self, faults: str) -> None:
        with open(f"{faults}/store") as file:  # noqa: PTH123  (pathlib's calls are those that are replaced)
            self._stores = tuple(file.read().split("\n"))
        self._eio, self._full, self._hang = f"{faults}/eio", f"{faults}/full", f"{faults}/hang"
        self._stat, self._readlink = os.stat, os.readlink
        #: Which filling this is (inode of the file that says so), and what is left of the room then.
        self._filling, self._left = 0, 0

    def _exists(self, path: str) -> os.stat_result | None:
        try:
            return self._stat(path)
        except OSError:
            return None

    def _path(self, place: object) -> str:
        try:
            path = self._readlink(f"/proc/self/fd/{place}") if isinstance(place, int) else os.fspath(place)  # type: ignore[call-overload]
        except (OSError, TypeError):
            return ""
        return path if isinstance(path, str) else os.fsdecode(path)

    def _concerns(self, place: object) -> bool:
        return self._path(place).startswith(self._stores)

    def _hangs(self, place: object) -> bool:
        if self._exists(self._hang) is None:
            return False
        try:
            with open(self._hang) as file:  # noqa: PTH123  (as above)
                return self._path(place).startswith(file.read())
        except FileNotFoundError:
            return False

    def _room(self) -> int | None:
        """The bytes that are left; None while the disk is not full."""
        full = self._exists(self._full)
        if full is None:
            return None
        if full.st_ino != self._filling:
            self._filling = full.st_ino
            with open(self._full) as file:  # noqa: PTH123  (as above)
                self._left = int(file.read())
        return self._left

    def failing(self, name: str) -> Callable[..., Any]:
        """The call that fails when the disk does."""
        call = getattr(os, name)

        def replacement(place: object = ".", *values: Any, **named: Any) -> Any:
            while self._hangs(place):
                time.sleep(_PAUSE)
            if self._exists(self._eio) and self._concerns(place):
                raise OSError(errno.EIO, os.strerror(errno.EIO), place if not isinstance(place, int) else None)
            room = self._room()
            if room is None or not self._concerns(place):
                return call(place, *values, **named)
            if name in _WRITES:
                return self._write(call, place, room, *values, **named)
            if name in {"statvfs", "fstatvfs"}:
                found = list(call(place))
                found[3] = found[4] = room // max(1, found[1])
                return os.statvfs_result(found)
            if name == "posix_fallocate":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return call(place, *values, **named)

        return replacement

    def _write(self, call: Callable[..., int], place: object, room: int, data: Any, *values: Any, **named: Any) -> int:
        """Put down what fits. Blocks that a file has already need room here too: simpler, and harder on the product."""
        if not room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        buffers: Sequence[bytes] = data if isinstance(data, (tuple, list)) else (data,)
        whole = b"".join(bytes(each) for each in buffers)[:room]
        written = call(place, (whole,) if isinstance(data, (tuple, list)) else whole, *values, **named)
        self._left -= written
        return written


def main() -> None:
    """Replace the system calls, then be the program that is named: `bad_disk.py PROGRAM WORD...`."""
    disk = _Disk(os.path.abspath("faults"))  # noqa: PTH100  (as above)
    for name in _CALLS:
        setattr(os, name, disk.failing(name))
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
