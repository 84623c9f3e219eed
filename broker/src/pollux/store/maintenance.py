"""When to checkpoint, and what to do with a finished one: the broker's side of the checkpointer.

Keeps the list of sealed segments that no checkpoint holds yet. Runs the checkpointer as a
subprocess, installs its result as the index of cold reads and deletes what it made superfluous.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from typing import TYPE_CHECKING

import msgspec

from pollux.errors import StoreError
from pollux.formats.segments import HEADER_SIZE
from pollux.store.checkpoint import read_checkpoint
from pollux.store.checkpointer import Job, Result, Source, unreferenced

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.formats.checkpoint import Checkpoint
    from pollux.store.port import Files
    from pollux.store.reserve import Reserve
    from pollux.store.settings import StoreSettings

logger = logging.getLogger(__name__)

#: A checkpoint costs time in proportion to itself: wait for this many times its size of new records ...
_CHECKPOINT_FACTOR = 2
#: ... but never for more than this, which bounds what recovery has to replay.
_MOST_BYTES = 1 << 30
_RUN_SECONDS = 600.0
#: How long it may work when nobody else wants to: so many seconds, or as long as it takes for so many bytes a second,
#: a tenth of what it does alone.
_PATIENCE = 20.0
_SLOWEST = 10 << 20
#: Its niceness meanwhile.
_NICE = 19
_FIRST_RETRY = 1.0
_LAST_RETRY = 60.0
#: How long a stop waits for the one file that is being deleted (a store may hang).
_DELETE_SECONDS = 10.0


def due_bytes(settings: StoreSettings, checkpoint_size: int) -> int:
    """After how many un-checkpointed bytes the next checkpoint is due. Pure."""
    configured = settings.journal_compact_min_files * settings.journal_file_size
    return min(max(configured, _CHECKPOINT_FACTOR * checkpoint_size), max(_MOST_BYTES, settings.journal_file_size))


class Maintenance:
    """Checkpoints of one life. For the loop's thread."""

    def __init__(
        self,
        settings: StoreSettings,
        files: Files,
        loop: asyncio.AbstractEventLoop,
        *,
        epoch: int,
        reserve: Reserve,
        base: Checkpoint | None,
        sealed: list[tuple[Source, int]],
        guard: Callable[[], bool],
        on_installed: Callable[[Checkpoint, list[Path]], None],
        on_fenced: Callable[[StoreError], None],
    ) -> None:
        """``sealed``: segments recovery replayed, with the bytes used in each, in order."""
        self._settings = settings
        self._files = files
        self._loop = loop
        self._epoch = epoch
        self._reserve = reserve
        self._base = base
        self._sealed = [source for source, _ in sealed]
        self._bytes = [used for _, used in sealed]
        self._guard = guard
        self._on_installed = on_installed
        self._on_fenced = on_fenced
        self._task: asyncio.Task[None] | None = None
        self._retry = _FIRST_RETRY
        self._timer: asyncio.TimerHandle | None = None
        self._full = False
        self._stopping = False
        self._ended = False
        self._deleting: asyncio.Task[None] | None = None
        self.checkpoints = 0
        self.last_result: Result | None = None

    def room(self, *, full: bool) -> None:
        """The disk became full, or has room again."""
        self._full = full
        if full:
            self._in_thread(self._reserve.release)
            self.consider(urgent=True)
        else:
            self._in_thread(self._reserve.make)

    def _in_thread(self, function: Callable[[], bool]) -> None:
        try:
            self._loop.run_in_executor(None, function)
        except RuntimeError:
            logger.debug("reserve work after the executor was shut down")

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self._task is not None

    @property
    def pending_bytes(self) -> int:
        """Bytes of records that recovery would have to replay, the segment in use not counted."""
        return sum(self._bytes)

    def sealed(self, source: Source, used: int) -> None:
        """A segment is complete."""
        self._sealed.append(source)
        self._bytes.append(used)
        self.consider()

    def consider(self, *, urgent: bool = False) -> None:
        """Start a checkpoint if one is due; ``urgent`` (full disk): if there is anything to fold."""
        if self._task is not None or self._stopping or not self._sealed or self._timer is not None:
            return
        size = self._base.size if self._base is not None else 0
        enabled = self._settings.journal_compact_min_files > 0
        if urgent or (enabled and self.pending_bytes >= due_bytes(self._settings, size)):
            self._task = self._loop.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._checkpoint()
        except (StoreError, OSError, TimeoutError) as error:
            logger.warning("a checkpoint failed, the next try is in %.0f s: %s", self._retry, str(error) or "timeout")
            self._timer = self._loop.call_later(self._retry, self._try_again)
            self._retry = min(2 * self._retry, _LAST_RETRY)
        else:
            self._retry = _FIRST_RETRY
        finally:
            self._task = None
        if self._timer is None:
            self.consider()

    def _try_again(self) -> None:
        self._timer = None
        self.consider(urgent=True)

    async def _checkpoint(self) -> None:
        # A copy: what is sealed while the checkpointer starts is not in its job, and stays for the next one.
        sealed = list(self._sealed)
        count = len(sealed)
        result = await self._fold(sealed)
        checkpoint = await asyncio.to_thread(
            read_checkpoint, self._settings.journal_directory / result.checkpoint, self._settings.node_id, self._files
        )
        for words in result.damage:
            logger.error("checkpoint: %s", words)
        if not self._guard():
            self._on_fenced(StoreError("the right to change the journal has expired (lease guard)"))
            return
        before = {file.name for file in self._base.files} if self._base is not None else set()
        segments = {source.name for source in self._sealed}
        bodies = [file.name for file in checkpoint.files if file.name not in before | segments]
        directory = self._settings.journal_directory
        await asyncio.to_thread(self._files.adopt, [*(directory / name for name in bodies), checkpoint.path])
        dead = await asyncio.to_thread(unreferenced, directory, checkpoint, self._files)
        self._base = checkpoint
        self.checkpoints += 1
        self.last_result = result
        del self._sealed[:count], self._bytes[:count]
        self._on_installed(checkpoint, dead)
        # Its own task: who cancels this one must be able to wait for the thread.
        self._deleting = self._loop.create_task(asyncio.to_thread(self._delete, dead))
        await asyncio.shield(self._deleting)

    def _delete(self, dead: list[Path]) -> None:
        for path in dead:
            if self._ended or not self._guard():
                return
            self._files.unlink(path)

    def _job(self, segments: list[Source]) -> Job:
        settings = self._settings
        return Job(
            directory=str(settings.journal_directory),
            paging_directory=str(settings.paging_directory),
            node_id=settings.node_id.hex(),
            epoch=self._epoch,
            base=self._base.path.name if self._base is not None else None,
            segments=list(segments),
            id_cache_size=settings.id_cache_size,
            compact_percentage=settings.journal_compact_percentage,
            segment_size=settings.journal_file_size,
            broker=os.getpid(),
            urgent=self._full or self._stopping,
            files=self._files.handle(),
        )

    async def _fold(self, segments: list[Source]) -> Result:
        """Have the checkpointer fold these; where others leave it nothing of the machine, as one of them.

        It works when nobody else does: on a machine that is busy without a pause the journal would grow for ever.
        """
        job = self._job(segments)
        if not job.urgent:
            base = self._base.size if self._base is not None else 0
            patience = max(_PATIENCE, (base + self.pending_bytes) / _SLOWEST)
            try:
                return await self._run_checkpointer(job, patience)
            except TimeoutError:
                logger.info(
                    "the checkpointer got too little of a processor in %.0f s: it gets as much as others", patience
                )
            job.urgent = True
        return await self._run_checkpointer(job, _RUN_SECONDS)

    async def _run_checkpointer(self, job: Job, seconds: float) -> Result:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "pollux.store.checkpointer",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        if not job.urgent:
            # From here and not by itself: what it imports is a tenth of its work. Where a sandbox forbids even this, a
            # checkpoint at the broker's own priority is better than none.
            with contextlib.suppress(OSError):
                os.setpriority(os.PRIO_PROCESS, process.pid, _NICE)
        try:
            async with asyncio.timeout(seconds):
                output, errors = await process.communicate(msgspec.json.encode(job))
        except BaseException:
            if process.returncode is None:
                process.kill()
                await process.wait()
            raise
        if process.returncode != 0:
            text = errors.decode(errors="replace").strip().rpartition("\n")[2]
            raise StoreError(f"the checkpointer ended with code {process.returncode}: {text}")
        return msgspec.json.decode(output, type=Result)

    async def stop(self, *, last: bool, seconds: float) -> bool:
        """Stop; with ``last`` write a final checkpoint first. At most ``seconds``. True when it was written."""
        self._stopping = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        done = False
        try:
            async with asyncio.timeout(seconds):
                if self._task is not None:
                    await asyncio.wait([self._task])
                if last and self._sealed:
                    await self._checkpoint()
                    done = True
        except (StoreError, OSError, TimeoutError) as error:
            why = str(error) or "timeout"
            logger.warning("no checkpoint at the stop (the next start replays the journal): %s", why)
        self._ended = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._deleting is not None:
            # A file that goes while the next life lists the directory would stop its start.
            await asyncio.wait([self._deleting], timeout=_DELETE_SECONDS)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        return done


def source_of(name: str, key: tuple[int, int], end: int, *, final: bool) -> tuple[Source, int]:
    """A job's entry for a segment, and the bytes its records use."""
    return Source(name, key[0], key[1], end, final), end - HEADER_SIZE
