"""The coordination service: one lock and one number that all members of a pair agree on.

Every call may block and is made in a member's own thread. A call that cannot be carried out for certain raises
CoordinationError: the caller then knows nothing, and acts as if the answer were the worst.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol
from urllib.parse import quote

from pollux.ha.copies.replicas import UnprovenError
from pollux.store.files import FileOperations, make_directories, replace_file
from pollux.store.locks import close, try_lock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


#: What tells whose data a group has, in the place of the group's name.
GROUP_NODE = "node-id"


class CoordinationError(UnprovenError):
    """The service does not answer, or what was asked is not true any more."""


class NotOursError(CoordinationError):
    """The lock is certainly not ours any more."""


class NotNewestError(CoordinationError):
    """Somebody knows that others have newer data than this member, or may have."""


def group_name(group: str) -> str:
    """Return a group's name as one step of a path."""
    return quote(group, safe="").replace(".", "%2E")


class Coordinator(Protocol):
    """The lock and the number of one pair. ``session``: seconds that a lock outlives its holder's last sign of life.

    A service may grant less than was asked for: ``session`` is then less too, from before the lock is obtained.
    """

    session: float

    def connect(self, on_change: Callable[[], None]) -> None:
        """Connect; ``on_change`` is called in any thread when the lock may have become free."""

    def sequence(self) -> int:
        """The coordinated activation sequence; 0 when there never was one. It may have been changed since."""

    def catch_up(self) -> None:
        """Make sure that what is read after this is not older than now."""

    def acquire(self) -> bool:
        """Take the lock if nobody holds it."""

    def prove(self) -> None:
        """Make sure that the lock is still ours: NotOursError when it is not, CoordinationError when it cannot be told.

        No single server's memory is enough for that. What is read after it is not older than now.
        """

    def change(self, expected: int, new: int) -> None:
        """Set the sequence, if it is ``expected`` and the lock is ours."""

    def register(self, group: str, node_id: str) -> str:
        """The node id of the group's data: ``node_id`` from now on, if the group had none."""

    def release(self) -> None:
        """Give the lock back."""

    def close(self) -> None:
        """Give the lock back, and disconnect."""


class FileCoordinator:
    """A lock file and a number in a directory that all members see: for members on one machine, and for tests.

    The lock is the kernel's: it goes with the process, however that ends.
    """

    def __init__(self, directory: Path, identity: str, session: float = 2.0) -> None:
        self.session = session
        self._groups = directory
        self._directory = directory / identity
        self._descriptor = -1

    @property
    def _number(self) -> Path:
        return self._directory / "activation-sequence"

    def connect(self, on_change: Callable[[], None]) -> None:
        """Make the directory."""
        del on_change  # files tell nobody: members look again
        try:
            make_directories(FileOperations(), self._directory)
            # It may be there, but not be on stable storage: whoever made it was killed just then.
            FileOperations().sync_directory(self._directory.parent)
        except OSError as error:
            raise CoordinationError(f"{self._directory}: {error}") from error

    def sequence(self) -> int:
        """Return the number in the file."""
        try:
            return int(self._number.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            raise CoordinationError(f"{self._number}: {error}") from error

    def catch_up(self) -> None:
        """Do nothing: a file is read as it is."""

    def acquire(self) -> bool:
        """Lock the file."""
        if self._descriptor >= 0:
            return True
        try:
            descriptor = os.open(self._directory / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError as error:
            raise CoordinationError(f"{self._directory / 'lock'}: {error}") from error
        try:
            if try_lock(descriptor):
                self._descriptor = descriptor
        except OSError as error:
            raise CoordinationError(f"{self._directory / 'lock'}: {error}") from error
        finally:
            if self._descriptor != descriptor:
                close(descriptor)
        return self._descriptor == descriptor

    def prove(self) -> None:
        """The lock file is still the one that is locked; taking the lock once more asks whoever keeps it."""
        path = self._directory / "lock"
        try:
            ours = (
                self._descriptor >= 0
                and os.path.samestat(path.stat(), os.fstat(self._descriptor))
                and try_lock(self._descriptor)
            )
        except FileNotFoundError as error:
            raise NotOursError(f"{path}: {error}") from error
        except OSError as error:
            raise CoordinationError(f"{path}: {error}") from error
        if not ours:
            raise NotOursError(f"{path} is not the file that was locked")

    def change(self, expected: int, new: int) -> None:
        """Replace the number. Whoever gets a lock that was deleted meanwhile changes nothing until this is over."""
        try:
            descriptor = os.open(self._directory / "changing", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
            try:
                if not try_lock(descriptor):
                    raise CoordinationError(f"{self._number} is being changed by another member")
                self.prove()
                found = self.sequence()
                if found != expected:
                    raise CoordinationError(f"the coordinated sequence is {found}, not {expected}")
                replace_file(FileOperations(), self._number, str(new).encode())
            finally:
                close(descriptor)
        except OSError as error:
            raise CoordinationError(f"{self._number}: {error}") from error

    def register(self, group: str, node_id: str) -> str:
        """Make the group's file, unless it is there."""
        path = self._groups / group_name(group) / GROUP_NODE
        try:
            make_directories(FileOperations(), path.parent)
            with tempfile.NamedTemporaryFile(dir=path.parent) as stream:
                os.fchmod(stream.fileno(), 0o640)
                stream.write(node_id.encode("ascii"))
                stream.flush()
                os.fsync(stream.fileno())
                with suppress(FileExistsError):
                    os.link(stream.name, path)
            FileOperations().sync_directory(path.parent)
            return path.read_text(encoding="ascii")
        except OSError as error:
            raise CoordinationError(f"{path}: {error}") from error

    def release(self) -> None:
        """Close the file."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            close(descriptor)

    def close(self) -> None:
        """Give the lock back, if it is ours."""
        self.release()
