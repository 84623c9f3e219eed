"""The hashes of a store's files, so that a copy is compared with what it is a copy of without reading either again.

Whoever takes over compares its files with those of each backup before it confirms anything that the backup has to have:
what was hashed while nothing was asked of this member is not read then. Hashes are of a file as its inode, size and
times are now; only one that is unchanged for a while counts, because two writes may have the same time.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from typing import TYPE_CHECKING

from pollux.store.mirror.operations import MAXIMUM_DATA, ROOTS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    #: Inode, size, and when it and its content changed last (ns).
    Identity = tuple[int, int, int, int]

logger = logging.getLogger("pollux.mirror")

#: Bytes of a piece, and of its hash.
PIECE = MAXIMUM_DATA
HASH_SIZE = 16
#: A file that is the same after so many seconds is not written to again under the same times.
SETTLED = 2.0
#: Bytes that are hashed in one look, and seconds between two looks: nobody else on the machine shall notice it.
LOOK = 128 << 20
PAUSE = 1.0
#: A look takes one part in so many of the time, however many files there are.
_SHARE = 20

#: Files that recovery reads, and those that are written now and get such a name when they are complete.
_SUFFIXES = frozenset((".segment", ".bodies", ".checkpoint", ".page", ".msg", ".tmp"))
#: What belongs to a process, not to the store: its spare segment, its status.
_OWN = ("spare-", ".")


def piece_hash(data: bytes) -> bytes:
    """Return the hash that a piece is known by."""
    return hashlib.blake2b(data, digest_size=HASH_SIZE).digest()


def files_of(roots: Mapping[str, Path]) -> Iterator[tuple[str, Path]]:
    """Every file of a store as (mirrored path, path); what recovery does not need is left out."""
    for root, depth in ROOTS.items():
        for path in sorted(roots[root].glob("/".join("*" * depth))):
            kept = path.suffix in _SUFFIXES or path.name == "address.txt"
            if kept and not path.name.startswith(_OWN) and path.is_file():
                yield f"{root}/{path.relative_to(roots[root]).as_posix()}", path


class KnownPieces:
    """Hashes of files that have not changed since. ``clock``: monotonic, seconds. For any thread."""

    def __init__(self, roots: Mapping[str, Path], clock: Callable[[], float] = time.monotonic) -> None:
        self._roots = {name: path.absolute() for name, path in roots.items()}
        self._clock = clock
        #: One look at a time: a thread that was told to stop may still be in one.
        self._looking = threading.Lock()
        #: As it was when it was hashed, and the hashes in a row.
        self._known: dict[Path, tuple[Identity, bytes]] = {}
        #: As it was when it was seen first, and when that was.
        self._seen: dict[Path, tuple[Identity, float]] = {}

    def of(self, path: Path) -> bytes | None:
        """Return the hashes of a file's pieces, one behind the other; None: it has to be read."""
        known = self._known.get(path.absolute())
        return known[1] if known is not None and known[0] == _identity(path) else None

    def read(self, path: Path) -> tuple[int, bytes]:
        """Return a file's size and the hashes of its pieces, read if they are not known. Blocking. Raises OSError.

        They are known from then on if the file is older than that two writes could have its time.
        """
        with self._looking:
            before = _identity(path)
            known = self._known.get(path.absolute())
            if known is not None and known[0] == before:
                return before[1], known[1]
            size, hashes = _hashed(path)
            if before is not None and _identity(path) == before and size == before[1]:
                age = time.time_ns() - max(before[2:])
                if age >= SETTLED * 1e9:
                    self._known[path.absolute()] = (before, hashes)
            return size, hashes

    def look(self, limit: int = LOOK, ended: Callable[[], bool] = lambda: False) -> None:
        """Hash files that were the same for a while: about ``limit`` bytes, and no more once it has ``ended``.

        Blocking. Raises OSError.
        """
        with self._looking:
            self._look(limit, ended)

    def forget(self) -> None:
        """Know nothing any more: a write or sync failed, and what was hashed may never have reached the disk. Blocking.

        A file shows the older bytes again then, with the times of the ones that were lost.
        """
        with self._looking:
            self._known.clear()
            self._seen.clear()

    def _look(self, limit: int, ended: Callable[[], bool]) -> None:
        there = {path for _, path in files_of(self._roots)}
        for kept in (self._known, self._seen):
            for path in kept.keys() - there:
                del kept[path]
        for path in sorted(there):
            if limit <= 0 or ended():
                return
            if self.of(path) is None and self._settled(path):
                limit -= self._hash(path, ended)

    def _settled(self, path: Path) -> bool:
        identity, now = _identity(path), self._clock()
        seen = self._seen.get(path)
        if identity is None or seen is None or seen[0] != identity:
            if identity is not None:
                self._seen[path] = (identity, now)
            return False
        return now - seen[1] >= SETTLED

    def _hash(self, path: Path, ended: Callable[[], bool]) -> int:
        before = self._seen[path][0]
        size, hashes = _hashed(path, ended)
        if size == before[1] and _identity(path) == before:
            self._known[path] = (before, hashes)
            del self._seen[path]
        return size


class PieceKeeper:
    """A thread that hashes what does not change any more, while this member waits."""

    def __init__(self, pieces: KnownPieces) -> None:
        self._pieces = pieces
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pollux-pieces", daemon=True)

    def start(self) -> None:
        """Look from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Stop soon: what was hashed stays known."""
        self._ended.set()

    def _run(self) -> None:
        pause, said = PAUSE, ""
        while not self._ended.wait(pause):
            began = time.monotonic()
            try:
                self._pieces.look(ended=self._ended.is_set)
            except FileNotFoundError:
                logger.debug("a file went while it was looked at")
            except Exception as error:
                # Nobody needs it: what is not known is read.
                if repr(error) != said:
                    logger.exception("the store's files cannot be hashed")
                said = repr(error)
            pause = max(PAUSE, _SHARE * (time.monotonic() - began))


def _hashed(path: Path, ended: Callable[[], bool] = lambda: False) -> tuple[int, bytes]:
    """Return a file's size and the hashes of its pieces; of its beginning only, when it has ``ended``."""
    hashes = bytearray()
    size = 0
    with path.open("rb", buffering=0) as stream:
        while not ended() and (data := stream.read(PIECE)):
            hashes += piece_hash(data)
            size += len(data)
    return size, bytes(hashes)


def _identity(path: Path) -> Identity | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
