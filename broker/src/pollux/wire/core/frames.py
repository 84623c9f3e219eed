"""Frames of the core protocol: bytes in, frames out, and back. See docs/core-protocol.md."""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import TYPE_CHECKING, NamedTuple

from pollux.checksum import crc32c
from pollux.errors import PolluxError

if TYPE_CHECKING:
    from collections.abc import Iterator

MAGIC = b"POLLUX"
#: The versions of the protocol spoken here.
HIGHEST = LOWEST = 1
PREAMBLE_SIZE = 8
_HEAD = struct.Struct("<IIBBH")
HEAD_SIZE = _HEAD.size
#: Largest frame before the proof, and largest that may ever be agreed on, bytes.
UNPROVEN_FRAME = 4096
MAXIMUM_FRAME = 16 << 20


class CoreError(PolluxError):
    """The conversation ends. ``code`` is one of docs/core-protocol.md."""

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class FrameType(IntEnum):
    """The kind of a frame, by which its payload is read."""

    HELLO = 1
    PROOF = 2
    OPEN = 3
    ACCEPT = 4
    CLOSE = 5
    ERROR = 6
    PING = 7
    PONG = 8
    CREDIT = 9
    DATA = 10


class Frame(NamedTuple):
    """A frame as it was received: its payload is checked, and not decoded."""

    type: FrameType
    channel: int
    payload: bytes


def preamble(highest: int = HIGHEST, lowest: int = LOWEST) -> bytes:
    """Return the first bytes that a side sends."""
    return MAGIC + bytes((highest, lowest))


def version_of(theirs: bytes) -> int:
    """Return the version to speak with whoever sent this preamble. Raises CoreError."""
    if theirs[: len(MAGIC)] != MAGIC:
        raise CoreError("protocol", "the peer does not speak the core protocol")
    highest, lowest = theirs[6], theirs[7]
    version = min(highest, HIGHEST)
    if version < max(lowest, LOWEST):
        raise CoreError(
            "version",
            f"the peer speaks versions {lowest} to {highest} of the core protocol, this broker {LOWEST} to {HIGHEST}:"
            " upgrade the older one",
        )
    return version


def encode(kind: FrameType, channel: int, *payload: bytes) -> bytes:
    """Return a whole frame; its payload may be given in parts."""
    length = HEAD_SIZE + sum(map(len, payload))
    tail = struct.pack("<BBH", kind, 0, channel)
    checksum = crc32c(tail, length)
    for part in payload:
        checksum = crc32c(part, checksum)
    return b"".join((struct.pack("<II", length, checksum), tail, *payload))


class FrameReader:
    """Cuts a stream into frames; never holds more than one frame of ``maximum`` bytes beyond what it was fed."""

    def __init__(self, maximum: int = UNPROVEN_FRAME) -> None:
        self.maximum = maximum
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames complete now. Raises CoreError at the first that breaks a rule: nothing after it counts."""
        self._buffer += data
        at = 0
        try:
            while (frame := self._next(at)) is not None:
                at += HEAD_SIZE + len(frame.payload)
                yield frame
        finally:
            del self._buffer[:at]

    def _next(self, at: int) -> Frame | None:
        buffer = self._buffer
        if len(buffer) - at < HEAD_SIZE:
            return None
        length, checksum, kind, flags, channel = _HEAD.unpack_from(buffer, at)
        if not HEAD_SIZE <= length <= self.maximum:
            raise CoreError("protocol", f"a frame of {length} bytes: {HEAD_SIZE} to {self.maximum} are allowed")
        if len(buffer) - at < length:
            return None
        # Most bytes that a broker receives are a copy's: each is copied once here.
        with memoryview(buffer) as view:
            payload = bytes(view[at + HEAD_SIZE : at + length])
            head = bytes(view[at + 8 : at + HEAD_SIZE])
        if crc32c(payload, crc32c(head, length)) != checksum:
            raise CoreError("protocol", "a frame has a wrong checksum")
        if flags:
            raise CoreError("protocol", f"a frame has flags {flags:#x}, which version {HIGHEST} does not have")
        try:
            known = FrameType(kind)
        except ValueError:
            raise CoreError("protocol", f"a frame has the unknown type {kind}") from None
        return Frame(known, channel, payload)
