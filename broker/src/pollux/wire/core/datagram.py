"""Announcements by UDP: a datagram in which a broker says where others reach it (docs/core-protocol.md, Discovery).

    offset  size  field
    0       4     PXUD
    4       1     version of this format: 1
    5       1     flags: zero
    6       2     length of the payload, little-endian
    8       ...   payload: msgpack, see Announcement
    ...     32    HMAC-SHA-256 of everything before it, under the key of the cluster password

A broker looks at nothing of a datagram before its HMAC was found to be right, but what tells that it is one of ours. A
client does not know the password: it takes the announcement for a hint.
"""

from __future__ import annotations

import hmac
import re
import struct
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pollux.wire.core.peer import ClusterKey

MAGIC, VERSION = b"PXUD", 1
_HEAD = struct.Struct("<4sBBH")
_PROOF = 32
_ROLE = b"discovery"
#: Not split on its way by any usual network.
MAXIMUM_DATAGRAM = 1400
MAXIMUM_CONNECTORS = 8
_LIFE = 16
_MEMBER = 255
_HOST = re.compile(r"[A-Za-z0-9._:%-]{1,253}", re.ASCII)
_NUMBERS = 1 << 63


class DatagramError(ValueError):
    """Not an announcement of this cluster. ``kind`` is one of a few words, by which such datagrams are counted."""

    def __init__(self, kind: str) -> None:
        super().__init__(kind)
        self.kind = kind


class Reached(msgspec.Struct, frozen=True, array_like=True):
    """A connector as it is announced."""

    host: str
    port: int
    tls: bool


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """A broker's announcement of itself.

    ``began`` (ms since the epoch) and ``life`` (16 random bytes) are those of its process; ``number`` grows with each
    announcement of one life, so that an old one that is sent again is known. ``leaving``: it is none any more.
    """

    member: str
    began: int
    life: bytes
    number: int
    connectors: tuple[Reached, ...]
    leaving: bool = False


def encode(announcement: Announcement, key: ClusterKey) -> bytes:
    """Return the datagram. Raises ValueError when it would be larger than one may be, or would not be understood."""
    _check(announcement)
    payload = msgspec.msgpack.encode(announcement)
    data = _HEAD.pack(MAGIC, VERSION, 0, len(payload)) + payload
    if len(data) + _PROOF > MAXIMUM_DATAGRAM:
        raise ValueError(f"an announcement of {len(data) + _PROOF} bytes is larger than {MAXIMUM_DATAGRAM}")
    return data + key.proof(_ROLE, data)


def decode(data: bytes, key: ClusterKey | None) -> Announcement:
    """Return the announcement in a datagram; without ``key`` anybody can have made it. Raises DatagramError."""
    if len(data) < _HEAD.size + _PROOF or len(data) > MAXIMUM_DATAGRAM:
        raise DatagramError("size")
    magic, version, flags, length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise DatagramError("foreign")
    if version != VERSION:
        raise DatagramError("version")
    if flags or length != len(data) - _HEAD.size - _PROOF:
        raise DatagramError("form")
    if key is not None and not hmac.compare_digest(data[-_PROOF:], key.proof(_ROLE, data[:-_PROOF])):
        raise DatagramError("password")
    try:
        found = msgspec.msgpack.decode(data[_HEAD.size : -_PROOF], type=Announcement)
        _check(found)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DatagramError("form") from error
    return found


def _check(found: Announcement) -> None:
    sound = (
        0 < len(found.member) <= _MEMBER
        and len(found.life) == _LIFE
        and 0 <= found.number < _NUMBERS
        and 0 <= found.began < _NUMBERS
        and len(found.connectors) <= MAXIMUM_CONNECTORS
        and all(0 < one.port < 65536 and _HOST.fullmatch(one.host) for one in found.connectors)
    )
    if not sound:
        raise ValueError("an announcement has a field of a wrong size")
