"""The header that a proxy puts before what a client sends: the PROXY protocol of HAProxy, versions 1 and 2. Pure.

=========  ==========================================================================================
version 1  ``PROXY TCP4 192.0.2.1 198.51.100.1 56324 443`` and CR LF, at most 107 bytes; ``TCP6``, ``UNKNOWN``
version 2  12 bytes of signature, version and command, family and transport, length (2), addresses, TLVs
=========  ==========================================================================================

https://www.haproxy.org/download/2.9/doc/proxy-protocol.txt
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, NamedTuple

from pollux.errors import PolluxError

_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_HEAD: Final = 16
_LINE: Final = 107
#: Bytes behind the head of version 2: addresses and TLVs (a proxy's certificate among them). Nobody's has more.
LARGEST: Final = 4096
_FIELDS: Final = 6
_LOCAL, _PROXY = 0x20, 0x21
#: Family and transport -> bytes of an address. All else has no address that a log could name.
_STREAMS: Final = {0x11: 4, 0x21: 16}
_KINDS: Final = {"TCP4": IPv4Address, "TCP6": IPv6Address}


class ProxyError(PolluxError):
    """The connection does not begin with such a header."""


class Proxied(NamedTuple):
    """A header: its bytes, and whom the proxy speaks for; address empty: for itself, or it does not say."""

    size: int
    address: str = ""
    port: int = 0


def parse(data: bytes) -> Proxied | None:
    """Return the header that ``data`` begins with; None when more is needed. Raises ProxyError."""
    if data.startswith(_SIGNATURE[: len(data)]):
        return _binary(data) if len(data) >= _HEAD else None
    if data.startswith(b"PROXY "[: len(data)]):
        return _line(data)
    raise ProxyError(f"the connection starts with {data[:16]!r}, and not with a header of the PROXY protocol")


def _binary(data: bytes) -> Proxied | None:
    command, kind, length = data[12], data[13], int.from_bytes(data[14:_HEAD], "big")
    if command not in (_LOCAL, _PROXY):
        raise ProxyError(f"a PROXY header of version and command {command:#04x}")
    if length > LARGEST:
        raise ProxyError(f"a PROXY header of {length} bytes; at most {LARGEST} are allowed")
    size = _HEAD + length
    if len(data) < size:
        return None
    width = _STREAMS.get(kind)
    if command == _LOCAL or width is None:
        return Proxied(size)
    if length < 2 * width + 4:
        raise ProxyError(f"a PROXY header of {length} bytes is too short for its addresses")
    ports = _HEAD + 2 * width
    address = ip_address(data[_HEAD : _HEAD + width])
    return Proxied(size, str(address), int.from_bytes(data[ports : ports + 2], "big"))


def _line(data: bytes) -> Proxied | None:
    end = data.find(b"\r\n", 0, _LINE)
    if end < 0:
        if len(data) >= _LINE:
            raise ProxyError("a PROXY header without its end")
        return None
    try:
        fields = data[:end].decode("ascii").split(" ")
        if fields[1] == "UNKNOWN":
            return Proxied(end + 2)
        kind = _KINDS[fields[1]]
        source, port = kind(fields[2]), int(fields[4])
        kind(fields[3])
    except (IndexError, KeyError, ValueError) as error:
        raise ProxyError(f"a PROXY header that cannot be read: {data[:end]!r}") from error
    if len(fields) != _FIELDS or not 0 <= port <= 0xFFFF:
        raise ProxyError(f"a PROXY header that cannot be read: {data[:end]!r}")
    return Proxied(end + 2, str(source), port)
