"""The parts of proton's C engine that we use, with their types, and values to and from ``pn_data_t``.

The only module that knows ``cproton_ffi``; everything else imports ``lib`` and ``ffi`` from here.
Values of a peer are never decoded by proton (see :mod:`pollux.wire.amqp.guard`): what is read
back here are outcomes of bounded size, through proton's encoder and our own decoder.
"""

from __future__ import annotations

from typing import Any

from cproton_ffi import ffi as _ffi
from cproton_ffi import lib as _lib

from pollux.wire.amqp.codec import DecodeError, decode_value, encode_value

#: cffi objects have no types of their own: Any, confined to wire.amqp.
ffi: Any = _ffi
lib: Any = _lib
#: A pointer to a proton object; comparable and hashable by address.
Pointer = Any

NULL: Pointer = ffi.NULL

ACCEPTED = 0x24
REJECTED = 0x25
RELEASED = 0x26
MODIFIED = 0x27
RECEIVED = 0x23
DECLARED = 0x33
TRANSACTIONAL = 0x34

#: What pn_link_recv returns for a delivery its sender gave up.
ABORTED = -11

#: Largest outcome (with annotations, a transaction id) read back.
_MAX_DATA = 16384


def put(data: Pointer, value: object) -> None:
    """Replace the content of ``data`` by one value."""
    encoded = encode_value(value)
    lib.pn_data_clear(data)
    lib.pn_data_decode(data, encoded, len(encoded))
    lib.pn_data_rewind(data)


def get(data: Pointer) -> object:
    """Return the (first) value in ``data``, None when it is empty. Raises DecodeError."""
    size = lib.pn_data_encoded_size(data)
    if size <= 0:
        return None
    if size > _MAX_DATA:
        raise DecodeError(f"a delivery state of {size} bytes")
    buffer = ffi.new("char[]", size)
    written = lib.pn_data_encode(data, buffer, size)
    if written < 0:
        raise DecodeError("an undecodable delivery state")
    return decode_value(ffi.buffer(buffer, written)[:])[0]


def text(pointer: Pointer) -> str | None:
    """Return a C string, None for NULL; bytes that are not UTF-8 are replaced."""
    return None if pointer == NULL else ffi.string(pointer).decode("utf-8", "replace")


def set_condition(condition: Pointer, name: str, description: str, info: dict[object, object] | None = None) -> None:
    """Fill an error condition. NUL bytes, which C strings cannot hold, become spaces."""
    lib.pn_condition_set_name(condition, name.encode("ascii", "replace"))
    lib.pn_condition_set_description(condition, description.replace("\0", " ").encode("utf-8", "replace"))
    if info:
        put(lib.pn_condition_info(condition), info)
