"""Announcements by UDP: what is sent comes back, and whatever else arrives is dropped with one of a few words."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.wire.core import ClusterKey
from pollux.wire.core.datagram import (
    MAXIMUM_CONNECTORS,
    MAXIMUM_DATAGRAM,
    Announcement,
    DatagramError,
    Reached,
    decode,
    encode,
)

KEY, OTHER = ClusterKey("cluster", "twins"), ClusterKey("cluster", "strangers")
HOSTS = st.from_regex(r"[A-Za-z0-9.:-]{1,60}", fullmatch=True)
ANNOUNCEMENTS = st.builds(
    Announcement,
    member=st.text(min_size=1, max_size=100),
    began=st.integers(0, 2**63 - 1),
    life=st.binary(min_size=16, max_size=16),
    number=st.integers(0, 2**63 - 1),
    connectors=st.lists(
        st.builds(Reached, HOSTS, st.integers(1, 65535), st.booleans()), max_size=MAXIMUM_CONNECTORS
    ).map(tuple),
    leaving=st.booleans(),
)
ONE = Announcement("castor", 1, bytes(16), 7, (Reached("castor", 61616, tls=False),))


def why(data: bytes, key: ClusterKey = KEY) -> str:
    """Why it is not taken."""
    with pytest.raises(DatagramError) as caught:
        decode(data, key)
    return caught.value.kind


@given(ANNOUNCEMENTS)
def test_an_announcement_comes_back_as_it_was(announcement: Announcement) -> None:
    data = encode(announcement, KEY)
    assert len(data) <= MAXIMUM_DATAGRAM
    assert decode(data, KEY) == announcement


def test_the_layout_of_the_document() -> None:
    data = encode(ONE, KEY)
    assert data[:8] == b"PXUD\x01\x00" + (len(data) - 40).to_bytes(2, "little")
    assert msgspec.msgpack.decode(data[8:-32]) == ["castor", 1, bytes(16), 7, [["castor", 61616, False]], False]
    assert data[-32:] == KEY.proof(b"discovery", data[:-32])
    assert b"twins" not in data


@given(ANNOUNCEMENTS, st.data())
def test_whatever_is_changed_is_noticed(announcement: Announcement, data: st.DataObject) -> None:
    sent = bytearray(encode(announcement, KEY))
    at = data.draw(st.integers(0, len(sent) - 1))
    sent[at] ^= data.draw(st.integers(1, 255))
    assert why(bytes(sent)) in ("foreign", "version", "form", "password")


@given(st.binary(max_size=2000) | st.binary(max_size=100).map(lambda rest: b"PXUD\x01\x00" + rest))
def test_garbage_is_dropped(data: bytes) -> None:
    assert why(data) in ("size", "foreign", "version", "form", "password")


def test_why_it_is_dropped() -> None:
    data = encode(ONE, KEY)
    assert why(data, OTHER) == "password"
    assert why(data[:-1]) == "form"
    assert why(data + b"x") == "form"
    assert why(b"") == "size"
    assert why(data + bytes(MAXIMUM_DATAGRAM)) == "size"
    assert why(b"XXXX" + data[4:]) == "foreign"
    assert why(data[:4] + b"\x02" + data[5:]) == "version"


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x91" * 300,
        msgspec.msgpack.encode(["", 1, bytes(16), 1, [], False]),
        msgspec.msgpack.encode(["m" * 256, 1, bytes(16), 1, [], False]),
        msgspec.msgpack.encode(["m", 1, bytes(15), 1, [], False]),
        msgspec.msgpack.encode(["m", 1, bytes(16), -1, [], False]),
        msgspec.msgpack.encode(["m", 1, bytes(16), 1, [["h", 0, False]], False]),
        msgspec.msgpack.encode(["m", 1, bytes(16), 1, [["h", 65536, False]], False]),
        msgspec.msgpack.encode(["m", 1, bytes(16), 1, [["h h", 1, False]], False]),
        msgspec.msgpack.encode(["m", 1, bytes(16), 1, [["", 1, False]], False]),
        msgspec.msgpack.encode(["m", 1, bytes(16), 1, [["h", 1, False]] * (MAXIMUM_CONNECTORS + 1), False]),
        msgspec.msgpack.encode({"member": "m"}),
    ],
)
def test_a_member_that_says_nonsense_is_dropped(payload: bytes) -> None:
    """The password is right, and still nothing is believed."""
    head = b"PXUD\x01\x00" + len(payload).to_bytes(2, "little") + payload
    assert why(head + KEY.proof(b"discovery", head)) == "form"


def test_an_announcement_that_is_too_large_is_not_sent() -> None:
    connectors = tuple(Reached("h" * 250, 1, tls=True) for _ in range(MAXIMUM_CONNECTORS))
    with pytest.raises(ValueError, match="larger than 1400"):
        encode(Announcement("m", 1, bytes(16), 1, connectors), KEY)
    with pytest.raises(ValueError, match="wrong size"):
        encode(Announcement("m", 1, bytes(16), 1, (Reached("not a host", 1, tls=True),)), KEY)
