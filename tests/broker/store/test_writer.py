"""The writer thread: what runs before a chunk runs exactly once, and no failure in it goes unnoticed."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import pytest

from harness.store import NODE, contents, message_of, opened, set_aside, settings_in, stable, until
from pollux.errors import StoreError
from pollux.formats.segments import HEADER_SIZE
from pollux.store.bindings import Bindings
from pollux.store.files import FileOperations
from pollux.store.journal import BATCH_SIZE
from pollux.store.latency import LatencyHistogram
from pollux.store.segments import segments_ahead
from pollux.store.storage import Storage

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("chunks_between", [1, 3])
async def test_what_runs_before_a_chunk_runs_exactly_once(tmp_path: Path, chunks_between: int) -> None:
    """Chunks without operations wait for the writer when one with an operation follows them."""
    settings = settings_in(tmp_path)
    held, go = threading.Event(), threading.Event()
    runs: list[str] = []

    def hold() -> None:
        held.set()
        assert go.wait(30)

    async with opened(settings, crash=True) as one:
        journal = one.storage._journal
        await stable(one.storage)
        journal.before(hold)
        journal.hand_over()
        assert await asyncio.to_thread(held.wait, 30)
        sent = []
        for _ in range(chunks_between):
            message = message_of(one.storage)
            one.storage.append_message(message, [1])
            sent.append(message.id)
            journal.hand_over()
        journal.before(lambda: runs.append("first"))
        journal.before(lambda: runs.append("second"))
        message = message_of(one.storage)
        one.storage.append_message(message, [1])
        sent.append(message.id)
        go.set()
        await stable(one.storage)
        assert runs == ["first", "second"]
    async with opened(settings) as two:
        assert contents(two.recovered) == {1: sent}


@pytest.mark.parametrize("error", [ValueError("a bug"), KeyError("a bug"), MemoryError()])
async def test_any_exception_in_the_writer_stops_the_broker(tmp_path: Path, error: Exception) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings, crash=True) as one:
        before = message_of(one.storage)
        one.storage.append_message(before, [1])
        await stable(one.storage)

        def fail() -> None:
            raise error

        results: list[StoreError | None] = []
        one.storage._journal.before(fail)
        one.storage.append_message(message_of(one.storage), [1])
        one.storage.when_stable(results.append)
        await until(lambda: one.failures)
        assert len(results) == 1
        assert isinstance(results[0], StoreError)
        assert repr(error) in str(results[0])
        with pytest.raises(StoreError):
            await stable(one.storage)
        assert len(one.failures) == 1
    async with opened(settings) as two:
        assert contents(two.recovered) == {1: [before.id]}, "what was not confirmed was not written either"


async def test_a_chunk_that_is_missing_fails_the_store(tmp_path: Path) -> None:
    """Records behind one that got lost would be confirmed, and with them those that were in it."""
    async with opened(settings_in(tmp_path), crash=True) as one:
        journal = one.storage._journal
        await stable(one.storage)
        one.storage.append_message(message_of(one.storage), [1])
        journal.token += 1
        with pytest.raises(StoreError, match="AssertionError"):
            await stable(one.storage)
        assert len(one.failures) == 1


@pytest.mark.parametrize("notice", [0, 99], ids=["older than the last one", "of what was not handed over"])
async def test_a_notice_that_is_out_of_order_confirms_nothing(tmp_path: Path, notice: int) -> None:
    async with opened(settings_in(tmp_path), crash=True) as one:
        journal = one.storage._journal
        await stable(one.storage)
        journal._ahead._stable = notice
        told: list[StoreError | None] = []
        one.storage.when_stable(told.append)
        journal._complete()
        assert [str(error) for error in told] == [
            f"group {notice} is stable after {journal._told}, of {journal.token - 1}: a defect"
        ]
        assert len(one.failures) == 1


async def test_a_segment_is_followed_by_a_later_one(tmp_path: Path) -> None:
    """Recovery reads segments in the order of their numbers."""
    settings = settings_in(tmp_path, journal_file_size=1 << 20)
    async with opened(settings, crash=True) as one:
        pool = one.storage._pool
        assert pool is not None
        await set_aside(one.storage)
        for segment in pool._ready:
            segment.sequence = 0
        for _ in range(4):
            one.storage.append_message(message_of(one.storage, b"x" * 400_000), [1])
        with pytest.raises(StoreError, match="AssertionError"):
            await stable(one.storage)


async def test_a_life_that_wrote_only_bindings_counts_for_the_next_epoch(tmp_path: Path) -> None:
    """A broker killed between its first binding and its journal's first record must start again."""
    settings = settings_in(tmp_path)
    async with opened(settings) as one:
        one.storage.put("queue", "q", b"kept")
        await stable(one.storage)
        epoch = one.storage.epoch
    bindings = Bindings(settings.bindings_directory, FileOperations(), node_id=NODE, epoch=epoch + 3, salt=5)
    bindings.load(NODE)
    bindings.write([bindings.put("queue", "of the life that was killed", b"kept too")])
    bindings.close()
    async with opened(settings) as two:
        assert two.storage.epoch == epoch + 4
        assert {key for _, key in two.recovered.bindings} == {"q", "of the life that was killed"}
    failures: list[StoreError] = []
    with pytest.raises(StoreError, match=f"epoch {epoch + 4}"):
        await Storage.open(settings, loop=asyncio.get_running_loop(), on_failure=failures.append, epoch=epoch + 2)
    assert failures == []


class Writes(FileOperations):
    """Notes how long each write of records is."""

    def __init__(self) -> None:
        super().__init__()
        self.lengths: list[int] = []

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        if sync and offset > HEADER_SIZE:
            self.lengths.append(len(data))
        return super().write(fd, data, offset, sync=sync)


@pytest.mark.parametrize("buffer", [4096, 501_760])
async def test_journal_buffer_size_bounds_a_write(tmp_path: Path, buffer: int) -> None:
    """Records that wait for the disk are written in as many writes as the buffer's size asks for, and all are there."""
    settings = settings_in(tmp_path, journal_buffer_size=buffer, journal_file_size=1 << 20)
    held, go = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        assert go.wait(30)

    files = Writes()
    async with opened(settings, crash=True, files=files) as one:
        journal = one.storage._journal
        await stable(one.storage)
        journal.before(hold)
        journal.hand_over()
        assert await asyncio.to_thread(held.wait, 30)
        files.lengths.clear()
        sent = []
        for number in range(40):  # half of them in turns of their own, half in one
            message = message_of(one.storage, b"x" * 1000)
            one.storage.append_message(message, [1])
            sent.append(message.id)
            if number < 20:
                journal.hand_over()
        large = message_of(one.storage, b"y" * 9000)
        one.storage.append_message(large, [1])
        journal.hand_over()
        go.set()
        await stable(one.storage)
    if buffer == 4096:
        *several, last = files.lengths
        assert len(several) >= 10
        assert max(several) <= buffer + BATCH_SIZE + 1200, "one record more than the buffer holds, at most"
        assert last > 9000
    else:
        assert len(files.lengths) == 1
    async with opened(settings) as two:
        assert contents(two.recovered) == {1: [*sent, large.id]}


@pytest.mark.parametrize(("wanted", "most", "ahead"), [(2, -1, 1), (8, -1, 7), (8, 3, 3), (8, 100, 7), (2, 1, 1)])
def test_journal_pool_files_bounds_what_is_kept_ready(wanted: int, most: int, ahead: int) -> None:
    assert segments_ahead(wanted, most) == ahead


async def test_no_more_files_are_prepared_than_the_pool_may_have(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, journal_min_files=20, journal_pool_files=2)
    async with opened(settings) as one:
        one.storage.append_message(message_of(one.storage), [1])
        await stable(one.storage)
        pool = one.storage._pool
        assert pool is not None
        await until(lambda: len(pool._ready) == 3)  # two, and the reserve
        assert pool._wanted == 3


def test_histogram() -> None:
    histogram = LatencyHistogram()
    for seconds in (0.0001, 0.0005, 0.003, 99.0):
        histogram.observe(seconds)
    counts = dict(histogram.cumulative())
    assert (counts["0.0005"], counts["0.005"], counts["10.0"], counts["+Inf"]) == (2, 3, 3, 4)
    assert histogram.total == pytest.approx(99.0036)


async def test_every_record_is_in_the_histogram_of_the_time_to_stable(tmp_path: Path) -> None:
    async with opened(settings_in(tmp_path)) as one:
        await stable(one.storage)
        before = one.storage.latencies.cumulative()[-1][1]
        total = one.storage.latencies.total
        for turn in range(3):
            for _ in range(10 + turn):
                one.storage.append_message(message_of(one.storage), [1])
            await stable(one.storage)
        assert one.storage.latencies.cumulative()[-1][1] == before + 33
        assert one.storage.latencies.total > total
