"""WebSocket frames (RFC 6455, section 5) from a client, and to it. Sans-io.

Messages have no meaning here: AMQP, MQTT and STOMP are streams, and a message may hold half a packet or ten. So payload
is handed out as it comes, and what is kept is the head of a frame (14 bytes) or a control frame (125 bytes), whatever
sizes a client announces. Why this is no library: docs/decisions/0060-websocket-frames-of-our-own.md.
"""

from __future__ import annotations

import codecs
from typing import Final

from msgspec import Struct

from pollux.errors import PolluxError

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA

NORMAL: Final = 1000
GOING_AWAY: Final = 1001
PROTOCOL_ERROR: Final = 1002
UNSUPPORTED: Final = 1003
NO_STATUS: Final = 1005
INVALID_TEXT: Final = 1007
TOO_BIG: Final = 1009

#: Bytes of a control frame's payload (section 5.5).
_MAX_CONTROL: Final = 125
_FIN, _RESERVED, _OPCODE, _MASKED, _LENGTH = 0x80, 0x70, 0x0F, 0x80, 0x7F
#: Codes a peer may send (section 7.4): those with a meaning, and those of libraries and applications.
_CLOSE_CODES: Final = frozenset({*range(1000, 1004), *range(1007, 1015), *range(3000, 5000)})


class Ping(Struct, frozen=True):
    """A question whether we are there; the answer has its payload."""

    payload: bytes


class Close(Struct, frozen=True):
    """The client says goodbye; nothing comes after it. ``code`` is NO_STATUS when it gave none."""

    code: int
    reason: str


class FrameError(PolluxError):
    """The client broke the protocol; ``code`` is what it is told (section 7.4.1)."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


Event = bytes | Ping | Close


class FrameDecoder:
    """Finds payload and control frames in a stream of bytes from one client.

    ``text``: text messages may come too. ``max_frame``: bytes of a frame's payload, -1 as many as it says.
    """

    __slots__ = ("_closed", "_kept", "_key", "_left", "_max_frame", "_message", "_text", "_text_allowed")

    def __init__(self, *, text: bool, max_frame: int = -1) -> None:
        self._text_allowed = text
        self._max_frame = max_frame
        #: The start of a frame that cannot be told yet.
        self._kept = b""
        #: Payload of the frame under way that is still to come, and the key it is masked with from there on.
        self._left = 0
        self._key = b""
        #: The opcode of the message under way; CONTINUATION: none is.
        self._message = CONTINUATION
        self._text: codecs.IncrementalDecoder | None = None
        self._closed = False

    @property
    def buffered(self) -> int:
        """The number of bytes held of a frame."""
        return len(self._kept)

    def feed(self, data: bytes) -> list[Event]:
        """Return what ``data`` brings. Raises FrameError; what was before the fault is lost with it."""
        events: list[Event] = []
        if self._kept:
            data = self._kept + data
            self._kept = b""
        position, end = 0, len(data)
        while position < end and not self._closed:
            if self._left:
                position = self._payload(data, position, events)
                continue
            if end - position < 2:
                break
            first, second = data[position], data[position + 1]
            length = second & _LENGTH
            at = position + 2
            if length > _MAX_CONTROL:
                size = 2 if length == 126 else 8
                if end - at < size:
                    self._check_head(first, second, 0)
                    break
                length = int.from_bytes(data[at : at + size], "big")
                if length < (126 if size == 2 else 1 << 16) or length >> 63:
                    raise FrameError(PROTOCOL_ERROR, "a length that is not in its shortest form")
                at += size
            self._check_head(first, second, length)
            stop = at + 4
            if end < stop:
                break
            if first & 0x08:
                if end - stop < length:
                    break
                self._control(first & _OPCODE, unmask(data[stop : stop + length], data[at:stop]), events)
                position = stop + length
                continue
            self._begin(first)
            self._left, self._key = length, data[at:stop]
            position = stop
            if not length:
                self._end_of_frame()
        if not self._closed:
            self._kept = data[position:]
        return events

    def _check_head(self, first: int, second: int, length: int) -> None:
        """Refuse a frame that may not come, before anything of it is waited for."""
        opcode = first & _OPCODE
        if first & _RESERVED:
            raise FrameError(PROTOCOL_ERROR, "reserved bits of a frame are set, and no extension is agreed on")
        if not second & _MASKED:
            raise FrameError(PROTOCOL_ERROR, "a frame of a client is not masked")
        if opcode & 0x08:
            if opcode > PONG:
                raise FrameError(PROTOCOL_ERROR, f"a frame has the unknown opcode {opcode:#x}")
            if not first & _FIN or second & _LENGTH > _MAX_CONTROL:
                raise FrameError(PROTOCOL_ERROR, "a control frame is in pieces, or too long")
            return
        if opcode > BINARY:
            raise FrameError(PROTOCOL_ERROR, f"a frame has the unknown opcode {opcode:#x}")
        if (opcode == CONTINUATION) == (self._message == CONTINUATION):
            raise FrameError(PROTOCOL_ERROR, "a message begins within another, or goes on without having begun")
        if opcode == TEXT and not self._text_allowed:
            raise FrameError(UNSUPPORTED, "this protocol is in binary messages")
        if 0 <= self._max_frame < length:
            raise FrameError(TOO_BIG, f"a frame of {length} bytes; at most {self._max_frame} are allowed")

    def _begin(self, first: int) -> None:
        opcode = first & _OPCODE
        if opcode != CONTINUATION:
            self._message = opcode
            self._text = codecs.getincrementaldecoder("utf-8")() if opcode == TEXT else None
        #: The high bit says that the message ends with this frame.
        self._message = self._message & _OPCODE | first & _FIN

    def _payload(self, data: bytes, position: int, events: list[Event]) -> int:
        """Hand out payload of the frame under way; the offset after it."""
        part = data[position : position + self._left]
        size = len(part)
        payload = unmask(part, self._key)
        self._left -= size
        if self._text is not None:
            self._check_text(payload)
        events.append(payload)
        if self._left:
            turn = size & 3
            self._key = self._key[turn:] + self._key[:turn]
        else:
            self._end_of_frame()
        return position + size

    def _check_text(self, payload: bytes, *, final: bool = False) -> None:
        if self._text is not None:
            try:
                self._text.decode(payload, final)
            except UnicodeDecodeError:
                raise FrameError(INVALID_TEXT, "a text message is not UTF-8") from None

    def _end_of_frame(self) -> None:
        if self._message & _FIN:
            self._check_text(b"", final=True)
            self._message, self._text = CONTINUATION, None

    def _control(self, opcode: int, payload: bytes, events: list[Event]) -> None:
        if opcode == PING:
            events.append(Ping(payload))
        elif opcode == CLOSE:
            events.append(_close(payload))
            self._closed = True


def _close(payload: bytes) -> Close:
    if not payload:
        return Close(NO_STATUS, "")
    code = int.from_bytes(payload[:2], "big")
    if len(payload) == 1 or code not in _CLOSE_CODES:
        raise FrameError(PROTOCOL_ERROR, "a close frame has no code that may be sent")
    try:
        return Close(code, payload[2:].decode())
    except UnicodeDecodeError:
        raise FrameError(INVALID_TEXT, "the reason of a close frame is not UTF-8") from None


def unmask(data: bytes, key: bytes) -> bytes:
    """Return ``data`` without its mask, or with it (section 5.3): both are the same."""
    size = len(data)
    stream = key * ((size + 3) >> 2)
    number = int.from_bytes(data, "little") ^ int.from_bytes(stream[:size], "little")
    return number.to_bytes(size, "little")


def head(opcode: int, size: int) -> bytes:
    """Return what stands before ``size`` bytes of payload in a frame to a client, which is a message by itself."""
    first = bytes((_FIN | opcode,))
    if size <= _MAX_CONTROL:
        return first + bytes((size,))
    if size < 1 << 16:
        return first + b"\x7e" + size.to_bytes(2, "big")
    return first + b"\x7f" + size.to_bytes(8, "big")


def close_frame(code: int, reason: str = "") -> bytes:
    """Return a close frame; as much of the reason as fits."""
    payload = b"" if code == NO_STATUS else code.to_bytes(2, "big") + reason.encode()[: _MAX_CONTROL - 2]
    while payload[2:]:
        try:
            payload[2:].decode()
            break
        except UnicodeDecodeError:
            payload = payload[:-1]
    return head(CLOSE, len(payload)) + payload
