"""Looking into a store without changing it: what ``pollux journal dump|stat`` print.

Works on directories of a stopped broker and of a running one (read-only; files that vanish
while they are looked at are left out). Everything is read by docs/journal-format.md.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from pollux.formats import records
from pollux.formats.lives import arrange
from pollux.formats.names import BINDINGS_NAME, BODIES_NAME, SEGMENT_NAME, checkpoint_key
from pollux.formats.records import TX, RecordType
from pollux.formats.segments import FRAME_SIZE, HEADER_SIZE, DamagedRange, FormatError, SegmentHeader, decode_header
from pollux.formats.segments import records as scan
from pollux.store import recovery
from pollux.store.files import DISK, read_all
from pollux.store.large import LargeMessage

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from pollux.store.port import Files


def segment_files(directory: Path, files: Files = DISK) -> list[Path]:
    """Files in the segment format, in the order they were written: journal, bodies, bindings, pages."""
    patterns = (SEGMENT_NAME, BODIES_NAME, BINDINGS_NAME)
    names = sorted(entry.name for entry in files.entries(directory))
    found = [name for name in names if any(pattern.fullmatch(name) for pattern in patterns)]
    return [directory / name for name in (*found, *(name for name in names if name.endswith(".page")))]


def dump(
    directory: Path,
    *,
    types: Sequence[str] | None = None,
    queue: int | None = None,
    message: int | None = None,
    data: bool = False,
    files: Files = DISK,
) -> Iterator[dict[str, Any]]:
    """Every record of a directory (journal, bindings or one address's pages), oldest file first.

    ``types`` limits to record types by name, ``queue`` and ``message`` to records that mention the id; with
    ``data`` message bytes are included. Damaged ranges come as ``{"type": "DAMAGED", ...}``. Raises StoreError.
    """
    wanted = {name.upper() for name in types} if types else None
    for path in segment_files(directory, files):
        with suppress(FileNotFoundError):
            for entry in _dump_file(path, files, data=data):
                if wanted is not None and entry["type"] not in wanted:
                    continue
                if queue is not None and queue not in (entry.get("queue"), *entry.get("queues", ())):
                    continue
                if message is not None and message not in (entry.get("message"), *entry.get("messages", ())):
                    continue
                yield entry


def _dump_file(path: Path, files: Files, *, data: bool) -> Iterator[dict[str, Any]]:
    content = read_all(path, files)
    if not content[:HEADER_SIZE].strip(b"\0"):
        return
    try:
        header = decode_header(content, str(path))
    except FormatError as error:
        yield {"file": str(path), "offset": 0, "length": len(content), "type": "DAMAGED", "detail": str(error)}
        return
    view = memoryview(content)
    for entry in scan(content, header.salt):
        if isinstance(entry, DamagedRange):
            length = entry.end - entry.start
            words = "the end of the file's data" if entry.tail else "reading went on behind it"
            yield {"file": str(path), "offset": entry.start, "length": length, "type": "DAMAGED", "detail": words}
            continue
        offset, length = entry
        where = {"file": str(path), "epoch": header.epoch, "sequence": header.sequence}
        where |= {"offset": offset, "length": length}
        yield where | describe(view[offset : offset + length], data=data)


def describe(record: memoryview, *, data: bool = False) -> dict[str, Any]:
    """A framed record in words."""
    kind, flags = record[FRAME_SIZE], record[FRAME_SIZE + 1]
    try:
        name = RecordType(kind).name
    except ValueError:
        return {"type": f"UNKNOWN({kind})"}
    result: dict[str, Any] = {"type": name}
    position = records.FIELDS
    if flags & TX:
        (result["tx"],) = records.U64.unpack_from(record, position)
        position = records.FIELDS_TX
    result.update(_FIELDS[RecordType(kind)](record, position))
    if kind == RecordType.MESSAGE:
        result.update(_describe_message(record, data=data))
    return result


def _numbers(record: memoryview, position: int, *names: str) -> dict[str, Any]:
    return {name: records.U64.unpack_from(record, position + 8 * number)[0] for number, name in enumerate(names)}


def _u64s(record: memoryview, position: int) -> list[int]:
    return list(memoryview(record[position:].tobytes()).cast("Q"))


def _describe_message(record: memoryview, *, data: bool) -> dict[str, Any]:
    message, queue_ids = records.decode_message(record, LargeMessage)
    result: dict[str, Any] = {
        "message": message.id,
        "address": message.address,
        "queues": queue_ids,
        "encoding": message.encoding.name,
        "priority": message.priority,
        "durable": message.durable,
        "routing_type": None if message.routing_type is None else message.routing_type.name,
        "timestamp": message.timestamp,
        "expiration": message.expiration,
        "size": len(message.data),
    }
    result.update(records.message_extension(record))
    if data:
        result["data"] = message.data
    return result


def _batch(record: memoryview, position: int) -> dict[str, Any]:
    (size,) = records.U32.unpack_from(record, position)
    return {"size": size} | _numbers(record, position + 4, "number")


def _acks(record: memoryview, position: int) -> dict[str, Any]:
    return _numbers(record, position, "queue") | {"messages": _u64s(record, position + 8)}


def _delivery_count(record: memoryview, position: int) -> dict[str, Any]:
    return _numbers(record, position, "queue", "message") | {"count": records.U32.unpack_from(record, position + 16)[0]}


def _references(record: memoryview, position: int) -> dict[str, Any]:
    priority, message_id = records.REFERENCE_FIELDS.unpack_from(record, position)
    queues = _u64s(record, position + records.REFERENCE_FIELDS.size)
    return {"priority": priority, "message": message_id, "queues": queues}


def _duplicate(record: memoryview, _: int) -> dict[str, Any]:
    address, value = records.decode_duplicate_id(record)
    return {"address": address, "duplicate_id": value}


def _link(record: memoryview, _: int) -> dict[str, Any]:
    key, life, number = records.decode_link(record)
    return {"key": key, "life": life, "number": number}


def _outcome(record: memoryview, position: int) -> dict[str, Any]:
    count = records.U32.unpack_from(record, position + 8)[0]
    return _numbers(record, position, "tx") | {"records": count, "xid": record[position + 12 :].tobytes()}


def _start(record: memoryview, _: int) -> dict[str, Any]:
    ends, checkpoint = records.decode_start(record)
    tails = [[*key, end] for key, end in records.decode_tails(record).items()]
    torn = [[*key, *hole] for key, holes in records.decode_torn(record).items() for hole in holes]
    found = {"ends": [[*key, end] for key, end in ends.items()], "tails": tails, "checkpoint": checkpoint}
    return found | ({"torn": torn} if torn else {})


def _put(record: memoryview, _: int) -> dict[str, Any]:
    kind, key, value = records.decode_put(record)
    return {"kind": kind, "key": key, "value": value} | (_spec(value) if kind == "queue" and value is not None else {})


def _queue(record: memoryview, position: int) -> dict[str, Any]:
    value = record[position + 8 :].tobytes()
    return _numbers(record, position, "queue") | {"value": value} | _spec(value)


def _spec(value: bytes) -> dict[str, Any]:
    """Return what a queue's binding says of it, in words; nothing where it cannot be read."""
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
        kept = msgspec.msgpack.decode(value)
        if isinstance(kept, dict) and isinstance(kept.get("spec"), dict):
            return {"spec": kept["spec"]}
    return {}


def _page_end(record: memoryview, _: int) -> dict[str, Any]:
    counts = records.decode_page_end(record)
    return {"count": counts.messages, "per_queue": counts.queues, "large": counts.large}


def _page(record: memoryview, position: int) -> dict[str, Any]:
    return _numbers(record, position, "store", "page") | {"address": records.page_address(record)}


def _page_acks(record: memoryview, position: int) -> dict[str, Any]:
    return _numbers(record, position, "store", "page", "queue") | {"messages": _u64s(record, position + 24)}


_FIELDS: dict[RecordType, Callable[[memoryview, int], dict[str, Any]]] = {
    RecordType.BATCH: _batch,
    RecordType.MESSAGE: lambda _record, _position: {},
    RecordType.ACKS: _acks,
    RecordType.DELIVERY_COUNT: _delivery_count,
    RecordType.SCHEDULE: lambda record, at: _numbers(record, at, "queue", "message", "deliver_at"),
    RecordType.REFERENCES: _references,
    RecordType.DUPLICATE_ID: _duplicate,
    RecordType.PREPARE: _outcome,
    RecordType.COMMIT: _outcome,
    RecordType.ROLLBACK: _outcome,
    RecordType.START: _start,
    RecordType.PUT: _put,
    RecordType.PAGE_END: _page_end,
    RecordType.PAGE_ACKS: _page_acks,
    RecordType.PAGE_DONE: lambda record, at: _numbers(record, at, "store", "page"),
    RecordType.DROP_QUEUE: lambda record, at: _numbers(record, at, "queue"),
    RecordType.QUEUE: _queue,
    RecordType.PAGE_TX: lambda record, at: _numbers(record, at, "store", "page"),
    RecordType.PAGE_MARK: lambda record, at: _numbers(record, at, "store", "message"),
    RecordType.PAGE: _page,
    RecordType.LINK: _link,
    RecordType.SEGMENT_END: lambda record, at: _numbers(record, at, "next"),
}


def stat(directory: Path, files: Files = DISK) -> dict[str, Any]:
    """Figures of a journal directory, cheap to get: files, sizes, epochs, what a start would replay."""
    segments = recovery.read_segments(directory, None, files=files)
    starts = recovery.read_starts(segments)
    checkpoint, damage = recovery.choose_checkpoint(directory, starts, None, files=files)
    folded = checkpoint.key[1:] if checkpoint is not None else (0, 0)
    journal = arrange(segments, starts, folded, None, recovery.is_empty)
    headers: list[SegmentHeader] = [segment.header for segment in segments if segment.header is not None]
    sizes = _sizes(directory, files)
    result: dict[str, Any] = {
        "directory": str(directory),
        "node_id": headers[0].node_id.hex() if headers else None,
        "epochs": sorted({segment.epoch for segment in segments}),
        "files": {kind: count for kind, (count, _) in sizes.items()},
        "bytes": {kind: size for kind, (_, size) in sizes.items()},
        "to_replay": {"segments": len(journal.chain), "bytes": sum(segment.size for segment in journal.chain)},
        "prepared_segments": len(journal.empty),
        "fenced_segments": len(journal.fenced),
        "body_segments": len(journal.folded),
        "checkpoint": None,
        "problems": [str(one) for one in damage],
    }
    if checkpoint is not None:
        result["checkpoint"] = {
            "file": checkpoint.path.name,
            "epoch": checkpoint.key[0],
            "folded": list(checkpoint.key[1:]),
            "messages": len(checkpoint.ids),
            "queues": len({queue_id for queue_id, *_ in checkpoint.queues}),
            "live_bytes": sum(file.live for file in checkpoint.files),
            "used_bytes": sum(file.used for file in checkpoint.files),
        }
    return result


def _sizes(directory: Path, files: Files) -> dict[str, tuple[int, int]]:
    sizes = {"segments": (0, 0), "bodies": (0, 0), "checkpoints": (0, 0), "other": (0, 0)}
    for entry in files.entries(directory):
        if entry.is_directory:
            continue
        if SEGMENT_NAME.fullmatch(entry.name):
            kind = "segments"
        elif BODIES_NAME.fullmatch(entry.name):
            kind = "bodies"
        else:
            kind = "checkpoints" if checkpoint_key(entry.name) else "other"
        with suppress(FileNotFoundError):
            count, size = sizes[kind]
            sizes[kind] = (count + 1, size + files.status(directory / entry.name).size)
    return sizes
