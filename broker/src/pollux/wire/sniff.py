"""Which protocol a client speaks, told from its first bytes.

One acceptor serves all protocols, so the server looks at what arrives first and then builds the
session. This module only classifies: it is pure, keeps nothing, and never looks at more than
:data:`MAX_SNIFF` bytes. Whether an acceptor *allows* the protocol is the server's decision.

=========  ==================================================================================
protocol   first bytes
=========  ==================================================================================
AMQP       ``AMQP``, then protocol id and version, which the AMQP session judges (AMQP 1.0 2.2)
STOMP      any newlines, then ``CONNECT`` or ``STOMP`` and a line end (STOMP 1.2, "CONNECT")
MQTT       0x10, remaining length, then the protocol name ``MQTT`` or ``MQIsdp`` (MQTT 5 3.1)
CORE       ``POLLUX`` (broker to broker)
TLS        0x16 0x03 and a version up to TLS 1.3's (RFC 8446 5.1)
HTTP       a method of RFC 9110 and a space: WebSocket, or a browser on the wrong port
=========  ==================================================================================
"""

from __future__ import annotations

from enum import Enum
from typing import Final

from pollux.errors import PolluxError

#: Newlines a STOMP client may send before its first frame.
MAX_LEADING_NEWLINES: Final = 64
#: After this many bytes :func:`sniff` has always decided.
MAX_SNIFF: Final = MAX_LEADING_NEWLINES + len(b"CONNECT\r\n")


class Protocol(Enum):
    """The protocol that the first bytes announce."""

    AMQP = "AMQP"
    STOMP = "STOMP"
    MQTT = "MQTT"
    CORE = "CORE"
    TLS = "TLS"
    HTTP = "HTTP"


class SniffError(PolluxError):
    """The first bytes belong to no protocol this broker knows."""


_HTTP_METHODS: Final = (b"GET", b"HEAD", b"POST", b"PUT", b"DELETE", b"OPTIONS", b"PATCH", b"TRACE", b"CONNECT", b"PRI")
_SIGNATURES: Final = (
    (b"AMQP", Protocol.AMQP),
    (b"CONNECT\n", Protocol.STOMP),
    (b"CONNECT\r\n", Protocol.STOMP),
    (b"STOMP\n", Protocol.STOMP),
    (b"STOMP\r\n", Protocol.STOMP),
    (b"POLLUX", Protocol.CORE),
    *((method + b" ", Protocol.HTTP) for method in _HTTP_METHODS),
)
_MQTT_CONNECT: Final = 0x10
_MQTT_NAMES: Final = (b"\x00\x04MQTT", b"\x00\x06MQIsdp")
_TLS_HANDSHAKE: Final = 0x16
_TLS_MAJOR: Final = 3
#: The record's minor version: SSL 3.0 (0) to TLS 1.3 (written as 1 or 3; 4 is tolerated).
_TLS_MINOR_MAX: Final = 4


def sniff(data: bytes) -> Protocol | None:
    """The protocol that ``data``, the first bytes of a connection, announces; None when more are needed.

    Raises SniffError when no continuation of ``data`` could be a known protocol.
    """
    if not data:
        return None
    first = data[0]
    if first == _TLS_HANDSHAKE:
        return _sniff_tls(data)
    if first == _MQTT_CONNECT:
        return _sniff_mqtt(data)
    if first in b"\r\n":
        return _sniff_stomp_after_newlines(data)
    return _sniff_text(data)


def _sniff_tls(data: bytes) -> Protocol | None:
    for have, highest in zip(data[1:3], (_TLS_MAJOR, _TLS_MINOR_MAX), strict=False):
        if have > highest or (highest == _TLS_MAJOR and have != _TLS_MAJOR):
            raise _unknown(data)
    return Protocol.TLS if len(data) >= 3 else None


def _sniff_mqtt(data: bytes) -> Protocol | None:
    at, remaining = 1, 0
    while True:  # the remaining length: at most four bytes, the last one below 128 (MQTT 5 1.5.5)
        if at >= len(data):
            return None
        remaining |= (data[at] & 0x7F) << 7 * (at - 1)
        at += 1
        if data[at - 1] < 0x80:
            break
        if at > 4:
            raise _unknown(data)
    name = data[at : at + min(remaining, 8)]
    if any(name.startswith(known) for known in _MQTT_NAMES):
        return Protocol.MQTT
    # A packet that ends within the name is complete: nothing more of it comes.
    if len(name) < remaining and any(known.startswith(name) for known in _MQTT_NAMES):
        return None
    raise _unknown(data)


def _sniff_stomp_after_newlines(data: bytes) -> Protocol | None:
    rest = data[:MAX_SNIFF].lstrip(b"\r\n")
    newlines = min(len(data), MAX_SNIFF) - len(rest)
    if newlines > MAX_LEADING_NEWLINES:
        raise _unknown(data)
    if not rest:
        return None
    protocol = _sniff_text(rest)
    if protocol is None or protocol is Protocol.STOMP:
        return protocol
    raise _unknown(data)


def _sniff_text(data: bytes) -> Protocol | None:
    for signature, protocol in _SIGNATURES:
        if data.startswith(signature):
            return protocol
    if any(signature.startswith(data) for signature, _ in _SIGNATURES):
        return None
    raise _unknown(data)


def _unknown(data: bytes) -> SniffError:
    return SniffError(f"the connection starts with {data[:16]!r}, which is neither AMQP, STOMP, MQTT, TLS nor HTTP")
