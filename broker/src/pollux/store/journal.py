"""The writer: groups of encoded records to stable storage, in order, in one thread.

The loop's side collects the records of one loop turn and hands them over as one chunk; the
thread joins the chunks that wait (up to a cap), writes them with one synced write and reports
back; with copies elsewhere it writes on until they have confirmed (:mod:`pollux.store.ahead`).
Nothing after a failure is ever reported as stable. This module knows frames, not records' meanings.

It has more than 500 lines as it is one object with a side in each of two threads. Without a lock that is safe only
because each attribute is written by one side, and that can be checked only with both before one's eyes.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from itertools import chain
from queue import Empty
from typing import TYPE_CHECKING

from pollux.checksum import crc32c
from pollux.errors import DiskFullError, StoreError
from pollux.formats.records import BATCH, SEGMENT_END, RecordType, segment_end
from pollux.formats.segments import FOLLOWS_UNSYNCED, FRAME, FRAME_SIZE, MARKER, frame
from pollux.store.ahead import Ahead
from pollux.store.bindings import joined
from pollux.store.chunks import GROUP_RECORDS, Chunk, Chunks
from pollux.store.files import write_all
from pollux.store.latency import LatencyHistogram
from pollux.store.segments import NO_ROOM, RETRY_SECONDS, Segment, SegmentPool

if TYPE_CHECKING:
    from pollux.store.port import Files

logger = logging.getLogger(__name__)

StableCallback = Callable[[StoreError | None], None]
#: Appended bytes that may wait for the disk; beyond, new messages are refused until it keeps up again.
BACKLOG_BYTES = 128 << 20
_JOIN_SECONDS = 10.0
BATCH_SIZE = FRAME_SIZE + BATCH.size
#: Room for a write with the record that names the next segment.
_END_ROOM = BATCH_SIZE + FRAME_SIZE + SEGMENT_END.size


class Journal:
    """One life's writer. All public methods are for the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        files: Files,
        pool: SegmentPool | None,
        *,
        salt: int,
        datasync: bool,
        group_bytes: int,
        full_disk_timeout: float,
        guard: Callable[[], bool],
        on_failure: Callable[[StoreError], None],
        on_sealed: Callable[[Segment], None],
        on_no_room: Callable[[str | None], None],
        make_room: Callable[[], bool],
        on_stall: Callable[[str | None], None],
    ) -> None:
        """``pool`` None: nothing is stored, everything is stable at once. ``full_disk_timeout`` in seconds;
        ``group_bytes``: bytes of the largest write, which at most one record exceeds. ``make_room`` gives up something
        that was set aside for a full disk, in the writer's thread; whether there was something.
        """
        self._loop = loop
        self._files = files
        self._pool = pool
        self._salt = salt
        self._datasync = datasync
        self.group_bytes = group_bytes
        self._full_disk_timeout = full_disk_timeout
        self._guard = guard
        self._on_failure = on_failure
        self._on_sealed = on_sealed
        self._on_no_room = on_no_room
        self._make_room = make_room
        self._on_stall = on_stall
        # -- the loop's side
        #: The open chunk; storage appends frames here itself (the hot path) and counts them.
        self.parts: list[bytes] = []
        self.records = 0
        self.size = 0
        #: Changes of the bindings in it, which the writer writes before.
        self.changes = 0
        self.sync = False
        self.scheduled = False
        self.failure: StoreError | None = None
        self._before: list[Callable[[], None]] = []
        self._apart = False
        #: Without a writer: what found no room yet, and what comes after it.
        self._behind: list[Callable[[], None]] = []
        self._short = False
        #: The number of the open chunk.
        self.token = 1
        self._callbacks: deque[tuple[int, StableCallback]] = deque()
        self._completing = False
        #: (token, bytes, records, changes, time of the hand-over) of the chunks that are not stable yet; the sum of
        #: their bytes, and of their records and changes.
        self._waiting: deque[tuple[int, int, int, int, float]] = deque()
        self._backlog = 0
        self._unwritten = 0
        self._stalled = False
        #: From the end of the loop turn that appended a record until what waits for it is told that it is stable.
        self.latencies = LatencyHistogram()
        self._loop_thread = threading.get_ident()
        #: Up to here whoever waits was told.
        self._told = 0
        # -- shared: each is written by one side only
        self._chunks = Chunks(group_bytes)
        self._ahead = Ahead(files, self._look)
        self._notified = False
        self._writer_error: StoreError | None = None
        # -- the writer's side
        self._segment: Segment | None = None
        self._written = 0
        self._batch = 0
        self.batches = 0
        self._thread = threading.Thread(target=self._run, name="pollux-journal", daemon=True)

    def start(self) -> None:
        """Start the writer thread on the first segment of the pool."""
        if self._pool is not None:
            self._thread.start()

    # -- the loop's side ---------------------------------------------------------------------------

    @property
    def segment(self) -> Segment | None:
        """The segment in use."""
        return self._segment

    @property
    def last(self) -> int:
        """The last chunk that has something."""
        return self.token if self.parts or self._before else self.token - 1

    @property
    def stable_token(self) -> int:
        """The last chunk that is stable."""
        return self._told

    @property
    def behind(self) -> bool:
        """Whether more than two groups wait for the writer."""
        return self._unwritten > 2 * GROUP_RECORDS or self._backlog > 2 * self.group_bytes

    def append(self, body: bytes, *, sync: bool = True) -> None:
        """Add one record (its body without the frame)."""
        length = FRAME_SIZE + len(body)
        self.parts += (FRAME.pack(MARKER, length, crc32c(body, self._salt ^ length)), body)
        self.records += 1
        self.size += length
        if sync:
            self.sync = True
        if not self.scheduled:
            self.schedule()
        if self.size > self.group_bytes:
            self.hand_over()

    def before(self, operation: Callable[[], None], *, first: bool = False) -> None:
        """Run ``operation`` in the writer thread before the records of this turn are written (pages, large files).

        ``first``: before other such operations too.
        """
        self._before.insert(0 if first else len(self._before), operation)
        self.sync = True
        if not self.scheduled:
            self.schedule()

    def schedule(self) -> None:
        """Have what was appended handed over at the end of this loop turn."""
        self.scheduled = True
        self._loop.call_soon(self._hand_over)

    def hand_over(self) -> None:
        """Hand over what was appended now (a turn that appends very much calls this in between)."""
        if self._pool is None:
            self._behind += self._before
            self.token += 1
            self._carry_out()
        elif self.failure is None:
            sync = self.sync and self._datasync
            content = (self.token, self.parts, self.records, self.size, self._before)
            self._chunks.put(Chunk(*content, sync=sync, apart=self._apart))
            self._apart = False
            self._waiting.append((self.token, self.size, self.records, self.changes, time.monotonic()))
            self._backlog += self.size
            self._unwritten += self.records + self.changes
            self.token += 1
            if self._backlog > BACKLOG_BYTES and not self._stalled:
                self._stalled = True
                self._on_stall(f"{self._backlog} bytes wait for the disk: it does not keep up")
        self.parts = []
        # A new list even when it is empty: the chunk keeps this one, and what is added later must not run with it.
        self._before = []
        self.records = 0
        self.size = 0
        self.changes = 0
        self.sync = False

    def divide(self) -> int:
        """Have nothing of what comes from now on done, in other files either, before what is here is written.

        Return the number of the chunk that comes.
        """
        if self.parts or self._before:
            self.hand_over()
        self._apart = True
        return self.token

    def _hand_over(self) -> None:
        self.scheduled = False
        if self.parts or self._before or self._behind:
            self.hand_over()

    def _carry_out(self) -> None:
        """Do here what a writer would do before it writes, where there is none: each once, later where no room is."""
        try:
            while self._behind:
                self._behind[0]()
                del self._behind[0]
        except (OSError, StoreError) as error:
            if isinstance(error, StoreError) or error.errno not in NO_ROOM:
                self.fail(self._describe(error))
                return
            self._short = True
            self._on_no_room(f"{error.filename or 'files that do not outlive this process'}: {error.strerror}")
            if not self.scheduled:
                self.scheduled = True
                self._loop.call_later(RETRY_SECONDS, self._hand_over)
            return
        if self._short:
            self._short = False
            self._on_no_room(None)
        self._ahead.skipped(self.token - 1)
        if not self._completing:
            self._completing = True
            self._loop.call_soon(self._complete)

    def when_stable(self, callback: StableCallback) -> None:
        """Call ``callback`` in the loop when everything appended so far is stable, or with the error."""
        token = self.last
        self._callbacks.append((token, callback))
        if (token <= self._told or self.failure is not None) and not self._completing:
            self._completing = True
            self._loop.call_soon(self._complete)

    def fail(self, error: StoreError) -> None:
        """Nothing is stable from now on: tell every waiting callback, then the broker (once)."""
        if self.failure is not None:
            return
        self.failure = error
        logger.critical("the store failed, nothing more is acknowledged: %s", error)
        self._run_callbacks(None, error)
        self._on_failure(error)

    def _complete(self) -> None:
        self._completing = False
        self._notified = False
        error = self.failure or self._writer_error
        try:
            stable = self._ahead.stable()
        except OSError as refused:
            stable, error = self._told, error or self._describe(refused)
        if not self._told <= stable < self.token:
            # Told out of order, what is not on the disk yet would be confirmed.
            self.fail(StoreError(f"group {stable} is stable after {self._told}, of {self.token - 1}: a defect"))
            return
        self._told = stable
        waiting = self._waiting
        if waiting and waiting[0][0] <= stable:
            now = time.monotonic()
            while waiting and waiting[0][0] <= stable:
                _, size, records, changes, since = waiting.popleft()
                self._backlog -= size
                self._unwritten -= records + changes
                assert self._backlog >= 0 <= self._unwritten  # noqa: S101  (producers would be held back wrongly)
                self.latencies.observe(now - since, records)
        if self._stalled and self._backlog < BACKLOG_BYTES // 2:
            self._stalled = False
            self._on_stall(None)
        if self.failure is not None:
            self._run_callbacks(None, self.failure)
            return
        if self._callbacks and self._callbacks[0][0] <= stable:
            if not self._guard():
                self.fail(StoreError("the right to acknowledge has expired (lease guard)"))
                return
            self._run_callbacks(stable, None)
        if error is not None:
            self.fail(error)

    def _run_callbacks(self, stable: int | None, error: StoreError | None) -> None:
        callbacks = self._callbacks
        while callbacks and (stable is None or callbacks[0][0] <= stable):
            callback = callbacks.popleft()[1]
            try:
                callback(error)
            except Exception as failed:
                self._loop.call_exception_handler(
                    {"message": "a completion callback of the journal failed", "exception": failed}
                )

    async def close(self) -> Segment | None:
        """Write what is left, stop the thread; returns the segment that was in use."""
        if self.parts or self._before:
            self.hand_over()
        if self._pool is not None and self._thread.ident is not None:
            self._chunks.put(None)
            await asyncio.to_thread(self._thread.join, self._full_disk_timeout + _JOIN_SECONDS)
            if self._thread.is_alive():
                self.fail(StoreError("the disk does not answer: the journal's last write did not end"))
                return None
        self._complete()
        segment, self._segment = self._segment, None
        return segment

    # -- the writer's side -------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            self._write_groups()
        except (OSError, StoreError) as error:
            self._writer_error = self._describe(error)
        except Exception as error:
            # Whatever it was: a writer that is gone without a word would leave every confirm waiting for ever.
            logger.exception("the journal's writer failed")
            self._writer_error = StoreError(f"the journal's writer failed: {error!r}")
        else:
            return
        self._notify()

    def _write_groups(self) -> None:
        """Write what comes, until the end; then all of it is stable."""
        while group := self._next():
            # One chunk follows another: one that is left out would be confirmed and not be written.
            assert group[0].token == self._written + 1 == group[-1].token + 1 - len(group)  # noqa: S101
            self._write_group(group)
            self._written = group[-1].token
            if self._ahead.written(self._written):
                self._notify()
        self._ahead.wait(0)

    def _next(self) -> list[Chunk]:
        """Return what is written next, once another group may be under way; nothing at the end."""
        self._ahead.wait()
        while True:
            try:
                return self._chunks.group(self._ahead.patience())
            except Empty:
                self._ahead.wait(0)

    def _look(self) -> None:
        """Copies may have more: whoever waits for that is told. Any thread."""
        if self._ahead.due():
            self._notify()

    def _notify(self) -> None:
        if not self._notified:
            self._notified = True
            try:
                if threading.get_ident() == self._loop_thread:
                    self._loop.call_soon(self._complete)
                else:
                    self._loop.call_soon_threadsafe(self._complete)
            except RuntimeError:  # the loop was closed under us: nobody is left to tell
                logger.warning("the event loop ended before the journal did")

    def _describe(self, error: OSError | StoreError) -> StoreError:
        if isinstance(error, StoreError):
            return error
        where = f"{self._segment.path}:{self._segment.position}" if self._segment else "the journal"
        words = f"{error.strerror or error} (errno {error.errno})"
        failure = StoreError(f"{where}: {words}; restart once the disk is sound")
        failure.__cause__ = error
        return failure

    def _write_group(self, group: list[Chunk]) -> None:
        sync = False
        for chunk in group:
            sync = sync or chunk.sync
        for operation in joined(chain.from_iterable(chunk.before for chunk in group)):
            self._with_room(operation)
        data = group[0].parts
        for chunk in group[1:]:
            data += chunk.parts
        if not data:
            return
        self._write(b"".join(data), sync=sync)
        self.batches += 1

    def _write(self, data: bytes, *, sync: bool) -> None:
        """Write whole records, in as many segments as they need.

        The last record of a segment names the one after it, so that the absence of that is noticed.
        """
        segment = self._segment or self._next_segment(data)
        while data:
            room = segment.size - segment.position - BATCH_SIZE - _END_ROOM
            if len(data) <= room:
                payload, data, following = data, b"", None
            else:
                fits = _records_within(data, room)
                payload, data = data[:fits], data[fits:]
                following = self._next_segment(data)
                payload += frame(segment_end(following.sequence), self._salt)
            flags = FOLLOWS_UNSYNCED if segment.dirty else 0
            body = BATCH.pack(RecordType.BATCH, flags, len(payload), self._batch)
            head = FRAME.pack(MARKER, BATCH_SIZE, crc32c(body, self._salt ^ BATCH_SIZE)) + body
            self._write_at(segment, head + payload, sync=sync)
            segment.position += BATCH_SIZE + len(payload)
            self._batch += 1
            if following is not None:
                self._seal(segment)
                self._segment = segment = following

    def _write_at(self, segment: Segment, data: bytes, *, sync: bool) -> None:
        # A synced write says nothing of what was written before it without a sync, as most of a large transaction is:
        # then all of it is synced at once.
        alone = sync and not segment.dirty

        def write() -> None:
            written = self._ahead.write(segment.fd, data, segment.position, sync=alone)
            if written < len(data):
                rest = memoryview(data)[written:]
                write_all(self._files, segment.fd, rest, segment.position + written, sync=alone)

        # Writing the whole batch again is safe: its bytes are ours until they are stable.
        self._with_room(write)
        if not alone:
            segment.dirty = True
            if sync:
                # Not again when it fails, also not for want of room: of what is before the kernel tells once only.
                self._files.fdatasync(segment.fd)
                segment.dirty = False

    def _with_room(self, operation: Callable[[], None]) -> None:
        """Carry out something that may be repeated, again while there is no room for it. Raises DiskFullError."""
        deadline = 0.0
        while True:
            try:
                operation()
            except OSError as error:
                if error.errno not in NO_ROOM:
                    raise
                where = error.filename or (self._segment.path if self._segment is not None else "the journal")
                if not deadline:
                    deadline = time.monotonic() + self._full_disk_timeout
                    self._on_no_room(f"{where}: {error.strerror}")
                    if self._pool is not None:
                        self._pool.hold(held=True)
                elif time.monotonic() >= deadline:
                    raise DiskFullError(
                        f"{where}: no room for what was accepted already within {self._full_disk_timeout:g} s"
                    ) from error
                # What was accepted must not wait for somebody to make room: everything behind it would, too. Others
                # take what is given up as well: the next try is at once.
                if not self._make_room():
                    time.sleep(RETRY_SECONDS)
            else:
                if deadline:
                    if self._pool is not None:
                        self._pool.hold(held=False)
                    self._on_no_room(None)
                return

    def _next_segment(self, data: bytes) -> Segment:
        if self._pool is None:
            raise StoreError("a store without persistence has no segments")
        segment = self._pool.take(time.monotonic() + self._full_disk_timeout)
        needed = segment.position + BATCH_SIZE + _first_record(data) + _END_ROOM
        if needed > segment.size:
            # A record larger than a segment gets a segment of its own size: a multiple of what its header says.
            self._with_room(partial(self._enlarge, segment, -(-needed // segment.size) * segment.size))
        before = self._segment
        if before is None:
            self._segment = segment
        else:
            assert segment.sequence > before.sequence  # noqa: S101  (recovery would read them in another order)
        return segment

    def _enlarge(self, segment: Segment, size: int) -> None:
        write_all(self._files, segment.fd, bytes(size - segment.size), segment.size, sync=True)
        self._files.fsync(segment.fd)
        segment.size = size

    def _seal(self, segment: Segment) -> None:
        # Batches that were not synced one by one (journal-sync-* off) must be before the segment is left.
        if self._datasync:
            self._files.fdatasync(segment.fd)
        self._files.close(segment.fd)
        self._on_sealed(segment)


def _first_record(data: bytes) -> int:
    return int.from_bytes(data[4:8], "little")


def _records_within(data: bytes, room: int) -> int:
    """The length of the whole records at the start of ``data`` that fit in ``room``."""
    position = 0
    while True:
        following = position + int.from_bytes(data[position + 4 : position + 8], "little")
        if following > room:
            return position
        position = following
