"""A disk without room: what was accepted finds what is set aside, and nothing that fits waits for what does not."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import system_calls
from harness.store import (
    FaultyFiles,
    contents,
    files_below,
    message_of,
    opened,
    segments,
    set_aside,
    settings_in,
    stable,
    until,
)
from harness.system_calls import Faults
from pollux.errors import DiskFullError, StoreError
from pollux.store.files import FileOperations
from pollux.store.maintenance import Maintenance
from pollux.store.reserve import RESERVE, Reserve
from pollux.store.usage import DiskUsage, DiskWatch, Finder

if TYPE_CHECKING:
    from pollux.store.checkpointer import Job, Source
    from pollux.store.storage import Storage

#: Nobody may wait for room in these tests: none comes by itself.
FOREVER = 3_600_000


class Full(FaultyFiles):
    """While ``armed``, files whose names end in ``suffix`` find room only when what ``without`` finds was given up."""

    def __init__(self, suffix: str, without: str) -> None:
        super().__init__()
        self.directory = Path()
        self.suffix, self.without = suffix, without
        self.armed = False
        self.refused = 0
        self.prepared = 0

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        if self.armed and Path(f"/proc/self/fd/{fd}").readlink().suffix == self.suffix:
            there = files_below(self.directory, self.without)
            if there and (self.without == RESERVE or len(there) >= self.prepared):
                self.refused += 1
                raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(fd, data, offset, sync=sync)

    def fill(self, fd: int, size: int) -> None:
        if self.armed:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().fill(fd, size)


async def ready(storage: Storage, files: Full) -> None:
    """Wait until everything is set aside, and take the disk's room."""
    files.directory = storage.settings.journal_directory
    await set_aside(storage)
    files.prepared = len(segments(storage.settings))
    files.armed = True


@pytest.mark.parametrize("without", [RESERVE, "*.segment"])
@pytest.mark.parametrize("kind", ["large", "page", "binding", "acknowledgement"])
async def test_what_was_accepted_takes_what_is_set_aside(tmp_path: Path, kind: str, without: str) -> None:
    """The reserve first, then a prepared segment. What is appended later is stable too, and room comes back."""
    settings = settings_in(tmp_path, full_disk_timeout=FOREVER)
    suffix = {"large": ".msg", "page": ".page", "binding": ".segment", "acknowledgement": ".segment"}[kind]
    files = Full(suffix, without)
    async with opened(settings, crash=True, files=files) as one:
        storage = one.storage
        first = message_of(storage)
        storage.append_message(first, [1])
        await stable(storage)
        await ready(storage, files)
        kept = message_of(storage)
        if kind == "large":
            writer = storage.large.create()
            writer.write(b"x" * 5000)
            kept.large = writer.finish()
        if kind == "page":
            storage.pages.address("an.address").append(kept, [2])
        elif kind == "binding":
            storage.put("queue", "q", b"value")
        if kind in ("large", "binding"):
            storage.append_message(kept, [2])
        if kind == "acknowledgement":
            storage.append_acks(1, [first.id])
        await stable(storage)
        assert files.refused
        storage.append_acks(1, [first.id])
        await stable(storage)
        await until(lambda: storage.full)
        with pytest.raises(DiskFullError):
            storage.append_message(message_of(storage), [1])
        files.armed = False
        await until(lambda: not storage.full)
        assert files_below(tmp_path, RESERVE)
        await until(lambda: len(segments(settings)) >= 3)
        filler = [message_of(storage, b"y" * 9000) for _ in range(40)]
        for message in filler:  # over the numbers of what was given up
            storage.append_message(message, [3])
            await stable(storage)
        assert one.failures == []
    async with opened(settings) as two:
        assert not [damage for damage in two.recovered.damage if damage.kind != "torn-tail"]
        found = contents(two.recovered)
        assert found.get(1) is None
        assert found[3] == [message.id for message in filler]
        if kind in ("large", "binding"):
            assert found[2] == [kept.id]
        if kind == "page":
            pages = two.storage.pages.addresses()["an.address"]
            number = pages.next_page(2)
            assert number is not None
            assert [one.message.id for one in await pages.read(number)] == [kept.id]
        if kept.large is not None:
            assert two.storage.large.path(kept.large.id).read_bytes() == b"x" * 5000


async def test_a_record_larger_than_a_segment_finds_no_room_at_first(tmp_path: Path) -> None:
    class NoRoomOnce(FaultyFiles):
        refused = False

        def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
            if not self.refused and offset == 64 << 10:  # behind a segment's end
                self.refused = True
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(fd, data, offset, sync=sync)

    settings = settings_in(tmp_path)
    files = NoRoomOnce()
    async with opened(settings, crash=True, files=files) as one:
        message = message_of(one.storage, bytes(200_000))
        one.storage.append_message(message, [1])
        await stable(one.storage)
        assert files.refused
        assert one.failures == []
    async with opened(settings) as two:
        assert contents(two.recovered) == {1: [message.id]}


async def test_an_upload_ends_when_the_disk_is_full(tmp_path: Path) -> None:
    """Its bytes so far are room for others; the error is its own, and the journal goes on."""
    settings = settings_in(tmp_path)
    files = FaultyFiles()
    async with opened(settings, crash=True, files=files) as one:
        writer = one.storage.large.create()
        writer.write(b"x" * 5000)
        await until(lambda: not writer._chunks)
        one.storage._room.watch.no_room(Finder.POOL, "no room for a segment")

        def three() -> None:
            for _ in range(3):  # from the second on they wait for the loop to hear of the first
                writer.write(b"x" * 100_000)

        with pytest.raises(DiskFullError, match="no room for a segment"):
            three()
        writer._chunks.append(b"not written yet")
        with pytest.raises(DiskFullError, match="no room for a segment"):
            writer.finish()
        writer.abort()
        await until(lambda: not files_below(tmp_path, "*.msg"))
        one.storage.append_acks(1, [1])
        await stable(one.storage)


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
async def test_a_sync_that_failed_is_not_repeated(tmp_path: Path, error: int) -> None:
    """File systems that allocate late (NFS) tell of it at the sync, once: the next one would lie."""

    class SyncFails(FaultyFiles):
        failed = False

        def fsync(self, fd: int) -> None:
            if not self.failed and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".msg":
                self.failed = True
                raise OSError(error, "the sync failed")
            super().fsync(fd)

    async with opened(settings_in(tmp_path), crash=True, files=SyncFails()) as one:
        writer = one.storage.large.create()
        writer.write(b"x" * 5000)
        large = writer.finish()
        one.storage.append_message(message_of(one.storage, large=large), [1])
        with pytest.raises(StoreError, match=rf"errno {error}\) at its sync"):
            await stable(one.storage)
        await until(lambda: one.failures)


async def test_a_name_that_finds_no_room_at_first_is_synced_later(tmp_path: Path) -> None:
    """All of a large message's end is done again, and the file must still be open for that."""

    class NoRoomForNames(FaultyFiles):
        refused = 0

        def sync_directory(self, path: Path) -> None:
            if path.name == "large" and self.refused < 2:
                self.refused += 1
                raise OSError(errno.ENOSPC, "No space left on device")
            super().sync_directory(path)

    settings, files = settings_in(tmp_path), NoRoomForNames()
    async with opened(settings, crash=True, files=files) as one:
        writer = one.storage.large.create()
        writer.write(b"x" * 5000)
        one.storage.append_message(message_of(one.storage, large=writer.finish()), [1])
        await stable(one.storage)
        assert files.refused == 2
        assert one.failures == []


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
async def test_without_persistence_pages_find_no_room_at_first(tmp_path: Path, error: int) -> None:
    """Nothing of a turn is written twice: that would cut off what comes later."""

    class FailsOnce(FaultyFiles):
        page: str | None = None

        def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
            if self.page is not None and self.page in str(Path(f"/proc/self/fd/{fd}").readlink()):
                self.page = None
                raise OSError(error, os.strerror(error))
            return super().write(fd, data, offset, sync=sync)

    files = FailsOnce()
    async with opened(settings_in(tmp_path, persistence_enabled=False), files=files) as one:
        both = [one.storage.pages.address(address) for address in ("a", "b")]
        sent: list[list[int]] = [[], []]
        for number in range(4):
            for pages, ids in zip(both, sent, strict=True):
                message = message_of(one.storage, address=pages.address)
                pages.append(message, [1])
                ids.append(message.id)
            if number == 2:
                files.page = f"/{both[1].number}/"
                if error == errno.EIO:
                    with pytest.raises(StoreError, match="Input/output"):
                        await stable(one.storage)
                    assert one.failures
                    return
            await stable(one.storage)
        found = [[one.message.id for page in list(each.pages) for one in await each.read(page)] for each in both]
        assert found == sent
        assert not one.storage.full
        assert one.failures == []


async def test_room_for_one_is_not_room_for_another(tmp_path: Path) -> None:
    changes: list[DiskUsage] = []
    watch = DiskWatch(settings_in(tmp_path), FaultyFiles(), asyncio.get_running_loop(), changes.append)
    watch.no_room(Finder.WRITER, "the writer")
    watch.no_room(Finder.POOL, "the pool")
    watch.no_room(Finder.POOL, None)
    assert (watch.reason, watch.no_room_reason, len(changes)) == ("the writer", "the writer", 1)
    watch.stalled("slow")
    watch.no_room(Finder.WRITER, None)
    assert (watch.reason, watch.no_room_reason, len(changes)) == ("slow", None, 1)
    assert watch.usage().cause == "what is to be written waits for the disk"
    watch.stalled(None)
    assert [(usage.full, usage.cause) for usage in changes] == [(True, "a write found no room"), (False, "")]


async def test_full_until_the_reserve_is_there_again(tmp_path: Path) -> None:
    """Room that only the reserve gave is none: the state does not flap while there is a little."""
    settings = settings_in(tmp_path)
    files = FaultyFiles()
    changes: list[bool] = []
    async with opened(settings, files=files) as one:
        one.storage.on_full_change(lambda usage: changes.append(usage.full))
        await until(lambda: files_below(tmp_path, RESERVE))
        files.free = 2 * settings.journal_file_size - 1
        files.write_error = errno.ENOSPC
        one.storage.append_acks(1, [1])
        await until(lambda: one.storage.full)
        files.write_error = None
        await stable(one.storage)
        for _ in range(20):
            one.storage.append_acks(1, [1])
            await stable(one.storage)
        await asyncio.to_thread(one.storage._room.reserve.make)
        assert (changes, files_below(tmp_path, RESERVE)) == ([True], [])
        files.free = 2 * settings.journal_file_size
        await until(lambda: not one.storage.full)
        assert (changes, len(files_below(tmp_path, RESERVE))) == ([True, False], 1)


async def test_what_producers_wait_for_is_urgent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when the checkpoint that makes room lets everybody else on a busy machine go first."""
    asked: list[bool] = []
    job = Maintenance._job

    def record(self: Maintenance, segments: list[Source]) -> Job:
        found = job(self, segments)
        asked.append(found.urgent)
        return found

    monkeypatch.setattr(Maintenance, "_job", record)
    settings = settings_in(tmp_path, max_disk_usage=90, disk_scan_period=10, journal_file_size=4 << 10)
    files = FaultyFiles()
    async with opened(settings, files=files) as one:
        for _ in range(3):
            one.storage.append_message(message_of(one.storage, bytes(3000)), [1])
            await stable(one.storage)
        assert asked == []
        files.free = 1
        await until(lambda: one.storage.full and asked)
        assert asked[0]


def test_the_reserve_leaves_nothing_half_made(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.fill_error = errno.ENOSPC
    reserve = Reserve(tmp_path, files, 4096)
    assert not reserve.make()
    assert list(tmp_path.iterdir()) == []
    files.fill_error = None
    assert [reserve.make(), reserve.make(), reserve.release(), reserve.release()] == [True, True, True, False]


def test_a_reserve_that_cannot_be_looked_at_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for it, so that producers may go on, must not end with an error: it would not be asked again."""
    system_calls.install(monkeypatch)
    with Faults(tmp_path, first=0) as faults:
        faults.arm()
        reserve = Reserve(tmp_path, FileOperations(), 4096)
        assert [reserve.make(), reserve.make()] == [False, True]
