"""The note stored with a message that waits to be sent to another node of a cluster. See docs/journal-format.md."""

from __future__ import annotations

import struct
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

#: The annotation of a stored copy, and what the addresses of the queues begin with in which such copies wait. Behind
#: that come the name of the cluster connection and, after the last dot, the id of the node that they are sent to.
ROUTE_TO = "_AMQ_ROUTE_TO"
OUTLETS = "$.artemis.internal.sf."
#: What the addresses begin with whose duplicate ids, in the journal, are of messages that one other node alone has.
_AWAY = "$.artemis.internal.away."
_NODE_DIGITS = 32


class Note(Struct, frozen=True, array_like=True):
    """Holds the annotation: the number on its link, whom the message is for, and what a queue acts on."""

    life: bytes
    number: int
    queues: tuple[str, ...]
    visited: tuple[bytes, ...]
    address: str
    priority: int
    expiration: int
    deliver_at: int
    group: str | None
    group_sequence: int
    last_value: str | None
    duplicate_id: bytes | None
    routing_type: int | None
    owner: bytes = b""
    moved: bool = False
    failures: int = 0
    topic: bool = False
    redelivered: bool = False
    home: bool = False


#: Raises msgspec.MsgspecError for what is no note, TypeError for what is no bytes.
decode = msgspec.msgpack.Decoder(Note).decode
encode = msgspec.msgpack.Encoder().encode
#: The largest number is in 9 bytes, which the life of 8 before it cannot look like; each number may be in as many.
_LARGEST = 2**64 - 1
_ENCODED = encode(_LARGEST)
_NUMBER = struct.Struct(">BQ")


def halves(note: Note) -> tuple[bytes, bytes]:
    """Return what is before and behind the number of a note: for many that differ in it alone."""
    before, _, behind = encode(replace(note, number=_LARGEST)).partition(_ENCODED)
    return before, behind


def numbered(before: bytes, number: int, behind: bytes) -> bytes:
    """Return the note of a number, of :func:`halves`."""
    return before + _NUMBER.pack(_ENCODED[0], number) + behind


def all_numbered(before: bytes, first: int, count: int, behind: bytes) -> list[bytes]:
    """Return the notes of so many numbers that follow one another, as :func:`numbered` does of one."""
    pack, kind = _NUMBER.pack, _ENCODED[0]
    return [before + pack(kind, number) + behind for number in range(first, first + count)]


def described(annotation: object) -> dict[str, Any] | None:
    """Return what JSON has of a note, bytes as hexadecimal digits; None: it is none."""
    try:
        note = decode(annotation)  # type: ignore[arg-type]  # what is no bytes is none
    except (TypeError, msgspec.MsgspecError):
        return None
    return {
        "life": note.life.hex(),
        "number": note.number,
        "queues": list(note.queues),
        "visited": [node.hex() for node in note.visited],
        "address": note.address,
        "duplicate_id": note.duplicate_id.hex() if note.duplicate_id is not None else None,
        "owner": note.owner.hex() or None,
        "moved": note.moved,
    }


def away_name(node: bytes, address: str) -> str:
    """Return the address under which the journal has which ids of an address went to a node (16 bytes) alone."""
    return f"{_AWAY}{node.hex()}.{address}"


def parse_away(name: str) -> tuple[bytes, str] | None:
    """Return node and address of an :func:`away_name`; None: it is an address of messages."""
    if not name.startswith(_AWAY):
        return None
    digits, dot, address = name[len(_AWAY) :].partition(".")
    try:
        node = bytes.fromhex(digits)
    except ValueError:
        return None
    return (node, address) if dot and len(digits) == _NODE_DIGITS and 2 * len(node) == _NODE_DIGITS else None
