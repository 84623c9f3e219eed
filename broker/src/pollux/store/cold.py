"""Messages that only the disk has, read back when their turn comes.

A life that begins knows where they are (:mod:`pollux.store.index`), and each checkpoint says it anew. Reads happen in a
thread of their own, decoding in the loop.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from pollux.errors import StoreError
from pollux.formats import records
from pollux.store.index import Index, Reader, Run, plan, records_of
from pollux.store.large import LargeMessage
from pollux.store.recovered import Damage

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from pollux.message import LargeBody, Message
    from pollux.store.port import Files

#: Reads handed to the thread at once.
_RUNS = 16


class ColdMessages:
    """Where the messages of earlier lives are. For the loop's thread."""

    def __init__(
        self,
        files: Files,
        loop: asyncio.AbstractEventLoop,
        *,
        first_id: int,
        report: Callable[[Damage], None],
        body_lost: Callable[[LargeBody], Awaitable[str | None]],
    ) -> None:
        """``first_id``: of this life, whose messages are not cold before a checkpoint holds them."""
        self.indexes: list[Index] = []
        self.reader = Reader(files)
        self._loop = loop
        self._threads = ThreadPoolExecutor(1, thread_name_prefix="pollux-read")
        self._first_id = first_id
        self._report = report
        self._body_lost = body_lost

    def moved(self, index: Index, dead: list[Path]) -> None:
        """Use a checkpoint's index from now on: it holds everything recovery replayed; ``dead`` files are deleted."""
        self.indexes = [index]
        self._threads.submit(self._forget, dead)

    def _forget(self, dead: list[Path]) -> None:
        for path in dead:
            self.reader.forget(path)

    def has(self, message_id: int) -> bool:
        """Return whether :meth:`read` finds a message: it is of an earlier life, or in the last checkpoint."""
        return any(index.find(message_id) >= 0 for index in self.indexes)

    def close(self) -> None:
        """Let go of the files, in the thread that uses them: it may be forgetting what a checkpoint replaced."""
        self._threads.submit(self.reader.close)
        self._threads.shutdown(wait=False)

    async def read(self, message_ids: Sequence[int]) -> list[Message | None]:
        """Return messages in the order asked; None for one that is gone or damaged.

        Raises StoreError when the disk cannot be read, and for a message of this life that is not cold yet.
        """
        result: list[Message | None] = [None] * len(message_ids)
        wanted = list(enumerate(message_ids))
        for _ in range(3):
            runs, missing = plan(self.indexes, [message_id for _, message_id in wanted])
            for place in missing:
                if wanted[place][1] >= self._first_id:
                    raise StoreError(f"message {wanted[place][1]} was written in this life and is not cold")
            again: list[tuple[int, int]] = []
            for start in range(0, len(runs), _RUNS):
                some = runs[start : start + _RUNS]
                try:
                    parts = await self._loop.run_in_executor(self._threads, self._read, some)
                except OSError as error:
                    raise StoreError(f"the journal cannot be read: {error}") from error
                for run, data in zip(some, parts, strict=True):
                    if data is None:
                        # Compaction deleted the file: the new index tells where the records are now.
                        again += [wanted[place] for place, _, _ in run.entries]
                        continue
                    for place, record in records_of(run, data):
                        number = wanted[place][1]
                        if record is None:
                            self._lost(run, f"the record of message {number} is damaged")
                            continue
                        message = records.decode_message(record, LargeMessage)[0]
                        if message.large is not None and (words := await self._body_lost(message.large)):
                            self._lost(run, f"message {number}: {words}")
                            continue
                        result[wanted[place][0]] = message
            wanted = again
            if not wanted:
                break
        return result

    def _read(self, runs: list[Run]) -> list[bytes | None]:
        return [self.reader.read(run) for run in runs]

    def _lost(self, run: Run, words: str) -> None:
        self._report(Damage(run.index.files[run.file], run.start, 0, "lost-body", words))
