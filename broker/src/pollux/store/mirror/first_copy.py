"""The first copy of a store to a replica, made while the store is in use.

From the moment a link is attached it is told of every change. The files that are there already follow piece by piece:
each piece is read and queued under the mirror's lock, so an old piece never follows a newer change. Pieces that the
replica says it has (a hash for each) are not sent. All in a thread.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from pollux.errors import StoreError
from pollux.store.mirror.operations import Operation, OperationType, mirrored_name
from pollux.store.mirror.pieces import HASH_SIZE, PIECE, KnownPieces, files_of, piece_hash

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from pollux.store.mirror.mirror import Link, Mirror

#: Bytes that may wait to be sent while files are copied, and how small the rest must be for the last step.
_AHEAD = 8 << 20
_NEARLY = 256 << 10
_POLL = 0.005
#: Pieces that are read at once: whoever changes files waits meanwhile.
_AT_ONCE = 4
#: Bytes in a second that are copied while clients are served.
_BESIDE_CLIENTS = 180e6
_ZEROS = bytes(PIECE)

#: Path -> (size, hashes of its pieces).
Inventory = dict[str, tuple[int, list[bytes]]]


def inventory_of(roots: Mapping[str, Path], pieces: KnownPieces | None = None) -> Inventory:
    """Return what a replica has, as it tells its live; what is in ``pieces`` is not read, and what is read is there."""
    pieces = pieces or KnownPieces(roots)
    found: Inventory = {}
    for name, path in files_of(roots):
        size, hashes = pieces.read(path)
        found[name] = (size, [hashes[at : at + HASH_SIZE] for at in range(0, len(hashes), HASH_SIZE)])
    return found


def copy_store(
    mirror: Mirror, link: Link, inventory: Inventory, *, progress: Callable[[int, int], None] | None = None
) -> None:
    """Make the replica's files those of this store; returns when all is queued. Raises StoreError: the link is lost."""
    with mirror.lock:
        files = list(files_of(mirror.roots))
        here = {name for name, _ in files}
        for name in inventory:
            if name not in here:
                mirror.submit_to(link, Operation(OperationType.UNLINK, name))
    total = sum(_size(path) for _, path in files)
    done = 0
    pace = Pace(mirror)
    for name, path in files:
        _, hashes = inventory.get(name, (0, []))
        if name not in inventory or not _is_known(mirror, link, name, path, hashes):
            copy_file(mirror, link, name, path, hashes, pace=pace)
        done += _size(path)
        if progress is not None:
            progress(done, total)


def _is_known(mirror: Mirror, link: Link, name: str, path: Path, hashes: Sequence[bytes]) -> bool:
    """Whether the replica has the file as it is here, by hashes of both that are known already."""
    with mirror.lock:
        here = mirror.pieces.of(path)
        if here is None or here != b"".join(hashes):
            return False
        # Its names and bytes may not be on stable storage there.
        mirror.submit_to(link, Operation(OperationType.SIZE, name, _size(path)))
        mirror.submit_to(link, Operation(OperationType.SYNC, name))
        return True


class Pace:
    """Keeps a copy from taking the machine from those who change files meanwhile; where nobody does it is no slower."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror = mirror
        self._seen = mirror.number
        self._due = 0.0

    def wait(self, size: int) -> None:
        """Wait as long as it takes before so many bytes are read."""
        mirror = self._mirror
        if mirror.number != self._seen:
            self._seen = mirror.number
            time.sleep(max(0.0, self._due - mirror.clock()))
        self._due = max(self._due, mirror.clock()) + size / _BESIDE_CLIENTS


def copy_file(
    mirror: Mirror, link: Link, name: str, path: Path, hashes: Sequence[bytes], *, pace: Pace | None = None
) -> None:
    """Queue one file as it is now; one that is deleted meanwhile is left out (the replica is told so too)."""
    pace = pace or Pace(mirror)
    try:
        stream = path.open("rb", buffering=0)
    except FileNotFoundError:
        return
    with stream:
        descriptor = stream.fileno()
        number = os.fstat(descriptor).st_ino
        position = index = 0
        while True:
            _wait_for_room(mirror, link)
            pace.wait(_AT_ONCE * PIECE)
            with mirror.lock:
                if _inode(path) != number:
                    return
                for _ in range(_AT_ONCE):
                    data = os.pread(descriptor, PIECE, position)
                    if not data:
                        # Its size now; from here on the link hears of every change of it.
                        mirror.submit_to(link, Operation(OperationType.SIZE, name, position))
                        mirror.submit_to(link, Operation(OperationType.SYNC, name))
                        return
                    known = index < len(hashes) and piece_hash(data) == hashes[index]
                    blank = index >= len(hashes) and data == _ZEROS[: len(data)]
                    if not known and not blank:
                        mirror.submit_to(link, Operation(OperationType.WRITE, name, position, data))
                    position += len(data)
                    index += 1


def copy_renamed(mirror: Mirror, link: Link, old: str, new: str, path: Path) -> None:
    """A (small) file was renamed while others are copied: queue it whole. Call it with the lock held."""
    mirror.submit_to(link, Operation(OperationType.UNLINK, old))
    mirror.submit_to(link, Operation(OperationType.CREATE, new))
    mirror.submit_to(link, Operation(OperationType.WRITE, new, data=path.read_bytes()))
    mirror.submit_to(link, Operation(OperationType.SYNC, new))


def adopt(mirror: Mirror, path: Path) -> None:
    """Give every link a file that another process made; it gets its name there when it is complete."""
    name = mirrored_name(mirror.roots, path)
    if name is None:
        return
    for link in mirror.links:
        unfinished = f"{name}.tmp"
        with mirror.lock:
            mirror.submit_to(link, Operation(OperationType.CREATE, unfinished))
        copy_file(mirror, link, unfinished, path, ())
        with mirror.lock:
            if path.exists():
                mirror.submit_to(link, Operation(OperationType.RENAME, unfinished, data=name.encode()))
                # The other process did so here: what it makes superfluous is deleted next.
                mirror.submit_to(link, Operation(OperationType.SYNC_DIRECTORY, name))
            else:
                mirror.submit_to(link, Operation(OperationType.UNLINK, unfinished))


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except FileNotFoundError:
        return -1


def _wait_for_room(mirror: Mirror, link: Link) -> None:
    """Sending is slower than reading: memory stays bounded."""
    before, since = link.queued, mirror.clock()
    while link.queued > _AHEAD and link.lost is None:
        time.sleep(_POLL)
        if link.queued < before:
            before, since = link.queued, mirror.clock()
        if mirror.clock() - since > mirror.patience:
            raise StoreError(f"replica {link.name} took nothing for {mirror.patience:g} s")
    _check(link)


def wait_nearly(mirror: Mirror, link: Link, seconds: float) -> None:
    """Wait until little is left to send; who changes files waits for it, too. Raises StoreError after ``seconds``."""
    link.limit = _NEARLY // 2
    deadline = mirror.clock() + seconds
    while link.queued > _NEARLY and link.lost is None:
        if mirror.clock() > deadline:
            raise StoreError(f"replica {link.name} does not catch up with the changes within {seconds:g} s")
        time.sleep(_POLL)
    _check(link)


def _check(link: Link) -> None:
    if link.lost is not None:
        raise StoreError(f"replica {link.name} is lost: {link.lost}")


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0
