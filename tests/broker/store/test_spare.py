"""A life that begins with a segment somebody filled ahead of it."""

from __future__ import annotations

import errno
import os
import time
from typing import TYPE_CHECKING

import pytest

from harness.store import FaultyFiles, contents, files_below, message_of, opened, settings_in, stable, until
from pollux.store.files import FileOperations
from pollux.store.segments import SegmentPool
from pollux.store.spare import Spare

if TYPE_CHECKING:
    from pathlib import Path

SIZE = 1 << 16


async def test_it_becomes_the_first_segment(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        first = message_of(one.storage)
        one.storage.append_message(first, [1])
        await stable(one.storage)
    spare = Spare(settings.journal_directory, "m", settings.journal_file_size)
    assert spare.prepare()
    inode = spare.path.stat().st_ino
    async with opened(settings, crash=True, spare=spare) as two:
        assert contents(two.recovered) == {1: [first.id]}
        assert not spare.path.exists()
        segment = files_below(tmp_path, "pollux-00000002-*.segment")[0]
        assert segment.stat().st_ino == inode
        second = message_of(two.storage)
        two.storage.append_message(second, [1])
        await stable(two.storage)
        # The ones behind it are filled as usual.
        await until(lambda: len(files_below(tmp_path, "pollux-00000002-*.segment")) > 1)
    async with opened(settings) as three:
        assert contents(three.recovered) == {1: [first.id, second.id]}
        assert [damage.kind for damage in three.recovered.damage] == []


async def test_more_than_the_spare_holds_does_not_wait(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    settings.journal_directory.mkdir(parents=True)
    spare = Spare(settings.journal_directory, "m", settings.journal_file_size)
    assert spare.prepare()
    async with opened(settings, spare=spare) as one:
        found = [message_of(one.storage, bytes(4000)) for _ in range(3 * settings.journal_file_size // 4000)]
        for message in found:
            one.storage.append_message(message, [1])
        await stable(one.storage)
    async with opened(settings) as two:
        assert contents(two.recovered) == {1: [message.id for message in found]}


async def test_one_of_another_size_is_not_used(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    settings.journal_directory.mkdir(parents=True)
    assert Spare(settings.journal_directory, "m", 4096).prepare()
    spare = Spare(settings.journal_directory, "m", settings.journal_file_size)
    async with opened(settings, spare=spare) as one:
        message = message_of(one.storage)
        one.storage.append_message(message, [1])
        await stable(one.storage)
        assert spare.path.stat().st_size == 4096
    assert spare.prepare()
    assert spare.path.stat().st_size == settings.journal_file_size


def test_on_a_full_disk_nothing_is_left(tmp_path: Path) -> None:
    files = FaultyFiles()
    files.fill_error = errno.ENOSPC
    spare = Spare(tmp_path, "m", 1 << 20, files)
    assert not spare.prepare()
    assert list(tmp_path.iterdir()) == []
    files.fill_error = None
    assert spare.prepare()
    spare.remove()
    assert list(tmp_path.iterdir()) == []


class Failing(FileOperations):
    """EIO for a while: for every call on a file of the journal's directory from the one of a number on."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first, self.calls = first, 0

    def _count(self) -> None:
        self.calls += 1
        if self.calls >= self.first:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    def open(self, path: Path, flags: int, mode: int = 0o640) -> int:
        self._count()
        return super().open(path, flags, mode)

    def size(self, fd: int) -> int:
        self._count()
        return super().size(fd)

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        self._count()
        return super().write(fd, data, offset, sync=sync)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        self._count()
        super().sync_directory(path)

    def close(self, fd: int) -> None:
        self._count()
        super().close(fd)

    def unlink(self, path: Path) -> None:
        self._count()
        super().unlink(path)

    def fill(self, fd: int, size: int) -> None:
        self._count()
        super().fill(fd, size)


@pytest.mark.parametrize("first", range(1, 10))
def test_whatever_fails_with_it_whoever_waits_for_a_segment_is_told(tmp_path: Path, first: int) -> None:
    """Breaks when the thread ends without a word: a broker that takes over would wait for ever, and nobody serves."""
    spare = Spare(tmp_path, "m", SIZE)
    assert spare.prepare()
    files, failures = Failing(first), list[OSError]()
    pool = SegmentPool(
        tmp_path,
        files,
        size=SIZE,
        ahead=1,
        salt=1,
        node_id=bytes(16),
        epoch=1,
        first_sequence=1,
        created=1,
        on_room=lambda _: None,
        on_error=failures.append,
        spare=Spare(tmp_path, "m", SIZE, files),
    )
    pool.start()
    with pytest.raises(OSError, match="Input/output error"):  # noqa: PT012  (the first may be there, the next one is not)
        assert pool.ready(10)
        pool.take(time.monotonic() + 10)
        pool.take(time.monotonic() + 10)
    assert [error.errno for error in failures] == [errno.EIO]
    pool.close()
