"""The words of MQTT between nodes of a cluster: msgpack, cut to frames. Pure. See docs/core-protocol.md."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec

from pollux.protocols.mqtt.neighbours import MovingSession  # noqa: TC001  (decoded: it is looked up at run time)
from pollux.wire.core.frames import CoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Bytes of something that was cut to pieces: more is nothing that is said here.
MAXIMUM = 256 << 20
_PART, _LAST = b"\x00", b"\x01"
#: Of how long somebody waits, as long waits who passes on what it asked.
_SHARE = 0.75


class Word(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """One thing said. The tag is the class's name."""


class Passed(NamedTuple):
    """How far something is passed on from node to node.

    ``hops``: how many it goes at most, the one to who hears it included. ``within``: seconds for who is asked to wait
    for those beyond. ``what``: tells it from all others, 8 bytes; empty: it goes no further.
    """

    hops: int = 1
    within: float = 0.0
    what: Annotated[bytes, msgspec.Meta(max_length=8)] = b""

    def on(self) -> Passed:
        """Return the same, one hop further: who waits longer hears of who did not answer."""
        return Passed(self.hops - 1, self.within * _SHARE, self.what)


class Sync(Word, frozen=True):
    """The acceptor: say when everything before this was handled, here and beyond."""

    number: int
    passed: Passed = Passed()


class Heard(Word, frozen=True):
    """The initiator: everything before this Sync was handled; so many messages still wait for the acceptor.

    And for who is on the way to it, beyond. -1: it is not known.
    """

    number: int
    waiting: int


class Take(Word, frozen=True):
    """The initiator: a client has connected to it. ``clean``: without a session. ``came``: when, ms; 0: now."""

    number: int
    client_id: str
    user: str | None
    clean: bool
    came: int = 0
    passed: Passed = Passed()


class Given(Word, frozen=True):
    """The acceptor: its connection is over. ``refused``: why the client may not have that session."""

    number: int
    session: MovingSession | None
    refused: str = ""


class Taken(Word, frozen=True):
    """The initiator: it has this client's session on its disk."""

    client_id: str


class Reached(Word, frozen=True):
    """The acceptor: a node can be asked by way of it from now on. To who said ``hops`` above 1 when it opened."""

    node: bytes
    passed: Passed


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """The retained message of a topic, as of a time and a node; ``data`` None: it was cleared."""

    topic: str
    at: int
    node: bytes
    expiration: int
    data: bytes | None


class Retained(Word, frozen=True):
    """The acceptor: topics that have changed. ``number``: where its changes are then; 0: more follows."""

    number: int
    entries: tuple[Entry, ...]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Sync | Heard | Take | Given | Taken | Reached | Retained).decode


def encode(word: Word, room: int) -> Iterator[bytes]:
    """Return the payloads of a word; ``room``: bytes of the largest."""
    data, size = _encode(word), room - 1
    last = max(0, (len(data) - 1) // size) * size
    for start in range(0, last, size):
        yield _PART + data[start : start + size]
    yield _LAST + data[last:]


class Words:
    """Puts payloads together and decodes them. Every error is one of the peer: CoreError."""

    def __init__(self) -> None:
        self._parts = bytearray()

    def decode(self, payload: bytes) -> Word | None:
        """Return what was said; None when more of it comes."""
        kind, rest = payload[:1], payload[1:]
        if kind == _PART:
            self._parts += rest
            if len(self._parts) > MAXIMUM:
                raise CoreError("protocol", f"something of more than {MAXIMUM} bytes")
            return None
        if self._parts:
            rest, self._parts = bytes(self._parts) + rest, bytearray()
        if kind != _LAST:
            raise CoreError("protocol", f"a payload of kind {kind!r} about MQTT")
        try:
            word: Word = _decode(rest)
        except (ValueError, RecursionError) as error:  # msgspec's are ValueErrors
            raise CoreError("protocol", f"what a node says about MQTT cannot be read: {error}") from error
        return word
