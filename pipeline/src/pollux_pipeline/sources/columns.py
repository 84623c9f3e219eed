"""Columns out of a segment's records: an Arrow array of each that is asked for. Pure."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from pollux.formats import Encoding
from pollux.formats.forwards import ROUTE_TO, described
from pollux.formats.records import DELETED, DURABLE, RecordType
from pollux.formats.segments import FRAME_SIZE
from pollux_pipeline.sources.records import MESSAGE_FIXED

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux_pipeline.sources.records import Mask, Numbers, Records

_T = RecordType
_TYPE_NAMES = pa.array([_T(n).name if n in {int(t) for t in _T} else f"UNKNOWN({n})" for n in range(256)], pa.string())
_ENCODINGS = pa.array([Encoding(n).name if n in {int(t) for t in Encoding} else None for n in range(256)], pa.string())
_ROUTING = pa.array([None, "MULTICAST", "ANYCAST"], pa.string())


def column(records: Records, name: str, kind: pa.DataType) -> pa.Array:
    """One column as an Arrow array of exactly this type."""
    array = _COLUMNS[name](records)
    return array if array.type == kind else array.cast(kind)


def _bytes(records: Records, starts: Numbers, lengths: Numbers, valid: Mask, kind: pa.DataType) -> pa.Array:
    """Variable stretches of the buffer as one binary or string array."""
    lengths = np.where(valid, lengths, 0)
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    index = np.repeat(starts - offsets[:-1], lengths) + np.arange(offsets[-1])
    values = pa.py_buffer(records.u8[index])
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    buffers = [bitmap, pa.py_buffer(offsets.astype(np.int32)), values]
    return pa.Array.from_buffers(kind, len(lengths), buffers)


def _lists(records: Records, starts: Numbers, counts: Numbers, valid: Mask) -> pa.Array:
    """Lists of u64, `counts` of them from each of `starts`."""
    counts = np.where(valid, counts, 0)
    offsets = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=offsets[1:])
    at = np.repeat(starts - 8 * offsets[:-1], counts) + 8 * np.arange(offsets[-1])
    values = pa.array(records.numbers(at, "<u8"), pa.int64())
    bitmap = None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    offset_buffer = pa.py_buffer(offsets.astype(np.int32))
    return pa.Array.from_buffers(pa.list_(pa.int64()), len(counts), [bitmap, offset_buffer], children=[values])


def _number_column(records: Records, at: Numbers, width: str, valid: Mask) -> pa.Array:
    return pa.array(records.numbers(at, width), pa.int64(), mask=None if valid.all() else ~valid)


def _constant(records: Records, value: object, kind: pa.DataType) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), len(records))


def _fenced(records: Records) -> pa.Array:
    if records.part.limit is None:
        return _constant(records, value=False, kind=pa.bool_())
    return pa.array(records.positions >= records.part.limit)


def _tx(records: Records) -> pa.Array:
    outcome = records.is_type(_T.PREPARE, _T.COMMIT, _T.ROLLBACK)
    return _number_column(records, records.positions + FRAME_SIZE + 2, "<u8", records.in_tx | outcome)


def _message_id(records: Records) -> pa.Array:
    at = records.fields + 8
    at = np.where(records.is_type(_T.REFERENCES), records.fields + 1, at)
    at = np.where(records.is_type(_T.PAGE_ACKS), records.fields + 24, at)
    valid = records.is_message | records.is_type(_T.DELIVERY_COUNT, _T.SCHEDULE, _T.REFERENCES, _T.PAGE_MARK)
    return _number_column(records, at, "<u8", valid | (records.acks_count > 0) | (records.page_acks_count > 0))


def _queue_id(records: Records) -> pa.Array:
    at = np.where(records.is_message, records.fields + MESSAGE_FIXED, records.fields)
    at = np.where(records.is_type(_T.REFERENCES), records.fields + 9, at)
    at = np.where(records.is_type(_T.PAGE_ACKS), records.fields + 16, at)
    referring = records.is_type(_T.REFERENCES) & (records.ends >= records.fields + 17)
    others = records.is_type(_T.ACKS, _T.DELIVERY_COUNT, _T.SCHEDULE, _T.DROP_QUEUE, _T.PAGE_ACKS, _T.QUEUE)
    return _number_column(records, at, "<u8", (records.queue_count > 0) | referring | others)


def _message_ids(records: Records) -> pa.Array:
    valid = records.is_type(_T.ACKS, _T.PAGE_ACKS)
    starts = records.fields + np.where(records.is_type(_T.ACKS), 8, 24)
    return _lists(records, starts, records.acks_count + records.page_acks_count, valid)


def _queue_ids(records: Records) -> pa.Array:
    referring = records.is_type(_T.REFERENCES)
    starts = records.fields + np.where(referring, 9, MESSAGE_FIXED)
    counts = np.where(referring, (records.ends - starts) // 8, records.queue_count)
    return _lists(records, starts, counts, records.is_message | referring)


def _address(records: Records) -> pa.Array:
    valid = records.is_message | records.is_page | records.is_type(_T.DUPLICATE_ID)
    return _bytes(records, records.address_at, records.address_length, valid, pa.string())


def _small(records: Records, offset: int, names: pa.Array) -> pa.Array:
    codes = np.where(records.is_message, records.numbers(records.fields + offset, "u1"), 0)
    return names.take(pa.array(np.minimum(codes, len(names) - 1), mask=~records.is_message))


def _priority(records: Records) -> pa.Array:
    at = np.where(records.is_message, records.fields + 1, records.fields)
    return _number_column(records, at, "u1", records.is_message | records.is_type(_T.REFERENCES))


def _time(records: Records, offset: int) -> pa.Array:
    return _number_column(records, records.fields + offset, "<u8", records.is_message)


def _deliver_at(records: Records) -> pa.Array:
    scheduled = records.is_type(_T.SCHEDULE)
    values = np.where(scheduled, records.numbers(records.fields + 16, "<u8"), 0)
    for row, extension in records.extensions.items():
        values[row] = extension.get("deliver_at", 0)
    return pa.array(values, pa.int64(), mask=(values == 0) & ~scheduled)


def _count(records: Records) -> pa.Array:
    outcome = records.is_type(_T.PREPARE, _T.COMMIT, _T.ROLLBACK)
    batch = records.is_type(_T.BATCH)
    at = records.fields + np.where(batch, 0, np.where(outcome, 8, 16))
    return _number_column(records, at, "<u4", outcome | batch | records.is_type(_T.DELIVERY_COUNT))


def _number(records: Records) -> pa.Array:
    at = records.fields + np.where(records.is_type(_T.BATCH), 4, 0)
    return _number_column(records, at, "<u8", records.is_type(_T.BATCH, _T.SEGMENT_END))


def _store(records: Records) -> pa.Array:
    if records.part.kind == "page":
        return _constant(records, records.part.store, pa.int64())
    valid = records.is_type(_T.PAGE, _T.PAGE_ACKS, _T.PAGE_DONE, _T.PAGE_TX, _T.PAGE_MARK)
    return _number_column(records, records.fields, "<u8", valid)


def _page(records: Records) -> pa.Array:
    if records.part.kind == "page":
        return _constant(records, records.part.segment, pa.int64())
    valid = records.is_type(_T.PAGE, _T.PAGE_ACKS, _T.PAGE_DONE, _T.PAGE_TX)
    return _number_column(records, records.fields + 8, "<u8", valid)


def _size(records: Records) -> pa.Array:
    sizes = records.ends - records.data_at
    if records.extensions:
        for row, extension in records.extensions.items():
            if "large" in extension:
                sizes[row] = extension["large"][1]
    return pa.array(sizes, pa.int64(), mask=~records.is_message)


def _duplicate_id(records: Records) -> pa.Array:
    own = records.is_type(_T.DUPLICATE_ID)
    with_map = {row: one["duplicate_id"] for row, one in records.extensions.items() if "duplicate_id" in one}
    starts = records.address_at + records.address_length
    array = _bytes(records, starts, records.ends - starts, own, pa.binary())
    if not with_map:
        return array
    values = array.to_pylist()
    for row, value in with_map.items():
        values[row] = value
    return pa.array(values, pa.binary())


def _properties(records: Records) -> pa.Array:
    values: list[str | None] = [None] * len(records)
    for row, extension in records.extensions.items():
        values[row] = json.dumps(_with_forward(extension), default=_text, sort_keys=True)
    starts = {int(row) for row in np.flatnonzero(records.is_type(_T.START, _T.PUT, _T.QUEUE))}
    ends = records.ends
    for row in starts:
        values[row] = _describe(memoryview(records.data)[int(records.positions[row]) : int(ends[row])])
    return pa.array(values, pa.string())


def _body(records: Records) -> pa.Array:
    data, starts, ends = records.data, records.data_at.tolist(), records.ends.tolist()
    rows = zip(records.is_message.tolist(), starts, ends, strict=True)
    return pa.array([data[start:end] if message else None for message, start, end in rows], pa.binary())


_COLUMNS: dict[str, Callable[[Records], pa.Array]] = {
    "file": lambda records: _constant(records, records.part.path, pa.string()),
    "kind": lambda records: _constant(records, records.part.kind, pa.string()),
    "node_id": lambda records: _constant(records, records.part.node_id, pa.string()),
    "epoch": lambda records: _constant(records, records.part.epoch, pa.int64()),
    "segment": lambda records: _constant(records, records.part.segment, pa.int64()),
    "salt": lambda records: _constant(records, records.part.salt, pa.int64()),
    "created": lambda records: _constant(records, records.part.created, pa.int64()),
    "offset": lambda records: pa.array(records.positions),
    "length": lambda records: pa.array(records.lengths),
    "checksum": lambda records: pa.array(records.numbers(records.positions + 8, "<u4")),
    "record_type": lambda records: _TYPE_NAMES.take(pa.array(records.types)),
    "fenced": _fenced,
    "folded": lambda records: _constant(records, records.part.folded, pa.bool_()),
    "tx": _tx,
    "message_id": _message_id,
    "queue_id": _queue_id,
    "message_ids": _message_ids,
    "queue_ids": _queue_ids,
    "address": _address,
    "encoding": lambda records: _small(records, 0, _ENCODINGS),
    "priority": _priority,
    "routing_type": lambda records: _small(records, 2, _ROUTING),
    "durable": lambda records: pa.array((records.flags & DURABLE) != 0, mask=~records.is_message),
    "timestamp": lambda records: _time(records, 16),
    "expiration": lambda records: _time(records, 24),
    "deliver_at": _deliver_at,
    "count": _count,
    "number": _number,
    "store": _store,
    "page": _page,
    "size": _size,
    "duplicate_id": _duplicate_id,
    "properties": _properties,
    "body": _body,
    "damage": lambda records: pa.nulls(len(records), pa.string()),
    "detail": lambda records: pa.nulls(len(records), pa.string()),
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
