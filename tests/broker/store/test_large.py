"""Large messages: streamed both ways with bounded memory, durable before the record, deleted after the ack."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.store import FaultyFiles, contents, files_below, message_of, opened, settings_in, stable, until
from pollux.errors import DiskFullError, LostBodyError, StoreError
from pollux.store.files import FileOperations
from pollux.store.large import IN_FLIGHT_BYTES, LargeMessage, LargeWriter
from pollux.store.verify import StoreLayout, verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.store.storage import Storage

CHUNK = b"0123456789abcdef" * 4096


async def drained(writer: LargeWriter) -> None:
    """Wait while the writer is full."""
    while writer.full:
        done = asyncio.Event()
        writer.on_drain(done.set)
        await asyncio.wait_for(done.wait(), 20)


async def write_large(storage: Storage, chunks: int) -> LargeMessage:
    writer = storage.large.create()
    for _ in range(chunks):
        writer.write(CHUNK)
        assert writer._held <= IN_FLIGHT_BYTES + len(CHUNK)
        await drained(writer)
    return writer.finish()


async def files_in(directory: Path, count: int) -> list[Path]:
    """Wait until a directory has ``count`` files."""
    await until(lambda: len(files_below(directory, "*.msg")) == count)
    return files_below(directory, "*.msg")


@pytest.mark.parametrize("clean", [False, True])
async def test_written_recovered_read_and_deleted(tmp_path: Path, clean: bool) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=not clean) as one:
        large = await write_large(one.storage, 100)
        assert large.size == 100 * len(CHUNK)
        message = message_of(one.storage, CHUNK[:4096], large=large)
        one.storage.append_message(message, [1])
        await stable(one.storage)
        orphan = one.storage.large.create()
        orphan.write(b"never finished")
        await files_in(settings.large_messages_directory, 2)
    async with opened(settings, crash=not clean) as two:
        await files_in(settings.large_messages_directory, 1)
        (read,) = await two.storage.read_messages(contents(two.recovered)[1])
        assert read is not None
        assert isinstance(read.large, LargeMessage)
        assert read.data == CHUNK[:4096]
        reader = two.storage.large.open(read.large)
        total = 0
        async for part in reader:
            assert part == (CHUNK * 4)[total % len(CHUNK) :][: len(part)]
            total += len(part)
        reader.close()
        assert total == large.size
        two.storage.append_acks(1, [message.id])
        two.storage.large.delete(read.large.id)
        await files_in(settings.large_messages_directory, 0)
    async with opened(settings) as three:
        assert contents(three.recovered) == {}


async def test_the_file_is_synced_before_the_record_is_stable(tmp_path: Path) -> None:
    order: list[str] = []

    class Watching(FileOperations):
        def fsync(self, fd: int) -> None:
            super().fsync(fd)
            if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".msg":
                order.append("file")

        def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
            if b"HEAD" in bytes(data):
                order.append("record")
            return super().write(fd, data, offset, sync=sync)

    async with opened(settings_in(tmp_path), files=Watching()) as one:
        large = await write_large(one.storage, 3)
        one.storage.append_message(message_of(one.storage, b"HEAD", large=large), [1])
        await stable(one.storage)
        assert order == ["file", "record"]


async def test_abort_removes_the_file(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings) as one:
        writer = one.storage.large.create()
        for _ in range(4):
            writer.write(CHUNK)
        await files_in(settings.large_messages_directory, 1)
        writer.abort()
        await files_in(settings.large_messages_directory, 0)
        with pytest.raises(StoreError):
            writer.write(b"more")


async def test_full_disk_refuses_the_message_and_nothing_else(tmp_path: Path) -> None:
    class NoRoom(FileOperations):
        def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
            if Path(f"/proc/self/fd/{fd}").readlink().suffix == ".msg":
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(fd, data, offset, sync=sync)

    async with opened(settings_in(tmp_path), files=NoRoom()) as one:
        writer = one.storage.large.create()
        writer.write(b"x" * 100)
        await until(lambda: writer._error is not None)
        with pytest.raises(DiskFullError, match="No space"):
            writer.write(b"x" * 100)
        writer.abort()
        one.storage.append_message(message_of(one.storage), [1])
        await stable(one.storage)
        assert one.failures == []


async def test_a_directory_that_fails_is_the_store_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when the loop itself touches the directory: its error would end a client's session instead."""

    class Failing(FileOperations):
        def open(self, path: Path, flags: int, mode: int = 0o640) -> int:
            if path.suffix == ".msg":
                raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
            return super().open(path, flags, mode)

    settings = settings_in(tmp_path)
    async with opened(settings, files=Failing()) as one:
        with monkeypatch.context() as failing:
            failing.setattr(os, "mkdir", _refuse)
            failing.setattr(os, "stat", _refuse)
            writer = one.storage.large.create()
        writer.write(b"x" * 100)
        await until(lambda: writer._error is not None)
        with pytest.raises(StoreError, match="Input/output error"):
            writer.write(b"x" * 100)
        writer.abort()


def _refuse(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


async def test_a_chunk_that_found_no_room_is_written_again_and_nothing_before_it(tmp_path: Path) -> None:
    """The message ends before anybody has heard that its chunk found no room: the body is whole all the same."""
    refused = threading.Event()

    class NoRoomOnce(FileOperations):
        def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
            if not refused.is_set() and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".msg":
                refused.set()
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(fd, data, offset, sync=sync)

    settings = settings_in(tmp_path)
    async with opened(settings, files=NoRoomOnce()) as one:
        writer = one.storage.large.create()
        writer.write(CHUNK)
        writer.write(b"the end")
        assert refused.wait(20)  # the loop hears of it later
        large = writer.finish()
        one.storage.append_message(message_of(one.storage, CHUNK[:4096], large=large), [1])
        await stable(one.storage)
        assert one.storage.large.path(large.id).read_bytes() == CHUNK + b"the end"
        assert one.failures == []


async def test_a_body_that_was_cut_is_an_error(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings) as one:
        large = await write_large(one.storage, 2)
        await stable(one.storage)
        path = one.storage.large.path(large.id)
        path.write_bytes(path.read_bytes()[:1000])
        reader = one.storage.large.open(large)
        with pytest.raises(StoreError, match="cut to 1000 of"):
            await reader.read()
        path.unlink()
        with pytest.raises(StoreError):
            await one.storage.large.open(large).read()


async def test_a_body_that_the_disk_never_gives_is_an_error_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pollux.store.large.PATIENCE", 0.1)
    files = FaultyFiles()
    async with opened(settings_in(tmp_path), files=files) as one:
        large = await write_large(one.storage, 1)
        await stable(one.storage)
        files.unreadable = 1000
        reader = one.storage.large.open(large)
        with pytest.raises(LostBodyError, match="Input/output error"):
            await reader.read()
        assert files.unreadable < 999
        reader.close()


async def test_consumers_that_come_and_go_do_not_begin_the_wait_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Heartbeats wait behind a large message: each of its consumers may be gone before the time is over."""
    monkeypatch.setattr("pollux.store.large.PATIENCE", 0.3)
    files = FaultyFiles()
    async with opened(settings_in(tmp_path), files=files) as one:
        large = await write_large(one.storage, 1)
        await stable(one.storage)
        files.unreadable = 10_000
        for _ in range(200):
            reader = one.storage.large.open(large)
            try:
                async with asyncio.timeout(0.04):
                    await reader.read()
            except TimeoutError:
                continue
            except LostBodyError:
                break
            finally:
                reader.close()
        else:
            pytest.fail("each consumer waited from the beginning")


async def test_without_persistence_files_do_not_outlive_the_store(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, persistence_enabled=False)
    async with opened(settings) as one:
        large = await write_large(one.storage, 20)
        await stable(one.storage)
        reader = one.storage.large.open(large)
        assert sum([len(part) async for part in reader]) == large.size
        reader.close()
    assert files_below(tmp_path, "*.msg") == []


@pytest.mark.parametrize("end", ["finish", "abort"])
async def test_the_end_of_a_full_writer_wakes_who_waits(tmp_path: Path, end: str) -> None:
    """The journal's writer may be first with the last bytes, before the thread that counts them: nobody else calls."""
    async with opened(settings_in(tmp_path)) as one:
        writer = one.storage.large.create()
        woken: list[bool] = []
        writer.write(bytes(IN_FLIGHT_BYTES + 1))
        assert writer.full
        writer.on_drain(lambda: woken.append(True))
        getattr(writer, end)()
        assert woken == [True]


@pytest.mark.parametrize("durable", [True, False])
async def test_nobody_sees_a_message_before_its_file_is_whole(tmp_path: Path, durable: bool) -> None:
    async with opened(settings_in(tmp_path)) as one:
        large = one.storage.large
        busy = threading.Event()

        def occupied() -> None:
            busy.wait(30)

        for _ in range(8):
            large.submit(occupied)
        try:
            writer = large.create()
            writer.write(b"x" * 300_000)
            message = writer.finish(durable=durable)
            await stable(one.storage)
            (file,) = files_below(tmp_path, "*.msg")
            assert file.stat().st_size == message.size == 300_000
        finally:
            busy.set()


class Order(FileOperations):
    """Notes what comes first: the write of a record with a message's id, or the end of a file, which is given time."""

    def __init__(self) -> None:
        super().__init__()
        self.armed = b""
        self.seen: list[str] = []
        self.gone = threading.Event()

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        if self.armed and self.armed in bytes(data):
            self.gone.wait(0.5)
            self.seen.append("write")
        return super().write(fd, data, offset, sync=sync)

    def unlink(self, path: Path) -> None:
        if self.armed and path.suffix == ".msg":
            self.seen.append("unlink")
            self.gone.set()
        super().unlink(path)


async def test_a_file_outlives_the_acknowledgement_that_is_appended_after_its_end(tmp_path: Path) -> None:
    """Breaks when the file goes with what was stable before: a crash would leave the message without its file."""
    files = Order()
    settings = settings_in(tmp_path)
    async with opened(settings, files=files) as one:
        large = await write_large(one.storage, 3)
        message = message_of(one.storage, CHUNK[:4096], large=large)
        one.storage.append_message(message, [1])
        await stable(one.storage)
        files.armed = message.id.to_bytes(8, "little")
        one.storage.large.delete(large.id)
        one.storage.append_acks(1, [message.id])
        await stable(one.storage)
        await files_in(settings.large_messages_directory, 0)
        assert files.seen == ["write", "unlink"]
        files.armed = b""


class LateUnlink(FileOperations):
    """Deletes a large message's file when it is told to, as a thread does that gets no processor until then."""

    def __init__(self) -> None:
        super().__init__()
        self.now = threading.Event()

    def unlink(self, path: Path) -> None:
        if path.suffix == ".msg":
            assert self.now.wait(20)
        super().unlink(path)


async def test_nothing_is_deleted_of_a_store_that_was_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when closing does not wait for threads: the same name was another store's file by then, and gone."""
    files = LateUnlink()
    settings = settings_in(tmp_path)
    async with opened(settings, files=files) as one:
        large = await write_large(one.storage, 3)
        message = message_of(one.storage, CHUNK[:4096], large=large)
        one.storage.append_message(message, [1])
        await stable(one.storage)
        one.storage.large.delete(large.id)
        one.storage.append_acks(1, [message.id])
        await stable(one.storage)
        cold = one.storage._cold

        def last_but_one(close: Callable[[], None] = cold.close) -> None:
            close()
            asyncio.get_running_loop().call_later(0.1, files.now.set)

        monkeypatch.setattr(cold, "close", last_but_one)
    assert files.now.is_set()
    assert not files_below(settings.large_messages_directory, "*.msg")


def flip(path: Path, offset: int) -> None:
    """Change one bit of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("paged", [False, True])
@pytest.mark.parametrize("clean", [False, True])
async def test_a_body_that_was_changed_is_given_to_nobody_as_a_whole(tmp_path: Path, clean: bool, paged: bool) -> None:
    """Its checksum is in its record, in the journal, in a page, in what a checkpoint keeps."""
    settings = settings_in(tmp_path)
    async with opened(settings, crash=not clean) as one:
        large = await write_large(one.storage, 10)
        message = message_of(one.storage, CHUNK[:4096], large=large, address="a")
        if paged:
            one.storage.pages.address("a").append(message, [1])
        else:
            one.storage.append_message(message, [1])
        await stable(one.storage)
        path = one.storage.large.path(large.id)
    layout = StoreLayout(tmp_path / "journal", tmp_path / "bindings", tmp_path / "large", tmp_path / "paging")
    assert verify(layout).sound
    flip(path, 300_000)
    report = verify(layout)
    assert [(damage.file, damage.kind) for damage in report.damage] == [(path, "lost-body")]
    async with opened(settings) as two:
        storage = two.storage
        if paged:
            pages = storage.pages.addresses()["a"]
            (found,) = [each.message for number in pages.pages for each in await pages.read(number)]
        else:
            (cold,) = await storage.read_messages([message.id])
            assert cold is not None
            found = cold
        assert found.large is not None
        assert found.large.checksum == large.checksum
        reader = storage.large.open(found.large)
        with pytest.raises(LostBodyError, match="was changed"):
            assert [part async for part in reader] == []
        assert reader.position == large.size, "it is known at the end"
        with pytest.raises(LostBodyError, match="was changed"):
            await storage.large.open(found.large).read()
        assert await storage.large.lost(found.large)
        assert [damage.file for damage in storage.damage] == [path]


async def test_a_body_whose_record_has_no_checksum_is_read_as_it_is(tmp_path: Path) -> None:
    """Stores that an earlier version wrote."""
    settings = settings_in(tmp_path)
    async with opened(settings) as one:
        large = await write_large(one.storage, 3)
        large.checksum = None
        message = message_of(one.storage, CHUNK[:4096], large=large)
        one.storage.append_message(message, [1])
        await stable(one.storage)
        flip(one.storage.large.path(large.id), 5)
    async with opened(settings) as two:
        (read,) = await two.storage.read_messages([message.id])
        assert read is not None
        assert read.large is not None
        assert read.large.checksum is None
        assert sum([len(part) async for part in two.storage.large.open(read.large)]) == large.size
        assert two.storage.damage == []
