"""The SASL security layer's frames (OASIS AMQP 1.0 part 5, 5.3), server side.

Protocol headers and the five SASL performatives, as bytes. Which user may log in, and how a
mechanism's exchange goes, is the session's business: this module must not know either.
"""

from __future__ import annotations

from struct import Struct

from pollux.wire.amqp.codec import (
    Array,
    DecodeError,
    Described,
    Symbol,
    decode_value,
    encode_binary,
    encode_compound,
    encode_fields,
    encode_value,
)

AMQP_HEADER = b"AMQP\x00\x01\x00\x00"
SASL_HEADER = b"AMQP\x03\x01\x00\x00"
#: The specification's limit is 512 bytes; bearer tokens and long certificates' names need more.
MAX_FRAME = 4096
#: A client that needs more frames than this to log in is not logging in.
MAX_FRAMES = 16

_INIT = 0x41
_RESPONSE = 0x43
_NAMES = {"amqp:sasl-init:list": _INIT, "amqp:sasl-response:list": _RESPONSE}
_head = Struct(">IBBH").unpack_from
_pack_head = Struct(">IBBH").pack

OUTCOME_OK = 0
OUTCOME_AUTH = 1
OUTCOME_SYS = 2


class SaslError(DecodeError):
    """The client broke the SASL layer's rules; the connection cannot go on."""


class SaslInit:
    """The client's choice of mechanism with its initial response (None when it sent none)."""

    __slots__ = ("hostname", "mechanism", "response")

    def __init__(self, mechanism: str, response: bytes | None, hostname: str | None) -> None:
        self.mechanism = mechanism
        self.response = response
        self.hostname = hostname


class SaslResponse:
    """The client's answer to a challenge."""

    __slots__ = ("response",)

    def __init__(self, response: bytes) -> None:
        self.response = response


class SaslReader:
    """Collects the client's bytes until its login is through; bounded by MAX_FRAME and MAX_FRAMES."""

    __slots__ = ("_buffer", "_frames")

    def __init__(self) -> None:
        self._buffer = b""
        self._frames = 0

    def feed(self, data: bytes) -> None:
        """Add received bytes. What follows the login stays in :meth:`rest`."""
        self._buffer += data

    def rest(self) -> bytes:
        """Return the bytes received and not consumed."""
        return self._buffer

    def header(self) -> bytes | None:
        """Return the eight bytes of a protocol header, or None when more bytes are needed."""
        if len(self._buffer) < 8:
            return None
        header, self._buffer = self._buffer[:8], self._buffer[8:]
        return header

    def next(self) -> SaslInit | SaslResponse | None:
        """Return the next performative, None when more bytes are needed. Raises SaslError."""
        buffer = self._buffer
        if len(buffer) < 8:
            return None
        size, offset, kind, _ = _head(buffer, 0)
        if kind != 1:
            raise SaslError(f"a frame of type {kind} came before the SASL outcome")
        if not 8 <= size <= MAX_FRAME or not 8 <= 4 * offset <= size:
            raise SaslError(
                f"a SASL frame has size {size} and data offset {offset}; at most {MAX_FRAME} bytes are taken"
            )
        if len(buffer) < size:
            return None
        self._frames += 1
        if self._frames > MAX_FRAMES:
            raise SaslError(f"more than {MAX_FRAMES} SASL frames")
        self._buffer = buffer[size:]
        return _performative(buffer[4 * offset : size])


def _performative(body: bytes) -> SaslInit | SaslResponse:
    try:
        value, end = decode_value(body)
    except DecodeError as error:
        raise SaslError(f"undecodable SASL frame: {error}") from error
    if end != len(body) or not isinstance(value, Described) or not isinstance(value.value, list):
        raise SaslError("a SASL frame does not hold a performative")
    fields = value.value
    descriptor = value.descriptor
    code = _NAMES.get(descriptor) if isinstance(descriptor, Symbol) else descriptor
    first = fields[0] if fields else None
    if code == _INIT:
        response = fields[1] if len(fields) > 1 else None
        hostname = fields[2] if len(fields) > 2 else None
        if not isinstance(first, Symbol) or not (response is None or isinstance(response, bytes)):
            raise SaslError("sasl-init names no mechanism or has an invalid initial response")
        return SaslInit(str(first), response, hostname if isinstance(hostname, str) else None)
    if code == _RESPONSE:
        if not isinstance(first, bytes):
            raise SaslError("sasl-response has no response")
        return SaslResponse(first)
    raise SaslError(f"unexpected SASL performative {descriptor!r}")


def _frame(code: int, encoded_list: bytes) -> bytes:
    body = b"\x00S%c" % code + encoded_list
    return _pack_head(len(body) + 8, 2, 1, 0) + body


def mechanisms_frame(names: list[str]) -> bytes:
    """Return the frame that offers mechanisms, best first."""
    encoded = encode_value(Array([Symbol(name) for name in names]))
    return _frame(0x40, encode_compound(0xC0, 0xD0, 1, encoded))


def challenge_frame(challenge: bytes) -> bytes:
    """Return the frame with a challenge to the client."""
    return _frame(0x42, encode_compound(0xC0, 0xD0, 1, encode_binary(challenge)))


def outcome_frame(code: int, additional: bytes | None = None) -> bytes:
    """Return the frame that says how the login ended: OUTCOME_OK with a mechanism's closing data, or why not."""
    parts = b"\x50%c" % code
    if additional is None:
        return _frame(0x44, encode_compound(0xC0, 0xD0, 1, parts))
    return _frame(0x44, encode_compound(0xC0, 0xD0, 2, parts + encode_binary(additional)))


def close_frame(condition: str, description: str, info: dict[object, object] | None = None) -> bytes:
    """Return a close frame with an error, for a connection that has no engine or whose engine cannot make one."""
    error: list[object] = [Symbol(condition), description, info] if info else [Symbol(condition), description]
    body = b"\x00S\x18" + encode_fields([Described(0x1D, error)])
    return _pack_head(len(body) + 8, 2, 0, 0) + body


def error_frames(
    condition: str,
    description: str,
    info: dict[object, object] | None = None,
    *,
    properties: dict[object, object] | None = None,
) -> bytes:
    """Return an open, with these ``properties``, and a close with an error: for who is refused without an engine."""
    fields: list[object] = ["", *[None] * 8, properties] if properties else [""]
    opening = b"\x00S\x10" + encode_fields(fields)
    return _pack_head(len(opening) + 8, 2, 0, 0) + opening + close_frame(condition, description, info)


def parse_plain(response: bytes) -> tuple[str, str, str]:
    """Return (authorization identity, user, password) of RFC 4616. Raises SaslError."""
    parts = response.split(b"\x00")
    if len(parts) != 3 or not parts[1]:
        raise SaslError("the PLAIN response is not authzid NUL user NUL password")
    try:
        authorization, user, password = (part.decode("utf-8") for part in parts)
    except UnicodeDecodeError as error:
        raise SaslError("the PLAIN response is not UTF-8") from error
    return authorization, user, password
