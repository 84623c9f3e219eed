"""Judges the lives and segments that two journals of one node tell of: plain code, for these are few.

A life is told by its epoch *and* the salt of its segments: two brokers that start from copies of one directory take the
same epoch. What compaction has taken away a checkpoint's history tells, and where that is of a version before, the
START records of later lives.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.sql import functions as f

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import Column, Row

SIDES = ("a", "b")
_OTHER = {"a": "b", "b": "a"}


@dataclass(slots=True)
class Told:
    """Hold what one side's files tell of lives and segments."""

    nodes: set[str] = field(default_factory=set)
    #: Lives of which anything is left.
    epochs: set[int] = field(default_factory=set)
    #: Of the lives that segments and bindings tell of.
    salts: dict[int, int] = field(default_factory=dict)
    segments: dict[int, set[int]] = field(default_factory=dict)
    #: What the START record of each life says.
    starts: dict[int, Row | None] = field(default_factory=dict)
    #: What the newest sound checkpoint ends with, and what of that nothing was noted of (by a version before).
    folded: tuple[int, int] | None = None
    unknown: tuple[int, int] | None = None
    #: The lives that the checkpoint folded.
    lives: dict[int, Row] = field(default_factory=dict)
    #: The segment and byte where the records of each life end.
    last: dict[int, tuple[int, int]] = field(default_factory=dict)

    def reached(self, epoch: int) -> tuple[int, int] | None:
        """Segment and byte up to which this side had a life; None: nothing tells."""
        told = self.lives.get(epoch)
        ends = [(told.ended, told.end)] if told is not None else []
        return max([*ends, *([self.last[epoch]] if epoch in self.last else [])], default=None)


@dataclass(frozen=True, slots=True)
class Lives:
    """Which lives are shared and which are a side's alone.

    Sides part once: what comes before a shared life is shared, what comes behind one that is not is not. Where no salt
    is left (a stopped broker compacts its journal), a life is shared when both sides are at least that old.
    """

    #: Epochs whose salts are known on both sides: the newest of one salt, all of two.
    last_shared: int | None
    parted: frozenset[int]
    #: Of the side that is older.
    newest: int | None

    @classmethod
    def of(cls, told: Mapping[str, Told]) -> Lives:
        """Return what the two sides tell."""
        a, b = (told[side] for side in SIDES)
        both = a.salts.keys() & b.salts.keys()
        same = {epoch for epoch in both if a.salts[epoch] == b.salts[epoch]}
        newest = [max(side.epochs) for side in (a, b) if side.epochs]
        return cls(max(same, default=None), frozenset(both - same), min(newest, default=None))

    def shared(self, epoch: int) -> bool:
        """Whether both sides had the life of this epoch."""
        if epoch in self.parted:
            return False
        if self.last_shared is not None and epoch <= self.last_shared:
            return True
        if self.parted and epoch >= min(self.parted):
            return False
        return self.newest is not None and epoch <= self.newest

    def life(self, epoch: Column) -> Column:
        """The same of a column: shared or alone."""
        shared, alone = f.lit("shared"), f.lit("alone")
        # What has parted is `alone` by the first one's epoch, but for lives that one which is shared comes behind.
        odd = [one for one in self.parted if self.last_shared is not None and one < self.last_shared]
        found = f.when(epoch.isin(odd), alone)
        if self.last_shared is not None:
            found = found.when(epoch <= self.last_shared, shared)
        if self.parted:
            found = found.when(epoch >= min(self.parted), alone)
        if self.newest is not None:
            found = found.when(epoch <= self.newest, shared)
        return found.otherwise(alone)


@dataclass(frozen=True, slots=True)
class Seen:
    """Hold what the other side knows of a segment.

    `how` is `has` (it has the segment too), `passed` (it had all of it before compaction took it away), `until` (its
    next life began with the segment's first `until` bytes), `never`, or `unknown`: nothing over there tells any more.
    Holds for segments of shared lives; those of a life of its own the other side never saw.
    """

    epoch: int
    segment: int
    how: str
    until: int | None = None


@dataclass(frozen=True, slots=True)
class Known:
    """Hold what is judged here, not by Spark: few rows, of each side."""

    told: dict[str, Told]
    lives: Lives
    #: What the other side knows of each segment.
    seen: dict[str, list[Seen]]

    @classmethod
    def of(cls, told: dict[str, Told]) -> Known:
        """Return what follows from what the two sides tell."""
        return cls(told, Lives.of(told), {side: _seen(told[side], told[_OTHER[side]]) for side in SIDES})

    def passed(self, side: str) -> bool:
        """Whether the other side has had all that this one's newest checkpoint holds."""
        return _checkpoint_seen(self.told[side], self.told[_OTHER[side]]) == "passed"

    def has_more(self, side: str) -> bool:
        """Whether this side's checkpoint holds what the other is not known to have had, in a life that both had."""
        mine, other = self.told[side].folded, self.told[_OTHER[side]].folded
        if mine is None or self.passed(side):
            return False
        there_too = other is not None and other >= mine and mine[0] not in self.told[side].lives
        return not there_too and self.lives.shared(mine[0])

    def had(self, side: str) -> set[int]:
        """Epochs of shared lives that the other side has had as far as this side has."""
        mine, other = self.told[side], self.told[_OTHER[side]]
        ends = {epoch: (mine.reached(epoch), other.reached(epoch)) for epoch in mine.salts if self.lives.shared(epoch)}
        return {epoch for epoch, (one, there) in ends.items() if one is not None and there is not None and there >= one}

    @property
    def compacted(self) -> str:
        """Behind what the history begins without which it cannot be told what one of the sides has had."""
        for side in SIDES:
            mine, other = self.told[_OTHER[side]], self.told[side]
            asked = any(one.how == "unknown" for one in self.seen[_OTHER[side]]) or (
                other.unknown is not None
                and any(epoch not in other.salts and self.lives.shared(epoch) for epoch in mine.epochs)
            )
            if asked and other.folded is not None:
                return f"epoch {other.folded[0]}, segment {other.folded[1] + 1} of side {side}"
        return ""


def _seen(mine: Told, other: Told) -> list[Seen]:
    """Return what the other side knows of each segment of this one."""
    return [
        _seen_of(epoch, segment, other, _following(epoch, other))
        for epoch in sorted(mine.segments)
        for segment in sorted(mine.segments[epoch])
    ]


def _following(epoch: int, other: Told) -> Row | None:
    """Return what the other side's next life behind this one began with."""
    later = [start for start in other.starts if start > epoch]
    return other.starts[min(later)] if later else None


def _seen_of(epoch: int, segment: int, other: Told, began: Row | None) -> Seen:
    key = (epoch, segment)
    theirs = other.segments.get(epoch, set())
    if segment in theirs:
        return Seen(*key, "has")
    life = other.lives.get(epoch)
    if life is not None and segment <= life.ended:
        # It folded that segment, all of it but where its life, or its copy of it, ended there.
        return Seen(*key, "passed") if segment < life.ended else Seen(*key, "until", life.end)
    until = _until(epoch, segment, began)
    if until is not None:
        # Also of a segment that is folded and deleted: the checkpoint does not tell at which byte it ended.
        return Seen(*key, "until", until)
    if other.folded is not None and other.folded[0] == epoch and other.folded >= key:
        return Seen(*key, "passed")
    if theirs and max(theirs) > segment:
        return Seen(*key, "passed")
    if life is not None:
        return Seen(*key, "never")
    if began is not None:
        return _seen_by_start(epoch, segment, began)
    return Seen(*key, "unknown" if other.folded is not None and other.folded > key else "never")


def _until(epoch: int, segment: int, began: Row | None) -> int | None:
    """Where the segment ended when the next life began with it; None when it does not say so."""
    ends = began.ends or () if began is not None else ()
    return next((end[2] for end in ends if end[:2] == [epoch, segment]), None)


def _seen_by_start(epoch: int, segment: int, began: Row) -> Seen:
    """Return what the START record of the next life says of a segment that it did not begin with."""
    if began.checkpoint is None:
        return Seen(epoch, segment, "never")
    origin = tuple(began.checkpoint[1:3])
    if origin[0] > epoch:
        return Seen(epoch, segment, "unknown")
    return Seen(epoch, segment, "passed" if origin >= (epoch, segment) else "never")


def _checkpoint_seen(mine: Told, other: Told) -> str | None:
    """Find what the other side knows of the newest checkpoint's last segment; None: there is no checkpoint.

    Only who has `passed` it has had all that the checkpoint holds. One of a version before does not tell at which byte
    its last segment ended.
    """
    if mine.folded is None:
        return None
    epoch, segment = mine.folded
    life, reached = mine.lives.get(epoch), other.reached(epoch)
    if life is not None and reached is not None:
        return "passed" if reached >= (life.ended, life.end) else "never"
    if max(other.segments.get(epoch, ()), default=segment) > segment:
        return "passed"
    return _seen_of(epoch, segment, other, _following(epoch, other)).how
