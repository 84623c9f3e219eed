"""A store whose calls are mirrored, and a replica of it in a thread."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

from pollux.store.mirror import Link, Mirror, MirroredFiles, Replica
from pollux.store.mirror.first_copy import copy_store, inventory_of, wait_nearly
from pollux.store.mirror.operations import ROOTS, decode, path_of
from pollux.store.mirror.pieces import files_of

if TYPE_CHECKING:
    from pathlib import Path

#: Generous: a machine under load.
TIMEOUT = 60.0


def roots_in(directory: Path) -> dict[str, Path]:
    roots = {name: directory / name for name in ROOTS}
    for path in roots.values():
        path.mkdir(parents=True, exist_ok=True)
    return roots


def contents(roots: dict[str, Path]) -> dict[str, bytes]:
    """Every file of a store; zeros at the end do not count (room that was prepared)."""
    return {name: path.read_bytes().rstrip(b"\0") for name, path in files_of(roots)}


class Pump:
    """Carries operations from a link to a replica in a thread, as the network does."""

    def __init__(self, mirror: Mirror, directory: Path) -> None:
        self.roots = roots_in(directory)
        self.marks: list[bytes] = []
        self.replica = Replica(self.roots, self.marks.append)
        self.mirror = mirror
        self._woken = threading.Event()
        self.link = Link("pollux", self._woken.set)
        self.open = threading.Event()
        self.open.set()
        self.failure: Exception | None = None
        self._stop = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        try:
            while not self._stop:
                self._woken.wait(0.5)
                self._woken.clear()
                self.open.wait(TIMEOUT)
                while parts := self.link.take(1 << 16):
                    self.mirror.confirm(self.link, self.replica.apply(decode(b"".join(parts))))
        except Exception as error:
            self.failure = error

    def join(self) -> None:
        """Copy what is there, and be in sync from then on."""
        self.mirror.attach(self.link)
        copy_store(self.mirror, self.link, inventory_of(self.roots))
        wait_nearly(self.mirror, self.link, TIMEOUT)
        assert self.mirror.admit(self.link, b"in sync")

    def close(self) -> None:
        self._stop = True
        self.open.set()
        self._woken.set()
        self._thread.join()
        self.replica.close()
        assert self.failure is None, self.failure


class Pair:
    """A store's directories, its mirrored calls, and one replica of it."""

    def __init__(self, directory: Path, **settings: Any) -> None:
        self.roots = roots_in(directory / "primary")
        self.losses: list[str] = []
        self.settle = True
        self.mirror = Mirror(self.roots, on_lost=self._lost, **{"patience": TIMEOUT, **settings})
        self.files = MirroredFiles(self.mirror)
        self.pump = Pump(self.mirror, directory / "replica")

    def _lost(self, link: Link, reason: str) -> bool:
        self.losses.append(reason)
        return self.settle

    def settled(self) -> None:
        """Everything is on both sides."""
        path = self.roots["journal"] / "last.segment"
        fd = self.files.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        self.files.fsync(fd)
        self.files.close(fd)


def write(pair: Pair, name: str, data: bytes, *, sync: bool = False, offset: int = 0, flags: int = os.O_CREAT) -> None:
    fd = pair.files.open(path_of(pair.roots, name), os.O_RDWR | flags)
    pair.files.write(fd, data, offset, sync=sync)
    pair.files.close(fd)
