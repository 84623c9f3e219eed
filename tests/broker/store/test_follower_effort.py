"""How little a follower reads: what it read along, what only waits, and what it has not to look at at a takeover."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness.store import contents, message_of, opened, segments, set_aside, settings_in, until
from pollux.store import ids, index, recovery
from pollux.store.files import FileOperations
from pollux.store.follower import Follower
from pollux.store.journal_reader import read_journal

from .test_follower import _checkpoint_in_this_process, promote, writing

if TYPE_CHECKING:
    from array import array
    from pathlib import Path

    import pytest


__all__ = ["_checkpoint_in_this_process"]


async def test_a_look_without_news_opens_two_files_however_many_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when all segments, or a checkpoint, are read at each look: five times a second, from the server that the
    live writes to."""
    settings = settings_in(tmp_path)
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    opened_files: list[str] = []
    real = FileOperations.open

    def counted(files: FileOperations, path: Path, *rest: Any) -> int:
        opened_files.append(path.name)
        return real(files, path, *rest)

    async with writing(settings) as live:
        for _ in range(70):
            await live.send()
            await live.acknowledge()
        await live.checkpoint()
        for _ in range(120):
            await live.send()
        # A segment that comes is news.
        await set_aside(live.storage)
        assert len(segments(settings)) > 5
        assert follower.poll() is True
        monkeypatch.setattr(FileOperations, "open", counted)
        assert follower.poll() is False
        assert len(opened_files) == len(set(opened_files)) <= 2, opened_files
        opened_files.clear()
        await live.send()
        assert follower.poll() is True, "it sees what is written all the same"
        # Once to see how far it is written, once to read that.
        assert len(set(opened_files)) <= 2, opened_files
        assert not [name for name in opened_files if name.endswith(".checkpoint")]
    monkeypatch.undo()
    await promote(settings, follower, tmp_path / "copy")


class Counting(FileOperations):
    """Counts what is read: how often, and bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = self.bytes = 0

    def read(self, fd: int, length: int, offset: int) -> bytes:
        data = super().read(fd, length, offset)
        self.reads += 1
        self.bytes += len(data)
        return data


async def test_small_writes_are_not_read_one_by_one(tmp_path: Path) -> None:
    """Where a read is a question to a database, two for each write never catch up with who writes."""
    settings = settings_in(tmp_path / "store")
    async with writing(settings) as live:
        await live.send()
        files = Counting()
        follower = Follower(settings.journal_directory, 100, files=files)
        assert follower.poll()
        for _ in range(300):
            await live.send(20)
        before, read = follower.records, files.reads
        assert follower.poll()
        assert follower.records - before >= 299
        assert files.reads - read < 30


async def test_a_takeover_of_a_copy_does_not_read_prepared_segments_again(tmp_path: Path) -> None:
    """A segment that was empty to its end, and has nothing at its beginning, is empty; one written to since is read."""
    settings = settings_in(tmp_path / "store", journal_file_size=1 << 20, journal_min_files=4)
    async with writing(settings) as live:
        await live.send()
        await until(lambda: len(segments(settings)) >= 4)
        read = {}
        for in_order in (False, True):
            files = Counting()
            follower = Follower(settings.journal_directory, 100, files=files, in_order=in_order)
            assert follower.poll()
            files.bytes = 0
            found = read_journal(settings.journal_directory, None, follower=follower, files=files)
            assert len(found.journal.empty) >= 3
            read[in_order] = files.bytes
        assert read[False] - read[True] > 3 << 19

        follower = Follower(settings.journal_directory, 100, in_order=True)
        assert follower.poll()
        while len(live.held) < 1000:
            await live.send()
        recovered = await promote(settings, follower, tmp_path / "promoted")
    assert contents(recovered)[1] == live.held


async def test_a_checkpoint_that_the_follower_has_not_seen_costs_nothing(tmp_path: Path) -> None:
    """Breaks when what it has folded is of no use any more: a live at full load writes one every few seconds."""
    settings = settings_in(tmp_path)
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    async with writing(settings) as live:
        for _ in range(70):
            await live.send()
        follower.poll()
        await live.checkpoint()
        await live.acknowledge()
    recovered = await promote(settings, follower, tmp_path / "copy")
    assert recovered.checkpoint is not None
    assert recovered.replayed_records <= 4, "what came after the last look"


async def test_a_checkpoint_makes_nothing_read_again(tmp_path: Path) -> None:
    """Breaks when a follower begins anew with each checkpoint: a takeover meanwhile waits for what it has not read."""
    settings = settings_in(tmp_path)
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    async with writing(settings) as live:
        for _ in range(4):
            for _ in range(70):
                await live.send()
                await live.acknowledge()
            follower.poll()
            read = follower.records
            await live.checkpoint()
            follower.poll()
            assert follower.records - read <= 4, "the last write, and what tells that it is complete"
            assert follower.checkpoint is not None
    await promote(settings, follower, tmp_path / "copy")


async def test_a_takeover_does_not_look_at_every_message_nor_at_every_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a takeover goes through what waits in queues: it took a tenth of a second longer for each million."""
    settings = settings_in(tmp_path)
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    async with writing(settings) as live:
        for _ in range(30):
            await live.send()
        live.storage.append_message(message_of(live.storage, b"both", durable=True), [1, 2])
        await live.checkpoint()
        for _ in range(200):
            await live.send()
            await live.acknowledge()
        for _ in range(150):
            await live.send()
        follower.poll()
        await live.acknowledge()
        await live.send()
        count = len(live.held)
        files = len(segments(settings))
        assert count > 150
        assert files > 10

    looked: list[int] = []
    opened_files: list[str] = []
    ascending, without, real = ids.ascending, ids.without, FileOperations.open

    def counted_ascending(numbers: array[int], known: int) -> int:
        looked.append(len(numbers) - known)
        return ascending(numbers, known)

    def counted_without(numbers: array[int], known: int, gone: set[int]) -> tuple[array[int], int]:
        looked.append(len(gone) + len(numbers) - known)
        return without(numbers, known, gone)

    def counted_open(files: FileOperations, path: Path, *rest: Any) -> int:
        if path.parent == settings.journal_directory:
            opened_files.append(path.name)
        return real(files, path, *rest)

    def refused(*_: object) -> Any:
        raise AssertionError("all of it was looked at")

    monkeypatch.setattr(ids, "ascending", counted_ascending)
    monkeypatch.setattr(index, "ascending", counted_ascending)
    monkeypatch.setattr(ids, "without", counted_without)
    monkeypatch.setattr(ids, "shared", refused)
    monkeypatch.setattr(recovery, "read_checkpoint", refused)
    monkeypatch.setattr(FileOperations, "open", counted_open)
    async with opened(settings, crash=True, follower=follower) as promoted:
        monkeypatch.undo()
        assert promoted.recovered.replayed_records <= 6
        assert sum(looked) <= 12, looked
        # The life's first segment, the one it wrote last, those prepared behind it; what holds a checkpoint's bodies.
        assert len(set(opened_files)) <= 8, sorted(set(opened_files))
        assert sum(len(one) for one in contents(promoted.recovered).values()) > 150


async def test_a_takeover_opens_no_file_that_only_holds_what_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when each file with messages of the checkpoint is opened: one for each ten megabytes that wait."""
    settings = settings_in(tmp_path)
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    async with writing(settings) as live:
        for number in range(600):
            await live.send()
            # Some files become worth rewriting.
            if number > 300 and number % 8:
                await live.acknowledge()
        await live.checkpoint()
        await live.send()
        follower.poll()
        await live.send()
    opened_files: list[str] = []
    real = FileOperations.open

    def counted_open(files: FileOperations, path: Path, *rest: Any) -> int:
        if path.parent == settings.journal_directory:
            opened_files.append(path.name)
        return real(files, path, *rest)

    monkeypatch.setattr(FileOperations, "open", counted_open)
    async with opened(settings, crash=True, follower=follower) as promoted:
        monkeypatch.undo()
        maintenance = promoted.storage._maintenance
        assert maintenance is not None
        checkpoint = maintenance._base
        assert checkpoint is not None
        bodies = {file.name for file in checkpoint.files}
        assert len(bodies) > 8
        assert any(name.endswith(".bodies") for name in bodies)
        assert not bodies & set(opened_files)
        assert len(set(opened_files)) <= 4, sorted(set(opened_files))
