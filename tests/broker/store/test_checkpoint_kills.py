"""A checkpointer that is killed or stopped at any step, or whose broker ended: nothing of it counts."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import sys
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest

from harness.store import ids_in, message_of, opened, settings_in, stable, until
from pollux.errors import StoreError
from pollux.store import checkpointer
from pollux.store.files import FileOperations

from .test_checkpoint import copied, job_for, mixed_traffic, summary

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.processes
async def test_killed_checkpointer_leaves_nothing_that_counts(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    await mixed_traffic(origin, 1, 1500)
    async with opened(copied(origin, tmp_path / "full"), crash=True) as one:
        expected = summary(one.recovered)
    draw = random.Random(7)  # noqa: S311  (a reproducible test, no secret)
    finished = killed = 0
    whole = 0.0  # how long one takes here: the first tells
    for number in range(14):
        target = copied(origin, tmp_path / f"copy{number}")
        job = job_for(target.journal_directory, None, 0, 10_000)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pollux.store.checkpointer",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        running = asyncio.ensure_future(process.communicate(msgspec.json.encode(job)))
        began = asyncio.get_running_loop().time()
        await asyncio.wait([running], timeout=whole * draw.random() if number else 30)
        whole = whole or asyncio.get_running_loop().time() - began
        if process.returncode is None:
            process.kill()
            killed += 1
        else:
            finished += 1
        await running
        async with opened(target, crash=True) as two:
            assert summary(two.recovered) == expected
            ids = sorted(ids_in(two.recovered))
            assert None not in await two.storage.read_messages(ids)
        shutil.rmtree(tmp_path / f"copy{number}")
    assert finished
    assert killed


class StopsAt(FileOperations):
    """File operations that raise at the n-th system call that changes something, like a kill at that point."""

    def __init__(self, stop: int) -> None:
        super().__init__()
        self.left = stop

    def _step(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt

    def write(self, fd: int, data: bytes | memoryview, offset: int, *, sync: bool) -> int:
        self._step()
        return super().write(fd, data, offset, sync=sync)

    def fsync(self, fd: int) -> None:
        self._step()
        super().fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)


async def test_checkpointer_stopped_at_every_step(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    await mixed_traffic(origin, 3, 150)
    async with opened(copied(origin, tmp_path / "full"), crash=True) as one:
        expected = summary(one.recovered)
    for stop in range(1000):
        target = copied(origin, tmp_path / f"copy{stop}")
        job = job_for(target.journal_directory, None, 0, 10_000)
        try:
            checkpointer.run(job, StopsAt(stop))
            done = True
        except KeyboardInterrupt:
            done = False
        for _ in range(2):
            async with opened(target, crash=True) as two:
                assert summary(two.recovered) == expected
                assert None not in await two.storage.read_messages(sorted(ids_in(two.recovered)))
        shutil.rmtree(tmp_path / f"copy{stop}")
        if done:
            assert stop > 10
            return
    pytest.fail("the checkpointer never finished")


async def test_nothing_is_deleted_after_a_stop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The next life may list the directory then, and would miss what goes."""
    begun, go_on = threading.Event(), threading.Event()
    deleted: list[Path] = []

    def unlink(_files: FileOperations, path: Path) -> None:
        if threading.current_thread() is not threading.main_thread() and path.suffix == ".segment":
            begun.set()
            assert go_on.wait(30)
            deleted.append(path)
        path.unlink(missing_ok=True)

    monkeypatch.setattr(FileOperations, "unlink", unlink)
    async with opened(settings_in(tmp_path, journal_file_size=32 << 10, journal_compact_min_files=1000)) as one:
        maintenance = one.storage._maintenance
        assert maintenance is not None
        while len(maintenance._sealed) < 3:
            message = message_of(one.storage, b"y" * 4000)
            one.storage.append_message(message, [1])
            one.storage.append_acks(1, [message.id])
            await stable(one.storage)
        maintenance.consider(urgent=True)
        assert await asyncio.to_thread(begun.wait, 30)
        stopping = asyncio.create_task(maintenance.stop(last=False, seconds=0))
        await until(lambda: maintenance._ended)
        assert not (await asyncio.wait([stopping], timeout=0.2))[0], "it waits for the deletion that began"
        go_on.set()
        await stopping
        assert len(deleted) == 1, "and the others do not begin"
        assert "no checkpoint at the stop (the next start replays the journal): timeout" in caplog.text


async def test_a_checkpointer_whose_broker_died_installs_nothing(tmp_path: Path) -> None:
    await mixed_traffic(tmp_path, 5)
    settings = settings_in(tmp_path)
    job = job_for(settings.journal_directory, None, 0, 10_000)
    job.broker = os.getpid()
    with pytest.raises(StoreError, match="is gone"):
        checkpointer.run(job, FileOperations())
    assert not list(settings.journal_directory.glob("*.checkpoint"))
