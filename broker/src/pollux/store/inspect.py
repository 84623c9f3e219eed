"""Looking into a store without changing it: what ``pollux journal dump|verify|stat`` print.

Works on directories of a stopped broker and of a running one (read-only; files that vanish
while they are looked at are left out). Everything is read by docs/journal-format.md.
"""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from pollux.errors import StoreError
from pollux.store import records, recovery
from pollux.store.bindings import NAME as BINDINGS_NAME
from pollux.store.bindings import newest_file, read_bindings
from pollux.store.checkpoint import Checkpoint, parse_name
from pollux.store.checkpointer import BODIES_NAME
from pollux.store.format import (
    FRAME_SIZE,
    HEADER_SIZE,
    DamagedRange,
    FormatError,
    SegmentHeader,
    decode_header,
    valid_at,
)
from pollux.store.format import records as scan
from pollux.store.large import LargeMessage
from pollux.store.records import TX, RecordType
from pollux.store.recovered import Damage
from pollux.store.state import FILE_SHIFT, OFFSET_MASK, State

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

#: Enough for every duplicate id a journal can hold: tools do not forget any.
_ALL_DUPLICATES = 1 << 62


class Report(Struct):
    """What ``verify`` found. ``damage`` of kind "torn-tail" is normal after a crash."""

    directory: Path
    files: int = 0
    records: int = 0
    bytes: int = 0
    live_messages: int = 0
    checkpoint: Path | None = None
    damage: list[Damage] = field(default_factory=list)
    #: What makes the directory unusable as a whole, in words; None when recovery would go through.
    refused: str | None = None

    @property
    def sound(self) -> bool:
        """Whether nothing that was confirmed is missing."""
        return self.refused is None and all(damage.kind == "torn-tail" for damage in self.damage)


def segment_files(directory: Path) -> list[Path]:
    """Files in the segment format, in the order they were written: journal, bodies, bindings, pages."""
    patterns = (recovery.SEGMENT_NAME, BODIES_NAME, BINDINGS_NAME)
    found = [path for path in directory.iterdir() if any(pattern.fullmatch(path.name) for pattern in patterns)]
    return sorted(found, key=lambda path: path.name) + sorted(directory.glob("*.page"))


def dump(
    directory: Path,
    *,
    types: Sequence[str] | None = None,
    queue: int | None = None,
    message: int | None = None,
    data: bool = False,
) -> Iterator[dict[str, Any]]:
    """Every record of a directory (journal, bindings or one address's pages), oldest file first.

    ``types`` limits to record types by name, ``queue`` and ``message`` to records that mention the id; with
    ``data`` message bytes are included. Damaged ranges come as ``{"type": "DAMAGED", ...}``. Raises StoreError.
    """
    wanted = {name.upper() for name in types} if types else None
    for path in segment_files(directory):
        with suppress(FileNotFoundError):
            for entry in _dump_file(path, data=data):
                if wanted is not None and entry["type"] not in wanted:
                    continue
                if queue is not None and queue not in (entry.get("queue"), *entry.get("queues", ())):
                    continue
                if message is not None and message not in (entry.get("message"), *entry.get("messages", ())):
                    continue
                yield entry


def _dump_file(path: Path, *, data: bool) -> Iterator[dict[str, Any]]:
    content = path.read_bytes()
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


def _outcome(record: memoryview, position: int) -> dict[str, Any]:
    count = records.U32.unpack_from(record, position + 8)[0]
    return _numbers(record, position, "tx") | {"records": count, "xid": record[position + 12 :].tobytes()}


def _start(record: memoryview, _: int) -> dict[str, Any]:
    ends, checkpoint = records.decode_start(record)
    return {"ends": [[*key, end] for key, end in ends.items()], "checkpoint": checkpoint}


def _put(record: memoryview, _: int) -> dict[str, Any]:
    kind, key, value = records.decode_put(record)
    return {"kind": kind, "key": key, "value": value}


def _page_end(record: memoryview, _: int) -> dict[str, Any]:
    counts = records.decode_page_end(record)
    return {"count": counts.messages, "per_queue": counts.queues, "large": counts.large}


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
    RecordType.QUEUE: lambda record, at: _numbers(record, at, "queue") | {"value": record[at + 8 :].tobytes()},
    RecordType.PAGE_TX: lambda record, at: _numbers(record, at, "store", "page"),
    RecordType.PAGE_MARK: lambda record, at: _numbers(record, at, "store", "message"),
}


def verify(directory: Path) -> Report:
    """Read a journal directory (or a bindings directory) as recovery would and check every live message's record.

    Changes nothing. Never raises for damage: the report says what recovery would say or refuse.
    """
    report = Report(directory)
    try:
        if newest_file(directory) is not None:
            _verify_bindings(directory, report)
        else:
            _verify_journal(directory, report)
    except (StoreError, FileNotFoundError) as error:
        report.refused = str(error)
    return report


def _verify_bindings(directory: Path, report: Report) -> None:
    path = newest_file(directory)
    if path is None:
        return
    values, report.damage, _ = read_bindings(path, None)
    report.files, report.records, report.bytes = 1, len(values), path.stat().st_size


class Replayed(Struct):
    """A journal directory read as recovery would read it."""

    segments: list[recovery.SegmentFile]
    starts: list[recovery.Start]
    checkpoint: Checkpoint | None
    journal: recovery.Journal
    #: The segments that were replayed, in the order of the numbers in ``state.locations``.
    readable: list[recovery.SegmentFile]
    state: State
    damage: list[Damage]

    @property
    def folded(self) -> tuple[int, int]:
        """(epoch, sequence) of the last segment that the checkpoint holds."""
        return self.checkpoint.key[1:] if self.checkpoint is not None else (0, 0)


def replay(directory: Path) -> Replayed:
    """Read a journal directory and change nothing. Raises FormatError, StoreError for one that cannot be read."""
    segments = recovery.read_segments(directory, None)
    nodes = {segment.header.node_id for segment in segments if segment.header is not None}
    if len(nodes) > 1:
        raise FormatError(f"{directory}: files of {len(nodes)} different nodes: {', '.join(n.hex() for n in nodes)}")
    starts = recovery.read_starts(segments)
    checkpoint, damage = recovery.choose_checkpoint(directory, starts, None)
    journal = recovery.arrange(segments, starts, checkpoint.key[1:] if checkpoint is not None else (0, 0), None)
    damage += recovery.damaged_headers(journal.chain)
    state = State(_ALL_DUPLICATES)
    if checkpoint is not None:
        checkpoint.load_into(state, bodies=False)
    readable = [segment for segment in journal.chain if segment.header is not None]
    buffer = bytearray()
    finals = recovery.last_of_lives(readable)
    for number, segment in enumerate(readable):
        recovery.replay_segment(state, segment, number, buffer)
        final = segment.key in finals
        damage += recovery.settle_segment(state, directory, segment, final=final, keep=False)
    damage += recovery.check_batches(readable)
    damage += recovery.fenced_damage(journal.fenced)
    return Replayed(segments, starts, checkpoint, journal, readable, state, damage)


def _verify_journal(directory: Path, report: Report) -> None:
    found = replay(directory)
    checkpoint, journal, state = found.checkpoint, found.journal, found.state
    report.damage = found.damage
    report.checkpoint = checkpoint.path if checkpoint is not None else None
    report.files = len(journal.chain) + len(journal.folded) + (checkpoint is not None)
    report.bytes = checkpoint.size if checkpoint is not None else 0
    for segment in found.readable:
        if segment.replay is not None:
            report.records += segment.replay.records
            report.bytes += segment.replay.end
    live = state.prune(state.finish())
    report.live_messages = len(live)
    _verify_bodies(directory, report, checkpoint, set(state.ids), live)
    recovery.check_missing(directory, journal.chain, found.starts, found.folded[1], allowed=False)
    recovery.check_bodies(directory, checkpoint, allowed=False)


def _verify_bodies(
    directory: Path, report: Report, checkpoint: Checkpoint | None, replayed: set[int], live: set[int]
) -> None:
    """Every live message must have a valid record: in the chain just replayed, or where the checkpoint says."""
    missing = live - replayed
    if checkpoint is not None:
        contents: dict[int, bytes] = {}
        for position, message_id in enumerate(checkpoint.ids):
            if message_id not in missing:
                continue
            file, offset = checkpoint.locations[position] >> FILE_SHIFT, checkpoint.locations[position] & OFFSET_MASK
            body = checkpoint.files[file]
            path = directory / body.name
            if file not in contents:
                contents.clear()
                contents[file] = path.read_bytes() if path.exists() else b""
            view = memoryview(contents[file])
            length = checkpoint.lengths[position]
            missing.discard(message_id)
            if valid_at(view, offset, len(view), body.salt) != length:
                words = f"the record of message {message_id} is damaged"
                report.damage.append(Damage(path, offset, length, "lost-body", words))
    for message_id in sorted(missing):
        words = f"message {message_id} is in a queue, but no file holds it"
        report.damage.append(Damage(directory, 0, 0, "lost-body", words))


def stat(directory: Path) -> dict[str, Any]:
    """Figures of a journal directory, cheap to get: files, sizes, epochs, what a start would replay."""
    segments = recovery.read_segments(directory, None)
    starts = recovery.read_starts(segments)
    checkpoint, damage = recovery.choose_checkpoint(directory, starts, None)
    folded = checkpoint.key[1:] if checkpoint is not None else (0, 0)
    journal = recovery.arrange(segments, starts, folded, None)
    headers: list[SegmentHeader] = [segment.header for segment in segments if segment.header is not None]
    sizes = _sizes(directory)
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


def _sizes(directory: Path) -> dict[str, tuple[int, int]]:
    sizes = {"segments": (0, 0), "bodies": (0, 0), "checkpoints": (0, 0), "other": (0, 0)}
    with os.scandir(directory) as entries:
        for entry in entries:
            if not entry.is_file():
                continue
            if recovery.SEGMENT_NAME.fullmatch(entry.name):
                kind = "segments"
            elif BODIES_NAME.fullmatch(entry.name):
                kind = "bodies"
            else:
                kind = "checkpoints" if parse_name(entry.name) else "other"
            with suppress(FileNotFoundError):
                count, size = sizes[kind]
                sizes[kind] = (count + 1, size + entry.stat().st_size)
    return sizes
