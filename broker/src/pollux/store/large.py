"""Large messages: one file each, written and read in chunks by threads, never whole in memory.

A file ``ID.msg`` in the large-messages directory holds the complete encoded message. It is synced
before the journal record that names it is written, and deleted after the last acknowledgement is
stable. Files no record names are removed at recovery.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections import deque
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from pollux.checksum import crc32c
from pollux.errors import DiskFullError, LostBodyError, StoreError
from pollux.store.files import is_directory, make_directories, names_in, write_all
from pollux.store.lost_files import LARGE_NAME, changed_words, lost_files
from pollux.store.recovered import Damage
from pollux.store.segments import NO_ROOM

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable
    from concurrent.futures import Executor
    from pathlib import Path

    from pollux.message import LargeBody
    from pollux.store.journal import Journal
    from pollux.store.port import Files

logger = logging.getLogger(__name__)

#: A writer is ``full`` when it holds more than this: stop reading from the client.
IN_FLIGHT_BYTES = 1 << 20
#: Written bytes are synced in steps, so that the last sync, which delays confirmations, is short.
_SYNC_STEP = 8 << 20
CHUNK = 128 << 10
_READ_BYTES = 1 << 20
#: Seconds that a file is tried to be read for, before its message is set aside as one whose body is lost.
PATIENCE = 30.0


class LargeMessage:
    """The body of a large message: the file that holds its complete encoded form."""

    __slots__ = ("checksum", "id", "size")

    def __init__(self, file_id: int, size: int, checksum: int | None = None) -> None:
        self.id = file_id
        self.size = size
        self.checksum = checksum

    def __repr__(self) -> str:
        return f"<LargeMessage {self.id} {self.size} B>"


class LargeWriter:
    """One file being written. ``write`` until done, then ``finish``, or ``abort``; all in the loop's thread."""

    def __init__(self, owner: LargeMessages, file_id: int, path: Path) -> None:
        self.id = file_id
        self.size = 0
        self._checksum = 0
        self._owner = owner
        self._path = path
        self._chunks: deque[bytes] = deque()
        self._held = 0
        self._working = False
        self._ended = False
        self._aborted = False
        self._on_drain: Callable[[], None] | None = None
        self._error: OSError | None = None
        # -- under the lock, in whichever thread writes
        self._lock = threading.Lock()
        self._fd = -1
        self._position = 0
        self._synced = 0
        self._lost: OSError | None = None

    @property
    def full(self) -> bool:
        """Whether the caller should wait for ``on_drain`` before it writes more."""
        return self._held > IN_FLIGHT_BYTES

    def on_drain(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` once, in the loop, when ``full`` is false again, writing failed, or nothing more comes."""
        self._on_drain = callback

    def write(self, data: bytes) -> None:
        """Add bytes. Raises DiskFullError (abort, refuse the message) or StoreError."""
        self._check()
        if self._ended:
            raise StoreError("write() after finish() or abort()")
        self._chunks.append(data)
        self._held += len(data)
        self.size += len(data)
        # Here, not where it is written: the record is appended when the message ends, before all of it is written.
        self._checksum = crc32c(data, self._checksum)
        if not self._working:
            self._working = True
            self._owner.submit(self._work)

    def _check(self) -> None:
        if self._chunks:  # what still has to be written finds no room either
            self._owner.check_written_room()
        if self._error is not None:
            if self._error.errno in NO_ROOM:
                raise DiskFullError(f"{self._path}: {self._error.strerror}")
            raise StoreError(f"{self._path}: {self._error}")

    def finish(self, *, durable: bool = True) -> LargeMessage:
        """The file is complete. Append the message's record after this, in the same loop turn or later.

        Before anything done from now on is stable, the file is whole, and with ``durable`` on stable storage: nobody
        may read it earlier. Raises as ``write``.
        """
        self._check()
        self._ended = True
        self._owner.before(partial(self._complete, sync=durable and self._owner.sync))
        # Whoever writes the rest does not count it: a caller that waits for this writer would wait for ever.
        self._drained()
        return LargeMessage(self.id, self.size, self._checksum)

    def abort(self) -> None:
        """Forget the message: the file is deleted."""
        self._ended = True
        self._aborted = True
        self._owner.submit(self._remove)
        self._drained()

    # -- in threads --------------------------------------------------------------------------------

    def _drain_chunks(self, *, step: bool) -> int:
        """Write what waits; the bytes written. Under the lock."""
        files = self._owner.files
        if self._fd < 0 and self._position == 0 and not self._aborted:
            if not is_directory(files, self._path.parent):
                make_directories(files, self._path.parent)
            self._fd = files.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        written = 0
        while self._chunks and not self._aborted:
            # It leaves the queue once it is written: a write that found no room is repeated, by whoever comes next.
            chunk = self._chunks[0]
            write_all(files, self._fd, chunk, self._position, sync=False)
            self._chunks.popleft()
            self._position += len(chunk)
            written += len(chunk)
            if step and self._owner.sync and self._position - self._synced >= _SYNC_STEP:
                self._sync(files.fdatasync)
                self._synced = self._position
        return written

    def _sync(self, sync: Callable[[int], None]) -> None:
        try:
            sync(self._fd)
        except OSError as error:
            # The kernel tells once of what it could not write: a sync that succeeds after this one says nothing.
            self._lost = error
            raise

    def _work(self) -> None:
        try:
            with self._lock:
                written = self._drain_chunks(step=True)
        except OSError as error:
            self._owner.in_loop(self._failed, error)
        else:
            self._owner.in_loop(self._worked, written)

    def _complete(self, *, sync: bool) -> None:
        """Do in the journal's writer: the rest of the bytes, the sync, and the directory's."""
        with self._lock:
            # What found no room still waits in the queue, and the journal's writer waits for room.
            if self._error is not None and self._error.errno not in NO_ROOM:
                raise self._error
            if self._lost is None:
                self._drain_chunks(step=False)
                if sync:
                    with suppress(OSError):
                        self._sync(self._owner.files.fsync)
            if self._lost is not None:
                words = f"{self._lost.strerror or self._lost} (errno {self._lost.errno})"
                raise StoreError(f"{self._path}: {words} at its sync; restart once the disk is sound")
            if sync:
                self._owner.files.sync_directory(self._path.parent)
            self._close()  # last: whoever finds no room does all of it again

    def _remove(self) -> None:
        with self._lock:
            self._close()
            self._owner.files.unlink(self._path)

    def _close(self) -> None:
        if self._fd >= 0:
            self._owner.files.close(self._fd)
            self._fd = -1

    # -- back in the loop --------------------------------------------------------------------------

    def _worked(self, written: int) -> None:
        was_full = self.full
        self._held -= written
        if self._chunks and not self._ended:
            self._owner.submit(self._work)
        else:
            self._working = False
        if was_full and not self.full:
            self._drained()

    def _failed(self, error: OSError) -> None:
        self._error = error
        self._working = False
        if error.errno not in NO_ROOM:
            self._owner.failed(StoreError(f"{self._path}: {error.strerror or error} (errno {error.errno})"))
        self._drained()

    def _drained(self) -> None:
        callback, self._on_drain = self._on_drain, None
        if callback is not None:
            callback()


class LargeReader:
    """Reads one file from its start in chunks. Keep at most one ``read`` under way."""

    def __init__(self, owner: LargeMessages, path: Path, large: LargeBody) -> None:
        self._owner = owner
        self._path = path
        self._large = large
        self._checksum = 0
        self.size = large.size
        self.position = 0
        self._fd = -1
        self._closed = False

    async def read(self, length: int = CHUNK) -> bytes:
        """Up to ``length`` bytes, empty at the end. Raises LostBodyError when the file is gone or not what it was.

        A disk that fails is asked again for :data:`PATIENCE` seconds: that is over sooner, as a rule, and no message is
        worse for it that was to be delivered meanwhile. That the file was changed is known at its end, so the last
        bytes are held back then; from the next reader all are.
        """
        if words := self._owner.changed.get(self._large.id):
            raise LostBodyError(words)
        data = await self._patiently(min(length, self.size - self.position))
        self.position += len(data)
        if data and self.position == self.size and self._large.checksum not in (None, self._checksum):
            raise LostBodyError(self._owner.found_changed(self._large))
        return data

    async def _patiently(self, length: int) -> bytes:
        pause = 0.05
        while True:
            try:
                data = await self._owner.run(self._read, length)
            except OSError as error:
                words = f"{self._path}: {error.strerror or error}"
                if self._owner.unreadable_for(self._large.id) >= PATIENCE:
                    raise LostBodyError(f"{words} (for {PATIENCE:.0f} s)") from error
                logger.warning("a large message cannot be read, the next try is in %.2f s: %s", pause, words)
            else:
                self._owner.unreadable.pop(self._large.id, None)
                return data
            await asyncio.sleep(pause)
            pause = min(2 * pause, 5.0)

    def _read(self, length: int) -> bytes:
        if length <= 0 or self._closed:
            return b""
        try:
            if self._fd < 0:
                self._fd = self._owner.files.open(self._path, os.O_RDONLY)
                # Now, when nothing was sent yet: a body that breaks off costs the client its connection, each time.
                if (found := self._owner.files.size(self._fd)) < self.size:
                    raise LostBodyError(f"{self._path}: was cut to {found} of {self.size} bytes")
            data = self._owner.files.read(self._fd, length, self.position)
        except FileNotFoundError:
            raise LostBodyError(f"{self._path}: is missing") from None
        if not data:
            raise LostBodyError(f"{self._path}: ends at {self.position} of {self.size} bytes")
        if self._large.checksum is not None:
            self._checksum = crc32c(data, self._checksum)
        return data

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while data := await self.read():
            yield data

    def close(self) -> None:
        """Let go of the file."""
        self._closed = True
        self._owner.submit(self._close)

    def _close(self) -> None:
        if self._fd >= 0:
            self._owner.files.close(self._fd)
            self._fd = -1


class LargeMessages:
    """The large-messages directory. For the loop's thread."""

    def __init__(
        self,
        directory: Path,
        files: Files,
        loop: asyncio.AbstractEventLoop,
        threads: Executor,
        *,
        next_id: Callable[[], int],
        failed: Callable[[StoreError], None],
        report: Callable[[Damage], None],
        sync: bool,
        check_room: Callable[[], None],
        check_written_room: Callable[[], None],
    ) -> None:
        self.files = files
        self.failed = failed
        self._report = report
        #: Files that were read and whose checksums did not match: id -> words.
        self.changed: dict[int, str] = {}
        #: Files that could not be read when they were last tried: since when, and when that was (monotonic, seconds).
        self.unreadable: dict[int, tuple[float, float]] = {}
        self.sync = sync
        self._check_room = check_room
        self.check_written_room = check_written_room
        self._directory = directory
        self._loop = loop
        self._threads = threads
        self._next_id = next_id
        self._journal: Journal | None = None

    def attach(self, journal: Journal) -> None:
        """The journal whose records name the files."""
        self._journal = journal

    def path(self, file_id: int) -> Path:
        """Where a large message's file is."""
        return self._directory / f"{file_id}.msg"

    def create(self) -> LargeWriter:
        """Open a new file for writing. Raises DiskFullError while new messages are refused."""
        self._check_room()
        file_id = self._next_id()
        return LargeWriter(self, file_id, self.path(file_id))

    def open(self, large: LargeBody) -> LargeReader:
        """Read a file from its start."""
        return LargeReader(self, self.path(large.id), large)

    def found_changed(self, large: LargeBody) -> str:
        """A file's checksum did not match: what is wrong, in words. From now on nobody is given any of it."""
        path = self.path(large.id)
        words = changed_words(path, large.size)
        self.changed[large.id] = words
        self._report(Damage(path, 0, large.size, "lost-body", words))
        return words

    def delete(self, file_id: int) -> None:
        """Delete a file after what this loop turn appends (the last acknowledgement, its commit) is stable."""
        journal = self._journal
        if journal is None:
            raise StoreError("recover() first")
        # Not at once: the acknowledgement may be appended after this call, and a file that goes before it would be
        # missing when a crash keeps the acknowledgement off the disk.
        self._loop.call_soon(journal.when_stable, partial(self._delete_now, file_id))

    def _delete_now(self, file_id: int, error: StoreError | None) -> None:
        if error is None:
            self.changed.pop(file_id, None)
            self.unreadable.pop(file_id, None)
            self.submit(lambda: self.files.unlink(self.path(file_id)))

    def remove_orphans(self, wanted: Iterable[int], *, keep: bool = False) -> int:
        """Delete the files no record names; how many. In a thread, at recovery.

        ``keep``: something of the store is damaged, and they may belong to that: they go to ``isolated/``.
        """
        known = {self.path(file_id) for file_id in wanted}
        names = [name for name in names_in(self.files, self._directory) if LARGE_NAME.fullmatch(name)]
        orphans = [path for path in (self._directory / name for name in names) if path not in known]
        isolated = self._directory / "isolated"
        if keep and orphans:
            self.files.make_directory(isolated)
        for path in orphans:
            if keep:
                self.files.rename(path, isolated / path.name)
            else:
                self.files.unlink(path)
        if orphans:
            what = f"kept in {isolated}, for the store is damaged:" if keep else "removed"
            logger.info("%s %d large message files without a message", what, len(orphans))
        return len(orphans)

    async def lost(self, large: LargeBody) -> str | None:
        """Return in words what is wrong with a large message's file; None: it is there and whole.

        Raises StoreError where that cannot be told.
        """
        if words := self.changed.get(large.id):
            return words
        look = partial(lost_files, self._directory, {large.id: large.size}, files=self.files)
        try:
            found = await self._loop.run_in_executor(self._threads, look)
        except OSError as error:
            raise StoreError(f"{self.path(large.id)}: {error.strerror or error}") from error
        return found.get(large.id)

    # -- for writers and readers -------------------------------------------------------------------

    def before(self, operation: Callable[[], None]) -> None:
        """Run in the journal's writer before what is appended next."""
        if self._journal is None:
            raise StoreError("recover() first")
        self._journal.before(operation)

    def submit(self, function: Callable[[], None]) -> None:
        """Run in a thread; after shutdown nothing runs any more (recovery removes what is left)."""
        try:
            self._threads.submit(function)
        except RuntimeError:
            logger.debug("large message work after the store was closed")

    def unreadable_for(self, large_id: int) -> float:
        """Note that a file cannot be read now; return the seconds since when, whoever tried.

        A consumer may have gone before: heartbeats wait behind a large message, and the next one is not to begin anew.
        """
        now = time.monotonic()
        first, last = self.unreadable.get(large_id, (now, now))
        if now - last > 10 * PATIENCE:
            first = now  # nobody has tried for long
        self.unreadable[large_id] = first, now
        return now - first

    async def run(self, function: Callable[[int], bytes], length: int) -> bytes:
        """Run in a thread and wait."""
        return await self._loop.run_in_executor(self._threads, function, length)

    def in_loop(self, function: Callable[..., None], *values: object) -> None:
        """Run in the loop, from a thread."""
        try:
            self._loop.call_soon_threadsafe(function, *values)
        except RuntimeError as error:
            logger.debug("the event loop ended first: %s", error)
