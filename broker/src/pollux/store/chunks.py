"""On their way to the writer: the records of one turn of the loop each, joined to groups that are written at once."""

from __future__ import annotations

from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

#: A group commit takes chunks until it has this many records (or journal-buffer-size bytes).
GROUP_RECORDS = 512


class Chunk:
    """The records of one loop turn. ``parts`` joined are whole frames; ``before`` runs first, in the writer.

    ``apart``: not before the chunks before it are written.
    """

    __slots__ = ("apart", "before", "parts", "records", "size", "sync", "token")

    def __init__(
        self,
        token: int,
        parts: list[bytes],
        records: int,
        size: int,
        before: list[Callable[[], None]],
        *,
        sync: bool,
        apart: bool = False,
    ) -> None:
        self.token = token
        self.parts = parts
        self.records = records
        self.size = size
        self.before = before
        self.sync = sync
        self.apart = apart


class Chunks:
    """Chunks in order; None: the end. ``most``: bytes of the largest group, which at most one chunk exceeds."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._queue: SimpleQueue[Chunk | None] = SimpleQueue()
        #: The one that did not fit any more, or goes by itself.
        self._held: Chunk | None = None

    def put(self, chunk: Chunk | None) -> None:
        """Have it written. In the loop."""
        self._queue.put(chunk)

    def group(self, seconds: float | None) -> list[Chunk]:
        """Return the next chunk, waiting so long for it, with all that are there behind it and fit; nothing at the end.

        In the writer. Raises Empty.
        """
        chunk = self._held if self._held is not None else self._queue.get(timeout=seconds)
        self._held = None
        if chunk is None:
            return []
        group, records, size = [chunk], chunk.records, chunk.size
        while records < GROUP_RECORDS and size < self._most:
            try:
                more = self._queue.get_nowait()
            except Empty:
                break
            if more is None:
                self._queue.put(None)  # the last one again
                break
            if more.apart or size + more.size > self._most:
                self._held = more
                break
            group.append(more)
            records += more.records
            size += more.size
        return group
