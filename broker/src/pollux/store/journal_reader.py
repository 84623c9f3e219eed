"""Reading a whole journal directory, once for all who judge one: recovery, ``pollux journal verify``, comparisons.

Changes nothing but what ``keep`` asks for. What is not there at all is told by :mod:`pollux.store.inventory`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct, field

from pollux.errors import StoreError
from pollux.formats.lives import Journal, Start, arrange, last_of_lives
from pollux.formats.names import UNFINISHED_COPY
from pollux.formats.segments import FormatError
from pollux.store import recovery
from pollux.store.checkpoint import load_checkpoint
from pollux.store.files import DISK, exists
from pollux.store.recovered import NORMAL_DAMAGE
from pollux.store.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pollux.formats.checkpoint import Checkpoint
    from pollux.store.follower import Follower
    from pollux.store.port import Files
    from pollux.store.recovered import Damage
    from pollux.store.state import Replay

#: Enough for every duplicate id a journal can hold: tools do not forget any.
ALL_DUPLICATES = 1 << 62


class Reading(Struct):
    """A journal directory read as recovery reads it."""

    directory: Path
    segments: list[recovery.SegmentFile]
    starts: list[Start]
    checkpoint: Checkpoint | None
    journal: Journal[recovery.SegmentFile]
    #: The segments that were replayed, in the order of the numbers in ``state.locations``, from ``state.forgotten`` on.
    readable: list[recovery.SegmentFile]
    state: State
    damage: list[Damage]
    #: Records replayed, without those that a follower had replayed before.
    replayed: int = 0
    #: Of files that need not be opened to know what they are.
    headers: recovery.Headers = field(default_factory=dict)
    files: Files = DISK

    @property
    def folded(self) -> tuple[int, int]:
        """(epoch, sequence) of the last segment that the checkpoint holds."""
        return self.checkpoint.key[1:] if self.checkpoint is not None else (0, 0)


def read_journal(
    directory: Path,
    node_id: bytes | None,
    *,
    id_cache_size: int = ALL_DUPLICATES,
    ends: Mapping[tuple[int, int], int] | None = None,
    keep: bool = False,
    follower: Follower | None = None,
    files: Files = DISK,
) -> Reading:
    """Read the checkpoint that counts and what came after it. Raises FormatError for another node's or version's files.

    StoreError for a half of a store. ``node_id`` None: any node's, but one's only. ``ends``: limits of the activation.
    With ``keep`` damaged bytes are copied aside. ``follower`` has read some of it before.
    """
    if exists(files, directory / UNFINISHED_COPY):
        raise StoreError(f"{directory}: the copy of a store to here was interrupted: run pollux store copy again")
    segments = recovery.read_segments(directory, node_id, follower.headers if follower is not None else None, files)
    if follower is not None:
        follower.know(segments)
    nodes = {segment.header.node_id for segment in segments if segment.header is not None}
    if len(nodes) > 1:
        raise FormatError(f"{directory}: files of {len(nodes)} different nodes: {', '.join(n.hex() for n in nodes)}")
    starts = recovery.read_starts(segments, follower.starts if follower is not None else None)
    known = follower.checkpoint if follower is not None else None
    checkpoint, damage = recovery.choose_checkpoint(directory, starts, node_id, known, files)
    folded = checkpoint.key[1:] if checkpoint is not None else (0, 0)
    journal = arrange(segments, starts, folded, ends, recovery.is_empty)
    damage += recovery.damaged_headers(journal.chain)
    readable = [segment for segment in journal.chain if segment.header is not None]
    progress = follower.take(checkpoint, readable) if follower is not None else None
    done: list[Replay] = []
    finished = 0
    if progress is not None:
        state, done, finished = progress.state, progress.replays, progress.finished
        damage += progress.damage
    else:
        state = State(id_cache_size)
        if checkpoint is not None:
            load_checkpoint(checkpoint, state, bodies=False)
    replayed = 0
    # A new one would have to grow, and a takeover waits for that.
    buffer = follower.buffer if follower is not None else bytearray()
    finals = last_of_lives(readable)
    holed = recovery.holed_lives(journal.chain)
    numbers = {segment.sequence for segment in journal.chain}
    # Those in which nothing counts are there all the same, if only with what a power cut left of a first write.
    ahead = {
        segment.key
        for segment in (*journal.empty, *journal.fenced)
        if segment.header is not None and (segment.limit is not None or segment.empty)
    }
    for number, segment in enumerate(readable):
        if number < finished:
            segment.replay = done[number]
            continue
        resume = done[number] if number < len(done) else None
        before = resume.records if resume is not None else 0
        file = state.forgotten + number
        replayed += recovery.replay_segment(state, segment, file, buffer, resume=resume).records - before
        final = segment.key in finals
        # A later life that took the number found nothing in it: behind what is missing it would have begun.
        there = (segment.epoch, state.reach) in ahead or state.reach in numbers
        if final and state.reach > segment.sequence and not there:
            holed.add(segment.epoch)
        found = recovery.settle_segment(state, directory, segment, final=final, keep=keep, holed=segment.epoch in holed)
        if any(one.kind not in NORMAL_DAMAGE for one in found):
            holed.add(segment.epoch)
        damage += found
    damage += recovery.check_batches(readable)
    damage += recovery.fenced_damage(journal.fenced)
    headers = recovery.headers_of(segments) | (follower.bodies if follower is not None else {})
    return Reading(directory, segments, starts, checkpoint, journal, readable, state, damage, replayed, headers, files)
