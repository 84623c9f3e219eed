"""The lives that wrote a journal: which of its segments count, up to where, in which order, and what is missing.

The rules are in docs/journal-format.md ("Lives and fencing", "Recovery"). This module decides; its caller reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from msgspec import Struct, field

from pollux.formats import records
from pollux.formats.names import CheckpointKey, checkpoint_key
from pollux.formats.records import RecordType
from pollux.formats.segments import FRAME_SIZE, HEADER_SIZE, SegmentHeader, valid_at

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

#: Enough of a life's first segment for most START records.
_START_BYTES = HEADER_SIZE + 16384


class FoundSegment(Struct):
    """A journal segment found in a directory. ``header`` None: both copies are unreadable."""

    path: Path
    epoch: int
    sequence: int
    size: int
    header: SegmentHeader | None
    #: True when the file was being made when the broker died: all zeros.
    unfinished: bool = False
    #: Whether it holds nothing behind its header, once somebody has looked.
    empty: bool | None = None
    #: Offset behind which nothing is read (recorded by the life that took over); None: the file's end.
    limit: int | None = None
    #: ``limit`` is what a later life recorded: everything before it was valid then, and the incomplete last write
    #: behind it, which that life found too, ended at ``tail``.
    recorded: bool = False
    tail: int = 0
    #: Holes before ``limit`` that a later life found: of writes that were never confirmed.
    torn: list[tuple[int, int]] = field(default_factory=list)

    @property
    def key(self) -> tuple[int, int]:
        """(epoch, sequence)."""
        return self.epoch, self.sequence

    @property
    def cut(self) -> bool:
        """Whether the file is shorter than it was made, and so that something in it may be gone."""
        if self.limit is not None:
            return self.size < self.limit
        return self.header is not None and self.header.cut(self.size)


Found = TypeVar("Found", bound=FoundSegment)


class Journal(Struct, Generic[Found]):
    """A journal directory as recovery sees it: its segments, each in one of the lists."""

    #: The segments to replay, in order.
    chain: list[Found] = field(default_factory=list)
    #: Prepared but never written, or written by a fenced life: not replayed.
    empty: list[Found] = field(default_factory=list)
    fenced: list[Found] = field(default_factory=list)
    #: Below the checkpoint: only bodies in them count.
    folded: list[Found] = field(default_factory=list)
    newest_epoch: int = 0


class Start(Struct):
    """The START record of a life."""

    epoch: int
    ends: dict[tuple[int, int], int]
    checkpoint: CheckpointKey | None
    tails: dict[tuple[int, int], int]
    torn: dict[tuple[int, int], list[tuple[int, int]]]


def read_starts(segments: Iterable[Found], read: Callable[[Found], Start | None]) -> list[Start]:
    """Return the START records of all lives whose first segment is still there, by epoch.

    ``read`` looks for one in a segment whose header is sound.
    """
    starts: dict[int, Start] = {}
    for segment in segments:
        if segment.epoch in starts or segment.header is None:
            continue
        start = read(segment)
        if start is not None:
            starts[segment.epoch] = start
    return [starts[epoch] for epoch in sorted(starts)]


def read_start(read: Callable[[int], bytes], epoch: int, salt: int) -> tuple[bool, Start | None]:
    """Return whether a segment begins with whole records, and the START record among the first two.

    ``read`` returns the next bytes from the segment's beginning on, as many as it is told.
    """
    head = read(_START_BYTES)
    # The first write is the START record; of most lives there is little more to see.
    if len(head) == _START_BYTES and (more := _first_write(head) - len(head)) > 0:
        head += read(min(more, 1 << 20))
    view = memoryview(head)
    position = HEADER_SIZE
    written = True
    for _ in range(2):
        length = valid_at(view, position, len(view), salt)
        if length and view[position + FRAME_SIZE] == RecordType.START:
            record = view[position : position + length]
            ends, checkpoint = records.decode_start(record)
            return True, Start(epoch, ends, checkpoint, records.decode_tails(record), records.decode_torn(record))
        written = written and length > 0
        position += length or FRAME_SIZE
    return written, None


def _first_write(head: bytes) -> int:
    """Where a segment's first write ends, as its BATCH record says; 0 when it does not begin with one."""
    if head[HEADER_SIZE + FRAME_SIZE] != RecordType.BATCH:
        return 0
    batch = FRAME_SIZE + records.BATCH.size
    size: int = records.BATCH.unpack_from(head, HEADER_SIZE + FRAME_SIZE)[2]
    return HEADER_SIZE + batch + size


def arrange(
    segments: list[Found],
    starts: list[Start],
    folded: tuple[int, int],
    ends: Mapping[tuple[int, int], int] | None,
    is_empty: Callable[[Found], bool],
) -> Journal[Found]:
    """Decide which segments count and up to where.

    ``folded``: (epoch, sequence) of the last segment the checkpoint holds. ``ends``: limits given by the
    activation besides those recorded in START records. ``is_empty`` looks whether nothing is behind a segment's header.
    """
    journal: Journal[Found] = Journal()
    limits: dict[tuple[int, int], int] = dict(ends or {})
    for start in starts:
        for key, end in start.ends.items():
            limits[key] = min(end, limits.get(key, end))
    recorded: dict[tuple[int, int], int] = {}
    for start in starts:
        for key, end in start.ends.items():
            recorded[key] = max(start.tails.get(key, end), recorded.get(key, end))
    last_start = starts[-1].epoch if starts else 0
    known = _known_before(starts, folded)
    for segment in segments:
        segment.recorded = segment.key in recorded
        segment.torn = [hole for start in starts for hole in start.torn.get(segment.key, ())]
        segment.tail = recorded.get(segment.key, 0)
        if not segment.unfinished:
            journal.newest_epoch = max(journal.newest_epoch, segment.epoch)
        if segment.key <= folded:
            journal.folded.append(segment)
        elif segment.unfinished:
            journal.empty.append(segment)
        elif segment.epoch < last_start and segment.key not in limits and not known(segment):
            # A later life began without knowing this file: whatever is in it came too late.
            (journal.empty if is_empty(segment) else journal.fenced).append(segment)
        elif limits.get(segment.key, HEADER_SIZE + 1) <= HEADER_SIZE or _unused(segment, segments, is_empty):
            segment.limit = limits.get(segment.key)
            (journal.empty if is_empty(segment) else journal.fenced).append(segment)
        else:
            segment.limit = limits.get(segment.key)
            journal.chain.append(segment)
    return journal


def _known_before(starts: list[Start], folded: tuple[int, int]) -> Callable[[FoundSegment], bool]:
    """Whether a segment of an earlier life that no START lists is one that was missing, not one that was made late.

    A life makes its segments in order, so one before a listed one was there before it. And those that a checkpoint held
    are listed nowhere: they are all there is when that cannot be used.
    """
    last: dict[int, int] = {}
    for epoch, sequence in (key for start in starts for key in start.ends):
        last[epoch] = max(sequence, last.get(epoch, 0))
    held = starts[-1].checkpoint if starts else None
    lost = held[1:] if held is not None and folded < held[1:] else (0, 0)
    return lambda segment: segment.sequence < last.get(segment.epoch, 0) or segment.key <= lost


def _unused(segment: Found, segments: list[Found], is_empty: Callable[[Found], bool]) -> bool:
    """Whether the segment and every later one of the same life is empty: they were prepared ahead."""
    return is_empty(segment) and all(
        other.unfinished or is_empty(other)
        for other in segments
        if other.epoch == segment.epoch and other.sequence > segment.sequence
    )


def last_of_lives(chain: Sequence[FoundSegment]) -> set[tuple[int, int]]:
    """Return the keys of the segments in which a life's writing ended."""
    return set({segment.epoch: segment.key for segment in chain}.values())


def missing_sequences(chain: Sequence[FoundSegment], starts: list[Start], after: int, reach: int = 0) -> list[int]:
    """Return the sequence numbers behind ``after`` (the last folded one) that recovery needs and no segment has.

    ``reach``: the last one that is known to have been there by what other files say of it.
    """
    present = {segment.sequence for segment in chain}
    # One that ended at its header held no record: the first write to it was torn, and the file may be gone since.
    present.update(sequence for start in starts for (_, sequence), end in start.ends.items() if end <= HEADER_SIZE)
    highest = max((segment.sequence for segment in chain), default=after)
    return [sequence for sequence in range(after + 1, max(highest, reach) + 1) if sequence not in present]


def eligible_checkpoints(names: Iterable[str], starts: Sequence[Start]) -> list[tuple[CheckpointKey, str]]:
    """Return (key, name) of the checkpoints among a directory's files that count, the newest first.

    A checkpoint counts when the newest life wrote it, or when that life's START record says it began with it:
    one that a fenced predecessor finished later may hold records nobody was promised.
    """
    newest = starts[-1] if starts else None
    found = [(key, name) for name in names if (key := checkpoint_key(name)) is not None]
    return [
        (key, name)
        for key, name in sorted(found, reverse=True)
        if newest is None or key[0] >= newest.epoch or key == newest.checkpoint
    ]
