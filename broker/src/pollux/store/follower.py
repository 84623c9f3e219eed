"""Reads a journal along while another broker writes it, so that taking over replays only the tail.

Read-only, one thread at a time. What is folded is exactly what recovery would fold (the same functions do it), and only
writes that are certainly complete: one is when the next one has begun. A follower that meets anything unusual (damage,
another life) starts anew, and one that cannot tell says so: recovery then reads everything, as without it.

A look costs the same however large the store is: while no file comes or goes, it is at the directory's names, the end
of the segment that is being written and the beginning of the one after it. On NFS each file that is opened is half a
dozen questions to the server, whom the live needs; and a checkpoint is as large as all that waits in queues.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct, field

from pollux.errors import StoreError
from pollux.formats import lives
from pollux.formats.names import CheckpointKey, is_journal_file
from pollux.formats.records import BATCH, RecordType
from pollux.formats.segments import FRAME_SIZE, FormatError, valid_at
from pollux.store import inventory, recovery
from pollux.store.checkpoint import load_checkpoint, read_checkpoint
from pollux.store.files import DISK, FileReader
from pollux.store.known_pages import KnownPages
from pollux.store.recovered import NORMAL_DAMAGE
from pollux.store.segments import segment_name
from pollux.store.state import Replay, State

if TYPE_CHECKING:
    from pathlib import Path

    from pollux.formats.checkpoint import Checkpoint
    from pollux.formats.lives import Journal, Start
    from pollux.store.port import Files
    from pollux.store.recovered import Damage
    from pollux.store.recovery import SegmentFile

logger = logging.getLogger(__name__)

_BATCH_SIZE = FRAME_SIZE + BATCH.size
#: Bytes that are read for the heads of writes, which are often small: in a store in a database each read is a question,
#: and who asks two for each write is no faster than who writes, and never done.
_AHEAD = 16 << 10

Key = tuple[int, int]


class Progress(Struct):
    """The state that a follower has folded so far: whole segments, and the beginning of the one after them."""

    state: State
    checkpoint: Checkpoint | None
    #: (key, salt) of the segments, in order; the last may be unfinished.
    segments: list[tuple[Key, int]] = field(default_factory=list)
    replays: list[Replay] = field(default_factory=list)
    damage: list[Damage] = field(default_factory=list)
    #: How many of ``segments`` are finished.
    finished: int = 0
    #: The segments' keys at the last look: what was finished was so among these.
    chain: list[Key] = field(default_factory=list)


class Look(Struct):
    """The findings of a whole look, as far as the next ones need them."""

    #: Of segments and checkpoints.
    names: frozenset[str]
    #: The segment that is being written, and its number in the chain.
    last: SegmentFile
    number: int
    #: The ones that writing would go on in: the first empty one of each life from that of `last` on.
    following: list[SegmentFile]
    #: All that were empty.
    empty: list[SegmentFile]


class Follower:
    """Follows one journal directory. ``poll`` from a background thread; ``take`` ends it."""

    def __init__(
        self,
        directory: Path,
        id_cache_size: int,
        paging: Path | None = None,
        files: Files = DISK,
        *,
        in_order: bool = False,
    ) -> None:
        """``paging``: the pages' directory, when they are to be known at a takeover.

        ``in_order``: what is read here is written in the order of the writes, as a copy of one's own is. A segment that
        was empty is empty then if nothing is at its beginning, so a takeover need not read megabytes of zeros.
        """
        self._directory = directory
        self._files = files
        #: What was read of pages that nobody writes to.
        self.pages = KnownPages(paging, files)
        self._id_cache_size = id_cache_size
        self._progress: Progress | None = None
        self._look: Look | None = None
        #: For what is read of segments; as large as one.
        self.buffer = bytearray()
        #: (name, inode) of segments that were empty to their ends when they came.
        self._empty: set[tuple[str, int]] = set()
        self._in_order = in_order
        #: Of all segments at the last whole look.
        self.headers: recovery.Headers = {}
        #: Of the first segments of lives, and that the others have none.
        self.starts: recovery.KnownStarts = {}
        #: Of the other files that hold messages of the checkpoint.
        self.bodies: recovery.Headers = {}
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
            self._look = None
            return False

    @property
    def follows(self) -> bool:
        """Whether the last look succeeded: what was read before one that failed is forgotten."""
        return self._progress is not None

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The checkpoint that begins what was folded; it was read and is sound."""
        return self._progress.checkpoint if self._progress is not None else None

    def know(self, segments: list[SegmentFile]) -> None:
        """Say of those in which something was read that they are not empty: nobody has to open them to see it.

        Nor those that were empty, if nothing is where a first write begins.
        """
        if self._progress is None:
            return
        for segment in segments:
            if (segment.path.name, segment.inode) in self._empty and recovery.is_empty(segment, quick=True):
                segment.empty = True
        followed = zip(self._progress.segments, self._progress.replays, strict=True)
        read = {key for (key, _), replay in followed if replay.records}
        for segment in segments:
            if segment.key in read:
                segment.empty = False

    def stop(self) -> None:
        """Let ``poll`` return soon, with what it has: recovery goes on from there. From any thread."""
        self._stopping = True

    def _poll(self) -> bool:
        names = frozenset(one.name for one in self._files.entries(self._directory) if is_journal_file(one.name))
        look, progress = self._look, self._progress
        before = self.records
        if (
            look is not None
            and progress is not None
            and look.names == names
            and all(recovery.is_empty(one, quick=True) for one in look.following)
        ):
            self._read_last(progress, look.last, look.number)
        else:
            self._look = None
            self._read(names)
        if self._progress is not None:
            self._progress.state.settle()
            self.pages.look(self._progress.state, lambda: self._stopping)
        if self._in_order and self._look is not None:
            self._note_empty(self._look.empty)
        return self.records != before

    def _note_empty(self, segments: list[SegmentFile]) -> None:
        """Read those that came since to their ends."""
        there = {(one.path.name, one.inode): one for one in segments}
        self._empty &= there.keys()
        for key in there.keys() - self._empty:
            if self._stopping:
                return
            if recovery.is_empty(there[key]):
                self._empty.add(key)

    def _read(self, names: frozenset[str]) -> None:
        """Look at all files."""
        segments = recovery.read_segments(self._directory, None, self.headers, self._files)
        self.headers = recovery.headers_of(segments)
        self.know(segments)
        starts = recovery.read_starts(segments, self.starts)
        there = (entry.name for entry in self._files.entries(self._directory))
        checkpoint = next(iter(lives.eligible_checkpoints(there, starts)), None)
        key = checkpoint[0] if checkpoint is not None else None
        journal = self._arrange(segments, starts, key)
        chain = journal.chain
        progress = self._progress
        base = progress.checkpoint if progress is not None else None
        if checkpoint is not None and (base is None or base.key != key):
            base = read_checkpoint(self._directory / checkpoint[1], None, self._files)
            self.bodies = inventory.body_headers(self._directory, base, self.headers | self.bodies, self._files)
        if progress is None or not (_begins_with(progress, base) and self._continues(progress, chain)):
            progress = Progress(State(self._id_cache_size), base)
            if base is not None:
                load_checkpoint(base, progress.state, bodies=False)
            self._progress = progress
        progress.chain = [segment.key for segment in chain]
        finals = lives.last_of_lives(chain)
        for number in range(progress.finished, len(chain)):
            if self._stopping:
                break
            segment = chain[number]
            if number == len(progress.segments):
                progress.segments.append((segment.key, _salt(segment)))
                progress.replays.append(Replay())
            if number == len(chain) - 1:
                # The newest life's last segment is being written; all others are complete.
                self._read_last(progress, segment, number)
                following: dict[int, SegmentFile] = {}
                for empty in journal.empty:
                    if empty.key > segment.key:
                        following.setdefault(empty.epoch, empty)
                self._look = Look(names, segment, number, list(following.values()), journal.empty)
                break
            self._fold(progress, segment, number, segment.size)
            segment.replay = progress.replays[number]
            progress.damage += recovery.settle_segment(
                progress.state, self._directory, segment, final=segment.key in finals, keep=False
            )
            progress.finished = number + 1
        # What a fenced life added behind its end is not read: no reason to read everything again at a takeover.
        if unusual := [one for one in progress.damage if one.kind not in NORMAL_DAMAGE]:
            raise StoreError(str(unusual[0]))

    def _read_last(self, progress: Progress, segment: SegmentFile, number: int) -> None:
        """Fold what is complete of the segment that is being written."""
        upto = self._complete(segment, progress.replays[number].end)
        segment.size = max(segment.size, upto)
        self._fold(progress, segment, number, upto)

    def _fold(self, progress: Progress, segment: SegmentFile, number: int, upto: int) -> None:
        replay = progress.replays[number]
        if upto > replay.end:
            self.records -= replay.records
            state = progress.state
            file = state.forgotten + number
            recovery.replay_segment(state, segment, file, self.buffer, resume=replay, upto=upto)
            self.records += replay.records

    def _arrange(
        self, segments: list[SegmentFile], starts: list[Start], checkpoint: CheckpointKey | None
    ) -> Journal[SegmentFile]:
        folded = checkpoint[1:] if checkpoint is not None else (0, 0)
        journal = lives.arrange(segments, starts, folded, None, partial(recovery.is_empty, quick=True))
        if journal.fenced or recovery.holed_lives(journal.chain):
            raise StoreError("the journal holds files that recovery must judge")
        return journal

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
        position = begin = start
        ahead = b""
        with FileReader(segment.path, segment.files) as stream:

            def head_at(offset: int) -> bytes:
                nonlocal ahead, begin
                if offset + _BATCH_SIZE > begin + len(ahead):
                    stream.seek(offset)
                    ahead, begin = stream.read(_AHEAD), offset
                return ahead[offset - begin : offset - begin + _BATCH_SIZE]

            while True:
                head = head_at(position)
                length = valid_at(memoryview(head), 0, len(head), salt) if len(head) == _BATCH_SIZE else 0
                if length != _BATCH_SIZE or head[FRAME_SIZE] != RecordType.BATCH:
                    break
                following = position + _BATCH_SIZE + BATCH.unpack_from(head, FRAME_SIZE)[2]
                after = head_at(following)
                if len(after) < _BATCH_SIZE or valid_at(memoryview(after), 0, len(after), salt) != _BATCH_SIZE:
                    break
                position = following
        return position

    def take(self, checkpoint: Checkpoint | None, chain: list[SegmentFile]) -> Progress | None:
        """Return what recovery may go on from, None when it has to read everything. The follower is done after this."""
        progress, self._progress = self._progress, None
        if progress is None or not _begins_with(progress, checkpoint):
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


def _begins_with(progress: Progress, checkpoint: Checkpoint | None) -> bool:
    """Whether what was folded is what there is behind this checkpoint, or was made to be that.

    A live at full load writes a checkpoint every few seconds. What it holds was folded here before, segment by segment:
    only where messages are found changes with it.
    """
    before = progress.checkpoint.key if progress.checkpoint is not None else None
    if checkpoint is None or checkpoint.key == before:
        return before == (checkpoint.key if checkpoint is not None else None)
    whole = [key for key, _ in progress.segments[: progress.finished]]
    if checkpoint.key[1:] not in whole:
        return False
    count = whole.index(checkpoint.key[1:]) + 1
    progress.state.forget_files(count)
    progress.state.forget_stores({store for store, done in checkpoint.state["pages_done"] if 0 in done})
    del progress.segments[:count], progress.replays[:count], progress.chain[:count]
    progress.finished -= count
    kept = {segment_name(*key) for key, _ in progress.segments}
    progress.damage = [one for one in progress.damage if one.file.name in kept]
    progress.checkpoint = checkpoint
    return True


def _salt(segment: SegmentFile) -> int:
    if segment.header is None:
        raise StoreError(f"{segment.path}: both copies of the header are damaged")
    return segment.header.salt
