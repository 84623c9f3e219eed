"""Where the records of a segment are: every checksum verified, damage found and named.

Positions come as a numpy array, for :mod:`pollux_pipeline.sources.columns`. Pure: bytes in, values out.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

import numpy as np
from crc32c import crc32c

from pollux.formats.records import BATCH, RecordType
from pollux.formats.segments import (
    FRAME,
    FRAME_SIZE,
    HEADER_SIZE,
    MARKER,
    MINIMUM_RECORD,
    data_end,
    is_gap,
    resynchronise,
)

Positions = np.ndarray[tuple[int], np.dtype[np.int64]]
#: What a buffer must have behind its last record, so that columns can be gathered without looking at its end.
PADDING = 64
_BATCH = int(RecordType.BATCH)


@dataclass(slots=True)
class Damaged:
    """Bytes `start` to `end` are no record. `kind`: torn-tail, corrupt, cut or late-writes."""

    start: int
    end: int
    kind: str
    detail: str


@dataclass(slots=True)
class Scan:
    """The valid records of a stretch of a segment."""

    positions: Positions
    #: Behind the last valid record.
    end: int
    damaged: list[Damaged] = field(default_factory=list)
    #: Where the last write begins, how many bytes of records it has, its number; -1: there is none.
    last_batch: tuple[int, int, int] = (-1, 0, -1)


def scan(data: bytes, salt: int, start: int, end: int, *, final: bool, whole: bool) -> Scan:
    """Find the records from `start` (0: the first) to `end` (a file's length at most; the buffer is PADDING longer).

    `final`: nothing of its life follows in another segment, so an incomplete last write is a torn tail. `whole`: the
    file ends at `end`; a last write that does not fit in it was cut off.
    """
    found = array("q")
    add = found.append
    unpack, crc, batch = FRAME.unpack_from, crc32c, BATCH.unpack_from
    position = start or HEADER_SIZE
    result = Scan(np.empty(0, np.int64), position)
    holes: list[tuple[int, int, bool]] = []
    last_batch = (-1, 0, -1)
    with memoryview(data) as view:
        while True:
            marker, length, expected = unpack(data, position) if position + FRAME_SIZE <= end else (0, 0, 0)
            following = position + length
            if (
                marker != MARKER
                or length < MINIMUM_RECORD
                or following > end
                or crc(view[position + FRAME_SIZE : following], salt ^ length) != expected
            ):
                next_valid = resynchronise(data, view, position, end, salt)
                if next_valid < 0:
                    last = data_end(data, position, end)
                    if last > position:
                        holes.append((position, last, True))
                    break
                if not is_gap(data, position, next_valid):
                    holes.append((position, next_valid, False))
                position = next_valid
                continue
            if view[position + FRAME_SIZE] == _BATCH:
                _, _, size, number = batch(data, position + FRAME_SIZE)
                last_batch = (position, size, number)
            add(position)
            position = following
    result.positions = np.frombuffer(found, np.int64) if found else result.positions
    result.end = position
    result.last_batch = last_batch
    torn_from = last_batch[0] if final and last_batch[0] >= 0 else end
    result.damaged = [_judge(hole, torn_from) for hole in holes]
    _check_last_write(result, end, final=final, whole=whole)
    return result


def _judge(hole: tuple[int, int, bool], torn_from: int) -> Damaged:
    start, end, tail = hole
    length = end - start
    if tail and start >= torn_from:
        return Damaged(start, end, "torn-tail", f"{length} bytes of the last write, never confirmed, are incomplete")
    if tail:
        return Damaged(start, end, "corrupt", f"{length} bytes hold no valid record and nothing valid follows")
    return Damaged(start, end, "corrupt", f"{length} bytes hold no valid record; reading went on at offset {end}")


def _check_last_write(result: Scan, end: int, *, final: bool, whole: bool) -> None:
    """A last write with fewer bytes than its BATCH record says, where no damaged bytes tell of it already."""
    position, size, number = result.last_batch
    if position < 0 or any(one.end > position for one in result.damaged):
        return
    missing = position + FRAME_SIZE + BATCH.size + size - result.end
    if missing <= 0:
        return
    if whole and position + FRAME_SIZE + BATCH.size + size > end:
        words = f"the file ends {missing} bytes before write {number} does"
        result.damaged.append(Damaged(result.end, result.end + missing, "cut", words))
    elif final:
        words = f"{missing} bytes of the last write, never confirmed, were not written"
        result.damaged.append(Damaged(result.end, result.end + missing, "torn-tail", words))
    else:
        words = f"{missing} bytes of write {number} read as zeros"
        result.damaged.append(Damaged(result.end, result.end + missing, "corrupt", words))
