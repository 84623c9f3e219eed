"""Recovery of damaged journals: nothing confirmed is lost beyond the damage, nothing wrong is accepted, all is said."""

from __future__ import annotations

import shutil
from array import array
from typing import TYPE_CHECKING

import pytest

from harness.store import NODE, contents, ids_in, message_of, opened, segments, settings_in, stable
from pollux.errors import StoreError
from pollux.formats import records
from pollux.formats.records import RecordType
from pollux.formats.segments import FRAME_SIZE, HEADER_SIZE, Kind, SegmentHeader, decode_header, frame
from pollux.formats.segments import records as scan
from pollux.store.segments import segment_name

if TYPE_CHECKING:
    from pathlib import Path


# -- damage ----------------------------------------------------------------------------------------


async def written(directory: Path, count: int = 30, size: int = 40) -> list[int]:
    """A journal of one life that was killed: ``count`` messages, each in a write of its own."""
    async with opened(settings_in(directory, journal_file_size=16 << 10), crash=True) as one:
        sent = []
        for _ in range(count):
            message = message_of(one.storage, b"m" * size)
            one.storage.append_message(message, [1])
            await stable(one.storage)
            sent.append(message.id)
        return sent


def record_bounds(path: Path) -> list[tuple[int, int, int]]:
    """(offset, length, type) of the records of a segment."""
    data = path.read_bytes()
    salt = decode_header(data, str(path)).salt
    return [(offset, length, data[offset + FRAME_SIZE]) for offset, length in scan(data, salt)]  # type: ignore[misc]


async def recovered_ids(directory: Path, **values: object) -> tuple[list[int], list[str]]:
    async with opened(settings_in(directory, journal_file_size=16 << 10, **values), crash=True) as one:
        return contents(one.recovered).get(1, []), [damage.kind for damage in one.recovered.damage]


async def test_cut_at_every_byte_of_the_tail(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    sent = await written(origin, 6)
    (path,) = segments(settings_in(origin))
    bounds = record_bounds(path)
    last_batch = [entry for entry in bounds if entry[2] == RecordType.BATCH][-2][0]
    end = bounds[-1][0] + bounds[-1][1]
    for cut in range(last_batch, end + 1):
        copy = tmp_path / "copy"
        shutil.copytree(origin, copy)
        with (copy / "journal" / path.name).open("r+b") as stream:
            stream.seek(cut)
            stream.write(bytes(end - cut))
        whole = sum(1 for offset, length, kind in bounds if kind == RecordType.MESSAGE and offset + length <= cut)
        found, kinds = await recovered_ids(copy)
        assert found == sent[:whole], cut
        assert set(kinds) <= {"torn-tail"}
        shutil.rmtree(copy)


async def test_file_truncated_at_every_record_boundary(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    sent = await written(origin, 8)
    (path,) = segments(settings_in(origin))
    bounds = record_bounds(path)
    for offset, length, _ in bounds:
        copy = tmp_path / "copy"
        shutil.copytree(origin, copy)
        with (copy / "journal" / path.name).open("r+b") as stream:
            stream.truncate(offset + length)
        whole = sum(1 for at, size, kind in bounds if kind == RecordType.MESSAGE and at + size <= offset + length)
        assert await recovered_ids(copy) == (sent[:whole], ["cut"])
        shutil.rmtree(copy)


async def test_every_byte_of_a_segment_flipped(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    sent = await written(origin, 4, size=10)
    (path,) = segments(settings_in(origin))
    bounds = record_bounds(path)
    messages = [(offset, length) for offset, length, kind in bounds if kind == RecordType.MESSAGE]
    end = bounds[-1][0] + bounds[-1][1]
    data = path.read_bytes()
    for position in range(end):
        copy = tmp_path / "copy"
        shutil.copytree(origin, copy)
        flipped = bytearray(data)
        flipped[position] ^= 1 << position % 8
        (copy / "journal" / path.name).write_bytes(flipped)
        hit = [number for number, (offset, length) in enumerate(messages) if offset <= position < offset + length]
        expected = [message_id for number, message_id in enumerate(sent) if number not in hit]
        found, kinds = await recovered_ids(copy)
        assert found == expected, position
        if position >= HEADER_SIZE:
            assert len(kinds) == 1, position
            if position < bounds[-2][0]:
                assert kinds == ["corrupt"], position
                (kept,) = (copy / "journal" / "isolated").iterdir()
                assert bytes([flipped[position]]) in kept.read_bytes()
        shutil.rmtree(copy)


async def test_damage_is_reported_with_file_and_offset(tmp_path: Path) -> None:
    sent = await written(tmp_path)
    (path,) = segments(settings_in(tmp_path))
    offset = next(offset for offset, _, kind in record_bounds(path)[10:] if kind == RecordType.MESSAGE)
    data = bytearray(path.read_bytes())
    data[offset + 30] ^= 1
    path.write_bytes(data)
    async with opened(settings_in(tmp_path)) as one:
        (damage,) = one.recovered.damage
        assert damage.file == path
        assert damage.offset == offset
        assert damage.isolated is not None
        assert f"{path}:{offset}: corrupt" in str(damage)
        assert len(contents(one.recovered)[1]) == len(sent) - 1


async def test_a_missing_segment_is_reported_at_each_start_until_it_is_back(tmp_path: Path) -> None:
    sent = await written(tmp_path, 200, size=300)
    found = segments(settings_in(tmp_path))
    assert len(found) > 4
    gone = len([1 for _, _, kind in record_bounds(found[2]) if kind == RecordType.MESSAGE])
    data = found[2].read_bytes()
    found[2].unlink()
    ids, kinds = await recovered_ids(tmp_path)
    assert len(ids) == len(sent) - gone
    assert kinds == ["missing-segment"]
    assert await recovered_ids(tmp_path) == (ids, ["missing-segment"])
    found[2].write_bytes(data)
    assert await recovered_ids(tmp_path) == (sent, [])


async def test_first_segment_missing_is_noticed(tmp_path: Path) -> None:
    await written(tmp_path, 200, size=300)
    segments(settings_in(tmp_path))[0].unlink()
    _, kinds = await recovered_ids(tmp_path)
    assert kinds == ["missing-segment"]


async def test_unreadable_header_counts_as_missing(tmp_path: Path) -> None:
    await written(tmp_path, 200, size=300)
    path = segments(settings_in(tmp_path))[1]
    data = bytearray(path.read_bytes())
    data[4] ^= 1
    data[70] ^= 1
    path.write_bytes(data)
    for _ in range(2):
        _, kinds = await recovered_ids(tmp_path)
        assert kinds == ["missing-segment"]
        assert (path.parent / "isolated" / path.name).read_bytes() == data


async def test_zeroed_end_of_a_sealed_segment_is_noticed(tmp_path: Path) -> None:
    await written(tmp_path, 200, size=300)
    path = segments(settings_in(tmp_path))[1]
    offset = record_bounds(path)[-4][0]
    data = path.read_bytes()
    path.write_bytes(data[:offset] + bytes(len(data) - offset))
    _, kinds = await recovered_ids(tmp_path)
    assert kinds == ["corrupt"]


async def test_foreign_node_is_refused(tmp_path: Path) -> None:
    await written(tmp_path, 1)
    with pytest.raises(StoreError, match="belongs to node"):
        await recovered_ids(tmp_path, node_id=b"another-node-id-")


async def test_unfinished_segments_are_not_in_the_way(tmp_path: Path) -> None:
    sent = await written(tmp_path, 3)
    journal = settings_in(tmp_path).journal_directory
    (journal / segment_name(1, 2)).write_bytes(bytes(16 << 10))
    (journal / segment_name(1, 3)).write_bytes(b"")
    (journal / segment_name(1, 4)).write_bytes(SegmentHeader(Kind.JOURNAL, 1, NODE, 1, 4, 0).encode() + bytes(9000))
    assert await recovered_ids(tmp_path) == (sent, [])
    assert await recovered_ids(tmp_path) == (sent, [])


async def test_many_lives_without_a_clean_stop(tmp_path: Path) -> None:
    sent: list[int] = []
    for _ in range(6):
        async with opened(settings_in(tmp_path), crash=True) as one:
            assert contents(one.recovered).get(1, []) == sent
            message = message_of(one.storage)
            one.storage.append_message(message, [1])
            await stable(one.storage)
            sent.append(message.id)
    epochs = [int(path.name.split("-")[1]) for path in segments(settings_in(tmp_path))]
    assert epochs == [1, 2, 3, 4, 5, 6]


# -- fencing ---------------------------------------------------------------------------------------


def zombie_appends(path: Path, message_id: int) -> None:
    """Write as a paused predecessor does when it wakes up: a valid record at the end of its segment."""
    data = bytearray(path.read_bytes())
    salt = decode_header(bytes(data), str(path)).salt
    bounds = record_bounds(path)
    end = bounds[-1][0] + bounds[-1][1]
    message = message_of(None, b"zombie", message_id=message_id)
    record = frame(records.message_head(message, [1], 0, b"an.address") + message.data, salt)
    data[end : end + len(record)] = record
    path.write_bytes(data)


async def test_bytes_written_after_the_takeover_are_never_replayed(tmp_path: Path) -> None:
    sent = await written(tmp_path, 3)
    old = segments(settings_in(tmp_path))[0]
    assert await recovered_ids(tmp_path) == (sent, [])
    zombie_appends(old, 999_999)
    for _ in range(3):
        ids, kinds = await recovered_ids(tmp_path)
        assert ids == sent
        assert kinds == ["late-writes"]


async def test_segments_a_zombie_made_after_the_takeover_are_never_replayed(tmp_path: Path) -> None:
    sent = await written(tmp_path, 3)
    old = segments(settings_in(tmp_path))[0]
    assert (await recovered_ids(tmp_path))[0] == sent
    header = decode_header(old.read_bytes(), "x")
    message = message_of(None, b"zombie", message_id=999_999)
    body = records.message_head(message, [1], 0, b"an.address") + message.data
    late = SegmentHeader(Kind.JOURNAL, header.salt, NODE, 1, 2, 0).encode() + frame(body, header.salt)
    old.with_name(segment_name(1, 2)).write_bytes(late + bytes(5000))
    for _ in range(2):
        ids, kinds = await recovered_ids(tmp_path)
        assert ids == sent
        assert kinds == ["late-writes"]


async def test_ends_given_by_the_activation_are_honoured(tmp_path: Path) -> None:
    sent = await written(tmp_path, 5)
    (path,) = segments(settings_in(tmp_path))
    third = [offset + length for offset, length, kind in record_bounds(path) if kind == RecordType.MESSAGE][2]
    async with opened(settings_in(tmp_path), crash=True, ends={(1, 1): third}) as one:
        assert contents(one.recovered)[1] == sent[:3]
        assert [damage.kind for damage in one.recovered.damage] == ["late-writes"]
    assert (await recovered_ids(tmp_path))[0] == sent[:3]


# -- transactions ----------------------------------------------------------------------------------


async def test_transactions_count_after_commit_only(tmp_path: Path) -> None:
    async with opened(settings_in(tmp_path), crash=True) as one:
        storage = one.storage
        before = message_of(storage)
        storage.append_message(before, [1])
        committed, rolled, left = storage.next_id(), storage.next_id(), storage.next_id()
        kept = message_of(storage)
        storage.append_message(kept, [1, 2], tx=committed)
        storage.append_acks(1, [before.id], tx=committed)
        storage.append_duplicate_id("d", b"one", tx=committed)
        for tx in (rolled, left):
            storage.append_message(message_of(storage), [1], tx=tx)
            storage.append_acks(2, [kept.id], tx=tx)
            storage.append_duplicate_id("d", b"other", tx=tx)
        storage.append_commit(committed)
        storage.append_rollback(rolled)
        await stable(storage)
    async with opened(settings_in(tmp_path)) as two:
        assert contents(two.recovered) == {1: [kept.id], 2: [kept.id]}
        assert two.recovered.duplicates == {"d": [b"one"]}
        assert two.recovered.references == {kept.id: 2}
        assert two.recovered.damage == []
        assert two.recovered.message_count == 1


async def test_prepared_transactions_survive_and_can_be_decided_later(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        first = message_of(one.storage)
        one.storage.append_message(first, [1])
        tx = one.storage.next_id()
        second = message_of(one.storage, priority=7)
        one.storage.append_message(second, [1], tx=tx)
        one.storage.append_acks(1, [first.id], tx=tx)
        one.storage.append_prepare(tx, b"xid-1")
        await stable(one.storage)
    for clean in (True, False, True):
        # With and without a checkpoint between.
        async with opened(settings, crash=not clean) as two:
            assert contents(two.recovered) == {1: [first.id]}
            (prepared,) = two.recovered.prepared
            assert (prepared.tx, prepared.xid) == (tx, b"xid-1")
            assert prepared.messages == [(second.id, 1, 7)]
            assert prepared.acknowledgements == [(1, first.id)]
            (body,) = await two.storage.read_messages([second.id])
            assert body is not None
    async with opened(settings, crash=True) as three:
        three.storage.append_commit(tx)
        await stable(three.storage)
    async with opened(settings) as four:
        assert contents(four.recovered) == {1: [second.id]}
        assert four.recovered.prepared == []
        assert four.recovered.damage == []


async def test_transaction_torn_in_the_last_write_did_not_happen(tmp_path: Path) -> None:
    async with opened(settings_in(tmp_path), crash=True) as one:
        first = message_of(one.storage)
        one.storage.append_message(first, [1])
        await stable(one.storage)
        for _ in range(3):
            one.storage.append_message(message_of(one.storage), [1], tx=77)
        one.storage.append_commit(77)
        await stable(one.storage)
    (path,) = segments(settings_in(tmp_path))
    offset = [offset for offset, _, kind in record_bounds(path) if kind == RecordType.MESSAGE][-2]
    data = bytearray(path.read_bytes())
    data[offset + 40] ^= 1
    path.write_bytes(data)
    async with opened(settings_in(tmp_path)) as two:
        assert contents(two.recovered) == {1: [first.id]}


async def test_confirmed_transaction_with_a_damaged_record_counts_as_far_as_it_can(tmp_path: Path) -> None:
    async with opened(settings_in(tmp_path), crash=True) as one:
        sent = [message_of(one.storage) for _ in range(3)]
        for message in sent:
            one.storage.append_message(message, [1], tx=77)
        one.storage.append_commit(77)
        await stable(one.storage)
        last = message_of(one.storage)
        one.storage.append_message(last, [1])
        await stable(one.storage)
    (path,) = segments(settings_in(tmp_path))
    offset = [offset for offset, _, kind in record_bounds(path) if kind == RecordType.MESSAGE][1]
    data = bytearray(path.read_bytes())
    data[offset + 40] ^= 1
    path.write_bytes(data)
    async with opened(settings_in(tmp_path)) as two:
        assert ids_in(two.recovered) == {sent[0].id, sent[2].id, last.id}
        assert any("transaction 77" in damage.detail for damage in two.recovered.damage)


# -- everything else a journal holds ---------------------------------------------------------------


@pytest.mark.parametrize("clean", [False, True])
async def test_counts_schedules_priorities_and_fields_come_back(tmp_path: Path, clean: bool) -> None:
    async with opened(settings_in(tmp_path), crash=not clean) as one:
        storage = one.storage
        later = message_of(storage, deliver_at=123_456, duplicate_id=b"dup", group="g", priority=9, user="joe")
        later.annotations = {"x-opt-ORIG-ADDRESS": "there"}
        plain = message_of(storage)
        gone = message_of(storage)
        for message in (later, plain, gone):
            storage.append_message(message, [1])
        storage.append_delivery_count(1, plain.id, 3)
        storage.append_delivery_count(1, gone.id, 2)
        storage.append_schedule(1, plain.id, 777)
        storage.append_acks(1, [gone.id])
        await stable(storage)
    async with opened(settings_in(tmp_path)) as two:
        recovered = two.recovered
        assert {priority: list(ids) for priority, ids in recovered.queues[1].items()} == {
            9: [later.id],
            4: [plain.id],
        }
        assert all(isinstance(ids, array) for ids in recovered.queues[1].values())
        assert recovered.delivery_counts == {(1, plain.id): 3}
        assert recovered.schedules == {(1, later.id): 123_456, (1, plain.id): 777}
        assert recovered.duplicates == {"an.address": [b"dup"]}
        (read,) = await two.storage.read_messages([later.id])
        assert read is not None
        assert (read.group, read.user, read.priority, read.annotations) == ("g", "joe", 9, later.annotations)
        assert (recovered.checkpoint is not None) == clean


async def test_a_damaged_record_read_cold_is_none_not_garbage(tmp_path: Path) -> None:
    sent = await written(tmp_path, 5)
    async with opened(settings_in(tmp_path), crash=True) as one:
        path = segments(settings_in(tmp_path))[0]
        offset = [offset for offset, _, kind in record_bounds(path) if kind == RecordType.MESSAGE][2]
        data = bytearray(path.read_bytes())
        data[offset + 70] ^= 1
        path.write_bytes(data)
        read = await one.storage.read_messages(sent)
        assert [message.id if message else None for message in read] == [*sent[:2], None, *sent[3:]]


async def test_records_behind_a_long_hole_count_and_nothing_of_another_segment_shows_in_it(tmp_path: Path) -> None:
    """Zeros are not copied into the buffer that all segments share: a hole must not show what was there before."""
    settings = settings_in(tmp_path, journal_file_size=1 << 20)
    async with opened(settings, crash=True) as one:
        sent = []
        for _ in range(490):
            message = message_of(one.storage, bytes(4000))
            one.storage.append_message(message, [1])
            sent.append(message.id)
            await stable(one.storage)
    second = segments(settings)[1]
    start, length = 200 << 10, 700 << 10
    with second.open("r+b") as stream:
        stream.seek(start)
        stream.write(bytes(length))
    async with opened(settings) as two:
        found = contents(two.recovered)[1]
        assert [damage.kind for damage in two.recovered.damage] == ["corrupt"]
    left = set(found)
    lost = [one for one in sent if one not in left]
    assert found == [one for one in sent if one in left]
    assert lost == sent[sent.index(lost[0]) : sent.index(lost[-1]) + 1]
    assert length // 4200 <= len(lost) <= length // 4000 + 2


async def test_a_last_segment_whose_first_pages_are_zero_is_not_taken_for_unused(tmp_path: Path) -> None:
    sent = await written(tmp_path, 60, size=150)
    path = segments(settings_in(tmp_path))[-1]
    data = path.read_bytes()
    lost = [1 for offset, _, kind in record_bounds(path) if kind == RecordType.MESSAGE and offset < 8192]
    path.write_bytes(data[:HEADER_SIZE] + bytes(8192 - HEADER_SIZE) + data[8192:])
    ids, kinds = await recovered_ids(tmp_path)
    assert "corrupt" in kinds
    assert len(sent) - len(lost) - 1 <= len(ids) < len(sent)
