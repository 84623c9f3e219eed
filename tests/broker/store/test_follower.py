"""A standby's follower: whatever it read along, promoting it gives what a cold recovery gives."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from harness.store import contents, ids_in, message_of, opened, segments, settings_in, stable, until
from pollux.formats.segments import HEADER_SIZE
from pollux.store import checkpointer, recovery
from pollux.store.follower import Follower
from pollux.store.maintenance import Maintenance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from pollux.store.checkpointer import Result, Source
    from pollux.store.recovered import Recovered
    from pollux.store.settings import StoreSettings
    from pollux.store.storage import Storage


@pytest.fixture(autouse=True)
def _checkpoint_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checkpointer's own function, without the cost of a process for each run."""

    async def fold(self: Maintenance, sources: list[Source]) -> Result:
        job = self._job(sources)
        job.broker = 0
        return checkpointer.run(job, self._files)

    monkeypatch.setattr(Maintenance, "_fold", fold)


class Writer:
    """A live broker's storage, driven step by step."""

    def __init__(self, storage: Storage, recovered: Recovered, seed: int = 1) -> None:
        self.storage = storage
        self.choice = random.Random(seed)  # noqa: S311  (reproducible)
        #: Messages in queue 1.
        self.held = contents(recovered).get(1, [])
        self.tx: list[int] = []

    async def send(self, size: int = 2000, tx: int = 0) -> int:
        """One durable message to queue 1."""
        message = message_of(self.storage, bytes([self.choice.randrange(256)]) * size, durable=True)
        self.storage.append_message(message, [1], tx)
        if not tx:
            self.held.append(message.id)
        await stable(self.storage)
        return message.id

    async def acknowledge(self) -> None:
        """Consume the oldest message."""
        if self.held:
            self.storage.append_acks(1, [self.held.pop(0)])
            await stable(self.storage)

    async def checkpoint(self) -> None:
        """Fold what is sealed, and delete what that made superfluous."""
        maintenance = self.storage._maintenance
        assert maintenance is not None
        if maintenance._sealed:
            await maintenance._checkpoint()


@asynccontextmanager
async def writing(settings: StoreSettings, seed: int = 1) -> AsyncIterator[Writer]:
    """A life that ends as a killed process does."""
    async with opened(settings, crash=True) as broker:
        yield Writer(broker.storage, broker.recovered, seed)


def facts(recovered: Recovered) -> dict[str, Any]:
    """Everything recovery says, but for how long it took and how it got there."""
    held = Counter(one for ids in contents(recovered).values() for one in ids)
    assert recovered.references == {one: count for one, count in held.items() if count > 1}
    return {
        "queues": contents(recovered),
        "bindings": recovered.bindings,
        "messages": recovered.message_count,
        "deliveries": recovered.delivery_counts,
        "schedules": recovered.schedules,
        "duplicates": recovered.duplicates,
        "references": recovered.references,
        "prepared": [repr(one) for one in recovered.prepared],
        "damage": sorted((one.file.name, one.offset, one.kind) for one in recovered.damage),
        "checkpoint": recovered.checkpoint.name if recovered.checkpoint else None,
    }


def is_gone(path: Path) -> bool:
    return not path.exists()


async def promote(settings: StoreSettings, follower: Follower, scratch: Path) -> Recovered:
    """Recover a copy cold and the original with the follower; both say the same."""
    copy = settings_in(scratch, node_id=settings.node_id)
    for theirs, mine in (
        (settings.journal_directory, copy.journal_directory),
        (settings.bindings_directory, copy.bindings_directory),
        (settings.paging_directory, copy.paging_directory),
    ):
        if theirs.is_dir():
            shutil.copytree(theirs, mine)
    async with opened(copy, crash=True) as cold:
        expected = facts(cold.recovered)
        cold_records = cold.recovered.replayed_records
    async with opened(settings, crash=True, follower=follower) as promoted:
        assert facts(promoted.recovered) == expected
        assert promoted.recovered.replayed_records <= cold_records
        # What was recovered is served: every body can be read.
        assert None not in await promoted.storage.read_messages(sorted(ids_in(promoted.recovered)))
        return promoted.recovered


async def test_what_was_read_along_is_not_replayed_again(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    async with writing(settings) as live:
        for number in range(120):
            await live.send()
            if number % 3 == 0:
                await live.acknowledge()
            if number % 10 == 0:
                follower.poll()
        assert len(segments(settings)) > 3, "it rotated"
        assert follower.poll() is True
        assert follower.poll() is False, "nothing new"
    recovered = await promote(settings, follower, tmp_path / "copy")
    assert len(contents(recovered)[1]) == 80
    assert recovered.replayed_records <= 2, "only the last write, which the follower could not know to be complete"


async def test_a_checkpoint_while_following_and_the_files_it_deletes(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    async with writing(settings) as live:
        for _ in range(3):
            for _ in range(70):
                await live.send()
                await live.acknowledge()
            follower.poll()
            before = set(segments(settings))
            await live.checkpoint()
            assert before - set(segments(settings)), "segments were deleted under the follower"
            await live.send()
            follower.poll()
        kept = follower._progress
        assert kept is not None
        assert kept.checkpoint is not None, "it went on from the newest checkpoint"
    await promote(settings, follower, tmp_path / "copy")


async def test_a_follower_forgets_the_pages_of_addresses_that_are_gone(tmp_path: Path) -> None:
    """Breaks when it keeps them: it follows for months, and each address that pages once has a store of its own."""
    settings = settings_in(tmp_path, page_size_bytes=1 << 10)
    follower = Follower(settings.journal_directory, settings.id_cache_size, settings.paging_directory)
    async with writing(settings) as live:
        for number in range(10):
            pages = live.storage.pages.address(f"address {number}")
            for _ in range(5):
                pages.append(message_of(live.storage, b"p" * 500, address=pages.address), [1])
            await stable(live.storage)
            if number < 9:
                pages.drop_queue(1)
                await until(partial(is_gone, pages.directory))
            for _ in range(40):
                await live.send()
            follower.poll()
            if number % 2:
                await live.checkpoint()
                follower.poll()
        kept = follower._progress
        assert kept is not None
        state = kept.state
        assert len(state.pages.done) <= 1, "what is not in a checkpoint yet"
        assert len(state.pages.stores_done) <= 1
        assert list(follower.pages._stores) == [pages.number]
    await promote(settings, follower, tmp_path / "copy")


async def test_a_file_that_vanishes_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = settings_in(tmp_path)
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    async with writing(settings) as live:
        for _ in range(70):
            await live.send()
            await live.acknowledge()
        real = recovery.replay_segment
        vanished: list[str] = []

        def vanishing(state: Any, segment: Any, *rest: Any, **named: Any) -> Any:
            if not vanished:
                vanished.append(segment.path.name)
                moved = segment.path.with_suffix(".gone")
                segment.path.rename(moved)
                try:
                    return real(state, segment, *rest, **named)
                finally:
                    moved.rename(segment.path)
            return real(state, segment, *rest, **named)

        monkeypatch.setattr(recovery, "replay_segment", vanishing)
        assert follower.poll() is False
        assert vanished
        assert follower._progress is None, "half a segment is not kept"
        assert follower.poll() is True
    await promote(settings, follower, tmp_path / "copy")


async def test_a_new_life_ends_the_old_ones_segment(tmp_path: Path) -> None:
    """The successor died before it served: its epoch begins new files and says where the old ones ended."""
    settings = settings_in(tmp_path)
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    for life in range(3):
        async with writing(settings, seed=life) as live:
            for _ in range(10):
                await live.send(500)
                await live.acknowledge() if life else None
                follower.poll()
    assert follower._progress is not None
    await promote(settings, follower, tmp_path / "copy")


async def test_what_a_zombie_writes_after_its_end_was_recorded_is_not_read_and_disturbs_nobody(tmp_path: Path) -> None:
    """Breaks when it is folded, not told at the takeover, or makes that read everything."""
    settings = settings_in(tmp_path)
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    async with opened(settings, crash=True) as zombie:
        old = Writer(zombie.storage, zombie.recovered)
        await old.send(500)
        follower.poll()
        async with writing(settings) as live:
            await live.send(500)
            late = await old.send(500)
            follower.poll()
            await live.send(500)
            follower.poll()
            read = follower.records
            follower.poll()
            assert follower.records == read, "it goes on from where it was"
            assert follower._progress is not None
    recovered = await promote(settings, follower, tmp_path / "copy")
    assert late not in contents(recovered)[1]
    assert len(contents(recovered)[1]) == 3
    assert "late-writes" in [one.kind for one in recovered.damage]
    assert recovered.replayed_records < read, "only what had come since"


async def test_damage_is_left_to_recovery(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    async with writing(settings) as live:
        for _ in range(80):
            await live.send()
    first = segments(settings)[0]
    data = bytearray(first.read_bytes())
    data[len(data) // 2] ^= 0xFF
    first.write_bytes(data)
    follower.poll()
    assert follower.take(None, []) is None
    follower.poll()
    recovered = await promote(settings, follower, tmp_path / "copy")
    assert [one.kind for one in recovered.damage if one.kind != "torn-tail"]


def grow(source: Path, target: Path, upto: int) -> None:
    """The file as it is on disk when the write that it is part of got so far: zeros behind it."""
    data = source.read_bytes()
    target.write_bytes(data[:upto] + bytes(len(data) - upto))


@hypothesis_settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_write_that_is_half_there_is_not_taken(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Polls between any two bytes of a growing segment; then the writer is killed there."""
    asyncio.run(_half_there(tmp_path_factory.mktemp("grow"), data))


async def _half_there(directory: Path, data: st.DataObject) -> None:
    whole = settings_in(directory / "whole")
    async with writing(whole) as live:
        for _ in range(6):
            await live.send(data.draw(st.integers(1, 400)))
            if data.draw(st.booleans()):
                await live.acknowledge()
    (segment, *_) = segments(whole)
    used = len(segment.read_bytes().rstrip(b"\0"))
    settings = settings_in(directory / "grown")
    shutil.copytree(whole.journal_directory, settings.journal_directory)
    shutil.copytree(whole.bindings_directory, settings.bindings_directory)
    for path in segments(settings)[1:]:
        path.unlink()
    target = settings.journal_directory / segment.name
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    for cut in sorted(data.draw(st.lists(st.integers(HEADER_SIZE, used), min_size=1, max_size=8))):
        grow(segment, target, cut)
        follower.poll()
    await promote(settings, follower, directory / "copy")


async def test_a_segment_that_was_prepared_is_read_when_writing_goes_on_in_it(tmp_path: Path) -> None:
    """Breaks when a look is only at the segment written last: no file comes or goes when the next one begins."""
    whole = settings_in(tmp_path / "whole")
    async with writing(whole) as live:
        for _ in range(60):
            await live.send()
    settings = settings_in(tmp_path / "grown", node_id=whole.node_id)
    shutil.copytree(whole.journal_directory, settings.journal_directory)
    shutil.copytree(whole.bindings_directory, settings.bindings_directory)
    newest = [path for path in segments(whole) if path.read_bytes()[HEADER_SIZE:].strip(b"\0")][-1]
    grow(newest, settings.journal_directory / newest.name, HEADER_SIZE)
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    assert follower.poll() is True
    assert follower.poll() is False
    names = set(settings.journal_directory.iterdir())
    shutil.copy(newest, settings.journal_directory / newest.name)
    assert set(settings.journal_directory.iterdir()) == names
    assert follower.poll() is True
    recovered = await promote(settings, follower, tmp_path / "copy")
    assert len(contents(recovered)[1]) == 60
    assert recovered.replayed_records <= 2


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.sampled_from((10, 3000, 30000))),
        st.tuples(
            st.sampled_from(
                (
                    *("ack", "checkpoint", "crash", "poll", "poll", "begin", "commit", "rollback", "prepare", "note"),
                    *("both", "move", "drop"),
                )
            ),
            st.just(0),
        ),
    ),
    max_size=40,
)


@hypothesis_settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_any_interleaving_of_writer_and_follower(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int]]
) -> None:
    asyncio.run(_interleaved(tmp_path_factory.mktemp("follow"), steps))


async def _interleaved(directory: Path, steps: list[tuple[str, int]]) -> None:
    settings = settings_in(directory)
    follower = Follower(settings.journal_directory, settings.id_cache_size)
    left = list(steps)
    while True:
        async with writing(settings, seed=len(left)) as live:
            while left:
                step, size = left.pop(0)
                if step == "crash":
                    break
                await take_step(live, follower, step, size)
        if not left:
            break
    await promote(settings, follower, directory / "copy")


async def take_step(live: Writer, follower: Follower, step: str, size: int) -> None:
    """One step of the writer, or one look of the follower."""
    match step:
        case "send":
            await live.send(size, live.tx[-1] if live.tx and live.choice.randrange(2) else 0)
        case "ack":
            await live.acknowledge()
        case "both":
            message = message_of(live.storage, b"both", durable=True)
            live.storage.append_message(message, [1, 2])
            live.held.append(message.id)
            await stable(live.storage)
        case "move" if live.held:
            live.storage.append_references(live.held[0], [3])
            await live.acknowledge()
        case "drop":
            live.storage.append_drop_queue(2)
            await stable(live.storage)
        case "checkpoint":
            await live.checkpoint()
        case "begin":
            live.tx.append(live.storage.next_id())
        case "commit" if live.tx:
            live.storage.append_commit(live.tx.pop())
            await stable(live.storage)
        case "rollback" if live.tx:
            live.storage.append_rollback(live.tx.pop())
            await stable(live.storage)
        case "prepare" if live.tx:
            live.storage.append_prepare(live.tx.pop(), b"xid")
            await stable(live.storage)
        case "note" if live.held:
            live.storage.append_delivery_count(1, live.held[-1], live.choice.randrange(9))
            live.storage.append_schedule(1, live.held[0], live.choice.randrange(1 << 40))
            live.storage.append_duplicate_id("an.address", live.choice.randbytes(4))
            await stable(live.storage)
        case "poll":
            follower.poll()
