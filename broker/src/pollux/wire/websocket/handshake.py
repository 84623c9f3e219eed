"""The opening handshake of WebSocket (RFC 6455, section 4.2): a client's request, and the answers to it. Pure.

Nothing else of HTTP is served here, so what is not a request to speak WebSocket is told apart and left to the caller.
A request is at most :data:`MAX_REQUEST` bytes; it has no body.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Final

from msgspec import Struct

from pollux.errors import PolluxError

#: Bytes of a request with all its headers. Cookies of a site that shares our host are in it.
MAX_REQUEST: Final = 8192
#: Names of protocols a client may offer; what comes after them is not looked at.
MAX_SUBPROTOCOLS: Final = 16

_END: Final = b"\r\n\r\n"
_GUID: Final = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_REQUEST_LINE: Final = re.compile(rb"GET ([!-~]+) HTTP/1\.1")
#: A header's name is a token (RFC 9110, 5.6.2), its value visible text, with blanks in it (5.5).
_HEADER: Final = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([ -~\t\x80-\xff]*?)[ \t]*")
_TOKEN: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,64}")
#: Headers that decide something: given twice, two readers could understand two things.
_SINGLE: Final = frozenset({b"host", b"origin", b"sec-websocket-key", b"sec-websocket-version", b"content-length"})


class NotWebSocketError(PolluxError):
    """The request is for something else than WebSocket, whatever it is."""


class HandshakeError(PolluxError):
    """The request is for WebSocket, and is refused: ``status`` and ``headers`` are the answer's."""

    def __init__(self, status: str, text: str, headers: tuple[tuple[str, str], ...] = ()) -> None:
        super().__init__(text)
        self.status = status
        self.headers = headers


class Request(Struct, frozen=True):
    """A client's request: ``key`` is its nonce, ``offered`` its sub-protocols as it prefers them."""

    key: bytes
    offered: tuple[str, ...]
    origin: str | None


def request_of(data: bytes) -> tuple[Request, bytes] | None:
    """Return the request at the start of ``data``, and what is behind it; None when it is not complete.

    Raises NotWebSocketError or HandshakeError.
    """
    end = data.find(_END, 0, MAX_REQUEST)
    if end < 0:
        if len(data) >= MAX_REQUEST:
            raise HandshakeError("431 Request Header Fields Too Large", f"a request of more than {MAX_REQUEST} bytes")
        if not data.startswith(b"GET "[: len(data)]):
            raise NotWebSocketError("a request that is no GET")
        return None
    first, *lines = data[:end].split(b"\r\n")
    headers = _headers(lines)
    if not _REQUEST_LINE.fullmatch(first) or "websocket" not in _tokens(headers, b"upgrade"):
        raise NotWebSocketError("a request that asks for no WebSocket")
    return _request(headers), data[end + len(_END) :]


def _headers(lines: list[bytes]) -> dict[bytes, bytes]:
    found: dict[bytes, bytes] = {}
    for line in lines:
        parts = _HEADER.fullmatch(line)
        if parts is None:
            raise HandshakeError("400 Bad Request", "a line of the request is no header")
        name, value = parts[1].lower(), parts[2]
        if name in found:
            if name in _SINGLE:
                raise HandshakeError("400 Bad Request", f"the header {name.decode()} is given twice")
            value = found[name] + b"," + value
        found[name] = value
    return found


def _tokens(headers: dict[bytes, bytes], name: bytes) -> list[str]:
    return [part.strip().lower() for part in headers.get(name, b"").decode("latin-1").split(",")]


def _request(headers: dict[bytes, bytes]) -> Request:
    """Check what section 4.2.1 wants of a request."""
    if "upgrade" not in _tokens(headers, b"connection") or b"host" not in headers:
        raise HandshakeError("400 Bad Request", "the headers Host and Connection: Upgrade are missing")
    if headers.get(b"sec-websocket-version") != b"13":
        raise HandshakeError(
            "426 Upgrade Required", "WebSocket version 13 is spoken here", (("Sec-WebSocket-Version", "13"),)
        )
    if b"transfer-encoding" in headers or headers.get(b"content-length", b"0") != b"0":
        raise HandshakeError("400 Bad Request", "the request has a body")
    key = headers.get(b"sec-websocket-key", b"")
    try:
        nonce = base64.b64decode(key, validate=True)
    except binascii.Error:
        nonce = b""
    if len(nonce) != 16:
        raise HandshakeError("400 Bad Request", "Sec-WebSocket-Key is not 16 bytes in base64")
    names = headers.get(b"sec-websocket-protocol", b"").decode("latin-1").split(",", MAX_SUBPROTOCOLS)
    offered = tuple(name.strip() for name in names[:MAX_SUBPROTOCOLS] if name.strip())
    if not all(_TOKEN.fullmatch(name) for name in offered):
        raise HandshakeError("400 Bad Request", "Sec-WebSocket-Protocol is no list of names")
    origin = headers.get(b"origin")
    return Request(key, offered, None if origin is None else origin.decode("latin-1"))


def check_origin(request: Request, allowed: tuple[str, ...]) -> None:
    """Refuse pages of other sites than those ``allowed``, where any are named (section 10.2).

    Who is no browser says no origin, and could say any. Raises HandshakeError.
    """
    if allowed and request.origin is not None and request.origin.lower() not in map(str.lower, allowed):
        raise HandshakeError("403 Forbidden", f"pages of {request.origin[:100]!r} may not come here")


def acceptance(request: Request, subprotocol: str | None) -> bytes:
    """Return the answer that lets a client in, speaking ``subprotocol`` (section 4.2.2)."""
    # No signature: the protocol wants this hash, to show that the server has understood the request.
    digest = hashlib.sha1(request.key + _GUID, usedforsecurity=False).digest()
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Upgrade: websocket",
        "Connection: Upgrade",
        f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}",
    ]
    if subprotocol is not None:
        lines.append(f"Sec-WebSocket-Protocol: {subprotocol}")
    return "\r\n".join([*lines, "", ""]).encode()


def refusal(error: HandshakeError) -> bytes:
    """Return the answer to a request that is refused."""
    lines = [f"HTTP/1.1 {error.status}", "Content-Type: text/plain", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in error.headers]
    return "\r\n".join([*lines, "", f"{error}\n"]).encode()
