"""A group's store: its files and its locks, and what has to be right with them before a member may join.

A store in files needs a file system that can be shared. One in a database (:mod:`pollux.ha.shared_store.database`) has
none of these questions, and one more: whoever takes the lock makes sure that no earlier holder writes any more.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from pollux.ha import peers
from pollux.ha.shared_store import filesystem
from pollux.ha.store_layout import STORE_ID
from pollux.logs import event
from pollux.store.data_lock import check_no_single_broker
from pollux.store.files import DISK, write_all
from pollux.store.locks import FileLocks

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.ha.store_layout import SharedStoreLayout
    from pollux.store.port import Files, NodeLock, NodeLocks

logger = logging.getLogger("pollux.ha")

#: A little room on the store, given up when it is full: for the state file and lock files of a takeover.
RESERVE, RESERVE_BYTES = "pollux.reserve", 64 << 10


class GroupStore(Protocol):
    """The files and locks that a node manager works on. Methods block, and raise OSError besides what they name."""

    files: Files
    locks: NodeLocks

    def name(self, directory: Path) -> str:
        """Return what an operator knows a directory of the store by."""

    def look(self) -> None:
        """Check whether it can be used, before anything else. Raises PolluxError."""

    def check(self) -> str:
        """Check whether it can be shared, and return its kind; nothing is written. Raises StoreDirectoryError."""

    def probe(self) -> None:
        """Check whether it can be written to. Raises StoreDirectoryError."""

    def identity(self) -> peers.Identity | None:
        """Return which store this is; None when there is none yet."""

    def taken(self, lock: NodeLock) -> None:
        """The live lock is ours: from now on no earlier holder changes the store."""

    def set_room_aside(self) -> None:
        """Keep room for a takeover on a full disk."""

    def give_up_room(self) -> None:
        """Use that room."""

    def close(self) -> None:
        """Let go of it."""


class FileGroupStore:
    """Directories that all members have mounted."""

    def __init__(self, layout: SharedStoreLayout) -> None:
        self._layout = layout
        self.files: Files = DISK
        self.locks: NodeLocks = FileLocks(layout.node)

    def name(self, directory: Path) -> str:
        """Return its path."""
        return str(directory)

    def look(self) -> None:
        """Check whether the directories can be written, and no single broker has them."""
        for directory in self._layout.directories:
            filesystem.check_access(directory)
        check_no_single_broker(self._layout.directories)

    def check(self) -> str:
        """Look at file systems and permissions; returns the type of the lock directory's file system."""
        kinds = [filesystem.check_kind(one) for one in self._layout.directories]
        for one in self._layout.directories:
            filesystem.check_access(one)
        return kinds[0]

    def probe(self) -> None:
        """Make and remove a file in each directory."""
        for one in self._layout.directories:
            filesystem.probe(one)

    def identity(self) -> peers.Identity | None:
        """Return what is in the store's id file, and the inode of its directory."""
        return peers.read_identity(self._layout.node)

    def taken(self, lock: NodeLock) -> None:
        """Nothing: who had the lock before learns it from the lock, and writes in an epoch that counts no more."""

    def set_room_aside(self) -> None:
        """Write a small file."""
        reserve = self._layout.node / RESERVE
        try:
            if not reserve.exists():
                fd = self.files.open(reserve, os.O_WRONLY | os.O_CREAT)
                try:
                    write_all(self.files, fd, bytes(RESERVE_BYTES), 0, sync=False)
                finally:
                    self.files.close(fd)
        except OSError as error:
            with suppress(OSError):
                reserve.unlink(missing_ok=True)
            event(logger, logging.WARNING, "no room can be set aside for a full disk", reason=str(error))

    def give_up_room(self) -> None:
        """Delete it."""
        with suppress(OSError):
            (self._layout.node / RESERVE).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing: locks are let go of by whoever holds them."""


def identity_of(store: GroupStore, layout: SharedStoreLayout) -> peers.Identity | None:
    """Return the identity of a store whose id is a lock's nonce."""
    found = store.locks.probe(STORE_ID)
    return peers.Identity(found.nonce, store.files.status(layout.node).inode) if found is not None else None
