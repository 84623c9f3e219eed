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

This module is pure: buffers in, values out.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from pollux.checksum import crc32c
from pollux.formats.names import CheckpointKey, checkpoint_key, checkpoint_name
from pollux.formats.segments import FormatError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MAGIC = b"PLXCKP\r\n"
VERSION = 1
HEADER = struct.Struct("<8sHHI16sQQQII")
ENTRY = struct.Struct("<IIQQ")

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


def encode_checkpoint(
    node_id: bytes, key: CheckpointKey, sections: Sequence[tuple[int, bytes | memoryview]]
) -> list[tuple[int, bytes | memoryview]]:
    """Return (offset, bytes) of all parts of a file, the header with its table first; between them are zeros."""
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
    return [(0, head + struct.pack("<I", crc32c(head)) + table), *layout]


def decode_node(head: bytes) -> bytes | None:
    """Return the node in a checkpoint's header, which is its first HEADER.size bytes; None when it is not sound."""
    if len(head) < HEADER.size or head[: len(MAGIC)] != MAGIC:
        return None
    fields = HEADER.unpack(head)
    return bytes(fields[4]) if crc32c(head[:60]) == fields[9] else None


def decode_checkpoint(view: memoryview, path: Path, node_id: bytes | None) -> Checkpoint:
    """Verify all of a checkpoint; ``view`` is the file's content. Raises FormatError.

    ``node_id``: whose it must be; None: any node's.
    """
    key = checkpoint_key(path.name)
    if key is None:
        raise FormatError(f"{path}: not a checkpoint's name")
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
