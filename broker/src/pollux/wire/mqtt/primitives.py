"""Data types of MQTT (MQTT 5, section 1.5) on ``bytes`` and offsets. Pure; raises :class:`ProtocolError` only."""

from __future__ import annotations

from pollux.wire.mqtt.reasons import malformed

MAX_VARIABLE_INTEGER = 268_435_455
#: A string or binary field carries its length in two bytes.
MAX_FIELD = 65_535


def encode_variable(value: int) -> bytes:
    """Return a variable byte integer (section 1.5.5), 1 to 4 bytes. Raises ValueError outside its range."""
    if value < 0x80:
        if value < 0:
            raise ValueError("negative variable byte integer")
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
    if value < 0x20_0000:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14))
    if value <= MAX_VARIABLE_INTEGER:
        return bytes((value & 0x7F | 0x80, value >> 7 & 0x7F | 0x80, value >> 14 & 0x7F | 0x80, value >> 21))
    raise ValueError("variable byte integer out of range")


def decode_variable(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return the value and the offset after it. It must be complete and in its shortest form (MQTT-1.5.5-1)."""
    value = 0
    for index in range(4):
        if position >= end:
            raise malformed("a variable byte integer is cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << 7 * index
        if byte < 0x80:
            if not byte and index:
                raise malformed("a variable byte integer is longer than it needs to be")
            return value, position
    raise malformed("a variable byte integer is longer than four bytes")


def encode_binary(value: bytes) -> bytes:
    """Binary data with its two-byte length. Raises ValueError beyond 65,535 bytes."""
    if len(value) > MAX_FIELD:
        raise ValueError("field longer than 65535 bytes")
    return len(value).to_bytes(2, "big") + value


def encode_string(value: str) -> bytes:
    """Return a UTF-8 string with its two-byte length (section 1.5.4)."""
    return encode_binary(value.encode("utf-8"))


def decode_binary(data: bytes, position: int, end: int) -> tuple[bytes, int]:
    """Binary data and the offset after it."""
    start = position + 2
    if start > end:
        raise malformed("a field's length is cut off")
    stop = start + (data[position] << 8 | data[position + 1])
    if stop > end:
        raise malformed("a field reaches beyond its packet")
    return data[start:stop], stop


def decode_string(data: bytes, position: int, end: int) -> tuple[str, int]:
    """Return a string and the offset after it: well-formed UTF-8 without U+0000 (MQTT-1.5.4-1, -2)."""
    raw, position = decode_binary(data, position, end)
    return text_of(raw), position


def text_of(raw: bytes) -> str:
    """Return ``raw`` as a string, checked as section 1.5.4 wants it."""
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        raise malformed("a string is not well-formed UTF-8") from None
    if "\0" in text:
        raise malformed("a string contains U+0000")
    return text


def decode_uint16(data: bytes, position: int, end: int) -> tuple[int, int]:
    """Return a two-byte integer and the offset after it."""
    if position + 2 > end:
        raise malformed("a two-byte integer is cut off")
    return data[position] << 8 | data[position + 1], position + 2
