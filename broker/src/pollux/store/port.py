"""The port of the store: all that journal, pages, large messages, checkpoints and the node manager ask of a place.

:class:`pollux.store.files.FileOperations` is that of files on a disk; another one keeps the same files as rows of a
database, and one in memory shows in tests that nothing goes past the port. Whatever is said here is asserted for each
of them by ``tests/broker/store/contract``.

**Files.** A path is the name of a file, and need not be one of the operating system. Descriptors are numbers that mean
something to the implementation that gave them. Any thread may call anything. What is written is seen at once by every
reader of the same process, by other processes when it was synced at the latest. What a crash leaves:

* of data: what was there at the last sync of the file, and of each later write all, some or nothing;
* of names: what was there at the last sync of their directory, and each later creation, rename or deletion as a whole
  or not at all.

An implementation may keep more. Errors are OSError: ENOENT and EEXIST as FileNotFoundError and FileExistsError, ENOSPC
where there is no room, after which what was there is there, and EIO where nobody knows what is on stable storage: after
it nothing may be confirmed any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager
    from pathlib import Path


class Entry(NamedTuple):
    """A name in a directory. ``inode`` tells two files apart that had the same name one after the other."""

    name: str
    inode: int
    is_directory: bool


class Status(NamedTuple):
    """A file's size in bytes, and its inode; a directory has no size that means anything."""

    size: int
    inode: int
    is_directory: bool


class Files(Protocol):
    """Named files in directories."""

    # -- changing

    def open(self, path: Path, flags: int, mode: int = 0o640) -> int:
        """Return a descriptor for O_RDONLY, or for O_RDWR or O_WRONLY with any of O_CREAT, O_EXCL, O_TRUNC.

        It means the same file until it is closed, whatever its name does.
        """

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        """Write at an offset and return how many bytes were written, at least one of them; the file grows with zeros.

        With ``sync`` these bytes, and the size, are on stable storage; of what was written before nothing is said.
        """

    def fdatasync(self, fd: int) -> None:
        """Put all data of a file, and its size, on stable storage. Any descriptor of the file will do."""

    def fsync(self, fd: int) -> None:
        """Put all data of a file, and all that belongs to it but its name, on stable storage."""

    def sync_directory(self, path: Path) -> None:
        """Put the names in a directory on stable storage."""

    def fill(self, fd: int, size: int) -> None:
        """Make a new file ``size`` bytes of zeros that are on stable storage: later writes there need no room.

        Nothing is written where there is visibly no room (ENOSPC).
        """

    def allocate(self, fd: int, size: int) -> None:
        """Make a file at least ``size`` bytes; what was not written reads as zeros. Need not be on stable storage."""

    def truncate(self, fd: int, size: int) -> None:
        """Make a file ``size`` bytes; what was cut off reads as zeros if it grows again."""

    def close(self, fd: int) -> None:
        """Let go of a file. Nothing is synced."""

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, in the place of a file that has it."""

    def unlink(self, path: Path) -> None:
        """Delete a file; one that is already gone is fine."""

    def make_directory(self, path: Path, mode: int = 0o750) -> None:
        """Make a directory in one that is there; one that is there already is fine."""

    def remove_directory(self, path: Path) -> None:
        """Delete an empty directory. Raises OSError for one that is not empty."""

    def adopt(self, paths: list[Path]) -> None:
        """Take in files that another process of this broker made, which are complete and synced."""

    def copies(self) -> Copies | None:
        """Return what is known of copies of these files that others keep; None: nobody keeps any."""

    # -- looking

    def read(self, fd: int, length: int, offset: int) -> bytes:
        """Return up to ``length`` bytes at an offset; none only behind the file's end."""

    def size(self, fd: int) -> int:
        """Return the size of an open file, bytes."""

    def used(self, fd: int) -> int:
        """Return an offset behind which an open file has zeros only: its size where one would have to read to know.

        What another process writes meanwhile may be behind it.
        """

    def view(self, path: Path) -> memoryview:
        """Return all of a file that nobody changes any more, which need not be in memory to be looked at."""

    def status(self, path: Path) -> Status:
        """Return what is known of a file or directory by its name. Raises FileNotFoundError."""

    def entries(self, directory: Path) -> list[Entry]:
        """Return the names in a directory, in any order. Raises FileNotFoundError, NotADirectoryError."""

    def handle(self) -> bytes:
        """Return by what another process of this machine finds the same files (:func:`pollux.store.handles.files_of`).

        Empty for those of the disk. It may have a password in it: it is written to a pipe, and to nothing else.
        """

    def disk(self, path: Path) -> tuple[int, int]:
        """Return (total, free for us) bytes of the room that ``path`` is part of; 0 in all: nobody knows."""


class Copies(Protocol):
    """Copies of the files that others keep. A sync of :class:`Files` waits for them; here one may go on meanwhile.

    Changes have numbers that grow. A copy that has one has all before it.
    """

    @property
    def patience(self) -> float:
        """How long a copy may be waited for until it does not count any more, seconds."""

    def clock(self) -> float:
        """Return the time, seconds, monotonic."""

    def write_here(self, fd: int, data: bytes | memoryview, offset: int) -> tuple[int, int]:
        """As ``write`` with ``sync``, but for the copies: return also the number of the change."""

    def settled(self) -> int:
        """Return the newest change that all copies that count have.

        Raises OSError: nothing may be confirmed any more.
        """

    def wait(self, number: int, since: float) -> None:
        """Return when the copies that count have a change. Raises OSError: nothing may be confirmed any more.

        A copy that does not have it within ``patience`` from ``since`` counts no more.
        """

    def listen(self, told: Callable[[], None]) -> None:
        """Have this called, in any thread, whenever ``settled`` may have grown, or fails."""


class Probe(NamedTuple):
    """A look at a lock, which anybody may take: its nonce, and whether somebody (perhaps we) holds it."""

    nonce: str
    locked: bool


class NodeLock(Protocol):
    """A lock of a node that was opened; after ``try_lock`` it is held until ``close``, or the end of the process.

    Its nonce is made with it: one that was deleted and made again, or copied, is another lock. ``str`` tells people
    which it is.
    """

    @property
    def nonce(self) -> str:
        """Return what tells this lock from all others of its name."""

    @property
    def closed(self) -> bool:
        """Whether it was let go of."""

    def try_lock(self) -> bool:
        """Take the lock without waiting; False when another one holds it. A holder that asks again proves it."""

    def is_current(self) -> bool:
        """Return whether its name still means this lock: one that was replaced protects nothing. Raises OSError."""

    def touch(self) -> int:
        """Set the time of its last change to now, and return that, ns, as it is kept."""

    def touched(self) -> int:
        """Return when what has its name was changed last, ns. Raises OSError."""

    def close(self) -> None:
        """Let go of it. Never raises."""


class LockWait(Protocol):
    """Waiting for a lock, which goes on by itself."""

    @property
    def error(self) -> OSError | None:
        """Why nobody waits any more, None while somebody does."""

    def poll(self) -> bool:
        """Try the lock now, besides waiting; True when it is ours. Raises OSError."""

    def is_stale(self) -> bool:
        """Return whether what is waited for is not what its name means any more. Raises OSError."""

    def take(self) -> NodeLock | None:
        """Return the lock once it is held; it is the caller's from then on."""

    def abandon(self) -> None:
        """Do not wait any longer: if the lock comes all the same it is let go of at once."""


class NodeLocks(Protocol):
    """The locks of one node, by name. A process that ends lets go of all it holds."""

    def open(self, name: str) -> NodeLock:
        """Open a lock; one that is not there is made. Raises OSError, LockTimeoutError."""

    def replace(self, name: str) -> NodeLock:
        """Put a new lock, held by the caller, in the place of one whose holder does not answer any more.

        It is on stable storage when this returns. Raises OSError, LockTimeoutError.
        """

    def probe(self, name: str) -> Probe | None:
        """Look at a lock without touching it; None when there is none. Raises OSError."""

    def wait(self, name: str, wake: Callable[[], None]) -> LockWait:
        """Start to wait for a lock; ``wake`` is called, in any thread, when it is held or waiting failed."""

    def briefly(self, name: str, seconds: float) -> AbstractContextManager[None]:
        """Hold a lock for a moment, waited for so long at most. Raises LockTimeoutError, OSError."""


class StateRecord(Protocol):
    """The one record that says whose a store is, as bytes: written by whoever holds the lock for it."""

    def read(self) -> bytes | None:
        """Return the record, None when there is none. Raises OSError."""

    def write(self, data: bytes) -> None:
        """Put a record in the place of the last one: after a crash the old is there, or all of the new.

        It is on stable storage when this returns. Raises OSError, with the old one in its place.
        """
