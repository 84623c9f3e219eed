"""The payloads of DATA on a cluster link: a byte that says what it is, and msgpack. See docs/core-protocol.md."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec.structs import replace

from pollux.cluster.connection.forwarded import Forwarded
from pollux.cluster.membership import Member
from pollux.cluster.routes.records import Telling
from pollux.cluster.scale_down.plan import About
from pollux.wire.core.frames import CoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

#: Bytes of a message that was cut to pieces: more is no message.
MAXIMUM_MESSAGE = 256 << 20
#: Addresses that a node is told of at most as full: for more of them all that it sends waits.
MOST_FULL = 256
#: Characters of an answer that says what is wrong.
MAXIMUM_ERROR = 1000
_NODE = 16
#: Nodes that a message may have gone through: more than max-hops of any cluster, or it goes round for ever.
MAXIMUM_VISITED = 64


class Kind(IntEnum):
    """The kinds of payloads."""

    TELLING = 1
    CONFIRM = 2
    AGAIN = 3
    MESSAGES = 4
    PART = 5
    BODY = 6
    MEMBERS = 7
    ANSWER = 8
    ABOUT = 9
    EMPTY = 10
    REQUEST = 11
    ALIKE = 12
    FULL = 13


#: Messages of ALIKE, whose numbers follow each other: which of the first ones they are like, the number of the first,
#: the timestamp of all, and the data of each.
Run = tuple[int, int, int, list[bytes]]

_encode = msgspec.msgpack.Encoder().encode
_telling = msgspec.msgpack.Decoder(Telling).decode
_confirm = msgspec.msgpack.Decoder(tuple[bytes, int]).decode
_members = msgspec.msgpack.Decoder(tuple[Member, ...]).decode
_messages = msgspec.msgpack.Decoder(tuple[Forwarded, ...]).decode
_alike = msgspec.msgpack.Decoder(tuple[tuple[Forwarded, ...], list[Run]]).decode
_request = msgspec.msgpack.Decoder(tuple[int, str, bytes]).decode
_answer = msgspec.msgpack.Decoder(tuple[int, str]).decode
_about = msgspec.msgpack.Decoder(About).decode
_full = msgspec.msgpack.Decoder(Annotated[tuple[str, ...], msgspec.Meta(max_length=MOST_FULL)]).decode


def telling(one: Telling, room: int) -> Iterator[bytes]:
    """Return the payloads of a telling; ``room``: bytes of the largest."""
    yield from _cut(Kind.TELLING, _encode(one), room)


def members(listed: Sequence[Member], room: int) -> Iterator[bytes]:
    """Return the payloads by which a peer is told of the nodes; ``room``: bytes of the largest."""
    yield from _cut(Kind.MEMBERS, _encode(listed), room)


def confirm(life: bytes, number: int) -> bytes:
    """Return the payload that confirms messages up to a number."""
    return bytes((Kind.CONFIRM,)) + _encode((life, number))


def messages(listed: Sequence[Forwarded], room: int) -> Iterator[bytes]:
    """Return the payloads of messages; ``room``: bytes of the largest."""
    yield from _cut(Kind.MESSAGES, _encode(listed), room)


def alike(shapes: Sequence[Forwarded], runs: Sequence[Run], room: int) -> Iterator[bytes]:
    """Return the payloads of messages that are like one of some others, as far as their runs do not say how they are.

    Only for who accepts with ``alike``. ``room``: bytes of the largest.
    """
    yield from _cut(Kind.ALIKE, _encode((shapes, runs)), room)


def each_of(shapes: Sequence[Forwarded], runs: Sequence[Run]) -> tuple[Forwarded, ...]:
    """Return the messages of :func:`alike` as those of :func:`messages`."""
    return tuple(
        replace(shapes[which], number=number, timestamp=timestamp, data=data)
        for which, first, timestamp, those in runs
        for number, data in enumerate(those, first)
    )


def request(number: int, what: str, content: bytes, room: int) -> Iterator[bytes]:
    """Return the payloads of a request; its answer has the same number. ``room``: bytes of the largest."""
    yield from _cut(Kind.REQUEST, _encode((number, what, content)), room)


def answer(number: int, error: str) -> bytes:
    """Return the payload that answers a request: what it asked for is on disk, or why it cannot be."""
    return bytes((Kind.ANSWER,)) + _encode((number, error[:MAXIMUM_ERROR]))


def about(one: About) -> bytes:
    """Return the payload by which a node tells of itself."""
    return bytes((Kind.ABOUT,)) + _encode(one)


def full(addresses: Sequence[str], room: int) -> Iterator[bytes]:
    """Return the payloads that tell which addresses are full, of those that the peer sends to.

    Only to who said ``apart``. ``room``: bytes of the largest.
    """
    yield from _cut(Kind.FULL, _encode(addresses), room)


def _cut(kind: Kind, encoded: bytes, room: int) -> Iterator[bytes]:
    size = room - 1
    last = max(0, (len(encoded) - 1) // size) * size
    for start in range(0, last, size):
        yield bytes((Kind.PART,)) + encoded[start : start + size]
    yield bytes((kind,)) + encoded[last:]


class Payloads:
    """Puts payloads together and decodes them. Every error is one of the peer: CoreError."""

    def __init__(self) -> None:
        self._parts = bytearray()

    def decode(self, payload: bytes) -> tuple[Kind, object] | None:
        """Return what a payload is and says; None when more of it comes."""
        try:
            kind = Kind(payload[0])
            if kind is Kind.PART:
                self._parts += payload[1:]
                if len(self._parts) > MAXIMUM_MESSAGE:
                    raise CoreError("protocol", f"a message of more than {MAXIMUM_MESSAGE} bytes")
                return None
            if kind is Kind.BODY:
                return kind, payload[1:]
            body: bytes | memoryview = memoryview(payload)[1:]
            if self._parts:
                body, self._parts = bytes(self._parts) + bytes(body), bytearray()
            return kind, self._content(kind, body)
        except (IndexError, ValueError, RecursionError) as error:  # msgspec's are ValueErrors
            raise CoreError("protocol", f"a payload of a cluster link cannot be read: {error}") from error

    @staticmethod
    def _content(kind: Kind, body: bytes | memoryview) -> object:
        if kind is Kind.TELLING:
            told = _telling(body)
            if any(len(node) != _NODE for record in told.records for node in (record.owner, *record.path)):
                raise ValueError("a node id is not of 16 bytes")
            return told
        if kind is Kind.CONFIRM:
            return _confirm(body)
        if kind is Kind.MEMBERS:
            return _members(body)
        if kind is Kind.MESSAGES:
            return _checked(_messages(body))
        if kind is Kind.ALIKE:
            shapes, runs = _alike(body)
            if not {run[0] for run in runs} <= set(range(len(shapes))):
                raise ValueError("a message is like none that was named")
            return _checked(shapes), runs
        decode = _DECODE.get(kind)
        return decode(body) if decode is not None else None


def _checked(listed: tuple[Forwarded, ...]) -> tuple[Forwarded, ...]:
    for one in listed:
        if len(one.life) != 8 or len(one.visited) > MAXIMUM_VISITED:
            raise ValueError("a message has no number, or went round for ever")
        if one.owner and len(one.owner) != _NODE:
            raise ValueError("a node id is not of 16 bytes")
        for node in one.visited:
            if len(node) != _NODE:
                raise ValueError("a node id is not of 16 bytes")
    return listed


_DECODE: dict[Kind, Callable[[bytes | memoryview], object]] = {
    Kind.REQUEST: _request,
    Kind.ANSWER: _answer,
    Kind.ABOUT: _about,
    Kind.FULL: _full,
}
