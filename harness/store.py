"""Helpers of the store's tests: settings, opening, waiting, file operations that fail on command."""

from __future__ import annotations

import asyncio
import errno
import os
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pollux.formats.records import RecordType
from pollux.formats.segments import FRAME_SIZE, HEADER_SIZE, DamagedRange, decode_header, frame
from pollux.formats.segments import records as scan
from pollux.message import Encoding, Message
from pollux.store.files import FileOperations
from pollux.store.settings import StoreSettings
from pollux.store.storage import Storage

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from pollux.errors import StoreError
    from pollux.store.recovered import Recovered

NODE = b"node-of-the-test"


def settings_in(directory: Path, **values: Any) -> StoreSettings:
    """Small segments, no disk limit, no checkpoints unless asked."""
    defaults: dict[str, Any] = {
        "node_id": NODE,
        "journal_file_size": 64 << 10,
        "journal_compact_min_files": 0,
        "max_disk_usage": -1,
    }
    return StoreSettings(
        directory / "journal", directory / "bindings", directory / "large", directory / "paging", **(defaults | values)
    )


def message_of(storage: Storage | None, data: bytes = b"data", *, message_id: int = 0, **values: Any) -> Message:
    """A message with an id."""
    message = Message(Encoding.AMQP, values.pop("address", "an.address"), data, **values)
    message.id = message_id or (storage.next_id() if storage is not None else 1)
    return message


async def stable(storage: Storage) -> None:
    """Wait until everything appended is stable; raises the store's error."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def settle(error: StoreError | None) -> None:
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)

    storage.when_stable(settle)
    await asyncio.wait_for(done, 30)


class Opened:
    """An open storage, what it recovered and how it failed."""

    def __init__(self, storage: Storage, recovered: Recovered, failures: list[StoreError]) -> None:
        self.storage = storage
        self.recovered = recovered
        self.failures = failures


@asynccontextmanager
async def opened(settings: StoreSettings, *, crash: bool = False, **values: Any) -> AsyncIterator[Opened]:
    """Open and recover; closes at the end, or (``crash``) leaves the files as a killed process would."""
    failures: list[StoreError] = []
    storage = await Storage.open(settings, loop=asyncio.get_running_loop(), on_failure=failures.append, **values)
    recovered = await storage.recover()
    try:
        yield Opened(storage, recovered, failures)
    finally:
        if crash:
            await abandon(storage)
        else:
            await storage.close()


async def abandon(storage: Storage) -> None:
    """End the threads of a storage without the checkpoint and the ends of pages that close() writes."""
    storage.pages._by_address.clear()
    if storage._maintenance is not None:
        await storage._maintenance.stop(last=False, seconds=0)
        storage._maintenance = None
    await storage.close()


async def until(condition: Callable[[], object]) -> None:
    """Wait for what another thread or process makes true, at most 30 seconds: there is no event to await."""
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


async def set_aside(storage: Storage) -> None:
    """Wait until the segments prepared ahead and the reserve are there and filled: then no file changes by itself."""
    pool = storage._pool
    assert pool is not None
    await until(lambda: len(pool._ready) == pool._wanted)
    assert await asyncio.to_thread(storage._room.reserve.make)


def contents(recovered: Recovered) -> dict[int, list[int]]:
    """Queue id -> message ids in order, all priorities."""
    return {
        queue_id: [one for priority in sorted(priorities, reverse=True) for one in priorities[priority]]
        for queue_id, priorities in recovered.queues.items()
    }


def segments(settings: StoreSettings) -> list[Path]:
    """The journal's segment files in order."""
    return sorted(settings.journal_directory.glob("*.segment"))


class FaultyFiles(FileOperations):
    """File operations that fail on command, in whichever thread the store uses."""

    def __init__(self) -> None:
        super().__init__()
        self.write_error: int | None = None
        self.fill_error: int | None = None
        self.sync_error: int | None = None
        self.short_writes = False
        self.free = 1 << 40
        #: So many reads of large messages' files fail.
        self.unreadable = 0

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        if sync and self.write_error is not None:
            raise OSError(self.write_error, os.strerror(self.write_error))
        if self.short_writes and len(data) > 1:
            data = memoryview(data)[: len(data) // 2]
        return super().write(fd, data, offset, sync=sync)

    def read(self, fd: int, length: int, offset: int) -> bytes:
        if self.unreadable and Path(f"/proc/self/fd/{fd}").readlink().suffix == ".msg":
            self.unreadable -= 1
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().read(fd, length, offset)

    def fill(self, fd: int, size: int) -> None:
        if self.fill_error is not None:
            raise OSError(self.fill_error, os.strerror(self.fill_error))
        super().fill(fd, size)

    def fdatasync(self, fd: int) -> None:
        if self.sync_error is not None:
            raise OSError(self.sync_error, os.strerror(self.sync_error))
        super().fdatasync(fd)

    def disk(self, path: Path) -> tuple[int, int]:
        return 1 << 40, self.free


def ids_in(recovered: Recovered) -> set[int]:
    """All message ids in all queues."""
    return {one for ids in contents(recovered).values() for one in ids}


def files_below(directory: Path, pattern: str) -> list[Path]:
    """The files that match, anywhere below; a directory may go away meanwhile."""
    found = [Path(root) / name for root, _, names in os.walk(directory) for name in names]
    return sorted(path for path in found if path.match(pattern))


def without_names(journal: Path) -> None:
    """Make a journal that of a version that named queues in the bindings only: records of a type that nobody knows."""
    for path in journal.glob("*.segment"):
        data = bytearray(path.read_bytes())
        if not data[:HEADER_SIZE].strip(b"\0"):
            continue
        salt = decode_header(bytes(data), str(path)).salt
        for entry in list(scan(bytes(data), salt)):
            assert not isinstance(entry, DamagedRange)
            offset, length = entry
            if data[offset + FRAME_SIZE] == RecordType.QUEUE:
                data[offset : offset + length] = frame(b"\xff" + data[offset + FRAME_SIZE + 1 : offset + length], salt)
        path.write_bytes(data)
