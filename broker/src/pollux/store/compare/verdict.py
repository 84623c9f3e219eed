"""Which of two stores of one node id is the newest. Decided by epochs and positions, never by clocks.

The meaning of "newest" is the one of the pipeline's ``compare_journals``: a side that wrote something the other has not
is newer; when both did, they diverged. A life is told by its epoch *and* the salt of its files, for two brokers that
start from copies of one directory take the same epoch. Within a shared life one process wrote, so positions order what
is known of it; what compaction has taken away is decided from what checkpoints note of lives and from START records.
Where a checkpoint of a version before has taken those away too the answer is ``unknown``, and nobody may throw either
away.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct, field

from pollux.errors import StoreError
from pollux.formats.segments import FRAME_SIZE, HEADER_SIZE
from pollux.store.compare.side import EPOCH_SHIFT, Position, read_side

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.store.compare.side import Key, Side

SAME, DIVERGED, UNKNOWN = "same", "diverged", "unknown"


class Alone(Struct):
    """The messages and records that one side has and the other has not."""

    records: int = 0
    #: Epochs of its lives that the other side does not know.
    lives: list[int] = field(default_factory=list)
    #: Where they part: its first record that the other side has not.
    first: Position | None = None
    #: In each segment that both have, from where on the records are its own.
    from_offset: dict[Key, int] = field(default_factory=dict)
    #: Its checkpoint holds segments of a shared life that the other side never saw the end of.
    folded: bool = False
    #: Messages in its queues that the other side never had.
    messages: int = 0

    def __bool__(self) -> bool:
        return bool(self.records or self.lives or self.folded or self.messages)


class QueueRow(NamedTuple):
    """One queue on both sides. ``taken_by_a``: messages that b still has in it and a does not any more."""

    queue: str
    messages_a: int
    messages_b: int
    only_a: int
    only_b: int
    taken_by_a: int
    taken_by_b: int


class Comparison(Struct):
    """``newest`` is a, b, same, diverged or unknown."""

    newest: str
    answer: str
    sides: dict[str, Side]
    alone: dict[str, Alone]
    queues: list[QueueRow]
    #: Behind what the history begins without which it cannot be told what a side has had; empty: everything can.
    compacted: str = ""


def compare(a: Path, b: Path, *, progress: Callable[[str], None] = lambda _: None) -> Comparison:
    """Compare two stopped stores. Raises StoreError when one cannot be read or they are not of one node; OSError."""
    if a.resolve() == b.resolve():
        raise StoreError(f"both are the same directory: {a}")
    sides: dict[str, Side] = {}
    for name, directory in (("a", a), ("b", b)):
        progress(f"reading {name}: {directory}")
        sides[name] = read_side(directory)
    mine, other = sides["a"], sides["b"]
    if mine.node_id != other.node_id:
        raise StoreError(
            f"the journals are of different nodes: {a} of {mine.node_id.hex()}, {b} of {other.node_id.hex()};"
            " compare the journals of one pair"
        )
    progress("comparing")
    alone = {"a": _alone(mine, other), "b": _alone(other, mine)}
    queues = _queues(mine, other, alone)
    for row in queues:
        alone["a"].messages += row.only_a
        alone["b"].messages += row.only_b
    compacted = _compacted("b", mine, other) or _compacted("a", other, mine)
    newest, answer = verdict(alone, sides, compacted)
    return Comparison(newest, answer, sides, alone, queues, compacted)


def _compacted(name: str, mine: Side, other: Side) -> str:
    """Where the history of ``other`` (called ``name``) begins, if it has lost what tells whether it has had what is
    this side's."""
    asked = any(
        passed(other, Position(*key, mine.last(key))) is None
        for key in mine.segments
        if key not in other.segments and is_shared(key[0], mine, other)
    )
    if not asked and other.history.unknown is not None:
        asked = any(epoch not in other.salts and is_shared(epoch, mine, other) for epoch in mine.epochs)
    return f"epoch {other.folded[0]}, segment {other.folded[1] + 1} of side {name}" if asked else ""


def verdict(alone: dict[str, Alone], sides: dict[str, Side], compacted: str = "") -> tuple[str, str]:
    """``newest`` and the answer in words. ``compacted``: as of :class:`Comparison`."""
    harm = "".join(
        f"; {name} is damaged in {len(side.unsound)} places: see `pollux journal verify {side.journal}`"
        for name, side in sides.items()
        if side.unsound
    )
    if compacted and not all(one.records or one.lives for one in alone.values()):
        words = (
            f"history compacted before {compacted}, by a version that kept no note of it: which side has had what the "
            "other has cannot be told. Keep both"
        )
        return UNKNOWN, words + harm
    if not alone["a"] and not alone["b"]:
        return SAME, f"both hold the same records: start either{harm}"
    if alone["a"] and alone["b"]:
        firsts = [one.first for one in alone.values() if one.first is not None]
        place = f"behind {min(firsts)}" if firsts else "by itself"
        told = "; ".join(f"{name} alone: {_told(one)}" for name, one in alone.items())
        return DIVERGED, (
            f"both were written {place} ({told}): neither may be thrown away; run `pollux-pipeline split_brain`{harm}"
        )
    newest, older = ("a", "b") if alone["a"] else ("b", "a")
    words = f"{newest} is the newest: it has everything {older} has, and more ({_told(alone[newest])}); start {newest}"
    return newest, words + harm


def _told(one: Alone) -> str:
    told = f"{one.records:,} records, {len(one.lives):,} lives, {one.messages:,} messages in queues"
    return told + (", and what its checkpoint holds" if one.folded else "")


# -- lives


def is_shared(epoch: int, mine: Side, other: Side) -> bool:
    """Whether a life of ``mine`` is the other side's too.

    Sides part once: what comes before a shared life is shared, what comes behind one that is not is not. Where no salt
    is left (a stopped broker compacts its journal), a life is shared when both sides are at least that old.
    """
    if epoch in mine.salts and epoch in other.salts:
        return mine.salts[epoch] == other.salts[epoch]
    if epoch <= _last_shared(mine, other):
        return True
    both = mine.salts.keys() & other.salts.keys()
    different = [one for one in both if mine.salts[one] != other.salts[one]]
    if different and epoch >= min(different):
        return False
    return epoch <= min(mine.newest, other.newest)


def _last_shared(mine: Side, other: Side) -> int:
    """The newest epoch of which the salts tell that it is one life; 0: none. Both had everything before it."""
    both = mine.salts.keys() & other.salts.keys()
    return max((epoch for epoch in both if mine.salts[epoch] == other.salts[epoch]), default=0)


# -- records


def _alone(mine: Side, other: Side) -> Alone:
    alone = Alone(lives=sorted(epoch for epoch in mine.epochs if not is_shared(epoch, mine, other)))
    for key in sorted(mine.segments):
        own = _own_records(key, mine, other)
        if not own:
            continue
        alone.records += len(own)
        alone.from_offset[key] = own[0]
        alone.first = alone.first or Position(*key, own[0])
    alone.folded = _folded_more(mine, other)
    return alone


def _own_records(key: Key, mine: Side, other: Side) -> list[int]:
    """The offsets of the records of a segment that the other side has not."""
    theirs = other.segments.get(key)
    header = mine.segments[key].header
    if header is None:
        return []
    if is_shared(key[0], mine, other):
        if theirs is None and passed(other, Position(*key, mine.last(key))) is not False:
            return []  # what compaction took away over there, or cannot be told: messages' ids tell
        if theirs is not None and _begins_with(other, mine, key):
            return []
    same = theirs is not None and theirs.header is not None and theirs.header.salt == header.salt
    there = set(_checksums(other, key)) if same else set()
    # Folded and deleted over there: what its life behind it began with, it has had.
    had = _end(other, key) or 0 if theirs is None and is_shared(key[0], mine, other) else 0
    return [offset for offset, checksum in _checksums(mine, key) if offset >= had and (offset, checksum) not in there]


def _begins_with(whole: Side, part: Side, key: Key) -> bool:
    """Whether the records of ``part`` in a segment are, byte for byte, the beginning of those of ``whole``."""
    end = part.last(key)
    if end > whole.last(key):
        return False
    with part.segments[key].path.open("rb") as one, whole.segments[key].path.open("rb") as other:
        one.seek(HEADER_SIZE)
        other.seek(HEADER_SIZE)
        size = end - HEADER_SIZE
        return one.read(size) == other.read(size)


def _checksums(side: Side, key: Key) -> list[tuple[int, bytes]]:
    data = side.segments[key].path.read_bytes()
    return [(offset, data[offset : offset + FRAME_SIZE]) for offset, _ in side.records(key)]


def passed(side: Side, place: Position) -> bool | None:
    """Whether a side has had all of a shared life up to ``place``; None when nothing on it tells any more."""
    key = (place.epoch, place.sequence)
    end = _end(side, key)
    if end is not None:
        return end >= place.offset
    life = side.history.lives.get(place.epoch)
    if life is not None and place.sequence < life.ended:
        return True
    if side.folded[0] == place.epoch and side.folded >= key:
        return True
    if any(epoch == place.epoch and sequence > place.sequence for epoch, sequence in side.segments):
        return True
    if life is not None:
        return False
    following = [start for start in side.starts if start.epoch > place.epoch]
    if following:
        # The next life that is known says what it began with.
        start = following[0]
        if start.checkpoint is None or start.checkpoint[1] <= place.epoch:
            return start.checkpoint is not None and start.checkpoint[1:] >= key
        return None
    return None if side.folded > key else False


def _end(side: Side, key: Key) -> int | None:
    """Where a side's own copy of a segment ended; None when that is not known. A checkpoint tells it of the last one of
    each life, and the START of the life that began behind it does, also when the segment is folded and deleted."""
    if key in side.segments:
        return side.last(key)
    life = side.history.lives.get(key[0])
    if life is not None and life.ended == key[1]:
        return life.end
    following = next((start for start in side.starts if start.epoch > key[0]), None)
    return following.ends.get(key) if following is not None else None


def _folded_more(mine: Side, other: Side) -> bool:
    """Whether my checkpoint holds something of a shared life that the other side never had: where the other side may
    have all of it, the queues tell."""
    if mine.folded == (0, 0) or not is_shared(mine.folded[0], mine, other) or other.folded >= mine.folded:
        return False
    return _had_folded(mine, other) is not True and _content(mine) != _content(other)


def _had_folded(mine: Side, other: Side) -> bool | None:
    """Whether the other side has had all that my checkpoint, of a shared life, holds; None when that cannot be told.

    One of a version before does not tell at which byte its last segment ended: the other side has had all of it if it
    went on behind it.
    """
    if any(key[0] == mine.folded[0] and key > mine.folded for key in other.segments):
        return True
    life = mine.history.lives.get(mine.folded[0])
    if life is not None and (known := passed(other, Position(*mine.folded, life.end))) is not None:
        return known
    known_place = mine.folded in other.segments or any(mine.folded in start.ends for start in other.starts)
    return None if known_place else passed(other, Position(*mine.folded, 0))


def _content(side: Side) -> tuple[object, ...]:
    queues = {queue: ids for queue, ids in side.queues.items() if ids}
    return queues, side.state.delivery_counts, {key: at for key, at in side.state.schedules.items() if at}


# -- messages


def _queues(mine: Side, other: Side, alone: dict[str, Alone]) -> list[QueueRow]:
    # Queue ids may differ between the sides for queues made after they parted; names do not.
    named: dict[str, tuple[set[int], set[int]]] = {}
    for number, side in enumerate((mine, other)):
        for queue_id, ids in side.queues.items():
            named.setdefault(side.name(queue_id), (set(), set()))[number].update(ids)
    shared = {epoch: is_shared(epoch, mine, other) for epoch in mine.epochs | other.epochs}

    def is_own(one: int) -> bool:
        epoch = one >> EPOCH_SHIFT
        return not shared.get(epoch, is_shared(epoch, mine, other))

    rows = []
    for queue, (here, there) in sorted(named.items()):
        missing_there = {one for one in here if one not in there or is_own(one)}
        missing_here = {one for one in there if one not in here or is_own(one)}
        only_a = _never_had(missing_there, is_own, mine, other, alone["a"])
        only_b = _never_had(missing_here, is_own, other, mine, alone["b"])
        row = QueueRow(
            queue,
            len(here),
            len(there),
            only_a,
            only_b,
            len(missing_here) - only_b,
            len(missing_there) - only_a,
        )
        rows.append(row)
    return rows


def _had_life(epoch: int, mine: Side, other: Side) -> bool | None:
    """Whether the other side has had a shared life as far as this side has; None when that is not so, or not known."""
    ends = []
    for side in (mine, other):
        life = side.history.lives.get(epoch)
        keys = [(key[1], side.last(key)) for key in side.segments if key[0] == epoch]
        ends.append(max([*keys, *([(life.ended, life.end)] if life is not None else [])], default=None))
    one, there = ends
    return True if one is not None and there is not None and there >= one else None


def _never_had(missing: set[int], is_own: Callable[[int], bool], mine: Side, other: Side, alone: Alone) -> int:
    """How many of the messages in a queue of ``mine`` the other side never had."""
    own = {one for one in missing if is_own(one)}
    asked = {one for one in missing - own if one not in other.trace}
    if not asked:
        return len(own)
    places = mine.positions(asked)
    newest: dict[int, int] = {}
    for one in other.trace:
        epoch = one >> EPOCH_SHIFT
        newest[epoch] = max(one, newest.get(epoch, -1))
    for life in other.history.lives.values():
        newest[life.epoch] = max(life.newest, newest.get(life.epoch, -1))
    count = len(own)
    last_shared = _last_shared(mine, other)
    for one in asked:
        place = places.get(one)
        if place is not None:
            key = (place.epoch, place.sequence)
            if key in alone.from_offset:
                count += place.offset >= alone.from_offset[key]
                continue
            known = passed(other, place) if key not in other.segments else True
        else:
            known = (_had_folded(mine, other) if mine.folded != (0, 0) else None) or None
        if not known and place is None and one not in mine.paged:
            known = _had_life(one >> EPOCH_SHIFT, mine, other)
        if known is None:
            known = one >> EPOCH_SHIFT < last_shared or one <= newest.get(one >> EPOCH_SHIFT, -1)
        count += not known
    return count
