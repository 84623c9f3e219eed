"""A life that begins with a segment somebody filled ahead of it."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

from harness.store import FaultyFiles, contents, files_below, message_of, opened, settings_in, stable, until
from pollux.store.spare import Spare

if TYPE_CHECKING:
    from pathlib import Path


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
