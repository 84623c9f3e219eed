"""Reads a journal along while another broker writes it, so that taking over replays only the tail.

Read-only, one thread at a time. What is folded is exactly what recovery would fold (the same functions do it), and only
writes that are certainly complete: one is when the next one has begun. A follower that meets anything unusual (damage,
another life) starts anew, and one that cannot tell says so: recovery then reads everything, as without it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pollux.errors import StoreError
from pollux.store import recovery
from pollux.store.format import FRAME_SIZE, FormatError, valid_at
from pollux.store.records import BATCH, RecordType
from pollux.store.state import Replay, State

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.store.checkpoint import Checkpoint
    from pollux.store.recovered import Damage
    from pollux.store.recovery import SegmentFile

logger = logging.getLogger(__name__)

_BATCH_SIZE = FRAME_SIZE + BATCH.size

Key = tuple[int, int]


@dataclass(slots=True)
class Progress:
    """What a follower has folded so far: whole segments, and the beginning of the one after them."""

    state: State
    checkpoint: tuple[int, int, int] | None
    #: (key, salt) of the segments, in order; the last may be unfinished.
    segments: list[tuple[Key, int]] = field(default_factory=list)
    replays: list[Replay] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    #: How many of ``segments`` are finished.
    finished: int = 0
    #: The segments' keys at the last look: what was finished was so among these.
    chain: list[Key] = field(default_factory=list)


class Follower:
    """Follows one journal directory. ``poll`` from a background thread; ``take`` ends it."""

    def __init__(self, directory: Path, id_cache_size: int) -> None:
        self._directory = directory
        self._id_cache_size = id_cache_size
        self._progress: Progress | None = None
        self._buffer = bytearray()
        #: Records folded so far.
        self.records = 0
        self._stopping = False

    def poll(self) -> bool:
        """Fold what was written since the last call; True when there was something. Never raises for odd files."""
        try:
            return self._poll()
        except (StoreError, FormatError, OSError) as error:
            # The live deletes files as it goes; the next look sees the newer checkpoint.
            logger.debug("the journal cannot be followed now: %s", error)
            self._progress = None
            return False

    def stop(self) -> None:
        """Let ``poll`` return soon, with what it has: recovery goes on from there. From any thread."""
        self._stopping = True

    def _poll(self) -> bool:
        segments = recovery.read_segments(self._directory, None)
        starts = recovery.read_starts(segments)
        checkpoint, damage = recovery.choose_checkpoint(self._directory, starts, None)
        if damage:
            raise StoreError(str(damage[0]))
        chain = self._chain(segments, starts, checkpoint)
        key = checkpoint.key if checkpoint is not None else None
        progress = self._progress
        if progress is None or progress.checkpoint != key or not self._continues(progress, chain):
            progress = Progress(State(self._id_cache_size), key)
            if checkpoint is not None:
                checkpoint.load_into(progress.state, bodies=False)
            self._progress = progress
        before = self.records
        progress.chain = [segment.key for segment in chain]
        finals = recovery.last_of_lives(chain)
        for number in range(progress.finished, len(chain)):
            if self._stopping:
                break
            segment = chain[number]
            last = number == len(chain) - 1
            if number == len(progress.segments):
                progress.segments.append((segment.key, _salt(segment)))
                progress.replays.append(Replay())
            replay = progress.replays[number]
            # The newest life's last segment is being written; all others are complete.
            upto = self._complete(segment, replay.end) if last else segment.size
            if upto > replay.end:
                self.records -= replay.records
                recovery.replay_segment(progress.state, segment, number, self._buffer, resume=replay, upto=upto)
                self.records += replay.records
            if last:
                break
            segment.replay = replay
            progress.damage += recovery.settle_segment(
                progress.state, self._directory, segment, final=segment.key in finals, keep=False
            )
            progress.finished = number + 1
        if any(one.kind != "torn-tail" for one in progress.damage):
            raise StoreError(str(progress.damage[0]))
        return self.records != before

    def _chain(
        self, segments: list[SegmentFile], starts: list[recovery.Start], checkpoint: Checkpoint | None
    ) -> list[SegmentFile]:
        folded = checkpoint.key[1:] if checkpoint is not None else (0, 0)
        journal = recovery.arrange(segments, starts, folded, None, quick=True)
        if journal.fenced or any(segment.header is None for segment in journal.chain):
            raise StoreError("the journal holds files that recovery must judge")
        return journal.chain

    @staticmethod
    def _continues(progress: Progress, chain: list[SegmentFile]) -> bool:
        """Whether what was folded is the beginning of what is there now."""
        if len(chain) < len(progress.segments):
            return False
        known = progress.segments
        if any((segment.key, _salt(segment)) != one for segment, one in zip(chain, known, strict=False)):
            return False
        # A new life may have ended the old one's last segment elsewhere than where this follower got to.
        return not known or chain[-1].epoch == known[-1][0][0]

    @staticmethod
    def _complete(segment: SegmentFile, start: int) -> int:
        """The offset up to which the writes of a growing segment are certainly complete."""
        salt = _salt(segment)
        position = start
        with segment.path.open("rb") as stream:
            while True:
                stream.seek(position)
                head = stream.read(_BATCH_SIZE)
                length = valid_at(memoryview(head), 0, len(head), salt) if len(head) == _BATCH_SIZE else 0
                if length != _BATCH_SIZE or head[FRAME_SIZE] != RecordType.BATCH:
                    break
                following = position + _BATCH_SIZE + BATCH.unpack_from(head, FRAME_SIZE)[2]
                stream.seek(following)
                after = stream.read(_BATCH_SIZE)
                if len(after) < _BATCH_SIZE or valid_at(memoryview(after), 0, len(after), salt) != _BATCH_SIZE:
                    break
                position = following
        return position

    def take(self, checkpoint: Checkpoint | None, chain: list[SegmentFile]) -> Progress | None:
        """What recovery may go on from; None when it has to read everything. The follower is done after this."""
        progress, self._progress = self._progress, None
        if progress is None or not progress.segments:
            return None
        if progress.checkpoint != (checkpoint.key if checkpoint is not None else None):
            return None
        if len(chain) < len(progress.segments):
            return None
        for segment, known, replay in zip(chain, progress.segments, progress.replays, strict=False):
            limit = segment.limit if segment.limit is not None else segment.size
            if segment.header is None or (segment.key, segment.header.salt) != known or replay.end > limit:
                return None
        # Segments that were whole when they were folded may not have grown an end of life since.
        if progress.finished and (
            chain[-1].epoch != progress.chain[-1][0]
            or [segment.key for segment in chain[: progress.finished + 1]] != progress.chain[: progress.finished + 1]
        ):
            return None
        return progress


def _salt(segment: SegmentFile) -> int:
    if segment.header is None:
        raise StoreError(f"{segment.path}: both copies of the header are damaged")
    return segment.header.salt
