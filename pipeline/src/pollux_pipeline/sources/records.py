"""Where the fields of a segment's records are: those of all records at once, with numpy.

A buffer is looked at as overlapping integers, one starting at each byte, so that a field of n records is one indexing
operation however the records are aligned. Layouts: docs/journal-format.md. Pure: bytes in, positions and numbers out.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from pollux.formats.records import EXTENDED, TX, RecordType, message_extension
from pollux.formats.segments import FRAME_SIZE

if TYPE_CHECKING:
    from pollux_pipeline.sources.files import Part
    from pollux_pipeline.sources.scan import Positions

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

_T = RecordType
#: Bytes of a message's fields before its queues.
MESSAGE_FIXED = 32


class Records:
    """Records of one segment at `positions`; `data` has PADDING bytes more than its last record needs."""

    def __init__(self, data: bytes, positions: Positions, part: Part) -> None:
        self.data = data
        self.positions = positions
        self.part = part
        self.u8 = np.frombuffer(data, np.uint8)

    def __len__(self) -> int:
        """How many there are."""
        return len(self.positions)

    def narrow(self, keep: Mask) -> Records:
        """Only the records where `keep` is true."""
        return Records(self.data, self.positions[keep], self.part)

    def slice(self, start: int, stop: int) -> Records:
        """A stretch of them."""
        return Records(self.data, self.positions[start:stop], self.part)

    def numbers(self, positions: Numbers, width: str) -> Numbers:
        """Unsigned little-endian numbers at any bytes. Positions of records that lack the field may be wild."""
        size = np.dtype(width).itemsize
        count = len(self.data) - size + 1
        overlapping = np.ndarray((count,), width, self.data, 0, (1,))
        return overlapping[np.minimum(positions, count - 1)].astype(np.int64)

    @cached_property
    def types(self) -> Numbers:
        """The record type of each."""
        return self.u8[self.positions + FRAME_SIZE].astype(np.int64)

    @cached_property
    def flags(self) -> Numbers:
        """The flags of each."""
        return self.u8[self.positions + FRAME_SIZE + 1].astype(np.int64)

    @cached_property
    def lengths(self) -> Numbers:
        """Bytes of each record."""
        return self.numbers(self.positions + 4, "<u4")

    @cached_property
    def in_tx(self) -> Mask:
        """Which are of a transaction."""
        return cast("Mask", (self.flags & TX) != 0)

    @cached_property
    def fields(self) -> Numbers:
        """Where the fields of each record's type start."""
        return self.positions + np.where(self.in_tx, FRAME_SIZE + 10, FRAME_SIZE + 2)

    @cached_property
    def ends(self) -> Numbers:
        """Behind the last byte of each."""
        return self.positions + self.lengths

    def is_type(self, *types: RecordType) -> Mask:
        """Which records are of one of these types."""
        if len(types) == 1:
            return cast("Mask", self.types == int(types[0]))
        return np.isin(self.types, [int(one) for one in types])

    @cached_property
    def is_message(self) -> Mask:
        """Which are messages."""
        return self.is_type(_T.MESSAGE)

    @cached_property
    def queue_count(self) -> Numbers:
        """Of a message, how many queues it went to; else 0."""
        return np.where(self.is_message, self.numbers(self.fields + 6, "<u2"), 0)

    @cached_property
    def is_page(self) -> Mask:
        """Which are the note of a new page."""
        return self.is_type(_T.PAGE)

    @cached_property
    def address_at(self) -> Numbers:
        """Where the address stands, in records that have one."""
        behind = np.where(self.is_page, 16, 2)
        return self.fields + np.where(self.is_message, MESSAGE_FIXED + 8 * self.queue_count, behind)

    @cached_property
    def address_length(self) -> Numbers:
        """Bytes of the address; 0 where there is none."""
        at = self.fields + np.where(self.is_message, 4, 0)
        holds = self.is_message | self.is_type(_T.DUPLICATE_ID)
        told = np.where(holds, self.numbers(at, "<u2"), 0)
        return np.where(self.is_page, self.ends - self.fields - 16, told)

    @cached_property
    def data_at(self) -> Numbers:
        """Where the bytes of a message start."""
        behind = self.address_at + self.address_length
        extended = self.is_message & ((self.flags & EXTENDED) != 0)
        if not extended.any():
            return behind
        return behind + np.where(extended, 4 + self.numbers(behind, "<u4"), 0)

    @cached_property
    def acks_count(self) -> Numbers:
        """Messages that an ACKS names; else 0."""
        return np.where(self.is_type(_T.ACKS), (self.ends - self.fields - 8) // 8, 0)

    @cached_property
    def page_acks_count(self) -> Numbers:
        """Messages that a PAGE_ACKS names; else 0."""
        return np.where(self.is_type(_T.PAGE_ACKS), (self.ends - self.fields - 24) // 8, 0)

    def times(self) -> tuple[Numbers, Mask]:
        """Timestamps, and which records have one."""
        return self.numbers(self.fields + 16, "<u8"), self.is_message

    @cached_property
    def extensions(self) -> dict[int, dict[str, Any]]:
        """The msgpack maps, by row; few messages have one."""
        rows = np.flatnonzero(self.is_message & ((self.flags & EXTENDED) != 0))
        ends = self.ends
        view = memoryview(self.data)
        return {int(row): dict(message_extension(view[int(self.positions[row]) : int(ends[row])])) for row in rows}
