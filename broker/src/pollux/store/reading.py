"""Reading a whole journal directory, once for all who judge one: recovery, ``pollux journal verify``, comparisons.

Changes nothing but what ``keep`` asks for. What is missing is told apart (:func:`check_complete`), because it is an
operator's decision whether a life may begin without it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from pollux.store import recovery
from pollux.store.format import FormatError
from pollux.store.state import State

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from pollux.store.checkpoint import Checkpoint
    from pollux.store.follower import Follower
    from pollux.store.recovered import Damage
    from pollux.store.state import Replay

#: The binding in which a life writes down where its journal began.
INVENTORY = ("inventory", "journal")
#: Enough for every duplicate id a journal can hold: tools do not forget any.
ALL_DUPLICATES = 1 << 62


class Reading(Struct):
    """A journal directory read as recovery reads it."""

    directory: Path
    segments: list[recovery.SegmentFile]
    starts: list[recovery.Start]
    checkpoint: Checkpoint | None
    journal: recovery.Journal
    #: The segments that were replayed, in the order of the numbers in ``state.locations``.
    readable: list[recovery.SegmentFile]
    state: State
    damage: list[Damage]
    #: Records replayed, without those that a follower had replayed before.
    replayed: int = 0

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
) -> Reading:
    """Read the checkpoint that counts and what came after it. Raises FormatError for another node's or version's files.

    ``node_id`` None: any node's, but one's only. ``ends``: limits of the activation. With ``keep`` damaged bytes are
    copied aside. ``follower`` has read some of it before.
    """
    segments = recovery.read_segments(directory, node_id, follower.headers if follower is not None else None)
    if follower is not None:
        follower.know(segments)
    nodes = {segment.header.node_id for segment in segments if segment.header is not None}
    if len(nodes) > 1:
        raise FormatError(f"{directory}: files of {len(nodes)} different nodes: {', '.join(n.hex() for n in nodes)}")
    starts = recovery.read_starts(segments)
    known = follower.checkpoint if follower is not None else None
    checkpoint, damage = recovery.choose_checkpoint(directory, starts, node_id, known)
    journal = recovery.arrange(segments, starts, checkpoint.key[1:] if checkpoint is not None else (0, 0), ends)
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
            checkpoint.load_into(state, bodies=False)
    replayed = 0
    buffer = bytearray()
    finals = recovery.last_of_lives(readable)
    for number, segment in enumerate(readable):
        if number < finished:
            segment.replay = done[number]
            continue
        resume = done[number] if number < len(done) else None
        before = resume.records if resume is not None else 0
        replayed += recovery.replay_segment(state, segment, number, buffer, resume=resume).records - before
        final = segment.key in finals
        damage += recovery.settle_segment(state, directory, segment, final=final, keep=keep)
    damage += recovery.check_batches(readable)
    damage += recovery.fenced_damage(journal.fenced)
    return Reading(directory, segments, starts, checkpoint, journal, readable, state, damage, replayed)


def check_complete(found: Reading, *, allowed: bool) -> list[Damage]:
    """What the journal says must be there and is not. Raises StoreError unless ``allowed``."""
    directory, journal, after = found.directory, found.journal, found.folded[1]
    missing = recovery.check_missing(directory, journal.chain, found.starts, after, allowed=allowed)
    missing += recovery.check_bodies(directory, found.checkpoint, allowed=allowed)
    return missing + recovery.check_reach(directory, journal, found.state.reach, after, allowed=allowed)


def check_begun(found: Reading, bindings: Mapping[tuple[str, str], bytes], *, allowed: bool) -> list[Damage]:
    """As ``check_complete``: what the bindings say of the journal's end."""
    value = bindings.get(INVENTORY)
    if value is None:
        return []  # written by a version that kept no inventory
    epoch, sequence = msgspec.msgpack.decode(value, type=tuple[int, int])
    if (found.starts and found.starts[-1].epoch > epoch) or sequence <= found.state.reach:
        return []
    return recovery.check_reach(found.directory, found.journal, sequence, found.folded[1], allowed=allowed)


def begun(epoch: int, sequence: int) -> bytes:
    """The value of the binding INVENTORY for a life whose first segment is ``sequence``."""
    return msgspec.msgpack.encode((epoch, sequence))
