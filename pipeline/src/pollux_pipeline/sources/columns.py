"""Columns out of a segment's bytes: each field of all records at once, with numpy; only the columns that are asked for.

A buffer is looked at as overlapping integers, one starting at each byte, so that a field of n records is one indexing
operation however the records are aligned. Layouts: docs/journal-format.md. Pure: bytes in, Arrow arrays out.
"""

from __future__ import annotations

import json
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

import numpy as np
import pyarrow as pa

from pollux.formats.forwards import ROUTE_TO, described
from pollux.formats.records import DELETED, DURABLE, EXTENDED, TX, RecordType, message_extension
from pollux.formats.segments import FRAME_SIZE
from pollux.message import Encoding

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux_pipeline.sources.files import Part
    from pollux_pipeline.sources.scan import Positions

Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
Mask = np.ndarray[tuple[int], np.dtype[np.bool_]]

_T = RecordType
_TYPE_NAMES = pa.array([_T(n).name if n in {int(t) for t in _T} else f"UNKNOWN({n})" for n in range(256)], pa.string())
_ENCODINGS = pa.array([Encoding(n).name if n in {int(t) for t in Encoding} else None for n in range(256)], pa.string())
_ROUTING = pa.array([None, "MULTICAST", "ANYCAST"], pa.string())
_MESSAGE_FIXED = 32


class Records:
    """Records of one segment at `positions`; `data` has PADDING bytes more than its last record needs."""

    def __init__(self, data: bytes, positions: Positions, part: Part) -> None:
        self._data = data
        self._positions = positions
        self._part = part
        self._u8 = np.frombuffer(data, np.uint8)

    def __len__(self) -> int:
        """How many there are."""
        return len(self._positions)

    def narrow(self, keep: Mask) -> Records:
        """Only the records where `keep` is true."""
        return Records(self._data, self._positions[keep], self._part)

    def slice(self, start: int, stop: int) -> Records:
        """A stretch of them."""
        return Records(self._data, self._positions[start:stop], self._part)

    def column(self, name: str, kind: pa.DataType) -> pa.Array:
        """One column as an Arrow array of exactly this type."""
        array = self._COLUMNS[name](self)
        return array if array.type == kind else array.cast(kind)

    # -- fields -----------------------------------------------------------------------------------

    def _numbers(self, positions: Numbers, width: str) -> Numbers:
        """Unsigned little-endian numbers at any bytes. Positions of records that lack the field may be wild."""
        size = np.dtype(width).itemsize
        count = len(self._data) - size + 1
        overlapping = np.ndarray((count,), width, self._data, 0, (1,))
        return overlapping[np.minimum(positions, count - 1)].astype(np.int64)

    @cached_property
    def types(self) -> Numbers:
        """The record type of each."""
        return self._u8[self._positions + FRAME_SIZE].astype(np.int64)

    @cached_property
    def _flags(self) -> Numbers:
        return self._u8[self._positions + FRAME_SIZE + 1].astype(np.int64)

    @cached_property
    def lengths(self) -> Numbers:
        """Bytes of each record."""
        return self._numbers(self._positions + 4, "<u4")

    @cached_property
    def _in_tx(self) -> Mask:
        return cast("Mask", (self._flags & TX) != 0)

    @cached_property
    def _fields(self) -> Numbers:
        """Where the fields of each record's type start."""
        return self._positions + np.where(self._in_tx, FRAME_SIZE + 10, FRAME_SIZE + 2)

    @cached_property
    def _ends(self) -> Numbers:
        return self._positions + self.lengths

    def is_type(self, *types: RecordType) -> Mask:
        """Which records are of one of these types."""
        if len(types) == 1:
            return cast("Mask", self.types == int(types[0]))
        return np.isin(self.types, [int(one) for one in types])

    @cached_property
    def _message(self) -> Mask:
        return self.is_type(_T.MESSAGE)

    @cached_property
    def _queue_count(self) -> Numbers:
        return np.where(self._message, self._numbers(self._fields + 6, "<u2"), 0)

    @cached_property
    def _page_made(self) -> Mask:
        return self.is_type(_T.PAGE)

    @cached_property
    def _address_at(self) -> Numbers:
        behind = np.where(self._page_made, 16, 2)
        return self._fields + np.where(self._message, _MESSAGE_FIXED + 8 * self._queue_count, behind)

    @cached_property
    def _address_length(self) -> Numbers:
        at = self._fields + np.where(self._message, 4, 0)
        holds = self._message | self.is_type(_T.DUPLICATE_ID)
        told = np.where(holds, self._numbers(at, "<u2"), 0)
        return np.where(self._page_made, self._ends - self._fields - 16, told)

    @cached_property
    def _data_at(self) -> Numbers:
        """Where the bytes of a message start."""
        behind = self._address_at + self._address_length
        extended = self._message & ((self._flags & EXTENDED) != 0)
        if not extended.any():
            return behind
        return behind + np.where(extended, 4 + self._numbers(behind, "<u4"), 0)

    def _bytes(self, starts: Numbers, lengths: Numbers, valid: Mask, kind: pa.DataType) -> pa.Array:
        """Variable stretches of the buffer as one binary or string array."""
        lengths = np.where(valid, lengths, 0)
        offsets = np.zeros(len(lengths) + 1, np.int64)
        np.cumsum(lengths, out=offsets[1:])
        index = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
        values = pa.py_buffer(self._u8[index])
        bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32)), values]
        return pa.Array.from_buffers(kind, len(lengths), buffers)

    def _lists(self, starts: Numbers, counts: Numbers, valid: Mask) -> pa.Array:
        """Lists of u64, `counts` of them from each of `starts`."""
        counts = np.where(valid, counts, 0)
        offsets = np.zeros(len(counts) + 1, np.int64)
        np.cumsum(counts, out=offsets[1:])
        at = np.repeat(starts - 8 * offsets[:-1], counts) + 8 * np.arange(offsets[-1])
        values = pa.array(self._numbers(at, "<u8"), pa.int64())
        bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
        offset_buffer = pa.py_buffer(offsets.astype(np.int32))
        return pa.Array.from_buffers(pa.list_(pa.int64()), len(counts), [bitmap, offset_buffer], children=[values])

    def _number_column(self, at: Numbers, width: str, valid: Mask) -> pa.Array:
        return pa.array(self._numbers(at, width), pa.int64(), mask=None if valid.all() else ~valid)

    # -- columns ----------------------------------------------------------------------------------

    def _constant(self, value: object, kind: pa.DataType) -> pa.Array:
        return pa.repeat(pa.scalar(value, kind), len(self))

    def _fenced(self) -> pa.Array:
        if self._part.limit is None:
            return self._constant(value=False, kind=pa.bool_())
        return pa.array(self._positions >= self._part.limit)

    def _tx(self) -> pa.Array:
        outcome = self.is_type(_T.PREPARE, _T.COMMIT, _T.ROLLBACK)
        return self._number_column(self._positions + FRAME_SIZE + 2, "<u8", self._in_tx | outcome)

    @cached_property
    def _acks_count(self) -> Numbers:
        return np.where(self.is_type(_T.ACKS), (self._ends - self._fields - 8) // 8, 0)

    @cached_property
    def _page_acks_count(self) -> Numbers:
        return np.where(self.is_type(_T.PAGE_ACKS), (self._ends - self._fields - 24) // 8, 0)

    def _message_id(self) -> pa.Array:
        at = self._fields + 8
        at = np.where(self.is_type(_T.REFERENCES), self._fields + 1, at)
        at = np.where(self.is_type(_T.PAGE_ACKS), self._fields + 24, at)
        valid = self._message | self.is_type(_T.DELIVERY_COUNT, _T.SCHEDULE, _T.REFERENCES, _T.PAGE_MARK)
        return self._number_column(at, "<u8", valid | (self._acks_count > 0) | (self._page_acks_count > 0))

    def _queue_id(self) -> pa.Array:
        at = np.where(self._message, self._fields + _MESSAGE_FIXED, self._fields)
        at = np.where(self.is_type(_T.REFERENCES), self._fields + 9, at)
        at = np.where(self.is_type(_T.PAGE_ACKS), self._fields + 16, at)
        referring = self.is_type(_T.REFERENCES) & (self._ends >= self._fields + 17)
        others = self.is_type(_T.ACKS, _T.DELIVERY_COUNT, _T.SCHEDULE, _T.DROP_QUEUE, _T.PAGE_ACKS, _T.QUEUE)
        return self._number_column(at, "<u8", (self._queue_count > 0) | referring | others)

    def _message_ids(self) -> pa.Array:
        valid = self.is_type(_T.ACKS, _T.PAGE_ACKS)
        starts = self._fields + np.where(self.is_type(_T.ACKS), 8, 24)
        return self._lists(starts, self._acks_count + self._page_acks_count, valid)

    def _queue_ids(self) -> pa.Array:
        referring = self.is_type(_T.REFERENCES)
        starts = self._fields + np.where(referring, 9, _MESSAGE_FIXED)
        counts = np.where(referring, (self._ends - starts) // 8, self._queue_count)
        return self._lists(starts, counts, self._message | referring)

    def _address(self) -> pa.Array:
        valid = self._message | self._page_made | self.is_type(_T.DUPLICATE_ID)
        return self._bytes(self._address_at, self._address_length, valid, pa.string())

    def _small(self, offset: int, names: pa.Array) -> pa.Array:
        codes = np.where(self._message, self._numbers(self._fields + offset, "u1"), 0)
        return names.take(pa.array(np.minimum(codes, len(names) - 1), mask=~self._message))

    def _priority(self) -> pa.Array:
        at = np.where(self._message, self._fields + 1, self._fields)
        return self._number_column(at, "u1", self._message | self.is_type(_T.REFERENCES))

    def _time(self, offset: int) -> pa.Array:
        return self._number_column(self._fields + offset, "<u8", self._message)

    def times(self) -> tuple[Numbers, Mask]:
        """Timestamps, and which records have one."""
        return self._numbers(self._fields + 16, "<u8"), self._message

    @cached_property
    def extensions(self) -> dict[int, dict[str, Any]]:
        """The msgpack maps, by row; few messages have one."""
        rows = np.flatnonzero(self._message & ((self._flags & EXTENDED) != 0))
        ends = self._ends
        view = memoryview(self._data)
        return {int(row): dict(message_extension(view[int(self._positions[row]) : int(ends[row])])) for row in rows}

    def _deliver_at(self) -> pa.Array:
        scheduled = self.is_type(_T.SCHEDULE)
        values = np.where(scheduled, self._numbers(self._fields + 16, "<u8"), 0)
        for row, extension in self.extensions.items():
            values[row] = extension.get("deliver_at", 0)
        return pa.array(values, pa.int64(), mask=(values == 0) & ~scheduled)

    def _count(self) -> pa.Array:
        outcome = self.is_type(_T.PREPARE, _T.COMMIT, _T.ROLLBACK)
        batch = self.is_type(_T.BATCH)
        at = self._fields + np.where(batch, 0, np.where(outcome, 8, 16))
        return self._number_column(at, "<u4", outcome | batch | self.is_type(_T.DELIVERY_COUNT))

    def _number(self) -> pa.Array:
        at = self._fields + np.where(self.is_type(_T.BATCH), 4, 0)
        return self._number_column(at, "<u8", self.is_type(_T.BATCH, _T.SEGMENT_END))

    def _store(self) -> pa.Array:
        if self._part.kind == "page":
            return self._constant(self._part.store, pa.int64())
        valid = self.is_type(_T.PAGE, _T.PAGE_ACKS, _T.PAGE_DONE, _T.PAGE_TX, _T.PAGE_MARK)
        return self._number_column(self._fields, "<u8", valid)

    def _page(self) -> pa.Array:
        if self._part.kind == "page":
            return self._constant(self._part.segment, pa.int64())
        valid = self.is_type(_T.PAGE, _T.PAGE_ACKS, _T.PAGE_DONE, _T.PAGE_TX)
        return self._number_column(self._fields + 8, "<u8", valid)

    def _size(self) -> pa.Array:
        sizes = self._ends - self._data_at
        if self.extensions:
            for row, extension in self.extensions.items():
                if "large" in extension:
                    sizes[row] = extension["large"][1]
        return pa.array(sizes, pa.int64(), mask=~self._message)

    def _duplicate_id(self) -> pa.Array:
        own = self.is_type(_T.DUPLICATE_ID)
        with_map = {row: one["duplicate_id"] for row, one in self.extensions.items() if "duplicate_id" in one}
        starts = self._address_at + self._address_length
        array = self._bytes(starts, self._ends - starts, own, pa.binary())
        if not with_map:
            return array
        values = array.to_pylist()
        for row, value in with_map.items():
            values[row] = value
        return pa.array(values, pa.binary())

    def _properties(self) -> pa.Array:
        values: list[str | None] = [None] * len(self)
        for row, extension in self.extensions.items():
            values[row] = json.dumps(_with_forward(extension), default=_text, sort_keys=True)
        starts = {int(row) for row in np.flatnonzero(self.is_type(_T.START, _T.PUT, _T.QUEUE))}
        ends = self._ends
        for row in starts:
            values[row] = _describe(memoryview(self._data)[int(self._positions[row]) : int(ends[row])])
        return pa.array(values, pa.string())

    def _body(self) -> pa.Array:
        data, starts, ends = self._data, self._data_at.tolist(), self._ends.tolist()
        rows = zip(self._message.tolist(), starts, ends, strict=True)
        return pa.array([data[start:end] if message else None for message, start, end in rows], pa.binary())

    # -- by name ----------------------------------------------------------------------------------

    _COLUMNS: ClassVar[dict[str, Callable[[Records], pa.Array]]] = {
        "file": lambda self: self._constant(self._part.path, pa.string()),
        "kind": lambda self: self._constant(self._part.kind, pa.string()),
        "node_id": lambda self: self._constant(self._part.node_id, pa.string()),
        "epoch": lambda self: self._constant(self._part.epoch, pa.int64()),
        "segment": lambda self: self._constant(self._part.segment, pa.int64()),
        "salt": lambda self: self._constant(self._part.salt, pa.int64()),
        "created": lambda self: self._constant(self._part.created, pa.int64()),
        "offset": lambda self: pa.array(self._positions),
        "length": lambda self: pa.array(self.lengths),
        "checksum": lambda self: pa.array(self._numbers(self._positions + 8, "<u4")),
        "record_type": lambda self: _TYPE_NAMES.take(pa.array(self.types)),
        "fenced": _fenced,
        "folded": lambda self: self._constant(self._part.folded, pa.bool_()),
        "tx": _tx,
        "message_id": _message_id,
        "queue_id": _queue_id,
        "message_ids": _message_ids,
        "queue_ids": _queue_ids,
        "address": _address,
        "encoding": lambda self: self._small(0, _ENCODINGS),
        "priority": _priority,
        "routing_type": lambda self: self._small(2, _ROUTING),
        "durable": lambda self: pa.array((self._flags & DURABLE) != 0, mask=~self._message),
        "timestamp": lambda self: self._time(16),
        "expiration": lambda self: self._time(24),
        "deliver_at": _deliver_at,
        "count": _count,
        "number": _number,
        "store": _store,
        "page": _page,
        "size": _size,
        "duplicate_id": _duplicate_id,
        "properties": _properties,
        "body": _body,
        "damage": lambda self: pa.nulls(len(self), pa.string()),
        "detail": lambda self: pa.nulls(len(self), pa.string()),
    }


def _with_forward(extension: dict[str, Any]) -> dict[str, Any]:
    """A message's further fields; of one on its way to another node `forward`: where to, and which message it is."""
    annotation = extension.get("annotations", {}).get(ROUTE_TO)
    forward = described(annotation) if annotation is not None else None
    return extension if forward is None else {**extension, "forward": forward}


def _text(value: object) -> str:
    return value.hex() if isinstance(value, (bytes, bytearray, memoryview)) else str(value)


def _describe(record: memoryview) -> str:
    """A START, PUT or QUEUE record as JSON: which segments a life read; a binding."""
    from pollux.formats import records

    if record[FRAME_SIZE] == RecordType.START:
        ends, checkpoint = records.decode_start(record)
        return json.dumps({"ends": [[*key, end] for key, end in ends.items()], "checkpoint": checkpoint})
    import msgspec

    if record[FRAME_SIZE] == RecordType.QUEUE:
        made = msgspec.msgpack.decode(record[records.FIELDS + 8 :])
        return json.dumps({"kind": "queue", "key": made["spec"]["name"], "deleted": False, "value": made})
    kind, key, value = records.decode_put(record)
    decoded: Any = None
    if value:
        try:
            decoded = msgspec.msgpack.decode(value)
        except msgspec.MsgspecError:
            decoded = value
    deleted = bool(record[FRAME_SIZE + 1] & DELETED)
    return json.dumps({"kind": kind, "key": key, "deleted": deleted, "value": decoded}, default=_text)
