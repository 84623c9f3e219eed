"""The bytes of an audit file: header, blocks, message events in columns. See docs/audit-format.md. Pure.

Writing is by columns because it must cost next to nothing for each message: a run says what happened to how many
messages of which queue, the messages' ids follow in one array.
"""

from __future__ import annotations

import re
import struct
from array import array
from enum import IntEnum, IntFlag
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct, field

from pollux.checksum import crc32c
from pollux.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

MAGIC = b"PLXAUD\r\n"
VERSION = 1
_START = struct.Struct("<8sHHII")
MARKER_BYTES = b"\xf5PL\xfb"
MARKER = int.from_bytes(MARKER_BYTES, "little")
#: marker, length, checksum, kind, number, time base.
BLOCK = struct.Struct("<IIIBxxxIxxxxQ")
#: event, flags, milliseconds, address, queue, target, count, consumer's connection.
RUN = struct.Struct("<BBxxIIIIIQ")
_COUNTS = struct.Struct("<IIII")
#: Instead of the number of a name: there is none.
NO_NAME = 0xFFFFFFFF
#: A block is never longer: whatever claims to be is damage.
MAXIMUM_BLOCK = 1 << 26


class AuditError(StoreError):
    """A file is not an audit file, or was written by a newer Pollux."""


class Kind(IntEnum):
    """The kinds of blocks."""

    NAMES = 1
    EVENTS = 2
    MESSAGES = 3


class Event(IntEnum):
    """The kinds of message events."""

    ACCEPTED = 1
    DELIVERED = 2
    ACKNOWLEDGED = 3
    RELEASED = 4
    EXPIRED = 5
    DEAD_LETTERED = 6
    MOVED = 7
    UNROUTED = 8
    REMOVED = 9


class Flag(IntFlag):
    """More about a run."""

    FAILED = 1
    PAGED = 2


class Run(NamedTuple):
    """One thing that happened to some ``messages`` (their number) of a queue at ``time`` (ms since the epoch)."""

    event: int
    flags: int
    time: int
    address: str
    queue: str
    target: str | None
    messages: int
    consumer: int


class Lifecycle(NamedTuple):
    """An event of the broker itself."""

    time: int
    event: str
    fields: dict[str, Any]


class Messages(Struct):
    """Message events: runs, and the columns their messages fill one after the other.

    ``sizes`` (bytes) and ``producers`` (connection ids) have a value for each message of an ACCEPTED run only.
    """

    runs: list[Run] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    producers: list[int] = field(default_factory=list)
    duplicate_ids: list[tuple[int, bytes]] = field(default_factory=list)

    def each(self) -> Iterator[tuple[Run, int, int, int]]:
        """Every message event as ``(run, message id, size, producer)``, 0 for what is not known."""
        at = accepted = 0
        for run in self.runs:
            for number in self.ids[at : at + run.messages]:
                if run.event == Event.ACCEPTED:
                    yield run, number, self.sizes[accepted], self.producers[accepted]
                    accepted += 1
                else:
                    yield run, number, 0, 0
            at += run.messages


def file_name(broker: str, started: str, number: int) -> str:
    """The name of a broker's file; ``started`` is YYYYMMDDTHHMMSSmmmZ."""
    return f"{safe_name(broker)}-{started}-{number:06d}.audit"


def safe_name(broker: str) -> str:
    """The broker's name as it stands in file names."""
    return re.sub(r"[^A-Za-z0-9_.]", "_", broker)


def encode_header(salt: int, content: dict[str, Any]) -> bytes:
    """The first bytes of a file."""
    body = msgspec.msgpack.encode(content)
    head = _START.pack(MAGIC, VERSION, 0, salt, len(body)) + body
    return head + struct.pack("<I", crc32c(head))


def decode_header(data: bytes, name: str) -> tuple[dict[str, Any], int, int]:
    """The header's map, the salt, and where the blocks start; ``name`` is for the error's text. Raises AuditError."""
    if len(data) < _START.size or not data.startswith(MAGIC):
        raise AuditError(f"{name}: not an audit file of Pollux")
    _, version, _, salt, length = _START.unpack_from(data)
    if version != VERSION:
        raise AuditError(f"{name}: format version {version}; this Pollux reads version {VERSION} only")
    end = _START.size + length
    if len(data) < end + 4 or crc32c(data[:end]) != int.from_bytes(data[end : end + 4], "little"):
        raise AuditError(f"{name}: its header is damaged or incomplete")
    return msgspec.msgpack.decode(data[_START.size : end], type=dict[str, Any]), salt, end + 4


def encode_block(kind: Kind, number: int, time: int, payload: bytes, salt: int) -> bytes:
    """One block; ``number`` counts in the file, ``time`` is its base."""
    length = BLOCK.size + len(payload)
    tail = BLOCK.pack(0, 0, 0, kind, number, time)[12:] + payload
    return struct.pack("<III", MARKER, length, crc32c(tail, salt ^ length)) + tail


def encode_messages(messages: Messages, base: int, name: Callable[[str], int]) -> bytes:
    """The payload of a MESSAGES block; ``name`` gives the number of a text in the file's table."""
    pack = RUN.pack
    runs = [
        pack(
            run.event,
            run.flags,
            max(0, run.time - base),
            name(run.address),
            name(run.queue),
            NO_NAME if run.target is None else name(run.target),
            run.messages,
            run.consumer,
        )
        for run in messages.runs
    ]
    counts = _COUNTS.pack(len(runs), len(messages.ids), len(messages.sizes), len(messages.duplicate_ids))
    columns = [
        array("Q", messages.ids).tobytes(),
        array("Q", messages.producers).tobytes(),
        array("I", messages.sizes).tobytes(),
    ]
    duplicates = msgspec.msgpack.encode(messages.duplicate_ids) if messages.duplicate_ids else b""
    return b"".join([counts, *runs, *columns, duplicates])


def decode_messages(payload: bytes, base: int, names: Sequence[str]) -> Messages:
    """The reverse of :func:`encode_messages`. Raises AuditError when the payload contradicts itself."""
    try:
        run_count, id_count, size_count, duplicate_count = _COUNTS.unpack_from(payload)
        at = _COUNTS.size
        messages = Messages()
        for _ in range(run_count):
            event, flags, offset, address, queue, target, count, consumer = RUN.unpack_from(payload, at)
            at += RUN.size
            where = None if target == NO_NAME else names[target]
            messages.runs.append(Run(event, flags, base + offset, names[address], names[queue], where, count, consumer))
        messages.ids, at = _column("Q", payload, at, id_count)
        messages.producers, at = _column("Q", payload, at, size_count)
        messages.sizes, at = _column("I", payload, at, size_count)
        if duplicate_count:
            messages.duplicate_ids = msgspec.msgpack.decode(payload[at:], type=list[tuple[int, bytes]])
    except (struct.error, IndexError, ValueError, msgspec.MsgspecError) as error:
        raise AuditError(f"a block of message events contradicts itself: {error}") from error
    accepted = sum(run.messages for run in messages.runs if run.event == Event.ACCEPTED)
    if sum(run.messages for run in messages.runs) != id_count or accepted != size_count:
        raise AuditError("a block of message events contradicts itself: its runs do not fill its columns")
    return messages


def _column(code: str, payload: bytes, at: int, count: int) -> tuple[list[int], int]:
    column = array(code)
    end = at + count * column.itemsize
    if end > len(payload):
        raise IndexError(f"a column of {count} values ends behind the block")
    column.frombytes(payload[at:end])
    return column.tolist(), end


class Block(Struct, frozen=True):
    """One block as it was found. ``damage`` says what is wrong with the bytes instead (then there is no payload)."""

    offset: int
    length: int
    kind: int = 0
    number: int = 0
    time: int = 0
    payload: bytes = b""
    damage: str | None = None


def scan(data: bytes, start: int, salt: int) -> Iterator[Block]:
    """The blocks from ``start`` on. Other bytes come as a damaged block: ``torn`` when nothing valid follows."""
    at = start
    while at < len(data):
        block = _block_at(data, at, salt)
        if block is not None:
            yield block
            at += block.length
            continue
        following = data.find(MARKER_BYTES, at + 1)
        while following >= 0 and _block_at(data, following, salt) is None:
            following = data.find(MARKER_BYTES, following + 1)
        end = following if following >= 0 else len(data)
        yield Block(at, end - at, damage="corrupt" if following >= 0 else "torn")
        at = end


def _block_at(data: bytes, at: int, salt: int) -> Block | None:
    if len(data) - at < BLOCK.size:
        return None
    marker, length, checksum, kind, number, time = BLOCK.unpack_from(data, at)
    if marker != MARKER or not BLOCK.size <= length <= min(MAXIMUM_BLOCK, len(data) - at):
        return None
    if crc32c(data[at + 12 : at + length], salt ^ length) != checksum:
        return None
    return Block(at, length, kind, number, time, data[at + BLOCK.size : at + length])


def read(data: bytes, name: str) -> Iterator[Lifecycle | Messages | Block]:
    """Everything in one file: lifecycle events, message events, and damaged blocks as they are. Raises AuditError."""
    _, salt, start = decode_header(data, name)
    names: list[str] = []
    expected = 0
    for block in scan(data, start, salt):
        if block.damage is not None:
            yield block
            continue
        if block.number != expected:
            yield Block(block.offset, 0, damage=f"{block.number - expected} blocks are missing before this one")
        expected = block.number + 1
        try:
            if block.kind == Kind.NAMES:
                names += msgspec.msgpack.decode(block.payload, type=list[str])
            elif block.kind == Kind.EVENTS:
                for time, event, fields in msgspec.msgpack.decode(
                    block.payload, type=list[tuple[int, str, dict[str, Any]]]
                ):
                    yield Lifecycle(time, event, fields)
            elif block.kind == Kind.MESSAGES:
                yield decode_messages(block.payload, block.time, names)
        except (AuditError, msgspec.MsgspecError) as error:
            yield Block(block.offset, block.length, block.kind, block.number, block.time, damage=str(error))
