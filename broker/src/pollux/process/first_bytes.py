"""Decide what the first bytes of a connection mean: TLS, HTTP or a protocol, and whether its acceptor takes it. Pure.

The connection (:mod:`pollux.process.connection`) keeps the bytes until there are enough of them, and carries it out.
"""

from __future__ import annotations

from typing import NamedTuple

from pollux.errors import PolluxError
from pollux.wire.sniff import Protocol, sniff

#: The headers of a TLS record and a handshake message, whose end is the size of the ClientHello: so many bytes.
HELLO_HEAD = 9
#: The largest ClientHello, bytes. OpenSSL takes and keeps 128 KiB of it; nobody's has more than two or three.
LARGEST_HELLO = 16 << 10


class OpeningError(PolluxError):
    """A client begins in a way that its acceptor does not take; the text is for the log."""


class Rules(NamedTuple):
    """The rules of an acceptor. ``tls``: it has TLS. ``web_only``: clients have to speak WebSocket (ws://)."""

    tls: bool = False
    tls_required: bool = False
    web_only: bool = False


def read(data: bytes, rules: Rules, *, secured: bool) -> Protocol | None:
    """Return what ``data`` begins with; None: more of it is needed before that can be said.

    ``secured``: the bytes came through TLS. Raises OpeningError, and SniffError for bytes that nobody here speaks.
    """
    protocol = sniff(data)
    if protocol is Protocol.TLS:
        return protocol if len(data) >= HELLO_HEAD and _allows_tls(data, rules, secured=secured) else None
    if protocol is not None and rules.tls_required and not secured:
        raise OpeningError("this acceptor takes TLS only (sslEnabled=true without sslAllowPlain=true)")
    if protocol not in (None, Protocol.HTTP) and rules.web_only:
        raise OpeningError("this acceptor takes WebSocket only (ws://)")
    return protocol


def _allows_tls(data: bytes, rules: Rules, *, secured: bool) -> bool:
    """Return True. Raises OpeningError."""
    if not rules.tls:
        raise OpeningError("TLS is not configured on this acceptor (sslEnabled=true is missing)")
    if secured:
        raise OpeningError("TLS inside TLS")
    if (size := int.from_bytes(data[HELLO_HEAD - 3 : HELLO_HEAD], "big")) > LARGEST_HELLO:
        raise OpeningError(f"a TLS ClientHello of {size} bytes; at most {LARGEST_HELLO} are allowed")
    return True
