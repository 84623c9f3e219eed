"""The bindings journal: a small map of (kind, key) to bytes that survives anything.

One file ``bindings-EPOCH-NUMBER.segment`` in the bindings directory holds the whole map: a
snapshot followed by changes. When changes outweigh what is alive a new file with a fresh snapshot
replaces it. Each life starts with a file of its own, so a fenced predecessor changes nothing.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, NamedTuple

from pollux.formats import records
from pollux.formats.names import BINDINGS_NAME
from pollux.formats.records import RecordType
from pollux.formats.segments import (
    FRAME_SIZE,
    DamagedHeaderError,
    DamagedRange,
    FormatError,
    Kind,
    SegmentHeader,
    data_end,
    decode_header,
    frame,
)
from pollux.formats.segments import records as scan
from pollux.store.files import DISK, read_all, write_all
from pollux.store.recovered import NORMAL_DAMAGE, Damage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from pollux.store.port import Files

#: The file grows by blocks of written zeros, so that a change touches no metadata.
_BLOCK = 1 << 20
#: A snapshot, which a takeover writes before it serves, ends at a multiple of this.
_FIRST_BLOCK = 64 << 10
_BATCH_SIZE = FRAME_SIZE + records.BATCH.size
#: What a disk writes whole or not at all.
_SECTOR = 512
#: A new file is written when the changes are this much larger than what is alive.
_WASTE_FACTOR = 4
_WASTE_FLOOR = 4 << 20

Key = tuple[str, str]

#: Set while the map may lack what an earlier file, damaged or gone, had: an earlier one that is put back is read too.
INCOMPLETE: Key = ("bindings", "incomplete")
#: The kind of the bindings whose values hold a number that the journal knows.
_QUEUE = "queue"
#: Kinds that are a passing state of what another kind tells of under the first part of their keys.
_PASSING = {"mqtt-qos2-in": "mqtt-session", "mqtt-qos2-out": "mqtt-session"}


def _files(directory: Path, files: Files) -> list[tuple[int, int, Path]]:
    """(epoch, number, path) of the files that hold bindings, the newest first."""
    names = ((BINDINGS_NAME.fullmatch(entry.name), directory / entry.name) for entry in files.entries(directory))
    return sorted(((int(match[1]), int(match[2]), path) for match, path in names if match), reverse=True)


def newest_file(directory: Path, files: Files = DISK) -> Path | None:
    """The file that holds the bindings, None in a new directory."""
    found = _files(directory, files)
    return found[0][2] if found else None


def read_newest(
    directory: Path, node_id: bytes | None, *, expected: bool, files: Files = DISK
) -> tuple[dict[Key, bytes], list[Damage], int]:
    """The map in a directory, what is damaged or missing, and the epoch it is of (0: none was found). Read-only.

    ``expected``: the journal beside it is that of a broker that had one. A map that is incomplete is completed from an
    earlier life's file: somebody put that back. Raises FormatError for a foreign file.
    """
    found = _files(directory, files)
    if not found:
        words = "no bindings are here, but the journal is that of a broker that had some; is the directory mounted?"
        return {}, [Damage(directory, 0, 0, "missing-bindings", words)] if expected else [], 0
    damage: list[Damage] = []
    newest: dict[Key, bytes] | None = None
    of_epoch = 0
    for epoch, _, path in found:
        if newest is not None and epoch == of_epoch:
            continue  # of the same life: the newest has all of it
        try:
            values, wrong, _ = read_bindings(path, node_id, files)
        except DamagedHeaderError as error:
            words = f"the file cannot be read: {error}"
            damage.append(Damage(path, 0, files.status(path).size, "corrupt", words))
            continue
        damage += wrong
        if newest is not None:
            return _completed(newest, values), damage, of_epoch
        newest, of_epoch = values, epoch
        if INCOMPLETE not in values:
            break
    return newest or {}, damage, of_epoch


def _completed(values: dict[Key, bytes], earlier: dict[Key, bytes]) -> dict[Key, bytes]:
    """A map that began without its predecessor, with that predecessor put back.

    A queue has its number from before: what was made in its place meanwhile is in the journal.
    """
    queues = {key: value for key, value in earlier.items() if key[0] == _QUEUE}
    # What is under way in a session went on with it: an identifier that was free again would hide another message.
    still = {
        (kind, key): value
        for (kind, key), value in earlier.items()
        if kind not in _PASSING or (_PASSING[kind], key.rpartition("\0")[0]) not in values
    }
    found = {**still, **values, **queues}
    found.pop(INCOMPLETE, None)
    return found


def read_bindings(
    path: Path, node_id: bytes | None, files: Files = DISK
) -> tuple[dict[Key, bytes], list[Damage], SegmentHeader]:
    """The map in a file, and what is damaged in it. Raises FormatError for a foreign or unreadable file."""
    data = read_all(path, files)
    header = decode_header(data, str(path))
    if header.kind != Kind.BINDINGS:
        raise FormatError(f"{path}: its header says {header.kind.name}, not bindings")
    if node_id is not None and header.node_id != node_id:
        raise FormatError(f"{path}: belongs to node {header.node_id.hex()}, this broker is node {node_id.hex()}")
    values: dict[Key, bytes] = {}
    damage: list[Damage] = []
    damaged: list[DamagedRange] = []
    last, read = _Write(0, 0, 0, 0), 0
    if data[len(data) - len(data) % _FIRST_BLOCK :].strip(b"\0"):
        # Records are written only where there were whole blocks of zeros.
        words = f"the file was cut: {len(data)} bytes are left, not a multiple of {_FIRST_BLOCK}"
        damage.append(Damage(path, len(data), 0, "corrupt", words))
    view = memoryview(data)
    for entry in scan(data, header.salt):
        if isinstance(entry, DamagedRange):
            damaged.append(entry)
            continue
        offset, length = entry
        read = offset + length
        if data[offset + FRAME_SIZE] == RecordType.BATCH:
            _, _, size, number = records.BATCH.unpack_from(data, offset + FRAME_SIZE)
            last = _Write(offset, read + size, number, header.salt)
        elif data[offset + FRAME_SIZE] == RecordType.PUT:
            binding_kind, key, value = records.decode_put(view[offset : offset + length])
            if value is None:
                values.pop((binding_kind, key), None)
            else:
                values[binding_kind, key] = value
    return values, damage + _judged(path, data, damaged, last, read), header


class _Write(NamedTuple):
    """The last write that tells of itself: where it begins and ends. ``begin`` 0: none does (version 0.1.0)."""

    begin: int
    end: int
    #: 0: the snapshot, which was whole before the file had its name.
    number: int
    salt: int


def _head(size: int, number: int, salt: int) -> bytes:
    """The record that begins a write of ``size`` bytes; size 0: of which nothing was written yet."""
    return frame(records.BATCH.pack(RecordType.BATCH, 0, size, number), salt)


def _judged(path: Path, data: bytes, damaged: list[DamagedRange], last: _Write, read: int) -> list[Damage]:
    """Tell apart what a power cut leaves of the last write, of which nothing was confirmed, and what is damage.

    ``read``: where the last valid record ends.
    """
    found: list[Damage] = []
    written = max(read, data_end(data, read, len(data)))
    torn_from = last.begin if last.number and written <= last.end else last.end
    before = _head(0, last.number + 1, last.salt)
    for one in damaged:
        torn = _is_torn(data, one, torn_from, before) if last.begin else one.tail
        words = f"{one.end - one.start} bytes of bindings hold no valid record"
        found.append(Damage(path, one.start, one.end - one.start, "torn-tail" if torn else "corrupt", words))
    if written < last.end and not any(one.tail for one in damaged):
        kind, missing = "torn-tail" if last.number else "corrupt", last.end - written
        found.append(Damage(path, written, missing, kind, f"{missing} bytes of the last write are not there"))
    return found


def _is_torn(data: bytes, damaged: DamagedRange, torn_from: int, before: bytes) -> bool:
    """Whether a power cut leaves this of the last write, which begins at ``torn_from``, where ``before`` stood.

    Sectors arrive in any order. One in the middle that did not is still what it was; a bit that flipped is not.
    """
    if damaged.start < torn_from or damaged.several:
        return False
    if damaged.tail:
        return True
    at = damaged.start
    while at < damaged.end:
        following = min(at - at % _SECTOR + _SECTOR, damaged.end)
        piece = data[at:following]
        if not piece.strip(b"\0") or piece == before[at - torn_from : following - torn_from].ljust(len(piece), b"\0"):
            return True
        at = following
    return False


class Changes:
    """Changes of one loop turn, for the writer; see :meth:`Bindings.put`. Those of following turns can join them."""

    __slots__ = ("_bindings", "_found")

    def __init__(self, bindings: Bindings) -> None:
        self._bindings = bindings
        self._found: list[tuple[bytes, bool]] = []

    def add(self, change: tuple[bytes, bool]) -> None:
        """Add a change of this turn."""
        self._found.append(change)

    def join(self, later: Changes) -> None:
        """Write those of a later turn together with these."""
        self._found += later._found

    def __call__(self) -> None:
        """Write the changes."""
        self._bindings.write(self._found)


class Bindings:
    """The map of one life. ``put`` in the loop; ``write`` in the writer thread."""

    def __init__(self, directory: Path, files: Files, *, node_id: bytes, epoch: int, salt: int) -> None:
        self._directory = directory
        self._files = files
        self._node_id = node_id
        self._epoch = epoch
        self._salt = salt
        #: Framed records: a snapshot is their concatenation.
        self._live: dict[Key, bytes] = {}
        self._live_bytes = 0
        self._file_bytes = 0
        # -- the writer's side
        self._number = 0
        self._fd = -1
        self._path: Path | None = None
        self._position = 0
        self._size = 0
        self._writes = 0

    def load(
        self, node_id: bytes, *, expected: bool = False, check: Callable[[dict[Key, bytes]], None] | None = None
    ) -> tuple[dict[Key, bytes], list[Damage]]:
        """Read the directory and start this life's file. Before any traffic, in a thread.

        ``expected``: see :func:`read_newest`. ``check`` is shown the map before anything is written, and may raise.
        """
        values, damage, epoch = read_newest(self._directory, node_id, expected=expected, files=self._files)
        if check is not None:
            check(values)
        if epoch >= self._epoch:
            raise FormatError(f"{self._directory}: written in epoch {epoch}, this life's epoch is {self._epoch}")
        for (kind, key), value in values.items():
            self._keep((kind, key), frame(records.put(kind, key, value), self._salt))
        values.pop(INCOMPLETE, None)
        self._snapshot(b"".join(self._live.values()))
        self._file_bytes = self._live_bytes
        damaged = {found.file for found in damage if found.kind not in NORMAL_DAMAGE}
        for other in [self._directory / entry.name for entry in self._files.entries(self._directory)]:
            unfinished = other.name.startswith("bindings-") and other.suffix == ".tmp"
            if other != self._path and (unfinished or BINDINGS_NAME.fullmatch(other.name)):
                # What was damaged is kept for whoever investigates.
                if other in damaged:
                    self._files.rename(other, other.with_suffix(".damaged"))
                else:
                    self._files.unlink(other)
        if damaged:
            # Only now: an earlier file that was left over, or that a power cut puts back, would bring back with it what
            # was deleted since.
            self._files.sync_directory(self._directory)
            if INCOMPLETE not in self._live:
                self.write([self.put(*INCOMPLETE, b"")])
        return values, damage

    def _keep(self, key: Key, record: bytes) -> None:
        self._live_bytes += len(record) - len(self._live.get(key, b""))
        self._live[key] = record

    def put(self, kind: str, key: str, value: bytes | None) -> tuple[bytes, bool]:
        """Change the map; (bytes for the file, whether they are a snapshot that starts a new one)."""
        record = frame(records.put(kind, key, value), self._salt)
        if value is None:
            old = self._live.pop((kind, key), None)
            if old is None:
                return b"", False
            self._live_bytes -= len(old)
        else:
            self._keep((kind, key), record)
        self._file_bytes += len(record) + _BATCH_SIZE
        if self._file_bytes > _WASTE_FLOOR + _WASTE_FACTOR * self._live_bytes:
            self._file_bytes = self._live_bytes
            return b"".join(self._live.values()), True
        return record, False

    def write(self, changes: list[tuple[bytes, bool]]) -> None:
        """Make changes durable, in order. In the writer thread. Raises OSError."""
        data = b""
        for number in range(len(changes) - 1, -1, -1):
            if changes[number][1]:
                # Everything before a snapshot is in it.
                self._snapshot(changes[number][0])
                changes = changes[number + 1 :]
                break
        data = b"".join([record for record, _ in changes])
        if not data:
            return
        data = _head(len(data), self._writes, self._salt) + data
        if self._position + len(data) + _BATCH_SIZE > self._size:
            grow = -(-(self._position + len(data) + _BATCH_SIZE - self._size) // _BLOCK) * _BLOCK
            write_all(self._files, self._fd, bytes(grow), self._size, sync=False)
            self._files.fsync(self._fd)
            self._size += grow
        write_all(self._files, self._fd, data, self._position, sync=True)
        self._position += len(data)
        self._writes += 1
        # Where the next write will begin. Until then it says that the one before was confirmed; nobody waits for it.
        write_all(self._files, self._fd, _head(0, self._writes, self._salt), self._position, sync=False)

    def _snapshot(self, data: bytes) -> None:
        """Replace the file by one that starts with ``data``."""
        self._number += 1
        path = self._directory / f"bindings-{self._epoch:08d}-{self._number:010d}.segment"
        unfinished = path.with_suffix(".tmp")
        created = time.time_ns() // 1_000_000
        header = SegmentHeader(Kind.BINDINGS, self._salt, self._node_id, self._epoch, self._number, created)
        fd = self._files.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        try:
            content = header.encode() + _head(len(data), 0, self._salt) + data
            whole = content + _head(0, 1, self._salt)
            size = -(-len(whole) // _FIRST_BLOCK) * _FIRST_BLOCK
            write_all(self._files, fd, whole.ljust(size, b"\0"), 0, sync=False)
            self._files.fsync(fd)
            self._files.rename(unfinished, path)
            self._files.sync_directory(self._directory)
        except BaseException:
            self._files.close(fd)
            self._files.unlink(unfinished)
            raise
        before, old = self._fd, self._path
        # First: whoever finds no room for what comes now begins anew, and must not let go of a file twice.
        self._fd, self._path, self._position, self._size = fd, path, len(content), size
        self._writes = 1
        if before >= 0:
            self._files.close(before)
            if old is not None:
                self._files.unlink(old)

    def close(self) -> None:
        """Let go of the file."""
        if self._fd >= 0:
            self._files.close(self._fd)
            self._fd = -1


def joined(operations: Iterable[Callable[[], None]]) -> Iterator[Callable[[], None]]:
    """Return operations of the writer in order; changes of bindings with nothing between are one.

    Each of their writes is synced: a turn's alone would cost as much as those of all.
    """
    changes: Changes | None = None
    for operation in operations:
        if isinstance(operation, Changes):
            if changes is None:
                changes = operation
            else:
                changes.join(operation)
            continue
        if changes is not None:
            yield changes
            changes = None
        yield operation
    if changes is not None:
        yield changes
