"""Rows of one file as Arrow record batches. Runs in Spark's Python workers; knows nothing of Spark but the schema."""

from __future__ import annotations

import json
import mmap
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import pyarrow as pa

from pollux.formats.history import decode_history
from pollux.formats.segments import FormatError
from pollux_pipeline.sources.columns import column
from pollux_pipeline.sources.files import Part, Problem, read_checkpoint
from pollux_pipeline.sources.filters import CHECKPOINT, DAMAGE, FOLDED, LIFE, Conditions
from pollux_pipeline.sources.records import Records
from pollux_pipeline.sources.scan import PADDING, scan

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pollux.formats.checkpoint import Checkpoint
    from pollux.formats.history import History

#: Rows of a record batch at most: bounds what a worker and the JVM hold at once.
BATCH_ROWS = 65_536
_ZEROS = bytes(1 << 20)


def problem_rows(problems: Iterable[Problem], schema: pa.Schema, conditions: Conditions) -> Iterator[pa.RecordBatch]:
    """The rows of damage that was seen while planning."""
    rows = [
        {
            "file": one.path,
            "kind": one.kind,
            "node_id": one.node_id,
            "epoch": one.epoch,
            "segment": one.segment,
            "offset": one.offset,
            "length": one.length,
            "record_type": DAMAGE,
            "damage": one.damage,
            "detail": one.detail,
        }
        for one in problems
    ]
    yield from _rows(rows, schema, conditions)


def read_part(part: Part, schema: pa.Schema, conditions: Conditions) -> Iterator[pa.RecordBatch]:
    """Every row of one file that passes. Damage becomes rows; a file that vanished (a running broker's) too."""
    try:
        if part.kind == "checkpoint":
            yield from _checkpoint(part, schema, conditions)
        else:
            yield from _segment(part, schema, conditions)
    except FileNotFoundError:
        gone = _problem(part, 0, part.size, "vanished", "deleted while it was read")
        yield from problem_rows([gone], schema, conditions)


def _segment(part: Part, schema: pa.Schema, conditions: Conditions) -> Iterator[pa.RecordBatch]:
    data, size = contents(Path(part.path))
    end = size if part.end is None else min(part.end, size)
    found = scan(data, part.salt, part.start, end, final=part.final, whole=part.end is None)
    records = conditions.select(Records(data, found.positions, part))
    for start in range(0, len(records), BATCH_ROWS):
        piece = records.slice(start, start + BATCH_ROWS)
        columns = [column(piece, field.name, field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)
    problems = [_problem(part, one.start, one.end - one.start, one.kind, one.detail) for one in found.damaged]
    if part.limit is not None and found.end > part.limit:
        late = found.end - part.limit
        words = f"{late} bytes were written after another life took over; they do not count"
        problems.append(_problem(part, part.limit, late, "late-writes", words))
    if part.start == 0 and size < part.size:
        words = f"the file lost {part.size - size} bytes while it was read"
        problems.append(_problem(part, size, part.size - size, "cut", words))
    yield from problem_rows(problems, schema, conditions)


def contents(path: Path) -> tuple[bytes, int]:
    """A file's bytes with PADDING zeros behind them, and how many they are without.

    Segments are made at full length and filled later: blocks of zeros take no memory here, for what is not written to
    such a map is the system's one page of zeros.
    """
    with path.open("rb", buffering=0) as stream:
        expected = os.fstat(stream.fileno()).st_size
        data = mmap.mmap(-1, expected + PADDING, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        size = 0
        while size < expected and (block := stream.read(min(len(_ZEROS), expected - size))):
            if block != _ZEROS[: len(block)]:
                data[size : size + len(block)] = block
            size += len(block)
    return cast("bytes", data), size  # what is asked of it here it does as bytes do


def _problem(part: Part, offset: int, length: int, damage: str, detail: str) -> Problem:
    return Problem(part.path, part.kind, damage, detail, part.node_id, part.epoch, part.segment, offset, length)


def _rows(rows: list[dict[str, Any]], schema: pa.Schema, conditions: Conditions) -> Iterator[pa.RecordBatch]:
    kept = [row for row in rows if conditions.wants_row(row)]
    if kept:
        columns = [pa.array([row.get(field.name) for row in kept], field.type) for field in schema]
        yield pa.RecordBatch.from_arrays(columns, schema=schema)


# -- checkpoints ---------------------------------------------------------------------------------------------------


def _checkpoint(part: Part, schema: pa.Schema, conditions: Conditions) -> Iterator[pa.RecordBatch]:
    """Yield the queues' contents: a row of type CHECKPOINT for each message of each queue, in queue order, one of type
    FOLDED for the checkpoint itself, which may hold nothing any more, and one of type LIFE for each life it folded.

    What the checkpoint keeps of undecided transactions and of pages comes as rows of the records it stands for.
    """
    try:
        checkpoint = read_checkpoint(Path(part.path))
    except FormatError as error:
        yield from problem_rows([_problem(part, 0, part.size, "corrupt", str(error))], schema, conditions)
        return
    where = {
        "file": part.path,
        "kind": part.kind,
        "node_id": part.node_id,
        "epoch": part.epoch,
        "segment": part.segment,
        "fenced": False,
        "folded": False,
    }
    if conditions.wants_row({**where, "record_type": CHECKPOINT, "timestamp": None}):
        yield from _queues(checkpoint, where, schema)
    history = decode_history(checkpoint.state, checkpoint.key[1:])
    pages = [{"address": address, "pages": one[0], "messages": one[1]} for address, one in history.pages.items()]
    told = json.dumps({"unknown": history.unknown, "pages": pages})
    itself = {"record_type": FOLDED, "count": sum(count for *_, count in checkpoint.queues), "properties": told}
    rows = [where | row for row in (itself, *_lives(history), *_state(checkpoint.state))]
    yield from _rows(rows, schema, conditions)


def _lives(history: History) -> Iterator[dict[str, Any]]:
    for life in history.lives.values():
        names = ("messages", "bytes", "largest")
        counted = [{"address": address, **dict(zip(names, one, strict=True))} for address, one in life.counted.items()]
        told = {name: getattr(life, name) for name in ("epoch", "salt", "created", "began", "ended", "end", "newest")}
        messages = sum(counts[0] for counts in life.counted.values())
        yield {"record_type": LIFE, "count": messages, "properties": json.dumps(told | {"counted": counted})}


def _queues(checkpoint: Checkpoint, where: dict[str, Any], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    ids = np.asarray(checkpoint.queue_ids, np.uint64).astype(np.int64)
    for queue_id, priority, first, count in checkpoint.queues:
        for start in range(first, first + count, BATCH_ROWS):
            stop = min(start + BATCH_ROWS, first + count)
            same: dict[str, Any] = {"record_type": CHECKPOINT, "queue_id": queue_id, "priority": priority} | where
            columns = []
            for field in schema:
                if field.name == "message_id":
                    columns.append(pa.array(ids[start:stop], field.type))
                elif field.name in ("number", "offset"):
                    columns.append(pa.array(np.arange(start - first, stop - first), field.type))
                else:
                    columns.append(pa.repeat(pa.scalar(same.get(field.name), field.type), stop - start))
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _state(state: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for queue_id, message_id, count in state["delivery_counts"]:
        yield {"record_type": "DELIVERY_COUNT", "queue_id": queue_id, "message_id": message_id, "count": count}
    for address, values in state["duplicates"].items():
        for value in values:
            yield {"record_type": "DUPLICATE_ID", "address": address, "duplicate_id": bytes(value)}
    for store, page, queues in state["page_acks"]:
        for queue_id, ids in queues:
            yield _ids("PAGE_ACKS", ids, store=store, page=page, queue_id=queue_id)
    for store, pages in state["pages_done"]:
        for page in pages:
            yield {"record_type": "PAGE_DONE", "store": store, "page": page}
    for store, address, pages in state.get("page_files", ()):
        for page in pages:
            yield {"record_type": "PAGE", "store": store, "page": page, "address": address}
    if reach := state.get("reach"):
        yield {"record_type": "SEGMENT_END", "number": reach}
    for store, page, transactions in state["page_tx"]:
        for tx in transactions:
            yield {
                "record_type": "PAGE_TX",
                "store": store,
                "page": page,
                "tx": tx,
                "properties": '{"committed": true}',
            }
    for transaction in state["pending"]:
        yield from _undecided(*transaction)


def _undecided(tx: int, *parts: Any) -> Iterator[dict[str, Any]]:
    """The records of a transaction that was neither committed nor rolled back."""
    messages, acks, references, duplicates, page_acks, pages, xid, *_links = parts
    for message_id, priority, queues, deliver_at, address, duplicate in messages:
        row = _queued("MESSAGE", message_id, priority, queues)
        more = {"address": address, "duplicate_id": duplicate, "deliver_at": deliver_at or None}
        yield {**row, **more, "tx": tx}
    for queue_id, ids in acks:
        yield _ids("ACKS", ids, queue_id=queue_id, tx=tx)
    for message_id, priority, queues in references:
        yield {**_queued("REFERENCES", message_id, priority, queues), "tx": tx}
    for address, value in duplicates:
        yield {"record_type": "DUPLICATE_ID", "address": address, "duplicate_id": bytes(value), "tx": tx}
    for store, page, queue_id, ids in page_acks:
        yield _ids("PAGE_ACKS", ids, store=store, page=page, queue_id=queue_id, tx=tx)
    for store, page in pages:
        yield {"record_type": "PAGE_TX", "store": store, "page": page, "tx": tx}
    if xid is not None:
        yield {"record_type": "PREPARE", "tx": tx}


def _ids(record_type: str, ids: Iterable[int], **values: Any) -> dict[str, Any]:
    listed = list(ids)
    return {"record_type": record_type, "message_ids": listed, "message_id": listed[0] if listed else None, **values}


def _queued(record_type: str, message_id: int, priority: int, queues: Iterable[int]) -> dict[str, Any]:
    listed = list(queues)
    first = listed[0] if listed else None
    row = {"record_type": record_type, "message_id": message_id, "priority": priority}
    return {**row, "queue_ids": listed, "queue_id": first}
