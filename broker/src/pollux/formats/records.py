"""The records of the journal: types, fields, encoding and decoding. See docs/journal-format.md.

Every record starts with type (u8) and flags (u8); where flag TX is set the transaction id (u64)
follows, then the fields of the type. Encoders return the body without the frame, so that the caller
can checksum it together with a message's data without copying that.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import IntEnum
from sys import intern
from typing import Any

import msgspec

from pollux.errors import StoreError
from pollux.formats.segments import FRAME_SIZE
from pollux.message import LONG_NAME, Encoding, LargeBody, Message, RoutingType


class RecordType(IntEnum):
    """The numbers in the files; never reuse one."""

    BATCH = 1
    MESSAGE = 2
    ACKS = 3
    DELIVERY_COUNT = 4
    SCHEDULE = 5
    REFERENCES = 6
    DUPLICATE_ID = 7
    PREPARE = 8
    COMMIT = 9
    ROLLBACK = 10
    START = 11
    PUT = 12
    PAGE_END = 13
    PAGE_ACKS = 14
    PAGE_DONE = 15
    DROP_QUEUE = 16
    PAGE_TX = 17
    PAGE_MARK = 18
    QUEUE = 19
    PAGE = 20
    SEGMENT_END = 21
    LINK = 22


TX = 0x01
#: The message has a msgpack map of further fields.
EXTENDED = 0x02
#: The message was sent as durable (always so in the journal, not in pages).
DURABLE = 0x04
#: PUT: the key is deleted.
DELETED = 0x08

#: type, flags, encoding, priority, routing type + 1, zero, address length, queue count, id, timestamp, expiration.
MESSAGE = struct.Struct("<BBBBBBHHQQQ")
#: The same with one queue id behind it: nearly every message.
MESSAGE_ONE = struct.Struct("<BBBBBBHHQQQQ")
MESSAGE_TX = struct.Struct("<BBQBBBBHHQQQ")
MESSAGE_TX_ONE = struct.Struct("<BBQBBBBHHQQQQ")
#: Where the fields behind type, flags (and tx) start in a framed record.
FIELDS = FRAME_SIZE + 2
FIELDS_TX = FIELDS + 8
MESSAGE_FIELDS = struct.Struct("<BBBBHHQQQ")
MESSAGE_FIELDS_SIZE = MESSAGE_FIELDS.size

BATCH = struct.Struct("<BBIQ")
ACKS = struct.Struct("<BBQ")
ACKS_TX = struct.Struct("<BBQQ")
COUNT = struct.Struct("<BBQQI")
SCHEDULE = struct.Struct("<BBQQQ")
OUTCOME = struct.Struct("<BBQI")
PAGE_MARK = struct.Struct("<BBQQ")
SEGMENT_END = struct.Struct("<BBQ")
#: Life, number; the key of the link follows.
LINK_FIELDS = struct.Struct("<8sQ")
#: Lives of a link of which the last number is remembered: a process of its sender has one for each of its lanes, and
#: one more. Before there were lanes it was 8.
LINK_LIVES = 136
#: Priority, message id.
REFERENCE_FIELDS = struct.Struct("<BQ")
U16 = struct.Struct("<H")
U32 = struct.Struct("<I")
U64 = struct.Struct("<Q")
PAIR = struct.Struct("<QQ")
TRIPLE = struct.Struct("<QQQ")

_encode_map = msgspec.msgpack.Encoder().encode
_decode_map = msgspec.msgpack.Decoder().decode


def extension_of(message: Message) -> bytes:
    """The msgpack map of a message's rarer fields, empty when it has none of them."""
    values: dict[str, Any] = {}
    if message.deliver_at:
        values["deliver_at"] = message.deliver_at
    if message.duplicate_id is not None:
        values["duplicate_id"] = message.duplicate_id
    if message.group is not None:
        values["group"] = message.group
    if message.group_sequence:
        values["group_sequence"] = message.group_sequence
    if message.last_value is not None:
        values["last_value"] = message.last_value
    if message.user is not None:
        values["user"] = message.user
    if message.annotations:
        values["annotations"] = message.annotations
    if message.large is not None:
        values["large"] = large_fields(message.large)
    return _encode_map(values) if values else b""


def large_fields(large: LargeBody) -> list[int]:
    """Return what a large message's record says of its file: id, size and, where it is known, checksum."""
    return [large.id, large.size] if large.checksum is None else [large.id, large.size, large.checksum]


def message_head(message: Message, queue_ids: Sequence[int], tx: int, address: bytes) -> bytes:
    """A message record's body up to, not including, its data. The general form; storage inlines the common one."""
    extension = extension_of(message)
    flags = (DURABLE if message.durable else 0) | (EXTENDED if extension else 0)
    routing = 0 if message.routing_type is None else message.routing_type + 1
    fields = (
        message.encoding,
        message.priority,
        routing,
        0,
        len(address),
        len(queue_ids),
        message.id,
        message.timestamp,
        message.expiration,
    )
    if tx:
        head = MESSAGE_TX.pack(RecordType.MESSAGE, flags | TX, tx, *fields)
    else:
        head = MESSAGE.pack(RecordType.MESSAGE, flags, *fields)
    head += U64.pack(queue_ids[0]) if len(queue_ids) == 1 else array("Q", queue_ids).tobytes()
    return head + address + U32.pack(len(extension)) + extension if extension else head + address


_addresses: dict[bytes, str] = {}
_ADDRESSES_KEPT = 10_000
LargeFactory = Callable[..., LargeBody]
_ROUTING: tuple[RoutingType | None, ...] = (None, RoutingType.MULTICAST, RoutingType.ANYCAST)
_ENCODINGS = {int(encoding): encoding for encoding in Encoding}


def _address(data: bytes) -> str:
    address = _addresses.get(data)
    if address is None:
        if len(data) > LONG_NAME:
            return data.decode()
        if len(_addresses) >= _ADDRESSES_KEPT:
            _addresses.clear()
        address = _addresses[data] = intern(data.decode())
    return address


def decode_message(record: memoryview | bytes, large: LargeFactory) -> tuple[Message, list[int]]:
    """A message and its queue ids from a framed, already verified record. ``large`` makes large bodies of what
    :func:`large_fields` gave.
    """
    flags = record[FRAME_SIZE + 1]
    position = FIELDS_TX if flags & TX else FIELDS
    encoding, priority, routing, _, address_length, queues, message_id, timestamp, expiration = (
        MESSAGE_FIELDS.unpack_from(record, position)
    )
    position += MESSAGE_FIELDS_SIZE
    queue_ids = list(struct.unpack_from(f"<{queues}Q", record, position))
    position += 8 * queues
    address = _address(bytes(record[position : position + address_length]))
    position += address_length
    values: dict[str, Any] = {}
    if flags & EXTENDED:
        (size,) = U32.unpack_from(record, position)
        position += 4
        values = _decode_map(record[position : position + size])
        position += size
    message = Message(
        _ENCODINGS[encoding],
        address,
        bytes(record[position:]),
        durable=bool(flags & DURABLE),
        priority=priority,
        expiration=expiration,
        timestamp=timestamp,
        routing_type=_ROUTING[routing],
    )
    message.id = message_id
    if values:
        _apply(message, values, large)
    return message, queue_ids


def _apply(message: Message, values: dict[str, Any], large: LargeFactory) -> None:
    for name, value in values.items():
        if name == "large":
            message.large = large(*value)
        elif name in _EXTENSION_FIELDS:
            setattr(message, name, value)
        else:
            raise StoreError(f"message {message.id} has a field {name!r} this Pollux does not know")


_EXTENSION_FIELDS = frozenset(
    ("deliver_at", "duplicate_id", "group", "group_sequence", "last_value", "user", "annotations")
)


def message_extension(record: memoryview | bytes) -> Mapping[str, Any]:
    """Only the msgpack map of a message record (deliver_at, duplicate_id, large ...)."""
    flags = record[FRAME_SIZE + 1]
    if not flags & EXTENDED:
        return {}
    position = FIELDS_TX if flags & TX else FIELDS
    address_length, queues = struct.unpack_from("<HH", record, position + 4)
    position += MESSAGE_FIELDS_SIZE + 8 * queues + address_length
    (size,) = U32.unpack_from(record, position)
    values: Mapping[str, Any] = _decode_map(record[position + 4 : position + 4 + size])
    return values


#: How the extension begins of a message that has nothing but annotations, which mean nothing to a replay. From where to
#: where that is in its record, the bytes of the address added, when it has one queue and no transaction.
ANNOTATED = b"\x81\xabannotations"
EXTENSION = FIELDS + MESSAGE_FIELDS_SIZE + U64.size + U32.size
EXTENSION_KEY = EXTENSION + len(ANNOTATED)


class Extension(msgspec.Struct, gc=False):
    """Holds what a replay needs of a message's rarer fields: ``large`` is id, size and, where it is known, checksum."""

    deliver_at: int = 0
    duplicate_id: bytes | None = None
    large: tuple[int, ...] | None = None


_decode_extension = msgspec.msgpack.Decoder(Extension).decode


def extension_at(data: memoryview | bytes, position: int) -> Extension:
    """Return what a replay needs of the extension whose size is at ``position``: the others are not looked at."""
    (size,) = U32.unpack_from(data, position)
    return _decode_extension(data[position + 4 : position + 4 + size])


def message_id(record: memoryview | bytes) -> int:
    """Only the id of a message record."""
    position = FIELDS_TX if record[FRAME_SIZE + 1] & TX else FIELDS
    number: int = MESSAGE_FIELDS.unpack_from(record, position)[6]
    return number


def message_address(record: memoryview | bytes) -> str:
    """Only the address of a message record."""
    position = FIELDS_TX if record[FRAME_SIZE + 1] & TX else FIELDS
    address_length, queues = struct.unpack_from("<HH", record, position + 4)
    position += MESSAGE_FIELDS_SIZE + 8 * queues
    return _address(bytes(record[position : position + address_length]))


def acks(queue_id: int, message_ids: Iterable[int], tx: int) -> bytes:
    """Encode that messages are taken out of a queue."""
    ids = array("Q", message_ids).tobytes()
    if tx:
        return ACKS_TX.pack(RecordType.ACKS, TX, tx, queue_id) + ids
    return ACKS.pack(RecordType.ACKS, 0, queue_id) + ids


def references(message_id: int, priority: int, queue_ids: Iterable[int], tx: int) -> bytes:
    """A stored message added to more queues."""
    head = bytes((RecordType.REFERENCES, TX if tx else 0)) + (U64.pack(tx) if tx else b"")
    return head + REFERENCE_FIELDS.pack(priority, message_id) + array("Q", queue_ids).tobytes()


def duplicate_id(address: str, value: bytes, tx: int) -> bytes:
    """A duplicate id seen at an address."""
    name = address.encode()
    head = bytes((RecordType.DUPLICATE_ID, TX if tx else 0)) + (U64.pack(tx) if tx else b"")
    return head + U16.pack(len(name)) + name + value


def decode_duplicate_id(record: memoryview | bytes) -> tuple[str, bytes]:
    """(address, id) of a framed DUPLICATE_ID record."""
    position = FIELDS_TX if record[FRAME_SIZE + 1] & TX else FIELDS
    (length,) = U16.unpack_from(record, position)
    position += 2
    return _address(bytes(record[position : position + length])), bytes(record[position + length :])


def drop_queue(queue_id: int) -> bytes:
    """Encode that everything in a queue is taken out of it."""
    return ACKS.pack(RecordType.DROP_QUEUE, 0, queue_id)


def queue(queue_id: int, value: bytes) -> bytes:
    """A durable queue was made; ``value`` is that of its binding."""
    return ACKS.pack(RecordType.QUEUE, 0, queue_id) + value


class PageCounts(msgspec.Struct):
    """The counts in the last record of a page: durable messages only, for they alone survive a restart."""

    messages: int
    #: queue id -> messages
    queues: dict[int, int]
    #: ids of large messages' files
    large: list[int]
    #: Some messages are part of transactions: only reading them all tells which count.
    partial: bool
    #: Id of the last message with a duplicate id outside of transactions, 0: none.
    duplicate: int = 0
    #: Offset behind the last message, 0: right before this record.
    end: int = 0
    #: The sizes of ``large``'s files; absent in pages of earlier versions.
    sizes: list[int] = []


_page_counts = msgspec.msgpack.Decoder(PageCounts)


def page_end(counts: PageCounts) -> bytes:
    """The last record of a page. Ends with the whole record's length (u32), so that it is found from the end."""
    body = bytes((RecordType.PAGE_END, 0)) + _encode_map(counts)
    return body + U32.pack(FRAME_SIZE + len(body) + 4)


def decode_page_end(record: memoryview | bytes) -> PageCounts:
    """The counts of a framed PAGE_END record."""
    return _page_counts.decode(record[FIELDS:-4])


def page_acks(store: int, page: int, queue_id: int, message_ids: Iterable[int], tx: int) -> bytes:
    """A queue is done with messages of a page; no ids: with all of it."""
    head = bytes((RecordType.PAGE_ACKS, TX if tx else 0)) + (U64.pack(tx) if tx else b"")
    return head + TRIPLE.pack(store, page, queue_id) + array("Q", message_ids).tobytes()


def page_done(store: int, page: int) -> bytes:
    """Nobody needs a page any more; page 0: the whole directory."""
    return bytes((RecordType.PAGE_DONE, 0)) + PAIR.pack(store, page)


def page_tx(store: int, page: int, tx: int) -> bytes:
    """A transaction wrote to a page: its messages there count once it is committed."""
    return bytes((RecordType.PAGE_TX, TX)) + TRIPLE.pack(tx, store, page)


def page(store: int, number: int, address: str) -> bytes:
    """There is a page file from now on, until PAGE_DONE says that nobody needs it: the inventory of pages."""
    return bytes((RecordType.PAGE, 0)) + PAIR.pack(store, number) + address.encode()


def page_address(record: memoryview | bytes) -> str:
    """The address of a framed PAGE record."""
    return _address(bytes(record[FIELDS + PAIR.size :]))


def segment_end(sequence: int) -> bytes:
    """The last record of a segment: the life goes on in segment ``sequence``, which must be there."""
    return SEGMENT_END.pack(RecordType.SEGMENT_END, 0, sequence)


def link(key: str, life: bytes, number: int, tx: int) -> bytes:
    """Messages of a link up to ``number`` of its sender's ``life`` (8 bytes) were taken in."""
    head = bytes((RecordType.LINK, TX if tx else 0)) + (U64.pack(tx) if tx else b"")
    return head + LINK_FIELDS.pack(life, number) + key.encode()


def decode_link(record: memoryview | bytes) -> tuple[str, bytes, int]:
    """(key, life, number) of a framed LINK record."""
    position = FIELDS_TX if record[FRAME_SIZE + 1] & TX else FIELDS
    life, number = LINK_FIELDS.unpack_from(record, position)
    return bytes(record[position + LINK_FIELDS.size :]).decode(), life, number


def page_mark(store: int, message_id: int) -> bytes:
    """The duplicate ids of all messages in the store's pages before this one are in the journal."""
    return PAGE_MARK.pack(RecordType.PAGE_MARK, 0, store, message_id)


def message_queues(record: memoryview | bytes) -> tuple[int, ...]:
    """Only the queue ids of a message record."""
    position = FIELDS_TX if record[FRAME_SIZE + 1] & TX else FIELDS
    (queues,) = U16.unpack_from(record, position + 6)
    return struct.unpack_from(f"<{queues}Q", record, position + MESSAGE_FIELDS_SIZE)


def lasting_queues(record: memoryview | bytes) -> tuple[int, ...]:
    """Only the ids of the queues that outlive the life that wrote a message record: those before the first 0."""
    queues = message_queues(record)
    return queues[: queues.index(0)] if 0 in queues else queues


def put(kind: str, key: str, value: bytes | None) -> bytes:
    """A binding: kind and key with a value, or their deletion."""
    kind_bytes, key_bytes = kind.encode(), key.encode()
    head = bytes((RecordType.PUT, DELETED if value is None else 0))
    return head + U16.pack(len(kind_bytes)) + U32.pack(len(key_bytes)) + kind_bytes + key_bytes + (value or b"")


def decode_put(record: memoryview | bytes) -> tuple[str, str, bytes | None]:
    """(kind, key, value) of a framed PUT record."""
    (kind_length,) = U16.unpack_from(record, FIELDS)
    (key_length,) = U32.unpack_from(record, FIELDS + 2)
    start = FIELDS + 6
    middle = start + kind_length
    end = middle + key_length
    value = None if record[FRAME_SIZE + 1] & DELETED else bytes(record[end:])
    return bytes(record[start:middle]).decode(), bytes(record[middle:end]).decode(), value


def start(
    ends: Mapping[tuple[int, int], int],
    checkpoint: tuple[int, int, int] | None,
    tails: Mapping[tuple[int, int], int] | None = None,
    pages: Mapping[tuple[int, int], int] | None = None,
    torn: Sequence[tuple[int, int, int, int]] = (),
) -> bytes:
    """The first record of a life: where it stopped reading each older segment, and the checkpoint it read.

    ``checkpoint`` is (writer's epoch, last folded epoch, last folded sequence). ``tails``: where the incomplete last
    write behind such an end ends; what comes later than that was written late. ``pages``: (store, page) -> where the
    messages of a page end that its life did not close. ``torn``: (epoch, sequence, start, end) of holes before such an
    end, in writes that were never confirmed.
    """
    values: dict[str, Any] = {
        "ends": [[epoch, sequence, end] for (epoch, sequence), end in ends.items()],
        "checkpoint": checkpoint,
    }
    if tails:
        values["tails"] = [[epoch, sequence, end] for (epoch, sequence), end in tails.items()]
    if pages:
        values["pages"] = [[*key, end] for key, end in pages.items()]
    if torn:
        values["torn"] = torn
    return bytes((RecordType.START, 0)) + _encode_map(values)


def decode_start(record: memoryview | bytes) -> tuple[dict[tuple[int, int], int], tuple[int, int, int] | None]:
    """``(ends, checkpoint)`` of a framed START record."""
    values = _decode_map(record[FIELDS:])
    ends = {(epoch, sequence): end for epoch, sequence, end in values["ends"]}
    return ends, tuple(values["checkpoint"]) if values["checkpoint"] else None


def decode_tails(record: memoryview | bytes) -> dict[tuple[int, int], int]:
    """The tails of a framed START record."""
    return {(epoch, sequence): end for epoch, sequence, end in _decode_map(record[FIELDS:]).get("tails", ())}


def decode_torn(record: memoryview | bytes) -> dict[tuple[int, int], list[tuple[int, int]]]:
    """The holes that a framed START record tells of, by segment."""
    found: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for epoch, sequence, start, end in _decode_map(record[FIELDS:]).get("torn", ()):
        found.setdefault((epoch, sequence), []).append((start, end))
    return found


def decode_page_ends(record: memoryview | bytes) -> dict[tuple[int, int], int]:
    """The pages of a framed START record."""
    return {(store, page): end for store, page, end in _decode_map(record[FIELDS:]).get("pages", ())}
