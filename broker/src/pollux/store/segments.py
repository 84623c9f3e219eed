"""Segment files made ahead of need, by a thread of their own.

A prepared segment has its header, is full of zeros and its directory entry is synced, so that
switching to it costs the writer nothing. One segment more than asked for is the reserve: when
the disk is full new messages are refused at once and acknowledgements go on into what is left.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from pollux.errors import DiskFullError
from pollux.formats.segments import HEADER_SIZE, Kind, SegmentHeader
from pollux.store.files import write_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.store.port import Files
    from pollux.store.spare import Spare

logger = logging.getLogger(__name__)

#: How long after a takeover the segments behind the spare one are filled, unless they are wanted sooner, seconds.
SETTLE_SECONDS = 0.5
#: How soon a creation that failed for want of room is tried again, seconds.
RETRY_SECONDS = 0.25
NO_ROOM = frozenset((errno.ENOSPC, errno.EDQUOT))


def segment_name(epoch: int, sequence: int) -> str:
    """File name of a journal segment."""
    return f"pollux-{epoch:08d}-{sequence:010d}.segment"


def segments_ahead(wanted: int, most: int) -> int:
    """Segments to keep ready beside the one in use and the reserve: journal-min-files, within journal-pool-files."""
    ahead = max(1, wanted - 1)
    return ahead if most < 0 else min(ahead, max(1, most))


class Segment:
    """A file being written: ``position`` is where the next batch goes."""

    __slots__ = ("dirty", "epoch", "fd", "path", "position", "sequence", "size")

    def __init__(self, path: Path, fd: int, epoch: int, sequence: int, size: int) -> None:
        self.path = path
        self.fd = fd
        self.epoch = epoch
        self.sequence = sequence
        self.size = size
        self.position = HEADER_SIZE
        #: Whether something was written to it that is not synced: a synced write says nothing of what is before it.
        self.dirty = False


class SegmentPool:
    """Prepares segments; ``take`` is called by the writer thread, everything else by anyone."""

    def __init__(
        self,
        directory: Path,
        files: Files,
        *,
        size: int,
        ahead: int,
        salt: int,
        node_id: bytes,
        epoch: int,
        first_sequence: int,
        created: int,
        on_room: Callable[[str | None], None],
        on_error: Callable[[OSError], None],
        spare: Spare | None = None,
    ) -> None:
        """``spare`` becomes the first segment when it is there.

        ``on_room(reason)`` runs in the pool's thread when creation first fails for want of room, and with None when it
        works again; ``on_error`` when it fails for another reason.
        """
        self._directory = directory
        self._files = files
        self._size = size
        self._wanted = ahead + 1
        self._salt = salt
        self._node_id = node_id
        self._epoch = epoch
        self._first = self._sequence = first_sequence
        self._created = created
        self._on_room = on_room
        self._on_error = on_error
        self._spare = spare
        self._wanting = False
        #: Somebody needs room for what was accepted: prepare nothing but what is wanted at once.
        self._held = False
        self._making = False
        self._ready: deque[Segment] = deque()
        self._condition = threading.Condition()
        self._closing = False
        self._no_room = False
        self._error: OSError | None = None
        self._thread = threading.Thread(target=self._run, name="pollux-segments", daemon=True)

    def start(self) -> None:
        """Start the thread that prepares segments."""
        self._thread.start()

    def take(self, deadline: float) -> Segment:
        """The next segment, waiting until ``time.monotonic()`` reaches ``deadline``. Raises DiskFullError, OSError."""
        with self._condition:
            while not self._ready:
                if self._error is not None:
                    raise self._error
                if not self._wanting:
                    self._wanting = True
                    self._condition.notify_all()
                left = deadline - time.monotonic()
                if left <= 0 or self._closing:
                    raise DiskFullError(f"no room for another journal segment in {self._directory}")
                self._condition.wait(left)
            segment = self._ready.popleft()
            self._condition.notify_all()
            return segment

    @property
    def no_room(self) -> bool:
        """Whether the last segment could not be made for want of room."""
        return self._no_room

    def hold(self, *, held: bool) -> None:
        """Prepare no segments while there is one: what is made free is for somebody else."""
        with self._condition:
            self._held = held
            self._condition.notify_all()

    def give_up(self) -> bool:
        """Delete a prepared segment so that there is room; False when there is none to spare."""
        with self._condition:
            # Not while the next is made: its number comes after the one that would go.
            if self._closing or self._making or len(self._ready) < 2:
                return False
            segment = self._ready.pop()
            self._sequence = segment.sequence
            self._files.close(segment.fd)
            self._files.unlink(segment.path)
            return True

    def ready(self, seconds: float) -> bool:
        """Whether a segment is there, waiting so long for it. Raises OSError when none can be made."""
        with self._condition:
            self._condition.wait_for(lambda: self._ready or self._error is not None or self._closing, seconds)
            if self._error is not None:
                raise self._error
            return bool(self._ready)

    def close(self) -> list[Segment]:
        """Stop; returns the prepared segments that were not used (their files are deleted, but for the first one)."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()
        self._thread.join(timeout=10)
        left = list(self._ready)
        self._ready.clear()
        for segment in left:
            # Nothing is in it; a file that stays is removed by whoever opens the journal next.
            with suppress(OSError):
                self._files.close(segment.fd)
            if segment.sequence == self._first:
                continue  # the bindings may say already that the journal begins with it: missing, it would be damage
            with suppress(OSError):
                self._files.unlink(segment.path)
        return left

    def abandon(self) -> None:
        """Stop without waiting for a segment that is being filled: whoever opens the journal next removes it."""
        with self._condition:
            self._closing = True
            self._condition.notify_all()

    def _run(self) -> None:
        try:
            while self._is_wanted():
                self._prepare()
        except Exception as error:
            # Whatever it was: for segments of a thread that is gone an activation would wait for ever.
            logger.exception("segments are not prepared any more")
            self._end(OSError(errno.EIO, f"segments are not prepared any more: {error!r}", str(self._directory)))

    def _is_wanted(self) -> bool:
        """Wait until a segment is; False at the end, or when none can be made any more."""
        with self._condition:
            while (len(self._ready) >= self._wanted or (self._held and self._ready)) and not self._closing:
                self._condition.wait()
            self._making = not self._closing and self._error is None
            return self._making

    def _prepare(self) -> None:
        """Make one, or take the spare as the first."""
        spare, self._spare = self._spare, None
        try:
            if self._first_of(spare):
                self._made(None)
                return
            segment = self._create()
        except OSError as error:
            self._made(None)
            self._failed(error)
            return
        self._made(segment)
        if self._no_room:
            self._no_room = False
            self._on_room(None)

    def _made(self, segment: Segment | None) -> None:
        with self._condition:
            self._making = False
            if segment is not None:
                self._ready.append(segment)
            self._condition.notify_all()

    def _first_of(self, spare: Spare | None) -> bool:
        """Take the spare segment as the first. The next ones are filled when clients are served again."""
        segment = self._adopt(spare) if spare is not None else None
        if segment is None:
            return False
        with self._condition:
            self._ready.append(segment)
            self._condition.notify_all()
            self._condition.wait_for(lambda: self._wanting or self._closing, SETTLE_SECONDS)
        return True

    def _adopt(self, spare: Spare) -> Segment | None:
        fd = spare.take()
        if fd < 0:
            return None
        path = self._directory / segment_name(self._epoch, self._sequence)
        try:
            write_all(self._files, fd, self._header().encode(), 0, sync=True)
            self._files.rename(spare.path, path)
            self._files.sync_directory(self._directory)
        except OSError as error:
            logger.warning("the spare segment cannot be used: %s", error)
            with suppress(OSError):
                self._files.close(fd)
            # One that stays has the name of the next: that is the end, as for any that cannot be made.
            self._files.unlink(path)
            return None
        self._sequence += 1
        return Segment(path, fd, self._epoch, self._sequence - 1, self._size)

    def _header(self) -> SegmentHeader:
        return SegmentHeader(
            Kind.JOURNAL, self._salt, self._node_id, self._epoch, self._sequence, self._created, self._size
        )

    def _failed(self, error: OSError) -> None:
        """Handle a failed creation: without room it is tried again, anything else is the end."""
        if error.errno not in NO_ROOM:
            self._end(error)
            return
        if not self._no_room:
            self._no_room = True
            self._on_room(f"{self._directory}: {error.strerror}")
        with self._condition:
            if not self._closing:
                self._condition.wait(RETRY_SECONDS)

    def _end(self, error: OSError) -> None:
        """Tell whoever waits for a segment that there will be none."""
        with self._condition:
            self._error = error
            self._condition.notify_all()
        self._on_error(error)

    def _create(self) -> Segment:
        path = self._directory / segment_name(self._epoch, self._sequence)
        header = self._header()
        fd = self._files.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            self._files.fill(fd, self._size)
            write_all(self._files, fd, header.encode(), 0, sync=True)
            self._files.sync_directory(self._directory)
        except BaseException:
            with suppress(OSError):
                self._files.close(fd)
            self._files.unlink(path)
            raise
        self._sequence += 1
        return Segment(path, fd, self._epoch, self._sequence - 1, self._size)
