"""AMQP 1.0 frames from the client's side (OASIS AMQP 1.0 parts 2 and 4): performatives out, frames in. Sans-io."""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from pollux.wire.amqp.codec import (
    DecodeError,
    Described,
    Symbol,
    UByte,
    UInt,
    UShort,
    decode_value,
    encode_described,
    encode_fields,
)
from pollux.wire.amqp.guard import ATTACH, BEGIN, CLOSE, DETACH, DISPOSITION, END, FLOW, OPEN, TRANSFER

#: The largest frame we take; said in open.
MAX_FRAME = 128 * 1024
#: Frames the broker may have under way in a session: credit is what limits it.
WINDOW = 0x7FFFFFFF
_SASL_FRAME, _AMQP_FRAME = 1, 0
_head = Struct(">IBBH")
SASL_MECHANISMS, SASL_INIT, SASL_CHALLENGE, SASL_RESPONSE, SASL_OUTCOME = range(0x40, 0x45)
SOURCE, TARGET, COORDINATOR, DECLARE, DISCHARGE = 0x28, 0x29, 0x30, 0x31, 0x32
ACCEPTED, REJECTED, RELEASED, MODIFIED, DECLARED, TRANSACTIONAL = 0x24, 0x25, 0x26, 0x27, 0x33, 0x34


class Frame(NamedTuple):
    """A received frame: performative code, its fields, and what follows it."""

    sasl: bool
    channel: int
    code: int
    fields: list[object]
    payload: bytes

    def field(self, index: int) -> object:
        """Return a field, None where the list is shorter."""
        return self.fields[index] if index < len(self.fields) else None

    def number(self, index: int, default: int = 0) -> int:
        """Return a number field."""
        value = self.field(index)
        return value if isinstance(value, int) else default


class Reader:
    """Collects bytes until frames are whole; never more than one frame and one read."""

    def __init__(self) -> None:
        self._rest = b""

    def receive(self, data: bytes) -> list[Frame]:
        """Return the frames that `data` completes; empty frames, which only say that the broker lives, are left out.

        Raises DecodeError.
        """
        if self._rest:
            data = self._rest + data
        frames = []
        position, end = 0, len(data)
        while end - position >= 8:
            size, offset, kind, channel = _head.unpack_from(data, position)
            start = position + 4 * offset
            if size > MAX_FRAME or size < 8 or not 8 <= 4 * offset <= size:
                raise DecodeError(f"a frame of {size} bytes")
            if position + size > end:
                break
            stop = position + size
            if start < stop:
                value, after = decode_value(data, start)
                if not isinstance(value, Described) or not isinstance(value.value, list):
                    raise DecodeError("a frame without a performative")
                if not isinstance(value.descriptor, int):
                    raise DecodeError(f"unknown performative {value.descriptor!r}")
                frames.append(Frame(kind == _SASL_FRAME, channel, value.descriptor, value.value, data[after:stop]))
            position = stop
        self._rest = data[position:]
        return frames


class Error(NamedTuple):
    """An error of close, end, detach or rejected."""

    condition: str
    description: str
    info: dict[object, object]


def error_of(value: object) -> Error | None:
    """Return the error in a performative's field."""
    if not isinstance(value, Described) or not isinstance(value.value, list):
        return None
    condition, description, info = (value.value + [None] * 3)[:3]
    return Error(str(condition or ""), str(description or ""), info if isinstance(info, dict) else {})


def frame(code: int, fields: list[object], channel: int = 0, payload: bytes = b"", kind: int = _AMQP_FRAME) -> bytes:
    """Return one frame."""
    body = encode_described(code, encode_fields(fields))
    return _head.pack(8 + len(body) + len(payload), 2, kind, channel) + body + payload


EMPTY = _head.pack(8, 2, _AMQP_FRAME, 0)


def sasl_init(mechanism: str, response: bytes, hostname: str) -> bytes:
    """Encode a sasl-init frame."""
    return frame(SASL_INIT, [Symbol(mechanism), response, hostname], kind=_SASL_FRAME)


def open_frame(container: str, hostname: str, idle_timeout: int) -> bytes:
    """open; `idle_timeout` in milliseconds is what we want to hear something within, 0 for no limit."""
    properties: dict[object, object] = {Symbol("product"): "pollux-client"}
    idle = UInt(idle_timeout) if idle_timeout else None
    nothing = [None] * 4
    return frame(OPEN, [container, hostname, UInt(MAX_FRAME), UShort(0xFFFF), idle, *nothing, properties])


def begin(channel: int) -> bytes:
    """begin of a session of ours."""
    return frame(BEGIN, [None, UInt(0), UInt(WINDOW), UInt(WINDOW), UInt(0xFFFF)], channel)


def attach_sender(channel: int, handle: int, name: str, target: object) -> bytes:
    """attach of a link we send on; every delivery is unsettled until the broker settles it."""
    source = Described(SOURCE, [name])
    settle: list[object] = [UByte(0), UByte(0)]
    return frame(ATTACH, [name, UInt(handle), False, *settle, source, target, None, None, UInt(0)], channel)


def attach_receiver(channel: int, handle: int, name: str, source: object) -> bytes:
    """attach of a link we receive on."""
    settle: list[object] = [UByte(0), UByte(0)]
    return frame(ATTACH, [name, UInt(handle), True, *settle, source, Described(TARGET, [name])], channel)


def transfers(  # noqa: PLR0917  (a performative's fields in their order)
    channel: int, handle: int, number: int, tag: bytes, data: bytes, state: object, max_frame: int
) -> list[bytes]:
    """Return the frames of one message: as many as the broker's frame size needs."""
    room = max_frame - 128 - (len(tag) if tag else 0)
    first: list[object] = [UInt(handle), UInt(number), tag, UInt(0), False]
    if len(data) <= room:
        return [frame(TRANSFER, [*first, False, None, state], channel, data)]
    parts = [data[start : start + room] for start in range(0, len(data), room)]
    last = len(parts) - 1
    frames = []
    for index, part in enumerate(parts):
        head = first if index == 0 else [UInt(handle), None, None, None, None]
        frames.append(frame(TRANSFER, [*head, index < last, None, state], channel, part))
    return frames


def session_flow(channel: int, next_incoming: int, next_outgoing: int, link: list[object]) -> bytes:
    """flow; `link` is handle, delivery-count, link-credit, ... or empty."""
    window: list[object] = [UInt(next_incoming), UInt(WINDOW), UInt(next_outgoing), UInt(WINDOW)]
    return frame(FLOW, [*window, *link], channel)


def disposition(channel: int, number: int, state: object) -> bytes:
    """disposition of one received delivery, settled."""
    return frame(DISPOSITION, [True, UInt(number), None, True, state], channel)


def detach(channel: int, handle: int) -> bytes:
    """detach for good."""
    return frame(DETACH, [UInt(handle), True], channel)


def end(channel: int) -> bytes:
    """Encode an end frame."""
    return frame(END, [], channel)


def close() -> bytes:
    """Encode a close frame."""
    return frame(CLOSE, [])
