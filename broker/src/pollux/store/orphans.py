"""The queues of a store that have messages and no binding, from its files alone. Read-only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from pollux.formats import records
from pollux.formats.records import RecordType
from pollux.store.bindings import read_newest
from pollux.store.compare.side import read_pages
from pollux.store.files import DISK, FileReader, is_directory
from pollux.store.journal_reader import Reading, read_journal
from pollux.store.state import FILE_SHIFT, OFFSET_MASK

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pollux.store.port import Files

_QUEUE, _DROPPED = "queue", "dropped"


class Lost(Struct):
    """A queue without a binding. ``name`` and ``address``: None where nothing tells."""

    id: int
    name: str | None
    address: str | None
    messages: int
    paged: int
    #: Whether the next start makes it again from the journal.
    known: bool

    def __str__(self) -> str:
        called = "name lost" if self.name is None else repr(self.name)
        words = f"queue {self.id} ({called}) of address {self.address!r} has no binding"
        return f"{words}; with {self.messages} messages it is {self.view()['fate']} at the next start"

    def view(self) -> dict[str, Any]:
        """Return the fields that ``pollux journal orphans`` prints."""
        return {
            "id": self.id,
            "queue": self.name,
            "address": self.address,
            "messages": self.messages,
            "paged": self.paged,
            "fate": "made again" if self.known else "kept as orphans",
        }


class _Spec(msgspec.Struct):
    name: str
    address: str


class _Queue(msgspec.Struct):
    """The part of a queue's binding that is of interest."""

    id: int
    spec: _Spec


def find(journal: Path, bindings: Path | None, paging: Path | None, files: Files = DISK) -> list[Lost]:
    """The queues without a binding whose deletion is not on record, by number. Raises StoreError, OSError."""
    found = read_journal(journal, None, files=files)
    values: dict[tuple[str, str], bytes] = {}
    if bindings is not None and is_directory(files, bindings):
        values = read_newest(bindings, None, expected=False, files=files)[0]
    return lost_queues(found, values, paging, files)


def lost_queues(
    found: Reading, values: Mapping[tuple[str, str], bytes], paging: Path | None, files: Files = DISK
) -> list[Lost]:
    """The queues that the journal or pages tell of and the bindings ``values`` do not. Raises as find."""
    bound = {msgspec.msgpack.decode(value, type=_Queue).id for (kind, _), value in values.items() if kind == _QUEUE}
    names = {key for kind, key in values if kind == _QUEUE}
    bound |= {int(key) for kind, key in values if kind == _DROPPED}
    known = {
        queue_id: msgspec.msgpack.decode(value, type=_Queue).spec
        for queue_id, value in found.state.queue_records.items()
    }
    live = found.state.finish()
    queues = {queue_id: {one for ids in by.values() for one in ids} for queue_id, by in live.items()}
    paged: dict[int, set[int]] = {}
    if paging is not None and is_directory(files, paging):
        read_pages(paging, found.state, paged, set(), [], files=files)
    lost: list[Lost] = []
    for queue_id in sorted((queues.keys() | paged.keys() | known.keys()) - bound):
        ids, in_pages = queues.get(queue_id, set()), paged.get(queue_id, set())
        spec = known.get(queue_id)
        address = spec.address if spec is not None else _address(found, ids, files)
        again = spec is not None and spec.name not in names
        name = spec.name if spec is not None else None
        lost.append(Lost(queue_id, name, address, len(ids) + len(in_pages), len(in_pages), again))
    return lost


def _address(found: Reading, ids: set[int], files: Files) -> str | None:
    """The address of one of these messages, None when no record of them can be read here."""
    for message_id, location in zip(found.state.ids, found.state.locations, strict=True):
        if message_id in ids:
            segment = found.readable[location >> FILE_SHIFT]
            return _read_address(segment.path, location & OFFSET_MASK, files)
    checkpoint = found.checkpoint
    if checkpoint is not None:
        for position, message_id in enumerate(checkpoint.ids):
            if message_id in ids:
                location = checkpoint.locations[position]
                path = found.directory / checkpoint.files[location >> FILE_SHIFT].name
                return _read_address(path, location & OFFSET_MASK, files)
    return None


def _read_address(path: Path, offset: int, files: Files) -> str | None:
    try:
        with FileReader(path, files) as stream:
            stream.seek(offset)
            record = stream.read(records.MESSAGE_FIELDS_SIZE + (1 << 17) + 8 * 0xFFFF)
    except FileNotFoundError:
        return None
    if len(record) <= records.FIELDS or record[records.FIELDS - 2] != RecordType.MESSAGE:
        return None
    return records.message_address(record).partition("::")[0]
