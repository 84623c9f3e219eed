"""The policy of a replicated member that does not serve: whether it follows a live or wants to serve. Pure.

``decide(snapshot)`` says which, and why; :mod:`pollux.ha.replication.member` observes and carries out. What the numbers
mean is in :mod:`pollux.cluster.sequence`, when a live hands over in :mod:`pollux.ha.replication.handover`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pollux.cluster.sequence import Action, judge

if TYPE_CHECKING:
    from pollux.ha.copies.local import LocalState


class Intent(Enum):
    """The intent of a waiting member."""

    #: Find a live and copy from it.
    FOLLOW = "follow"
    #: Try to get the lock.
    SERVE = "serve"
    REFUSE = "refuse"


class Snapshot(NamedTuple):
    """The numbers as a member knows them. ``coordinated`` None: no answer. ``equal``: not told to be a backup."""

    local: LocalState | None
    coordinated: int | None
    equal: bool


class Decision(NamedTuple):
    """An intent and its reason, for the log and for ``pollux status``."""

    intent: Intent
    reason: str


def decide(snapshot: Snapshot) -> Decision:
    """Return what a member that does not serve should want, and why."""
    mine = snapshot.local
    if snapshot.coordinated is None:
        return Decision(Intent.FOLLOW, "the coordination service does not answer")
    if mine is not None and not mine.complete:
        return Decision(Intent.FOLLOW, "our copy is not complete")
    if mine is None and not snapshot.equal:
        return Decision(Intent.FOLLOW, "a backup without data waits for a live")
    verdict = judge(mine.sequence if mine is not None else 0, snapshot.coordinated)
    if verdict.action is Action.REFUSE:
        return Decision(Intent.REFUSE, verdict.reason)
    if verdict.action is Action.WAIT:
        return Decision(Intent.FOLLOW, verdict.reason)
    return Decision(Intent.SERVE, verdict.reason)
