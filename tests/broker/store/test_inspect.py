"""The tools: they see what is there, change nothing, and work beside a running broker."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from harness.store import message_of, opened, segments, set_aside, settings_in, stable
from pollux.store import inspect
from pollux.store.verify import NotAStoreError, verify

if TYPE_CHECKING:
    from pathlib import Path


def state_of(directory: Path) -> dict[str, tuple[int, int]]:
    return {str(path): (path.stat().st_size, path.stat().st_mtime_ns) for path in directory.rglob("*")}


async def test_dump_shows_every_kind_of_record(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        storage = one.storage
        message = message_of(storage, b"payload", duplicate_id=b"d")
        storage.append_message(message, [1, 2])
        storage.append_references(message.id, [3], priority=4)
        storage.append_acks(1, [message.id])
        storage.append_delivery_count(2, message.id, 4)
        storage.append_schedule(2, message.id, 99)
        storage.append_duplicate_id("x", b"y")
        storage.append_drop_queue(3)
        storage.append_message(message_of(storage), [1], tx=7)
        storage.append_prepare(7, b"xid")
        storage.append_commit(7)
        storage.append_rollback(8)
        storage.put("kind", "key", b"value")
        pages = storage.pages.address("a")
        pages.append(message_of(storage, address="a"), [1], tx=9)
        paged = message_of(storage, address="a")
        page = pages.append(paged, [1])
        pages.acknowledge(1, page, [paged.id])
        pages.close_page()
        await stable(storage)
        await set_aside(storage)
        before = state_of(tmp_path)
        entries = list(inspect.dump(settings.journal_directory))
        assert state_of(tmp_path) == before
        store = pages.directory
        page_entries = list(inspect.dump(store))
    types = {entry["type"] for entry in entries}
    assert types >= {
        "BATCH", "MESSAGE", "REFERENCES", "ACKS", "DELIVERY_COUNT", "SCHEDULE", "DUPLICATE_ID", "DROP_QUEUE",
        "PREPARE", "COMMIT", "ROLLBACK", "START", "PAGE_ACKS", "PAGE_TX",
    }  # fmt: skip
    by_type = {entry["type"]: entry for entry in entries}
    assert by_type["ACKS"]["messages"] == [message.id]
    assert by_type["REFERENCES"]["queues"] == [3]
    assert by_type["PREPARE"]["xid"] == b"xid"
    assert by_type["DUPLICATE_ID"]["duplicate_id"] == b"y"
    assert by_type["DELIVERY_COUNT"]["count"] == 4
    assert by_type["SCHEDULE"]["deliver_at"] == 99
    assert [entry["type"] for entry in page_entries] == ["BATCH", "MESSAGE", "MESSAGE", "PAGE_END"]
    (put,) = [one for one in inspect.dump(settings.bindings_directory) if one.get("kind", "inventory") != "inventory"]
    assert (put["kind"], put["key"], put["value"]) == ("kind", "key", b"value")
    (one_message,) = inspect.dump(settings.journal_directory, types=["message"], message=message.id, data=True)
    assert one_message["data"] == b"payload"
    assert one_message["queues"] == [1, 2]
    of_queue = {entry["type"] for entry in inspect.dump(settings.journal_directory, queue=3)}
    assert of_queue == {"REFERENCES", "DROP_QUEUE"}


async def test_dump_shows_what_is_kept_of_a_queue_in_words(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    value = msgspec.msgpack.encode({"id": 3, "spec": {"name": "sub", "no_local": True}, "paused": True})
    async with opened(settings, crash=True) as one:
        one.storage.append_queue(3, value)
        one.storage.append_queue(4, b"\xc1")  # of a version to come, or damaged before it was written
        one.storage.put("queue", "sub", value)
        one.storage.put("paused", "sub", value)
        await stable(one.storage)
        known, unknown = inspect.dump(settings.journal_directory, types=["queue"])
        puts = {entry["kind"]: entry for entry in inspect.dump(settings.bindings_directory, types=["put"])}
    assert (known["queue"], known["value"], known["spec"]) == (3, value, {"name": "sub", "no_local": True})
    assert (unknown["value"], "spec" in unknown) == (b"\xc1", False)
    assert puts["queue"]["spec"] == known["spec"]
    assert "spec" not in puts["paused"]


async def test_verify_a_running_and_a_stopped_broker(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, journal_file_size=16 << 10)
    async with opened(settings) as one:
        for _ in range(100):
            one.storage.append_message(message_of(one.storage, b"v" * 300), [1])
        await stable(one.storage)
        report = verify(settings.journal_directory)
        assert report.sound
        assert report.live_messages == 100
        assert report.records > 100
        figures = inspect.stat(settings.journal_directory)
        assert figures["checkpoint"] is None
        assert figures["to_replay"]["segments"] >= 2
    before = state_of(tmp_path)
    report = verify(settings.journal_directory)
    assert report.sound
    assert report.live_messages == 100
    assert inspect.stat(settings.journal_directory)["checkpoint"]["messages"] == 100
    assert verify(settings.bindings_directory).sound
    assert state_of(tmp_path) == before


async def test_verify_finds_damage_that_only_a_cold_read_would_meet(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings) as one:
        for _ in range(100):
            one.storage.append_message(message_of(one.storage, b"v" * 300), [1])
    (path,) = [*settings.journal_directory.glob("*.bodies"), *segments(settings)]
    data = bytearray(path.read_bytes())
    data[data.index(b"vvvv", 9000)] ^= 1
    path.write_bytes(data)
    report = verify(settings.journal_directory)
    assert not report.sound
    assert [damage.kind for damage in report.damage] == ["lost-body"]


async def test_verify_says_what_recovery_would_go_on_without(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, journal_file_size=16 << 10)
    async with opened(settings, crash=True) as one:
        for _ in range(200):
            one.storage.append_message(message_of(one.storage, b"v" * 300), [1])
        await stable(one.storage)
    segments(settings)[1].unlink()
    report = verify(settings.journal_directory)
    assert not report.sound
    assert report.refused is None
    assert ["segment 2 is missing" in str(one) for one in report.damage if one.kind == "missing-segment"] == [True]
    with pytest.raises(NotAStoreError):
        verify(tmp_path / "nowhere")


async def test_damage_appears_in_the_dump(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        for _ in range(10):
            one.storage.append_message(message_of(one.storage, b"v" * 30), [1])
        await stable(one.storage)
    (path,) = segments(settings)
    data = bytearray(path.read_bytes())
    data[data.index(b"vvvv")] ^= 1
    path.write_bytes(data)
    entries = list(inspect.dump(settings.journal_directory, types=["damaged"]))
    assert len(entries) == 1
    assert entries[0]["file"] == str(path)
