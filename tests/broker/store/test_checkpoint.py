"""Checkpoints and compaction: the same state as a replay, at any interruption, while traffic goes on."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from harness.store import NODE, contents, ids_in, message_of, opened, segments, settings_in, stable, until
from pollux.errors import StoreError
from pollux.formats.segments import decode_header
from pollux.store import checkpointer
from pollux.store.checkpoint import read_checkpoint
from pollux.store.checkpointer import Job, Source
from pollux.store.files import FileOperations
from pollux.store.index import Reader
from pollux.store.maintenance import Maintenance, due_bytes

if TYPE_CHECKING:
    from pollux.store.recovered import Recovered
    from pollux.store.settings import StoreSettings


def summary(recovered: Recovered) -> dict[str, object]:
    """All that must not depend on how it was recovered."""
    return {
        "queues": {
            queue: {priority: list(ids) for priority, ids in held.items()} for queue, held in recovered.queues.items()
        },
        "counts": recovered.delivery_counts,
        "schedules": recovered.schedules,
        "duplicates": recovered.duplicates,
        "links": recovered.links,
        "references": recovered.references,
        "prepared": recovered.prepared,
        "bindings": recovered.bindings,
        "messages": recovered.message_count,
    }


async def mixed_traffic(directory: Path, seed: int, count: int = 400) -> None:
    """A killed life with a bit of everything."""
    draw = random.Random(seed)  # noqa: S311  (a reproducible test, no secret)
    async with opened(settings_in(directory, journal_file_size=8 << 10), crash=True) as one:
        storage = one.storage
        held = [(queue, message_id) for queue, ids in contents(one.recovered).items() for message_id in ids]
        for _ in range(count):
            message = message_of(storage, b"d" * draw.randint(0, 200), priority=draw.choice([4, 4, 4, 9]))
            if draw.random() < 0.1:
                message.deliver_at = draw.randint(1, 1 << 40)
                message.duplicate_id = str(message.id).encode()
            queues = draw.choice([[1], [2], [1, 2, 3]])
            tx = storage.next_id() if draw.random() < 0.1 else 0
            storage.append_message(message, queues, tx=tx)
            if tx:
                storage.append_link(f"link {tx % 2}", tx.to_bytes(8, "little"), message.id, tx)
                outcome = draw.choice([storage.append_commit, storage.append_rollback, None])
                if outcome is not None:
                    outcome(tx)
            else:
                held += [(queue, message.id) for queue in queues]
            if held and draw.random() < 0.9:
                queue, message_id = held.pop(draw.randrange(len(held)))
                storage.append_acks(queue, [message_id])
            if held and draw.random() < 0.1:
                storage.append_delivery_count(*draw.choice(held), 2)
            if draw.random() < 0.05:
                storage.put("kind", str(draw.randint(0, 5)), str(draw.random()).encode())
            if draw.random() < 0.2:
                await stable(storage)
        tx = storage.next_id()
        storage.append_message(message_of(storage), [2], tx=tx)
        storage.append_prepare(tx, b"xid")
        await stable(storage)


@pytest.mark.parametrize("seed", range(4))
async def test_checkpoint_and_tail_equal_full_replay(tmp_path: Path, seed: int) -> None:
    origin = tmp_path / "origin"
    for life in range(3):
        await mixed_traffic(origin, seed * 10 + life)
    settings = settings_in(origin, journal_file_size=8 << 10)
    chain = job_for(settings.journal_directory, None, 0, 10_000).segments
    jobs = [len(chain) // 3, 2 * len(chain) // 3, len(chain)]
    async with opened(copied(origin, tmp_path / "full"), crash=True) as one:
        expected = summary(one.recovered)
        read = await one.storage.read_messages(sorted(ids_in(one.recovered)))
        bodies = [message and message.data for message in read]
        assert None not in bodies
    for upto in jobs:
        copy = tmp_path / f"copy{upto}"
        target = copied(origin, copy)
        base = None
        for start in range(0, upto, 5):
            base = fold(target.journal_directory, base, start, min(start + 5, upto)).checkpoint
        async with opened(target, crash=True) as two:
            assert two.recovered.checkpoint is not None
            assert summary(two.recovered) == expected
            assert two.recovered.damage == []
            again = await two.storage.read_messages(sorted(ids_in(two.recovered)))
            assert [message and message.data for message in again] == bodies


def copied(origin: Path, copy: Path) -> StoreSettings:
    """Settings of a copy of a store."""
    shutil.copytree(origin, copy)
    return settings_in(copy, journal_file_size=8 << 10)


def job_for(directory: Path, base: str | None, start: int, stop: int) -> Job:
    """Return the broker's request for segments ``start`` to ``stop`` of a directory."""
    chain = sorted(path for path in directory.glob("*.segment") if path.read_bytes()[128:4096].strip(b"\0"))
    last = {path.name.split("-")[1]: path.name for path in chain}
    sources = []
    for path in chain:
        _, epoch, sequence = path.stem.split("-")
        sources.append(Source(path.name, int(epoch), int(sequence), None, path.name in last.values()))
    return Job(str(directory), str(directory), NODE.hex(), 90, base, sources[start:stop], 20_000, 50, 8 << 10)


def fold(directory: Path, base: str | None, start: int, stop: int) -> checkpointer.Result:
    """Run the checkpointer in this process."""
    return checkpointer.run(job_for(directory, base, start, stop), FileOperations())


async def test_a_sandbox_that_forbids_to_be_nice_forbids_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", refused)
    await carry_out(tmp_path)


async def test_producers_do_not_wait_for_somebody_who_lets_everybody_go_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a machine that is busy with other things a nice checkpoint of small journals took 50 s."""
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "setpriority", lambda which, _pid, nice: asked.append((which, nice)))
    await carry_out(tmp_path)
    # The second one is that of the stop, for which somebody waits.
    assert asked == [(os.PRIO_PROCESS, 19)]


async def test_a_checkpointer_is_nice_from_its_start_and_nobody_else_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when it is so after its imports only, or when the broker makes itself nice."""
    seen: list[int] = []
    real = os.setpriority

    def noted(which: int, pid: int, nice: int) -> None:
        real(which, pid, nice)
        seen.append(os.getpriority(which, pid))

    monkeypatch.setattr(os, "setpriority", noted)
    mine = os.getpriority(os.PRIO_PROCESS, 0)
    await carry_out(tmp_path)
    assert (seen, os.getpriority(os.PRIO_PROCESS, 0)) == ([19], mine)


def urgency(monkeypatch: pytest.MonkeyPatch, patience: float | None = None) -> list[bool]:
    """Return whether each checkpointer from now on is urgent; one that is not gets so many seconds (None: its own)."""
    asked: list[bool] = []
    run = Maintenance._run_checkpointer

    async def noted(self: Maintenance, job: checkpointer.Job, seconds: float) -> checkpointer.Result:
        asked.append(job.urgent)
        return await run(self, job, seconds if job.urgent or patience is None else patience)

    monkeypatch.setattr(Maintenance, "_run_checkpointer", noted)
    return asked


async def test_a_checkpoint_that_gets_nothing_of_a_busy_machine_becomes_urgent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a journal grows for as long as others leave no time of a processor."""
    asked = urgency(monkeypatch, patience=0.0)
    settings = settings_in(tmp_path, journal_file_size=4 << 10, journal_compact_min_files=1)
    async with opened(settings) as one:
        for _ in range(3):
            one.storage.append_message(message_of(one.storage, bytes(3000)), [1])
            await stable(one.storage)
        maintenance = one.storage._maintenance
        assert maintenance is not None
        await until(lambda: maintenance.checkpoints)
        assert asked[:2] == [False, True]


async def test_whoever_stops_a_broker_does_not_wait_for_what_others_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when the checkpoint of a stop lets everybody else on a busy machine go first."""
    asked = urgency(monkeypatch)
    async with opened(settings_in(tmp_path)) as one:
        one.storage.append_message(message_of(one.storage), [1])
        await stable(one.storage)
        assert asked == []
    assert asked == [True]


async def carry_out(tmp_path: Path) -> None:
    """Let a store write a checkpoint when it is due, and one when it stops."""
    async with opened(settings_in(tmp_path, journal_file_size=4 << 10, journal_compact_min_files=1)) as one:
        for _ in range(3):
            one.storage.append_message(message_of(one.storage, bytes(3000)), [1])
            await stable(one.storage)
        maintenance = one.storage._maintenance
        assert maintenance is not None
        await until(lambda: maintenance.checkpoints == 1 and not maintenance.busy)
        one.storage.append_message(message_of(one.storage), [1])
        await stable(one.storage)


async def test_compaction_under_traffic(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, journal_file_size=32 << 10, journal_compact_min_files=3)
    keep: list[int] = []
    async with opened(settings, crash=True) as one:
        for number in range(600):
            message = message_of(one.storage, number.to_bytes(4, "big") * 50)
            one.storage.append_message(message, [1])
            if number % 10 == 0:
                keep.append(message.id)
            else:
                one.storage.append_acks(1, [message.id])
        await stable(one.storage)
    async with opened(settings, crash=True) as two:
        storage = two.storage
        assert contents(two.recovered) == {1: keep}
        maintenance = storage._maintenance
        assert maintenance is not None
        rounds = 0
        async with asyncio.timeout(60):
            while maintenance.checkpoints < 4:
                rounds += 1
                message = message_of(storage, b"y" * 400)
                storage.append_message(message, [2])
                storage.append_acks(2, [message.id])
                if rounds % 20 == 0:
                    await stable(storage)
                    read = await storage.read_messages(keep)
                    assert [one.data[:4] if one else None for one in read] == [
                        (10 * place).to_bytes(4, "big") for place in range(len(keep))
                    ]
        assert maintenance.last_result is not None
        await stable(storage)
        await until(lambda: len(segments(settings)) <= 12)
        assert list(settings.journal_directory.glob("*.bodies"))
        assert len(list(settings.journal_directory.glob("*.checkpoint"))) <= 2
    async with opened(settings) as three:
        assert contents(three.recovered) == {1: keep}
        assert three.recovered.damage == []


async def test_segments_sealed_while_the_checkpointer_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are in the next checkpoint: in this one they would be folded and deleted, and still be asked for by it."""
    settings = settings_in(tmp_path, journal_file_size=32 << 10, journal_compact_min_files=1000)
    async with opened(settings) as one:
        storage = one.storage
        maintenance = storage._maintenance
        assert maintenance is not None

        async def seal_another() -> None:
            before = len(maintenance._sealed)
            while len(maintenance._sealed) == before:
                message = message_of(storage, b"y" * 4000)
                storage.append_message(message, [1])
                storage.append_acks(1, [message.id])
                await stable(storage)

        start = asyncio.create_subprocess_exec

        async def slow_start(*command: Any, **options: Any) -> Any:
            process = await start(*command, **options)
            await seal_another()
            return process

        monkeypatch.setattr(asyncio, "create_subprocess_exec", slow_start)
        await seal_another()
        for done in (1, 2):
            maintenance.consider(urgent=True)
            await until(lambda: maintenance._task is None)
            assert maintenance.checkpoints == done, "the checkpoint failed"
            directory = settings.journal_directory
            assert [each.name for each in maintenance._sealed if not (directory / each.name).exists()] == []
        monkeypatch.undo()
    async with opened(settings) as two:
        assert contents(two.recovered) == {}
        assert two.recovered.damage == []


async def test_clean_stop_leaves_nothing_to_replay(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings) as one:
        message = message_of(one.storage)
        one.storage.append_message(message, [1])
    assert segments(settings) == [] or len(segments(settings)) == 1
    async with opened(settings) as two:
        assert contents(two.recovered) == {1: [message.id]}
        assert two.recovered.replayed_records == 0
        assert two.recovered.checkpoint is not None


async def test_damaged_checkpoint_with_its_segments_gone_is_refused(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings) as one:
        for _ in range(500):
            message = message_of(one.storage, b"z" * 500)
            one.storage.append_message(message, [1])
            one.storage.append_acks(1, [message.id])
    async with opened(settings, crash=True) as two:
        two.storage.append_message(message_of(two.storage), [1])
        await stable(two.storage)
    (path,) = settings.journal_directory.glob("*.checkpoint")
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    async with opened(settings) as three:
        assert {damage.kind for damage in three.recovered.damage} == {"corrupt", "missing-segment"}
        assert [found.name for found in (path.parent / "isolated").glob("*.checkpoint")] == [path.name]


async def test_bodies_that_are_gone_are_reported_and_found_when_they_are_back(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings) as one:
        message = message_of(one.storage)
        one.storage.append_message(message, [1])
    (path,) = settings.journal_directory.glob("*.bodies")
    data = path.read_bytes()
    path.unlink()
    for clean in (False, True):
        async with opened(settings, crash=not clean) as two:
            assert [damage.kind for damage in two.recovered.damage] == ["missing-segment"]
            assert await two.storage.read_messages([message.id]) == [None]
    path.write_bytes(data)
    async with opened(settings) as three:
        assert three.recovered.damage == []
        assert await three.storage.read_messages([message.id]) != [None]


async def test_a_predecessors_late_checkpoint_does_not_count(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, journal_file_size=8 << 10)
    await mixed_traffic(tmp_path, 5)
    zombie = job_for(settings.journal_directory, None, 0, 10_000)
    async with opened(settings, crash=True) as one:
        expected = summary(one.recovered)
    zombie.epoch = 1
    result = checkpointer.run(zombie, FileOperations())
    async with opened(settings, crash=True) as two:
        assert two.recovered.checkpoint is None
        assert summary(two.recovered) == expected
    assert (settings.journal_directory / result.checkpoint).exists()


async def test_a_body_file_of_another_journal_is_noticed(tmp_path: Path) -> None:
    settings = settings_in(tmp_path)
    async with opened(settings) as one:
        one.storage.append_message(message_of(one.storage), [1])
    (path,) = [*settings.journal_directory.glob("*.bodies"), *segments(settings)]
    data = path.read_bytes()
    header = replace(decode_header(data, "x"), salt=1)
    path.write_bytes(header.encode() + data[128:])
    async with opened(settings) as two:
        assert [(damage.file, damage.kind) for damage in two.recovered.damage] == [(path, "missing-segment")]


async def test_a_failing_checkpointer_does_not_hurt_the_broker(tmp_path: Path) -> None:
    settings = settings_in(tmp_path, journal_file_size=8 << 10, journal_compact_min_files=2)
    async with opened(settings, crash=True) as one:
        maintenance = one.storage._maintenance
        assert maintenance is not None
        for _ in range(100):
            one.storage.append_message(message_of(one.storage, b"x" * 500), [1])
        await stable(one.storage)
        # A folded segment is unreadable while the checkpointer looks: it fails, traffic goes on.
        hidden = segments(settings)[1]
        data = hidden.read_bytes()
        hidden.write_bytes(bytes(len(data)))
        await until(lambda: maintenance._timer is not None or maintenance.checkpoints > 0)
        one.storage.append_message(message_of(one.storage), [1])
        await stable(one.storage)
        assert one.failures == []
        hidden.write_bytes(data)
        await until(lambda: maintenance.checkpoints > 0)


def test_when_the_next_checkpoint_is_due() -> None:
    settings = settings_in(Path("/nowhere"), journal_file_size=10 << 20, journal_compact_min_files=10)
    assert due_bytes(settings, 0) == 100 << 20
    assert due_bytes(settings, 200 << 20) == 400 << 20
    assert due_bytes(settings, 4 << 30) == 1 << 30


def test_checkpoint_reading_refuses_damage_anywhere(tmp_path: Path) -> None:
    asyncio.run(mixed_traffic(tmp_path, 2, 60))
    settings = settings_in(tmp_path)
    result = fold(settings.journal_directory, None, 0, 3)
    path = settings.journal_directory / result.checkpoint
    read_checkpoint(path, NODE)
    data = path.read_bytes()
    for position in range(0, len(data), 7):
        flipped = bytearray(data)
        flipped[position] ^= 1
        path.write_bytes(flipped)
        try:
            found = read_checkpoint(path, NODE)
        except StoreError:
            continue
        # Padding between sections is the only thing nobody looks at.
        assert bytes(found.ids) == bytes(memoryview(found.ids)), position
        assert data[position] == 0


async def test_the_thread_that_reads_lets_go_of_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a stop it may be letting go of what the last checkpoint replaced."""
    closed: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def close(reader: Reader) -> None:
        real(reader)
        loop.call_soon_threadsafe(closed.set_result, threading.current_thread().name)

    real = Reader.close
    monkeypatch.setattr(Reader, "close", close)
    async with opened(settings_in(tmp_path)) as one:
        one.storage.append_message(message_of(one.storage), [1])
        await stable(one.storage)
    assert (await asyncio.wait_for(closed, 30)).startswith("pollux-read")
