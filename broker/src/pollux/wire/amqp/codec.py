"""The AMQP 1.0 type system (OASIS AMQP 1.0 part 1): bytes to Python values and back.

Decoding is bounded: nesting to :data:`MAX_DEPTH`, the number of zero-width array elements to
:data:`MAX_EMPTY_ELEMENTS`, and nothing is read outside the buffer. Every violation is a
:class:`DecodeError`. Numeric widths are lost on decoding (all integers become ``int``); where
the width must be written, the encoder takes one of the wrappers (:class:`UInt` and so on).

This module must not know messages, frames or what any descriptor means.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from uuid import UUID

from pollux.errors import PolluxError

MAX_DEPTH = 32
MAX_EMPTY_ELEMENTS = 65536


class DecodeError(PolluxError):
    """The bytes are not a valid AMQP encoding; answered with ``amqp:decode-error``."""


class Symbol(str):
    """An AMQP symbol: ASCII from a constrained domain."""

    __slots__ = ()


class Described:
    """A described value: ``descriptor`` (normally an int or a Symbol) and ``value``."""

    __slots__ = ("descriptor", "value")

    def __init__(self, descriptor: object, value: object) -> None:
        self.descriptor = descriptor
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Described) and (self.descriptor, self.value) == (other.descriptor, other.value)

    def __hash__(self) -> int:
        return hash(self.descriptor)

    def __repr__(self) -> str:
        return f"Described({self.descriptor!r}, {self.value!r})"


class Opaque:
    """A primitive without a Python equivalent (the decimals): its constructor byte and its bytes."""

    __slots__ = ("code", "data")

    def __init__(self, code: int, data: bytes) -> None:
        self.code = code
        self.data = data

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Opaque) and (self.code, self.data) == (other.code, other.data)

    def __hash__(self) -> int:
        return hash((self.code, self.data))

    def __repr__(self) -> str:
        return f"Opaque({self.code:#x}, {self.data!r})"


class UByte(int):
    """Encoded as ubyte."""


class UShort(int):
    """Encoded as ushort."""


class UInt(int):
    """Encoded as uint."""


class ULong(int):
    """Encoded as ulong."""


class Int(int):
    """Encoded as int (32 bits, signed)."""


class Timestamp(int):
    """Encoded as timestamp: milliseconds since the epoch."""


class Array(list[object]):
    """An AMQP array; as the encoder's input all elements must be symbols or all strings."""


_U16 = struct.Struct(">H").unpack_from
_U32 = struct.Struct(">I").unpack_from
_U64 = struct.Struct(">Q").unpack_from
_I8 = struct.Struct(">b").unpack_from
_I16 = struct.Struct(">h").unpack_from
_I32 = struct.Struct(">i").unpack_from
_I64 = struct.Struct(">q").unpack_from
_F32 = struct.Struct(">f").unpack_from
_F64 = struct.Struct(">d").unpack_from

#: Bytes after the constructor for the fixed-width categories 0x4. to 0x9., by code >> 4.
_FIXED = (None, None, None, None, 0, 1, 2, 4, 8, 16, None, None, None, None, None, None)
_Reader = Callable[[bytes, int], object]


def _utf8(data: bytes) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DecodeError("a string is not valid UTF-8") from error


def _symbol(data: bytes) -> Symbol:
    try:
        return Symbol(data.decode("ascii"))
    except UnicodeDecodeError as error:
        raise DecodeError("a symbol is not ASCII") from error


def _char(data: bytes, pos: int) -> object:
    code = _U32(data, pos)[0]
    if code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
        raise DecodeError(f"{code:#x} is not a character")
    return chr(code)


def _opaque(code: int, width: int) -> _Reader:
    return lambda data, pos: Opaque(code, data[pos : pos + width])


_FIXED_READERS: dict[int, _Reader] = {
    0x40: lambda _data, _pos: None,
    0x41: lambda _data, _pos: True,
    0x42: lambda _data, _pos: False,
    0x43: lambda _data, _pos: 0,
    0x44: lambda _data, _pos: 0,
    0x45: lambda _data, _pos: [],
    0x50: lambda data, pos: data[pos],
    0x51: lambda data, pos: _I8(data, pos)[0],
    0x52: lambda data, pos: data[pos],
    0x53: lambda data, pos: data[pos],
    0x54: lambda data, pos: _I8(data, pos)[0],
    0x55: lambda data, pos: _I8(data, pos)[0],
    0x56: lambda data, pos: data[pos] != 0,
    0x60: lambda data, pos: _U16(data, pos)[0],
    0x61: lambda data, pos: _I16(data, pos)[0],
    0x70: lambda data, pos: _U32(data, pos)[0],
    0x71: lambda data, pos: _I32(data, pos)[0],
    0x72: lambda data, pos: _F32(data, pos)[0],
    0x73: _char,
    0x74: _opaque(0x74, 4),
    0x80: lambda data, pos: _U64(data, pos)[0],
    0x81: lambda data, pos: _I64(data, pos)[0],
    0x82: lambda data, pos: _F64(data, pos)[0],
    0x83: lambda data, pos: Timestamp(_I64(data, pos)[0]),
    0x84: _opaque(0x84, 8),
    0x94: _opaque(0x94, 16),
    0x98: lambda data, pos: UUID(bytes=data[pos : pos + 16]),
}
_VARIABLE: dict[int, Callable[[bytes], object]] = {0xA0: bytes, 0xA1: _utf8, 0xA3: _symbol}


def _extent(data: bytes, code: int, pos: int) -> int:
    """Return the position behind the value of constructor ``code`` whose data starts at ``pos``."""
    category = code >> 4
    width = _FIXED[category]
    if width is not None:
        end = pos + width
    elif category in (0xA, 0xC, 0xE):
        if pos >= len(data):
            raise DecodeError("the encoding ends inside a size")
        end = pos + 1 + data[pos]
    elif category in (0xB, 0xD, 0xF):
        if pos + 4 > len(data):
            raise DecodeError("the encoding ends inside a size")
        end = pos + 4 + int(_U32(data, pos)[0])
    else:
        raise DecodeError(f"unknown constructor {code:#04x}")
    if end > len(data):
        raise DecodeError("the encoding ends inside a value")
    return end


def skip_value(data: bytes, pos: int) -> int:
    """Return the position behind the value at ``pos``; contents of compounds are not looked at."""
    described = 0
    while True:
        if pos >= len(data):
            raise DecodeError("the encoding ends where a value is expected")
        code = data[pos]
        if code:
            pos = _extent(data, code, pos + 1)
            if not described:
                return pos
            described -= 1
        else:
            described += 1
            if described > MAX_DEPTH:
                raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
            pos += 1


def decode_value(data: bytes, pos: int = 0, depth: int = 0) -> tuple[object, int]:
    """Decode the value at ``pos``; returns it and the position behind it. Raises DecodeError."""
    if pos >= len(data):
        raise DecodeError("the encoding ends where a value is expected")
    code = data[pos]
    if code == 0:
        if depth >= MAX_DEPTH:
            raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
        descriptor, pos = decode_value(data, pos + 1, depth + 1)
        value, pos = decode_value(data, pos, depth + 1)
        return Described(descriptor, value), pos
    return _decode_constructed(data, code, pos + 1, depth)


def _decode_constructed(data: bytes, code: int, pos: int, depth: int) -> tuple[object, int]:
    end = _extent(data, code, pos)
    reader = _FIXED_READERS.get(code)
    if reader is not None:
        return reader(data, pos), end
    variable = _VARIABLE.get(code & 0xEF)
    if variable is not None:
        return variable(data[pos + (1 if code < 0xB0 else 4) : end]), end
    if code in (0xC0, 0xD0, 0xC1, 0xD1, 0xE0, 0xF0):
        if depth >= MAX_DEPTH:
            raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
        return _decode_compound(data, code, pos, end, depth + 1), end
    raise DecodeError(f"unknown constructor {code:#04x}")


def _decode_compound(data: bytes, code: int, pos: int, end: int, depth: int) -> object:
    width = 1 if code in (0xC0, 0xC1, 0xE0) else 4
    pos += width
    if pos + width > end:
        raise DecodeError("the size of a compound value does not cover its count")
    count = data[pos] if width == 1 else _U32(data, pos)[0]
    pos += width
    kind = code & 0x2F
    if kind == 0x20:
        return _decode_array(data, count, pos, end, depth)
    if count > end - pos:
        raise DecodeError("a compound value has fewer bytes than elements")
    items: list[object] = []
    append = items.append
    for _ in range(count):
        item, pos = decode_value(data, pos, depth)
        append(item)
    if pos != end:
        raise DecodeError("the size and the count of a compound value contradict each other")
    return items if kind == 0x00 else _to_map(items)


def _to_map(items: list[object]) -> dict[object, object]:
    if len(items) % 2:
        raise DecodeError("a map has an odd number of elements")
    result: dict[object, object] = {}
    for index in range(0, len(items), 2):
        key = items[index]
        try:
            result[key] = items[index + 1]
        except TypeError as error:
            raise DecodeError("a map has a list or a map as a key") from error
    return result


def _decode_array(data: bytes, count: int, pos: int, end: int, depth: int) -> Array:
    if pos >= end:
        raise DecodeError("an array has no constructor")
    descriptors: list[object] = []
    while data[pos] == 0:
        if len(descriptors) >= MAX_DEPTH:
            raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
        descriptor, pos = decode_value(data, pos + 1, depth)
        descriptors.append(descriptor)
        if pos >= end:
            raise DecodeError("an array has no constructor")
    code = data[pos]
    pos += 1
    if count > (MAX_EMPTY_ELEMENTS if code >> 4 == 4 else end - pos):
        raise DecodeError("an array has fewer bytes than elements")
    result = Array()
    for _ in range(count):
        item, pos = _decode_constructed(data, code, pos, depth)
        for descriptor in reversed(descriptors):
            item = Described(descriptor, item)
        result.append(item)
    if pos != end:
        raise DecodeError("the size and the count of an array contradict each other")
    return result


# -- encoding -----------------------------------------------------------------------------------


def encode_value(value: object) -> bytes:
    """Encode ``value``: ``int`` as long, ``float`` as double, ``str`` as string, ``bytes`` as binary.

    Raises ValueError for what AMQP cannot express (an integer beyond 64 bits, an unknown type).
    """
    if value is None:
        return b"\x40"
    encoder = _ENCODERS.get(type(value))
    if encoder is None:
        raise ValueError(f"{type(value).__name__} has no AMQP encoding")
    try:
        return encoder(value)
    except struct.error as error:
        raise ValueError(f"{value!r} is out of range") from error


def encode_string(value: str) -> bytes:
    """Return an encoded string, as str8 or str32. Lone surrogates become '?'."""
    data = value.encode("utf-8", "replace")
    size = len(data)
    return (b"\xa1%c" % size if size < 256 else b"\xb1" + size.to_bytes(4, "big")) + data


def encode_binary(data: bytes) -> bytes:
    """Return encoded binary, as vbin8 or vbin32."""
    size = len(data)
    return (b"\xa0%c" % size if size < 256 else b"\xb0" + size.to_bytes(4, "big")) + data


def encode_symbol(value: str) -> bytes:
    """Return an encoded symbol, as sym8 or sym32; what is not ASCII becomes '?'."""
    data = value.encode("ascii", "replace")
    size = len(data)
    return (b"\xa3%c" % size if size < 256 else b"\xb3" + size.to_bytes(4, "big")) + data


def encode_ulong(value: int) -> bytes:
    """Return an encoded ulong in its shortest form."""
    if value == 0:
        return b"\x44"
    return b"\x53%c" % value if 0 < value < 256 else b"\x80" + struct.pack(">Q", value)


def encode_uint(value: int) -> bytes:
    """Return an encoded uint in its shortest form."""
    if value == 0:
        return b"\x43"
    return b"\x52%c" % value if 0 < value < 256 else b"\x70" + struct.pack(">I", value)


def encode_long(value: int) -> bytes:
    """Return an encoded long in its shortest form."""
    return b"\x55" + struct.pack(">b", value) if -128 <= value < 128 else b"\x81" + struct.pack(">q", value)


def encode_int(value: int) -> bytes:
    """Return an encoded int in its shortest form."""
    return b"\x54" + struct.pack(">b", value) if -128 <= value < 128 else b"\x71" + struct.pack(">i", value)


def encode_compound(small: int, large: int, count: int, body: bytes) -> bytes:
    """Return an encoded list or map of ``count`` elements whose encodings are joined in ``body``."""
    if count < 256 and len(body) < 255:
        return b"%c%c%c" % (small, len(body) + 1, count) + body
    return struct.pack(">BII", large, len(body) + 4, count) + body


def encode_fields(values: list[object]) -> bytes:
    """Return the encoded list of a section or performative: trailing nulls are left out."""
    count = len(values)
    while count and values[count - 1] is None:
        count -= 1
    return encode_list(values[:count])


def encode_list(values: list[object]) -> bytes:
    """Return an encoded list."""
    if not values:
        return b"\x45"
    return encode_compound(0xC0, 0xD0, len(values), b"".join(map(encode_value, values)))


def encode_map(values: dict[object, object]) -> bytes:
    """Return an encoded map."""
    body = b"".join(encode_value(key) + encode_value(value) for key, value in values.items())
    return encode_compound(0xC1, 0xD1, 2 * len(values), body)


def encode_described(descriptor: int, encoded: bytes) -> bytes:
    """Return the encoded value with a numeric descriptor in front."""
    return b"\x00" + encode_ulong(descriptor) + encoded


def _encode_array(values: Array) -> bytes:
    symbols = all(isinstance(item, Symbol) for item in values)
    if not symbols and not all(isinstance(item, str) for item in values):
        raise ValueError("only arrays of symbols or of strings are encoded")
    parts = [str(item).encode("ascii" if symbols else "utf-8", "replace") for item in values]
    body = (b"\xb3" if symbols else b"\xb1") + b"".join(len(part).to_bytes(4, "big") + part for part in parts)
    return encode_compound(0xE0, 0xF0, len(values), body)


def _encode_any_described(value: Described) -> bytes:
    descriptor = value.descriptor
    head = encode_ulong(descriptor) if type(descriptor) is int else encode_value(descriptor)
    return b"\x00" + head + encode_value(value.value)


_ENCODERS: dict[type, Callable[..., bytes]] = {
    bool: lambda value: b"\x41" if value else b"\x42",
    int: encode_long,
    float: lambda value: b"\x82" + struct.pack(">d", value),
    str: encode_string,
    bytes: encode_binary,
    Symbol: encode_symbol,
    UUID: lambda value: b"\x98" + value.bytes,
    UByte: lambda value: b"\x50" + struct.pack(">B", value),
    UShort: lambda value: b"\x60" + struct.pack(">H", value),
    UInt: encode_uint,
    ULong: encode_ulong,
    Int: encode_int,
    Timestamp: lambda value: b"\x83" + struct.pack(">q", value),
    list: encode_list,
    dict: encode_map,
    Array: _encode_array,
    Opaque: lambda value: b"%c" % value.code + value.data,
    Described: _encode_any_described,
}


# -- descriptors --------------------------------------------------------------------------------


def renumber(data: bytes, pos: int, names: dict[bytes, int], depth: int = 0) -> tuple[bytes, int]:
    """Copy the value at ``pos`` with symbolic descriptors in ``names`` replaced by their numbers.

    Lists are entered; maps and arrays are copied as they are. For peers that write symbolic
    descriptors, which the engine behind us does not take everywhere.
    """
    if pos >= len(data):
        raise DecodeError("the encoding ends where a value is expected")
    code = data[pos]
    if code == 0:
        if depth >= MAX_DEPTH:
            raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
        end = skip_value(data, pos + 1)
        raw = data[pos + 1 : end]
        if raw and raw[0] in (0xA3, 0xB3):
            number = names.get(raw[2 if raw[0] == 0xA3 else 5 :])
            if number is not None:
                raw = encode_ulong(number)
        value, end = renumber(data, end, names, depth + 1)
        return b"\x00" + raw + value, end
    end = _extent(data, code, pos + 1)
    if code not in (0xC0, 0xD0):
        return data[pos:end], end
    if depth >= MAX_DEPTH:
        raise DecodeError(f"values are nested deeper than {MAX_DEPTH}")
    width = 1 if code == 0xC0 else 4
    at = pos + 1 + 2 * width
    if at > end:
        raise DecodeError("the size of a compound value does not cover its count")
    count = int.from_bytes(data[pos + 1 + width : at], "big")
    if count > end - at:
        raise DecodeError("a compound value has fewer bytes than elements")
    parts = []
    for _ in range(count):
        part, at = renumber(data, at, names, depth + 1)
        parts.append(part)
    if at != end:
        raise DecodeError("the size and the count of a compound value contradict each other")
    return encode_compound(0xC0, 0xD0, count, b"".join(parts)), end
