"""A store is copied whole, from each kind of place to each."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness.databases import DATABASES
from harness.store import NODE, contents, message_of, opened, settings_in, stable
from pollux.errors import StoreError
from pollux.formats.names import UNFINISHED_COPY
from pollux.store.files import DISK, FileOperations, exists, make_directories, write_all
from pollux.store.inspect import dump, stat
from pollux.store.sql.files import SqlFiles
from pollux.store.store_copy import Store, copy
from pollux.store.verify import StoreLayout, verify

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.store.port import Files
    from pollux.store.settings import StoreSettings
    from pollux.store.sql.database import Database

BODIES = {number: bytes([number]) * 700 for number in range(1, 40)}


def store_in(files: Files, settings: StoreSettings) -> Store:
    return Store(
        files,
        (
            settings.journal_directory,
            settings.bindings_directory,
            settings.large_messages_directory,
            settings.paging_directory,
        ),
    )


async def fill(settings: StoreSettings, files: Files) -> None:
    """Messages in the journal and in a page, a large one, a binding, and a checkpoint."""
    async with opened(settings, files=files) as one:
        storage = one.storage
        for body in BODIES.values():
            storage.append_message(message_of(storage, body), [1])
        storage.put("k", "q", b"binding")
        storage.pages.address("paged").append(message_of(storage, b"paged", address="paged"), [2])
        writer = storage.large.create()
        writer.write(b"large" * 100_000)
        storage.append_message(message_of(storage, b"", large=writer.finish()), [1])
        await stable(storage)


async def read(settings: StoreSettings, files: Files) -> tuple[object, ...]:
    """Read all that a start finds, after every body was read and compared with its checksum."""
    report = verify(StoreLayout(*store_in(files, settings).directories), files)
    assert report.sound, report.damage
    async with opened(settings, files=files) as one:
        recovered = one.recovered
        assert not recovered.damage
        return report.live_messages, contents(recovered), recovered.bindings, one.storage.pages.messages


@pytest.mark.parametrize("kind", DATABASES)
async def test_a_store_goes_to_a_database_and_back(
    kind: str, databases: Callable[..., Database], tmp_path: Path
) -> None:
    database = databases(kind)
    database.begin_life()
    there = SqlFiles(database, Path("/store"))
    settings = [settings_in(root) for root in (tmp_path / "a", Path("/store"), tmp_path / "b")]
    await fill(settings[0], DISK)
    said: list[str] = []
    first = copy(store_in(DISK, settings[0]), store_in(there, settings[1]), said.append)
    assert first[0] == len(said) > 4
    layout = StoreLayout(*store_in(there, settings[1]).directories)
    assert verify(layout, there).sound
    assert [one["type"] for one in dump(settings[1].journal_directory, files=there)] == [
        one["type"] for one in dump(settings[0].journal_directory)
    ]
    assert stat(settings[1].journal_directory, there)["node_id"] == NODE.hex()
    with pytest.raises(StoreError, match="is not empty"):
        copy(store_in(DISK, settings[0]), store_in(there, settings[1]), said.append)
    assert copy(store_in(there, settings[1]), store_in(DISK, settings[2]), said.append) == first
    expected = await read(settings[0], DISK)
    assert await read(settings[2], DISK) == expected
    assert await read(settings[1], there) == expected


class Breaks(FileOperations):
    """A disk that fails when it is written to for the third time."""

    left = 3

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        self.left -= 1
        if self.left <= 0:
            raise OSError(5, "broken")
        return super().write(fd, data, offset, sync=sync)


async def test_a_copy_that_was_interrupted_is_no_store_and_is_done_again(tmp_path: Path) -> None:
    settings = [settings_in(tmp_path / name) for name in ("a", "b")]
    await fill(settings[0], DISK)
    source = store_in(DISK, settings[0])
    broken = Breaks()
    with pytest.raises(OSError, match="broken"):
        copy(source, store_in(broken, settings[1]), lambda _: None)
    left = [path.name for path in (tmp_path / "b").rglob("*") if path.is_file()]
    assert left
    assert all(name.endswith(".copying") for name in left)
    copy(source, store_in(DISK, settings[1]), lambda _: None)
    assert await read(settings[1], DISK) == await read(settings[0], DISK)


def test_where_there_is_no_store_nothing_is_copied(tmp_path: Path) -> None:
    settings = [settings_in(tmp_path / name) for name in ("a", "b")]
    make_directories(DISK, settings[0].journal_directory)
    fd = DISK.open(settings[0].journal_directory / "other", os.O_RDWR | os.O_CREAT)
    write_all(DISK, fd, b"x", 0, sync=False)
    DISK.close(fd)
    with pytest.raises(StoreError, match="there is no store to copy"):
        copy(store_in(DISK, settings[0]), store_in(DISK, settings[1]), lambda _: None)
    assert not exists(DISK, settings[1].journal_directory)


async def read_in(settings: StoreSettings) -> None:
    """Begin a life there."""
    async with opened(settings):
        pass


class Stops(FileOperations):
    """A disk under a copy that is killed before its n-th change."""

    def __init__(self, left: int) -> None:
        self._left = left

    def _change(self) -> None:
        if self._left == 0:
            raise OSError(5, "killed")
        self._left -= 1

    def rename(self, old: Path, new: Path) -> None:
        self._change()
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._change()
        super().unlink(path)

    def sync_directory(self, path: Path) -> None:
        self._change()
        super().sync_directory(path)


async def test_a_copy_cut_anywhere_is_whole_or_refused_and_is_done_again(tmp_path: Path) -> None:
    """Some files have their names then, and some have not: that is no store."""
    settings = [settings_in(tmp_path / name) for name in ("a", "b")]
    await fill(settings[0], DISK)
    source, layout = store_in(DISK, settings[0]), StoreLayout(*store_in(DISK, settings[1]).directories)
    refused = 0
    for changes in range(1000):
        shutil.rmtree(tmp_path / "b", ignore_errors=True)
        try:
            copy(source, store_in(Stops(changes), settings[1]), lambda _: None)
        except OSError:
            if not exists(DISK, settings[1].journal_directory / UNFINISHED_COPY):
                continue
            refused += 1
            report = verify(layout)
            assert not report.sound
            assert "was interrupted: run pollux store copy again" in str(report)
            with pytest.raises(StoreError, match="was interrupted"):
                await read_in(settings[1])
            # Its file is of another life by now, and nothing of the copy's may be among it.
            stale = settings[1].journal_directory / "pollux-00000009-0000000009.segment"
            stale.write_bytes(b"")
            copy(source, store_in(DISK, settings[1]), lambda _: None)
            assert not stale.exists()
        else:
            break
        assert verify(layout).sound
    assert refused > 4
    assert await read(settings[1], DISK) == await read(settings[0], DISK)
