"""Checkpoint files: the state up to a segment, so that recovery replays only what came later.

::

    offset size  header (little-endian)
    0      8     magic b"PLXCKP\\r\\n"
    8      2     format version (1)
    10     2     zero
    12     4     number of sections
    16     16    node id
    32     8     epoch of the life that wrote it
    40     8     epoch of the last folded segment
    48     8     sequence of the last folded segment
    56     4     crc32c of the section table
    60     4     crc32c of bytes 0..59
    64     24*n  table: section id (4), crc32c of the section (4), offset (8), length (8)

Sections start at multiples of 8. Arrays are unsigned little-endian, the rest is msgpack. The sections
are listed in docs/journal-format.md. A checkpoint is written beside, synced and renamed, never changed.
"""

from __future__ import annotations

import os
import struct
from array import array
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from pollux.checksum import crc32c
from pollux.formats.names import CheckpointKey, checkpoint_key, checkpoint_name
from pollux.formats.segments import FormatError
from pollux.store.files import DISK, FileReader, write_all
from pollux.store.index import Index
from pollux.store.state import Pending, State

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from pollux.store.port import Files


MAGIC = b"PLXCKP\r\n"
VERSION = 1
HEADER = struct.Struct("<8sHHI16sQQQII")
ENTRY = struct.Struct("<IIQQ")
#: Bytes of one write.
_WRITE_BYTES = 8 << 20

FILES, IDS, LOCATIONS, LENGTHS, QUEUES, QUEUE_IDS, STATE = range(1, 8)


class BodyFile(Struct):
    """A file that holds bodies of live messages."""

    name: str
    salt: int
    #: Records' bytes in the file, and how many of them belong to live messages.
    used: int
    live: int


class Checkpoint(Struct):
    """A checkpoint file, mapped into memory. Arrays are views of the mapping."""

    path: Path
    key: CheckpointKey
    files: list[BodyFile]
    ids: memoryview
    locations: memoryview
    lengths: memoryview
    queues: list[tuple[int, int, int, int]]
    queue_ids: memoryview
    state: dict[str, Any]
    size: int
    node_id: bytes

    def index(self, directory: Path) -> Index:
        """For cold reads. The memory of the arrays stays on disk."""
        paths = [directory / file.name for file in self.files]
        return Index(paths, [file.salt for file in self.files], self.ids, self.locations, self.lengths)

    def load_into(self, state: State, *, bodies: bool) -> None:
        """Fill an empty state; with ``bodies`` the message index too (the checkpointer folds it further)."""
        for queue_id, priority, start, count in self.queues:
            ids = array("Q")
            ids.frombytes(self.queue_ids[start : start + count].cast("B"))
            state.added[queue_id << 4 | priority] = ids
        state.references = None
        if bodies:
            state.ids.frombytes(self.ids.cast("B"))
            state.locations.frombytes(self.locations.cast("B"))
            state.lengths.frombytes(self.lengths.cast("B"))
        values = self.state
        state.delivery_counts.update({(queue, message): count for queue, message, count in values["delivery_counts"]})
        state.schedules.update({(queue, message): at for queue, message, at in values["schedules"]})
        for address, duplicates in values["duplicates"].items():
            state.duplicates[address] = dict.fromkeys(duplicates)
        for tx, messages, acknowledgements, references, duplicates, page_acks, pages, xid in values["pending"]:
            state.pending[tx] = Pending(
                [(one[0], one[1], tuple(one[2]), *one[3:]) for one in messages],
                [(queue_id, ids) for queue_id, ids in acknowledgements],
                [(message_id, priority, tuple(queue_ids)) for message_id, priority, queue_ids in references],
                [(address, value) for address, value in duplicates],
                [(store, page, queue_id, ids) for store, page, queue_id, ids in page_acks],
                [(store, page) for store, page in pages],
                xid,
            )
        state.large.update(dict(values["large"]))
        for store, page, queues in values["page_acks"]:
            state.page_acks[store, page] = {queue_id: set(ids) for queue_id, ids in queues}
        for store, done in values["pages_done"]:
            state.pages_done[store] = set(done)
        state.page_marks.update(values.get("page_marks", {}))
        state.queue_records.update(values.get("queue_records", {}))
        for store, address, pages in values.get("page_files", ()):
            state.page_files[store] = set(pages)
            state.page_addresses[store] = address
        state.large_sizes.update(dict(values.get("large_sizes", ())))
        state.large_sums.update(dict(values.get("large_sums", ())))
        state.reach = values.get("reach", 0)
        state.page_ends.update({(store, page): end for store, page, end in values.get("page_ends", ())})
        for store, page, committed in values["page_tx"]:
            state.page_tx[store, page] = set(committed)


def encode_state(state: State) -> dict[str, Any]:
    """The STATE section of a finished state."""
    return {
        "delivery_counts": [[queue, message, count] for (queue, message), count in state.delivery_counts.items()],
        "schedules": [[queue, message, at] for (queue, message), at in state.schedules.items()],
        "duplicates": {address: list(kept) for address, kept in state.duplicates.items()},
        "pending": [
            [
                tx,
                one.messages,
                one.acknowledgements,
                one.references,
                one.duplicates,
                one.page_acks,
                one.pages,
                one.xid,
            ]
            for tx, one in state.pending.items()
        ],
        "large": list(state.large.items()),
        "page_acks": [
            [*key, [[queue_id, list(ids)] for queue_id, ids in queues.items()]]
            for key, queues in state.page_acks.items()
        ],
        "page_marks": state.page_marks,
        "page_tx": [[*key, list(committed)] for key, committed in state.page_tx.items()],
        "page_files": [
            [store, address, list(state.page_files.get(store, ()))] for store, address in state.page_addresses.items()
        ],
        "large_sizes": list(state.large_sizes.items()),
        "large_sums": list(state.large_sums.items()),
        "reach": state.reach,
        "page_ends": [[*key, end] for key, end in state.page_ends.items()],
        "pages_done": [[store, list(done)] for store, done in state.pages_done.items()],
        "queue_records": state.queue_records,
    }


def write_checkpoint(
    files: Files,
    directory: Path,
    node_id: bytes,
    key: CheckpointKey,
    sections: Sequence[tuple[int, bytes | memoryview]],
) -> Path:
    """Write, sync and install a checkpoint. Raises OSError; what is left then is only a ``.tmp`` file."""
    position = HEADER.size + ENTRY.size * len(sections)
    entries: list[bytes] = []
    layout: list[tuple[int, bytes | memoryview]] = []
    for section, data in sections:
        position = (position + 7) & ~7
        entries.append(ENTRY.pack(section, crc32c(data), position, len(data)))
        layout.append((position, data))
        position += len(data)
    table = b"".join(entries)
    head = HEADER.pack(MAGIC, VERSION, 0, len(sections), node_id, *key, crc32c(table), 0)[:60]
    path = directory / checkpoint_name(key)
    unfinished = path.with_suffix(".tmp")
    fd = files.open(unfinished, os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    try:
        write_all(files, fd, head + struct.pack("<I", crc32c(head)) + table, 0, sync=False)
        for offset, data in layout:
            view = memoryview(data)
            for start in range(0, len(view), _WRITE_BYTES):
                write_all(files, fd, view[start : start + _WRITE_BYTES], offset + start, sync=False)
        files.fsync(fd)
    finally:
        files.close(fd)
    files.rename(unfinished, path)
    files.sync_directory(directory)
    return path


def node_of(path: Path, files: Files = DISK) -> bytes | None:
    """The node in a checkpoint's header; None when that is not a sound one. Raises OSError."""
    with FileReader(path, files) as stream:
        head = stream.read(HEADER.size)
    if len(head) < HEADER.size or head[: len(MAGIC)] != MAGIC:
        return None
    fields = HEADER.unpack(head)
    return bytes(fields[4]) if crc32c(head[:60]) == fields[9] else None


def read_checkpoint(path: Path, node_id: bytes | None, files: Files = DISK) -> Checkpoint:
    """Map a checkpoint and verify all of it. Raises FormatError."""
    key = checkpoint_key(path.name)
    if key is None:
        raise FormatError(f"{path}: not a checkpoint's name")
    view = files.view(path)
    size = len(view)
    if size < HEADER.size:
        raise FormatError(f"{path}: {size} bytes are too few for a checkpoint")
    magic, version, _, count, node, *found, table_crc, header_crc = HEADER.unpack_from(view)
    if magic != MAGIC or crc32c(view[:60]) != header_crc:
        raise FormatError(f"{path}: not a checkpoint, or its header is damaged")
    if version != VERSION:
        raise FormatError(f"{path}: checkpoint version {version}; this Pollux reads version {VERSION} only")
    if node_id is not None and node != node_id:
        raise FormatError(f"{path}: belongs to node {node.hex()}, this broker is node {node_id.hex()}")
    if tuple(found) != key:
        raise FormatError(f"{path}: its header says {checkpoint_name((found[0], found[1], found[2]))}")
    table = view[HEADER.size : HEADER.size + ENTRY.size * count]
    if crc32c(table) != table_crc:
        raise FormatError(f"{path}: the section table is damaged")
    sections: dict[int, memoryview] = {}
    for section, crc, offset, length in ENTRY.iter_unpack(table):
        data = view[offset : offset + length]
        if len(data) != length or crc32c(data) != crc:
            raise FormatError(f"{path}: section {section} is damaged")
        sections[section] = data
    if missing := set(range(1, 8)) - set(sections):
        raise FormatError(f"{path}: sections {sorted(missing)} are missing")
    decode = msgspec.msgpack.decode
    return Checkpoint(
        path,
        key,
        [BodyFile(*values) for values in decode(sections[FILES])],
        sections[IDS].cast("Q"),
        sections[LOCATIONS].cast("Q"),
        sections[LENGTHS].cast("I"),
        [(queue_id, priority, start, number) for queue_id, priority, start, number in decode(sections[QUEUES])],
        sections[QUEUE_IDS].cast("Q"),
        decode(sections[STATE]),
        size,
        bytes(node),
    )
