"""Changes of files, as values and as bytes (docs/replication.md). Pure.

A path is ``ROOT/relative``: ROOT is one of the store's directories by its short name, so that the two sides may have
them in different places.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from pollux.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

#: The store's directories, and how deep their files lie.
ROOTS = {"journal": 1, "bindings": 1, "large": 1, "paging": 2}
_HEAD = struct.Struct("<BBHIQQ")
HEAD_SIZE = _HEAD.size
#: Longest path, and most data in one operation; larger writes are split.
MAXIMUM_PATH = 1024
MAXIMUM_DATA = 128 << 10


class OperationType(IntEnum):
    """The kinds of changes. All are idempotent, in order."""

    CREATE = 1
    WRITE = 2
    FILL = 3
    SYNC = 4
    SYNC_DIRECTORY = 5
    RENAME = 6
    UNLINK = 7
    SIZE = 8
    MARK = 9


#: WRITE is to be on stable storage before it is confirmed.
SYNCED = 1


class Operation(NamedTuple):
    """One change. ``number`` counts them for each live; ``value`` is the offset (WRITE) or size (FILL, SIZE).

    ``data`` is what is written (of an operation that was received: a view of the frame), the new path (RENAME), or a
    msgpack map (MARK).
    """

    type: OperationType
    path: str
    value: int = 0
    data: bytes | memoryview = b""
    synced: bool = False
    number: int = 0

    @property
    def waits(self) -> bool:
        """Whether its confirmation means stable storage."""
        return self.synced or self.type in (OperationType.SYNC, OperationType.SYNC_DIRECTORY, OperationType.MARK)


def encode(operation: Operation) -> tuple[bytes, bytes]:
    """The bytes of one operation; its data apart, which are many and not copied."""
    path = operation.path.encode()
    head = _HEAD.pack(
        operation.type,
        SYNCED if operation.synced else 0,
        len(path),
        len(operation.data),
        operation.value,
        operation.number,
    )
    return head + path, bytes(operation.data)


def decode(data: bytes) -> Iterator[Operation]:
    """The operations in ``data``, which must be whole. Raises StoreError for anything else."""
    at = 0
    view = memoryview(data)
    while at < len(data):
        if len(data) - at < HEAD_SIZE:
            raise StoreError("an operation is incomplete")
        kind, flags, path_length, data_length, value, number = _HEAD.unpack_from(data, at)
        at += HEAD_SIZE
        if path_length > MAXIMUM_PATH or data_length > MAXIMUM_DATA or at + path_length + data_length > len(data):
            raise StoreError("an operation is longer than allowed or incomplete")
        try:
            known = OperationType(kind)
            path = data[at : at + path_length].decode()
        except ValueError as error:
            raise StoreError(f"an operation cannot be read: {error}") from None
        at += path_length
        content = view[at : at + data_length]
        written = content if known is OperationType.WRITE else bytes(content)
        yield Operation(known, path, value, written, bool(flags & SYNCED), number)
        at += data_length


def pieces(operation: Operation) -> Iterator[Operation]:
    """A WRITE in pieces of at most MAXIMUM_DATA bytes (only the last one is synced); anything else as it is."""
    size = len(operation.data)
    if operation.type is not OperationType.WRITE or size <= MAXIMUM_DATA:
        yield operation
        return
    for start in range(0, size, MAXIMUM_DATA):
        end = start + MAXIMUM_DATA
        yield operation._replace(
            value=operation.value + start, data=operation.data[start:end], synced=operation.synced and end >= size
        )


def mirrored_name(roots: Mapping[str, Path], path: Path) -> str | None:
    """``ROOT/relative`` of a file; None when it is in none of the store's directories."""
    absolute = path.absolute()
    for root, depth in ROOTS.items():
        directory = roots[root]
        if len(absolute.parts) - len(directory.parts) in (1, depth) and absolute.is_relative_to(directory):
            return f"{root}/{absolute.relative_to(directory).as_posix()}"
    return None


def path_of(roots: Mapping[str, Path], name: str) -> Path:
    """The file that a mirrored path means here. Raises StoreError for one outside the store's directories."""
    root, *parts = name.split("/")
    if not 1 <= len(parts) <= ROOTS.get(root, 0) or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise StoreError(f"{name[:200]!r} is not a file of a store")
    return roots[root].joinpath(*parts)
