"""The bytes of segments: header, record frame, scanning and resynchronisation. See docs/journal-format.md.

A segment is a 64-byte header, the same header again (so that one flipped bit does not cost the file),
then records, then zeros up to the file's size::

    offset size  header (little-endian)
    0      8     magic  b"PLXSEG\\r\\n"
    8      2     format version (1)
    10     2     kind: 1 journal, 2 bindings, 3 page, 4 bodies (written by compaction)
    12     4     salt: seeds every checksum of the file
    16     16    node id
    32     8     epoch
    40     8     sequence
    48     8     created, ms since the epoch
    56     4     length: the file's size is a multiple of it (0: any size)
    60     4     crc32c of bytes 0..59

    offset size  record frame
    0      4     marker F5 50 4C FA (never valid UTF-8)
    4      4     length of the whole record
    8      4     crc32c of bytes 12..length, seeded with salt XOR length
    12     1     record type
    13     1     flags
    14     ...   fields of the type

The salt makes a record that somebody put into a message body invalid here, so that resynchronising
after damage cannot mistake payload for records.

This module is pure: buffers in, values out.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.checksum import crc32c
from pollux.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"PLXSEG\r\n"
VERSION = 1
HEADER = struct.Struct("<8sHHI16sQQQII")
HEADER_COPY = 64
#: Where the first record starts: behind the header and its copy.
HEADER_SIZE = 2 * HEADER_COPY
FRAME = struct.Struct("<III")
FRAME_SIZE = 12
#: The smallest record: frame, type and flags.
MINIMUM_RECORD = 14
MARKER_BYTES = b"\xf5PL\xfa"
MARKER = int.from_bytes(MARKER_BYTES, "little")
_BLANK = bytes(4096)
#: BATCH: the write before it was not synced; it is stable with the next one that is.
FOLLOWS_UNSYNCED = 0x10
_BATCH, _BATCH_SIZE = 1, 26
#: How a BATCH record, which begins a write, begins.
_BATCH_BYTES = MARKER_BYTES + _BATCH_SIZE.to_bytes(4, "little")
#: The type of the record that is at the very end of a page that was closed, behind zeros.
PAGE_END = 13


class Kind(IntEnum):
    """The kinds of files in the segment format."""

    JOURNAL = 1
    BINDINGS = 2
    PAGE = 3
    BODIES = 4


class FormatError(StoreError):
    """A file is not what its name says, or was written by another node or a newer Pollux."""


class DamagedHeaderError(FormatError):
    """Neither copy of a file's header can be read: what the file is meant to be is not known from it."""


class SegmentHeader(Struct, frozen=True):
    """The first bytes of a segment, decoded."""

    kind: Kind
    salt: int
    node_id: bytes
    epoch: int
    sequence: int
    created: int
    #: The file's size is a multiple of this: one that is not was cut. 0: it may have any size.
    length: int = 0

    def cut(self, size: int) -> bool:
        """Whether a file of ``size`` bytes with this header lost its end."""
        return self.length > 0 and (size == 0 or size % self.length != 0)

    def encode(self) -> bytes:
        """The header and its copy, HEADER_SIZE bytes."""
        head = HEADER.pack(
            MAGIC, VERSION, self.kind, self.salt, self.node_id, self.epoch, self.sequence, self.created, self.length, 0
        )[:60]
        return (head + struct.pack("<I", crc32c(head))) * 2


def decode_header(data: bytes, name: str) -> SegmentHeader:
    """Parse a header, or its copy when the first is damaged; ``name`` is for the error's text. Raises FormatError."""
    if len(data) < HEADER_SIZE:
        raise DamagedHeaderError(f"{name}: {len(data)} bytes are too few for a segment header")
    for position in (0, HEADER_COPY):
        head = bytes(data[position : position + HEADER_COPY])
        if crc32c(head[:60]) == int.from_bytes(head[60:], "little"):
            return _decode_header(head, name)
    raise DamagedHeaderError(f"{name}: not a Pollux segment, or both copies of its header are damaged")


def _decode_header(head: bytes, name: str) -> SegmentHeader:
    magic, version, kind, salt, node_id, epoch, sequence, created, length, _ = HEADER.unpack(head)
    if magic != MAGIC:
        raise FormatError(f"{name}: not a Pollux segment (magic {magic!r})")
    if version != VERSION:
        raise FormatError(f"{name}: format version {version}; this Pollux reads version {VERSION} only")
    try:
        kind = Kind(kind)
    except ValueError:
        raise FormatError(f"{name}: unknown segment kind {kind}") from None
    return SegmentHeader(kind, salt, node_id, epoch, sequence, created, length)


def frame(body: bytes, salt: int) -> bytes:
    """A whole record: the frame followed by ``body`` (type, flags, fields)."""
    length = FRAME_SIZE + len(body)
    return FRAME.pack(MARKER, length, crc32c(body, salt ^ length)) + body


def valid_at(view: memoryview, position: int, end: int, salt: int) -> int:
    """The length of the valid record at ``position``, 0 when there is none."""
    if position + MINIMUM_RECORD > end:
        return 0
    marker, length, crc = FRAME.unpack_from(view, position)
    if marker != MARKER or length < MINIMUM_RECORD or position + length > end:
        return 0
    if crc32c(view[position + FRAME_SIZE : position + length], salt ^ length) != crc:
        return 0
    return int(length)


def resynchronise(data: bytes | bytearray, view: memoryview, position: int, end: int, salt: int) -> int:
    """The offset of the next valid record at or after ``position``, -1 when there is none up to ``end``."""
    while True:
        position = data.find(MARKER_BYTES, position, end)
        if position < 0:
            return -1
        if valid_at(view, position, end, salt):
            return position
        position += 1


def is_gap(data: bytes | bytearray, start: int, found: int) -> bool:
    """Whether the bytes before the record at ``found`` are the zeros that a page may have before its last record."""
    return data[found + FRAME_SIZE] == PAGE_END and not data[start:found].strip(b"\0")


def has_batch(data: bytes | bytearray, start: int, end: int) -> bool:
    """Whether between two offsets there is what looks like the record that begins a write, be it damaged.

    One that says that nothing was synced before it does not count: it may be torn together with what is before it. Nor
    does one of which nothing is there from its flags on: they were in a sector that did not arrive.
    """
    while (start := data.find(_BATCH_BYTES, start, end)) >= 0:
        kind = start + FRAME_SIZE
        rest = bytes(data[kind + 1 : start + _BATCH_SIZE])
        if kind + 1 < end and data[kind] == _BATCH and rest.strip(b"\0") and not rest[0] & FOLLOWS_UNSYNCED:
            return True
        start += 1
    return False


def data_end(data: bytes | bytearray, position: int, end: int) -> int:
    """The offset behind the last byte that is not zero, at least ``position``."""
    # Blocks are compared by memcmp, a hundred times faster than bytes are stripped.
    while end - position > len(_BLANK) and data[end - len(_BLANK) : end] == _BLANK:
        end -= len(_BLANK)
    start = max(position, end - len(_BLANK))
    return start + len(bytes(data[start:end]).rstrip(b"\0"))


class DamagedRange(Struct):
    """Bytes ``start`` to ``end`` hold no record; ``tail`` when no valid record follows in the file.

    ``several``: the start of a write is behind the first of them, so that they are of more than one.
    """

    start: int
    end: int
    tail: bool
    several: bool = False


def records(
    data: bytes | bytearray, salt: int, start: int = HEADER_SIZE, end: int | None = None
) -> Iterator[tuple[int, int] | DamagedRange]:
    """Yield ``(offset, length)`` of each valid record in order, and damaged ranges between them.

    Ends at the zeros behind the last record. For tools and slow paths; recovery has its own loop.
    """
    limit = len(data) if end is None else min(end, len(data))
    with memoryview(data) as view:
        position = start
        while position < limit:
            length = valid_at(view, position, limit, salt)
            if length:
                yield position, length
                position += length
                continue
            found = resynchronise(data, view, position, limit, salt)
            if found >= 0:
                if not is_gap(data, position, found):
                    yield DamagedRange(position, found, tail=False)
                position = found
                continue
            last = data_end(data, position, limit)
            if last > position:
                yield DamagedRange(position, last, tail=True, several=has_batch(data, position + 1, last))
            return
