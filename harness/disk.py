"""A disk of a test's own: a small tmpfs in a mount namespace that nobody else sees, filled and emptied at will.

The namespace is held by a process; when that ends, the mount is gone too, whatever happened to the test. Needs root, or
a kernel that lets users make namespaces.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from typing import Self

_HOLD = 'mount -t tmpfs -o "size=$1" tmpfs "$2" && echo mounted && exec cat'
_CHUNK = bytes(1 << 16)


class SmallDisk:
    """`size` bytes mounted at `where`. `path` is where this process sees it, `enter` what a command is started with."""

    def __init__(self, where: Path, size: int) -> None:
        where.mkdir(parents=True, exist_ok=True)
        self._where = where
        self._size = size
        self._user = os.geteuid() != 0

    def __enter__(self) -> Self:
        mapping = ["--map-root-user"] if self._user else []
        self._holder = subprocess.Popen(
            ["unshare", *mapping, "--mount", "sh", "-c", _HOLD, "sh", str(self._size), str(self._where)],
            stdin=subprocess.PIPE,  # its end ends the holder
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self._holder.stdout is not None
        said = self._holder.stdout.readline()
        if said != "mounted\n":
            self.__exit__()
            raise AssertionError(
                f"no file system can be mounted for this test: {said.strip()}; run it as root, or allow users to make "
                "namespaces (sysctl kernel.unprivileged_userns_clone=1)"
            )
        self.path = Path(f"/proc/{self._holder.pid}/root{self._where}")
        return self

    def __exit__(self, *_: object) -> None:
        self._holder.kill()
        self._holder.communicate()

    def enter(self, directory: Path) -> list[str]:
        """Return what to put before a command so that it runs in `directory` and sees the disk."""
        namespaces = f"/proc/{self._holder.pid}/ns"
        user = [f"--user={namespaces}/user", "--preserve-credentials"] if self._user else []
        become = ["sh", "-c", 'cd "$1" && shift && exec "$@"', "sh", str(directory)]
        return ["nsenter", *user, f"--mount={namespaces}/mnt", "--", *become]

    # -- its room

    @property
    def used(self) -> float:
        """How much of it is used, 0 to 1."""
        stat = os.statvfs(self.path)
        return 1 - stat.f_bavail / stat.f_blocks

    def fill(self, share: float = 1.0) -> None:
        """Take room until so much of it is used; all of it: until nothing more can be written."""
        with (self.path / "ballast").open("ab", buffering=0) as ballast:
            while share >= 1.0 or self.used < share:
                try:
                    ballast.write(_CHUNK)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    return

    def free(self) -> None:
        """Give the room back."""
        (self.path / "ballast").unlink(missing_ok=True)
