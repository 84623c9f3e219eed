"""The writer: order of completions, settings, and what happens when the disk refuses."""

from __future__ import annotations

import asyncio
import errno
import threading
from functools import partial
from typing import TYPE_CHECKING

import pytest

from harness.store import FaultyFiles, contents, files_below, message_of, opened, segments, settings_in, stable, until
from pollux.errors import DiskFullError, StoreError

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.store.usage import DiskUsage


async def test_callbacks_run_in_order_and_never_within_the_call(tmp_path: Path) -> None:
    async with opened(settings_in(tmp_path)) as one:
        seen: list[int] = []

        def note(number: int, error: StoreError | None) -> None:
            seen.append(number if error is None else -1)

        for number in range(50):
            if number % 3 == 0:
                one.storage.append_message(message_of(one.storage), [1])
            one.storage.when_stable(partial(note, number))
        assert seen == []
        await stable(one.storage)
        assert seen == list(range(50))


async def test_nothing_pending_completes_on_the_next_iteration(tmp_path: Path) -> None:
    async with opened(settings_in(tmp_path)) as one:
        seen: list[object] = []
        one.storage.when_stable(seen.append)
        assert seen == []
        await asyncio.sleep(0)
        assert seen == [None]


async def test_a_callback_that_raises_does_not_keep_others_waiting(tmp_path: Path) -> None:
    problems: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: problems.append(context))
    async with opened(settings_in(tmp_path)) as one:
        one.storage.append_message(message_of(one.storage), [1])

        def bad(error: StoreError | None) -> None:
            raise ValueError("a bug in a session")

        one.storage.when_stable(bad)
        await stable(one.storage)
    assert isinstance(problems[0]["exception"], ValueError)


async def test_messages_of_many_segments_come_back_in_order(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        sent = []
        for number in range(1000):
            message = message_of(one.storage, bytes([number % 256]) * 500)
            one.storage.append_message(message, [1])
            sent.append(message.id)
        await stable(one.storage)
    assert len(segments(settings)) > 7
    async with opened(settings) as two:
        assert contents(two.recovered) == {1: sent}
        assert two.recovered.damage == []
        assert two.recovered.message_count == 1000
        read = await two.storage.read_messages(list(reversed(sent)))
        assert [message.id for message in read if message] == sent[::-1]
        assert read[0] is not None
        assert read[0].data == bytes([999 % 256]) * 500
        assert await two.storage.read_messages([5, sent[3]]) != [None, None]


async def test_a_record_larger_than_a_segment(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        big = message_of(one.storage, b"\xf5PL\xfa" * 60_000)
        after = message_of(one.storage)
        one.storage.append_message(big, [1])
        one.storage.append_message(after, [1])
        await stable(one.storage)
    async with opened(settings) as two:
        assert contents(two.recovered) == {1: [big.id, after.id]}
        (read,) = await two.storage.read_messages([big.id])
        assert read is not None
        assert read.data == big.data


async def test_short_writes_are_completed(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    files = FaultyFiles()
    files.short_writes = True
    async with opened(settings, crash=True, files=files) as one:
        sent = [message_of(one.storage, b"x" * 300) for _ in range(400)]
        for message in sent:
            one.storage.append_message(message, [1])
        await stable(one.storage)
    async with opened(settings) as two:
        assert contents(two.recovered) == {1: [message.id for message in sent]}
        assert two.recovered.damage == []


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EROFS])
async def test_a_failed_sync_stops_everything(tmp_path: Path, code: int) -> None:
    files = FaultyFiles()
    async with opened(settings_in(tmp_path), crash=True, files=files) as one:
        one.storage.append_message(message_of(one.storage), [1])
        await stable(one.storage)
        files.write_error = code
        results: list[StoreError | None] = []
        one.storage.append_message(message_of(one.storage), [1])
        one.storage.when_stable(results.append)
        one.storage.when_stable(results.append)
        await until(lambda: len(results) == 2)
        assert all(isinstance(result, StoreError) for result in results)
        assert len(one.failures) == 1
        # The disk works again: that changes nothing, what was not synced may be lost in the page cache.
        files.write_error = None
        one.storage.append_message(message_of(one.storage), [1])
        with pytest.raises(StoreError):
            await stable(one.storage)
        assert len(one.failures) == 1


async def test_a_segment_that_cannot_be_made_for_another_reason_stops_the_store(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(settings_in(tmp_path), crash=True, files=files) as one:
        files.fill_error = errno.EIO
        for _ in range(1000):
            one.storage.append_message(message_of(one.storage, b"x" * 500), [1])
        with pytest.raises(StoreError):
            await stable(one.storage)
        assert len(one.failures) == 1


async def test_guard_expired_means_no_callback_succeeds(tmp_path: Path) -> None:
    held = [True]
    async with opened(settings_in(tmp_path), crash=True, guard=lambda: held[0]) as one:
        one.storage.append_message(message_of(one.storage), [1])
        await stable(one.storage)
        held[0] = False
        one.storage.append_message(message_of(one.storage), [1])
        with pytest.raises(StoreError, match="lease"):
            await stable(one.storage)
        held[0] = True
        with pytest.raises(StoreError, match="lease"):
            await stable(one.storage)
        assert len(one.failures) == 1


async def test_full_disk_refuses_messages_and_takes_acks(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    files = FaultyFiles()
    changes: list[DiskUsage] = []
    async with opened(settings, crash=True, files=files) as one:
        storage = one.storage
        storage.on_full_change(changes.append)
        files.fill_error = errno.ENOSPC
        sent: list[int] = []
        while not storage.full:
            message = message_of(storage, b"x" * 900)
            storage.append_message(message, [1])
            sent.append(message.id)
            await stable(storage)
            if len(sent) > 60:
                await asyncio.sleep(0.01)
        assert changes[0].full
        assert "No space" in (storage.usage().reason or "")
        with pytest.raises(DiskFullError, match="No space"):
            storage.append_message(message_of(storage), [1])
        for message_id in sent:
            storage.append_acks(1, [message_id])
            await stable(storage)
        assert one.failures == []
        files.fill_error = None
        await until(lambda: not storage.full)
        assert [usage.full for usage in changes] == [True, False]
        last = message_of(storage)
        storage.append_message(last, [1])
        await stable(storage)
    async with opened(settings) as two:
        assert contents(two.recovered) == {1: [last.id]}


async def test_full_disk_that_stays_full_fails_what_was_accepted_after_the_deadline(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(settings_in(tmp_path, full_disk_timeout=300), crash=True, files=files) as one:
        files.fill_error = errno.ENOSPC
        for _ in range(1000):
            one.storage.append_message(message_of(one.storage, b"x" * 500), [1])
        with pytest.raises(DiskFullError):
            await stable(one.storage)
        assert len(one.failures) == 1


async def test_no_space_while_writing_is_retried_as_a_whole(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    files = FaultyFiles()
    async with opened(settings, crash=True, files=files) as one:
        files.write_error = errno.ENOSPC
        message = message_of(one.storage)
        one.storage.append_message(message, [1])
        await until(lambda: one.storage.full)
        files.write_error = None
        await stable(one.storage)
        await until(lambda: not one.storage.full)
    async with opened(settings) as two:
        assert contents(two.recovered) == {1: [message.id]}


async def test_bindings_wait_for_room_too(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    files = FaultyFiles()
    async with opened(settings, crash=True, files=files) as one:
        files.write_error = errno.ENOSPC
        one.storage.put("queue", "q", b"value")
        message = message_of(one.storage)
        one.storage.append_message(message, [1])
        await until(lambda: one.storage.full)
        files.write_error = None
        await stable(one.storage)
        assert one.failures == []
    async with opened(settings) as two:
        assert two.recovered.bindings == {("queue", "q"): b"value"}
        assert contents(two.recovered) == {1: [message.id]}


async def test_a_life_begins_on_a_full_disk_with_what_was_set_aside(tmp_path: Path) -> None:
    """The reserve and the segments that the life before had prepared are room enough."""
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        message = message_of(one.storage)
        one.storage.append_message(message, [1])
        await stable(one.storage)
        await until(lambda: files_below(tmp_path, "pollux.reserve"))
        prepared = len(files_below(tmp_path, "pollux-*.segment"))
    assert prepared > 1

    class Full(FaultyFiles):
        def fill(self, fd: int, size: int) -> None:
            if files_below(tmp_path, "pollux.reserve") or files_below(tmp_path, "pollux-00000001-0000000002.segment"):
                raise OSError(errno.ENOSPC, "No space left on device")
            super().fill(fd, size)

    async with opened(settings, files=Full()) as two:
        assert contents(two.recovered) == {1: [message.id]}
        assert two.failures == []


async def test_disk_usage_limit_is_polled(tmp_path: Path) -> None:
    files = FaultyFiles()
    async with opened(settings_in(tmp_path, max_disk_usage=90, disk_scan_period=10), files=files) as one:
        files.free = 1 << 30
        await until(lambda: one.storage.full)
        assert one.storage.usage().percent > 99
        with pytest.raises(DiskFullError, match="max-disk-usage"):
            one.storage.append_message(message_of(one.storage), [1])
        files.free = 1 << 39
        await until(lambda: not one.storage.full)
        one.storage.append_message(message_of(one.storage), [1])
        await stable(one.storage)


@pytest.mark.parametrize(
    ("plain", "tx", "synced"), [(True, True, 2), (False, True, 1), (True, False, 1), (False, False, 0)]
)
async def test_sync_settings_are_honoured(tmp_path: Path, plain: bool, tx: bool, synced: int) -> None:
    syncs: list[bool] = []

    class Recording(FaultyFiles):
        def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
            if b"recorded" in bytes(data) or b"\x09\x00" in bytes(data[-24:]):
                syncs.append(sync)
            return super().write(fd, data, offset, sync=sync)

        def fdatasync(self, fd: int) -> None:
            # Of the file: also of what was written to it before without a sync.
            if syncs:
                syncs[-1] = True
            super().fdatasync(fd)

    settings = settings_in(tmp_path, journal_sync_non_transactional=plain, journal_sync_transactional=tx)
    async with opened(settings, crash=True, files=Recording()) as one:
        syncs.clear()
        one.storage.append_message(message_of(one.storage, b"recorded"), [1])
        await stable(one.storage)
        assert syncs == [plain]
        one.storage.append_message(message_of(one.storage, b"recorded"), [1], tx=99)
        one.storage.append_commit(99)
        await stable(one.storage)
        assert syncs == [plain, tx]
        assert sum(syncs) == synced


async def test_without_persistence_everything_is_stable_and_nothing_is_written(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, persistence_enabled=False)
    async with opened(settings) as one:
        seen: list[int] = []

        def note(number: int, error: StoreError | None) -> None:
            seen.append(number if error is None else -1)

        for number in range(10):
            one.storage.append_message(message_of(one.storage), [1])
            one.storage.put("kind", "key", b"value")
            one.storage.append_acks(1, [5])
            one.storage.when_stable(partial(note, number))
        assert seen == []
        await stable(one.storage)
        assert seen == list(range(10))
    assert not files_below(tmp_path, "*.segment")


async def test_a_newer_epoch_is_required(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, epoch=5) as one:
        first = one.storage.next_id()
    with pytest.raises(StoreError, match="epoch 5"):
        async with opened(settings, epoch=5):
            pass
    async with opened(settings) as two:
        assert two.storage.epoch == 6
        assert two.storage.next_id() > first + 1_000_000


async def test_batches_are_grouped(tmp_path: Path) -> None:
    async with opened(settings_in(tmp_path, journal_file_size=1 << 20)) as one:
        before = one.storage._journal.batches
        for _ in range(300):
            one.storage.append_message(message_of(one.storage), [1])
        await stable(one.storage)
        assert one.storage._journal.batches - before <= 2


async def test_a_disk_that_does_not_answer_stops_producers_not_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pollux.store.journal.BACKLOG_BYTES", 1 << 20)
    release = threading.Event()
    hanging = threading.Event()

    class Hanging(FaultyFiles):
        def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
            if sync and hanging.is_set():
                release.wait(30)
            return super().write(fd, data, offset, sync=sync)

    settings = settings_in(tmp_path, journal_file_size=8 << 20)
    async with opened(settings, crash=True, files=Hanging()) as one:
        hanging.set()
        sent = 0
        while not one.storage.full and sent < 1000:
            one.storage.append_message(message_of(one.storage, b"x" * 5000), [1])
            sent += 1
            await asyncio.sleep(0)
        assert 200 < sent < 500
        with pytest.raises(DiskFullError, match="does not keep up"):
            one.storage.append_message(message_of(one.storage), [1])
        one.storage.append_acks(1, [5])
        release.set()
        await stable(one.storage)
        assert not one.storage.full
    async with opened(settings) as two:
        assert two.recovered.message_count == sent


async def test_more_queues_than_a_record_can_name(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        message = message_of(one.storage, priority=7)
        one.storage.append_message(message, range(1, 70_001))
        await stable(one.storage)
    async with opened(settings) as two:
        assert len(two.recovered.queues) == 70_000
        assert list(two.recovered.queues[70_000][7]) == [message.id]
        assert two.recovered.references == {message.id: 70_000}
        assert two.recovered.message_count == 1


async def test_the_reserve_goes_when_the_disk_is_full_and_comes_back(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, max_disk_usage=90, disk_scan_period=10)
    files = FaultyFiles()
    async with opened(settings, files=files) as one:
        await until(lambda: files_below(tmp_path, "pollux.reserve"))
        files.free = 1
        await until(lambda: one.storage.full and not files_below(tmp_path, "pollux.reserve"))
        files.free = 1 << 39
        await until(lambda: not one.storage.full and files_below(tmp_path, "pollux.reserve"))
