"""Frames, headers and records: what is written is read back, what is damaged is never accepted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.formats import records
from pollux.formats.segments import (
    FOLLOWS_UNSYNCED,
    FRAME_SIZE,
    HEADER_SIZE,
    DamagedRange,
    FormatError,
    Kind,
    SegmentHeader,
    decode_header,
    frame,
    has_batch,
    valid_at,
)
from pollux.formats.segments import records as scan
from pollux.message import Encoding, Message, RoutingType
from pollux.store.large import LargeMessage

HEADER = SegmentHeader(Kind.JOURNAL, 0x12345678, b"0123456789abcdef", 7, 9, 1_700_000_000_000)
ids = st.integers(1, 2**63 - 1)
bodies = st.binary(min_size=2, max_size=60)


def test_header_round_trip() -> None:
    data = HEADER.encode()
    assert len(data) == HEADER_SIZE
    assert decode_header(data, "x") == HEADER


@pytest.mark.parametrize("position", range(HEADER_SIZE))
def test_header_survives_any_flipped_bit(position: int) -> None:
    data = bytearray(HEADER.encode())
    data[position] ^= 0x10
    assert decode_header(bytes(data), "x") == HEADER


def test_header_damaged_twice_is_refused() -> None:
    data = bytearray(HEADER.encode())
    data[20] ^= 1
    data[84] ^= 1
    with pytest.raises(FormatError, match="both copies"):
        decode_header(bytes(data), "x")


def test_unknown_version_is_refused_by_number() -> None:
    import struct

    from crc32c import crc32c

    head = bytearray(HEADER.encode()[:60])
    struct.pack_into("<H", head, 8, 9)
    data = (bytes(head) + struct.pack("<I", crc32c(bytes(head)))) * 2
    with pytest.raises(FormatError, match="version 9"):
        decode_header(data, "x")


@given(st.lists(bodies, max_size=20), st.integers(0, 2**32 - 1))
def test_scan_finds_every_record(parts: list[bytes], salt: int) -> None:
    data = bytes(HEADER_SIZE) + b"".join(frame(body, salt) for body in parts) + bytes(50)
    found = list(scan(data, salt))
    assert [data[offset + 12 : offset + length] for offset, length in found] == parts  # type: ignore[misc]


@given(st.lists(bodies, min_size=1, max_size=8), st.integers(0, 2**32 - 1), st.data())
def test_flipped_bits_never_yield_a_wrong_record(parts: list[bytes], salt: int, draw: st.DataObject) -> None:
    data = bytearray(bytes(HEADER_SIZE) + b"".join(frame(body, salt) for body in parts) + bytes(50))
    end = len(data) - 50
    bit = draw.draw(st.integers(HEADER_SIZE * 8, end * 8 - 1))
    data[bit // 8] ^= 1 << bit % 8
    bounds, position = [], HEADER_SIZE
    for body in parts:
        bounds.append((position, position + 12 + len(body)))
        position = bounds[-1][1]
    hit = next(number for number, (start, stop) in enumerate(bounds) if start <= bit // 8 < stop)
    found = [entry for entry in scan(data, salt) if not isinstance(entry, DamagedRange)]
    assert [bytes(data[offset + 12 : offset + length]) for offset, length in found] == parts[:hit] + parts[hit + 1 :]
    damaged = [entry for entry in scan(data, salt) if isinstance(entry, DamagedRange)]
    assert len(damaged) == 1
    assert damaged[0].start == bounds[hit][0]
    assert damaged[0].tail == (hit == len(parts) - 1)


def test_a_record_inside_a_message_body_is_not_taken_for_one() -> None:
    salt, other = 1111, 2222
    inner = frame(b"\x03\x00" + bytes(40), other)
    data = bytearray(bytes(HEADER_SIZE) + frame(b"\x02\x00" + inner * 3, salt) + frame(b"\x03\x00ok", salt) + bytes(20))
    data[HEADER_SIZE] ^= 1
    found = [entry for entry in scan(data, salt) if not isinstance(entry, DamagedRange)]
    assert len(found) == 1
    assert found[0][1] == 16


def test_length_beyond_the_data_is_damage_not_a_crash() -> None:
    data = bytearray(bytes(HEADER_SIZE) + frame(b"\x02\x00abc", 5))
    data[HEADER_SIZE + 4 : HEADER_SIZE + 8] = b"\xff\xff\xff\x7f"
    assert list(scan(data, 5)) == [DamagedRange(HEADER_SIZE, len(data), tail=True)]


@given(
    encoding=st.sampled_from(Encoding),
    address=st.text(max_size=40),
    data=st.binary(max_size=200),
    durable=st.booleans(),
    priority=st.integers(0, 9),
    expiration=st.integers(0, 2**62),
    timestamp=st.integers(0, 2**62),
    deliver_at=st.integers(0, 2**62),
    group=st.none() | st.text(max_size=9),
    group_sequence=st.integers(0, 2**31),
    last_value=st.none() | st.text(max_size=9),
    duplicate_id=st.none() | st.binary(max_size=20),
    routing_type=st.none() | st.sampled_from(RoutingType),
    user=st.none() | st.text(max_size=9),
    annotations=st.none() | st.dictionaries(st.text(max_size=9), st.text(max_size=9) | st.integers(0, 99), min_size=1),
    large=st.none() | st.tuples(ids, ids),
    queues=st.lists(ids, max_size=5),
    tx=st.just(0) | ids,
    message_id=ids,
)
def test_message_round_trip(  # type: ignore[no-untyped-def]
    encoding, address, data, *, annotations, large, queues, tx, message_id, **fields
) -> None:
    message = Message(encoding, address, data, large=LargeMessage(*large) if large else None, **fields)
    message.id = message_id
    message.annotations = annotations
    record = frame(records.message_head(message, queues, tx, address.encode()) + data, 77)
    assert valid_at(memoryview(record), 0, len(record), 77) == len(record)
    read, queue_ids = records.decode_message(record, LargeMessage)
    assert queue_ids == queues
    assert records.message_queues(record) == tuple(queues)
    assert records.message_address(record) == address
    for name in Message.__slots__:
        if name in ("large", "content", "origin", "references"):
            continue
        assert getattr(read, name) == getattr(message, name), name
    if large:
        assert isinstance(read.large, LargeMessage)
        assert (read.large.id, read.large.size) == large
    else:
        assert read.large is None


@given(st.text(max_size=9), st.text(max_size=30), st.none() | st.binary(max_size=50))
def test_put_round_trip(kind: str, key: str, value: bytes | None) -> None:
    assert records.decode_put(frame(records.put(kind, key, value), 0)) == (kind, key, value)


@given(st.dictionaries(st.tuples(ids, ids), ids, max_size=4), st.none() | st.tuples(ids, ids, ids))
def test_start_round_trip(ends: dict[tuple[int, int], int], checkpoint: tuple[int, int, int] | None) -> None:
    assert records.decode_start(frame(records.start(ends, checkpoint), 0)) == (ends, checkpoint)


@pytest.mark.parametrize("flags", [0, FOLLOWS_UNSYNCED])
def test_only_a_write_behind_a_sync_shows_that_what_is_before_it_was_whole(flags: int) -> None:
    """Breaks when a power cut that tears several writes, none of them synced, is called damage."""
    later = frame(records.BATCH.pack(records.RecordType.BATCH, flags, 100, 7), 5)
    torn = b"\xff" * 40 + later
    assert has_batch(torn, 1, len(torn)) is (not flags)


def test_a_write_whose_flags_did_not_arrive_says_nothing_of_what_is_before_it() -> None:
    """Breaks when the zeros of a sector that a power cut took are read as "everything before this was synced"."""
    later = frame(records.BATCH.pack(records.RecordType.BATCH, FOLLOWS_UNSYNCED, 100, 7), 5)
    arrived = FRAME_SIZE + 1  # a sector ends between the type and the flags
    torn = b"\xff" * 40 + later[:arrived] + bytes(100)
    assert not has_batch(torn, 1, len(torn))
