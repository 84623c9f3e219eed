"""Where messages are on disk, and reading them back: the store's cold side.

An index is a table of files and three parallel arrays sorted by message id. Reads happen in a
thread (only system calls there); decoding happens in the loop, in the order asked.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pollux.formats.segments import valid_at
from pollux.store.ids import ascending
from pollux.store.state import FILE_SHIFT, OFFSET_MASK

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.store.port import Files


#: Neighbouring records are read with one system call if the gap between them is at most this.
_GAP = 16 << 10
_RUN = 1 << 20
_OPEN_FILES = 16

Numbers = Sequence[int]


class Index:
    """Message id -> (file, offset, length). ``ids`` must be sorted; ``salts`` belong to ``files``.

    ``first``: the number that the first of ``files`` has in ``locations``.
    """

    __slots__ = ("files", "first", "ids", "lengths", "locations", "salts")

    def __init__(
        self,
        files: list[Path],
        salts: list[int],
        ids: Numbers,
        locations: Numbers,
        lengths: Numbers,
        *,
        first: int = 0,
    ) -> None:
        self.files = files
        self.first = first
        self.salts = salts
        self.ids = ids
        self.locations = locations
        self.lengths = lengths

    def find(self, message_id: int) -> int:
        """The position of a message in the arrays, -1 when it is not in the index."""
        position = bisect_left(self.ids, message_id)
        if position < len(self.ids) and self.ids[position] == message_id:
            return position
        return -1


def sorted_index(
    files: list[Path],
    salts: list[int],
    ids: array[int],
    locations: array[int],
    lengths: array[int],
    *,
    known: int = 0,
    first: int = 0,
) -> Index:
    """An index from arrays in order of arrival, of which the first ``known`` ids are known to ascend.

    Ids nearly always arrive sorted; then nothing is copied.
    """
    if ascending(ids, known) == len(ids):
        return Index(files, salts, ids, locations, lengths, first=first)
    latest = {message_id: position for position, message_id in enumerate(ids)}
    order = sorted(latest)
    positions = [latest[message_id] for message_id in order]
    return Index(
        files,
        salts,
        array("Q", order),
        array("Q", [locations[position] for position in positions]),
        array("I", [lengths[position] for position in positions]),
        first=first,
    )


class Run:
    """One read: records that lie near each other in one file."""

    __slots__ = ("end", "entries", "file", "index", "start")

    def __init__(self, index: Index, file: int, start: int, end: int) -> None:
        self.index = index
        self.file = file
        self.start = start
        self.end = end
        #: (place in the answer, offset, length)
        self.entries: list[tuple[int, int, int]] = []


def plan(indexes: Sequence[Index], message_ids: Sequence[int]) -> tuple[list[Run], list[int]]:
    """The reads that bring in ``message_ids``, and the places of those no index knows."""
    places: list[tuple[int, int, int, int]] = []
    missing: list[int] = []
    for place, message_id in enumerate(message_ids):
        for number, index in enumerate(indexes):
            position = index.find(message_id)
            if position >= 0:
                places.append((number, index.locations[position], index.lengths[position], place))
                break
        else:
            missing.append(place)
    places.sort()
    runs: list[Run] = []
    current: Run | None = None
    for number, location, length, place in places:
        index = indexes[number]
        file, offset = (location >> FILE_SHIFT) - index.first, location & OFFSET_MASK
        if (
            current is None
            or current.index is not index
            or current.file != file
            or offset - current.end > _GAP
            or offset + length - current.start > _RUN
        ):
            current = Run(index, file, offset, offset + length)
            runs.append(current)
        current.end = max(current.end, offset + length)
        current.entries.append((place, offset, length))
    return runs, missing


class Reader:
    """Carries out runs. Used by one thread at a time."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._open: OrderedDict[Path, int] = OrderedDict()

    def _descriptor(self, path: Path) -> int:
        fd = self._open.get(path)
        if fd is None:
            fd = self._files.open(path, os.O_RDONLY)
            self._open[path] = fd
            if len(self._open) > _OPEN_FILES:
                self._files.close(self._open.popitem(last=False)[1])
        else:
            self._open.move_to_end(path)
        return fd

    def read(self, run: Run) -> bytes | None:
        """The bytes of a run; None when the file is gone (a newer index knows where the records went)."""
        try:
            fd = self._descriptor(run.index.files[run.file])
        except FileNotFoundError:
            return None
        parts: list[bytes] = []
        position = run.start
        while position < run.end:
            part = self._files.read(fd, run.end - position, position)
            if not part:
                break
            parts.append(part)
            position += len(part)
        return b"".join(parts)

    def forget(self, path: Path) -> None:
        """Close a file that was deleted."""
        fd = self._open.pop(path, None)
        if fd is not None:
            self._files.close(fd)

    def close(self) -> None:
        """Close every file."""
        for fd in self._open.values():
            self._files.close(fd)
        self._open.clear()


def records_of(run: Run, data: bytes) -> list[tuple[int, memoryview | None]]:
    """(place in the answer, verified record) of a run's bytes; None where the record is damaged."""
    salt = run.index.salts[run.file]
    view = memoryview(data)
    result: list[tuple[int, memoryview | None]] = []
    for place, offset, length in run.entries:
        start = offset - run.start
        valid = valid_at(view, start, len(view), salt) == length
        result.append((place, view[start : start + length] if valid else None))
    return result
