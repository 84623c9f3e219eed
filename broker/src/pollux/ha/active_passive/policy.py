"""Decides the next step of a member of an active-passive cluster: ``decide(snapshot, now)``. Pure.

When it is promoted is the resource manager's business and judged in :mod:`pollux.ha.active_passive.promotion`; here is
what follows from time and from what is heard. Seconds, of a clock that never goes back.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from pollux.ha.active_passive.grant import Word
from pollux.ha.active_passive.statuses import Status

if TYPE_CHECKING:
    from collections.abc import Mapping


class Action(Enum):
    """Name what a member does."""

    #: Go on.
    NOTHING = "nothing"
    #: Take the status that the decision has.
    BECOME = "become"
    #: Wait no longer for some of the expected backups.
    GIVE_UP = "give up"
    #: Serve: nobody else does any more, and the resource manager still wants it.
    OPEN = "open"
    #: Confirm nothing any more, and end: the right to serve is lost, or nobody wants it to be used.
    FENCE = "fence"


class StandbySnapshot(NamedTuple):
    """A member that waits. ``follows``: a primary copies to it. ``complete``: it has the primary's mark.

    ``ready``: its lease of ready holds.
    """

    status: Status
    follows: bool
    complete: bool
    ready: bool


#: The resource manager need not say again that it serves.
FOR_EVER = Word(None, None)


class PromotedSnapshot(NamedTuple):
    """A member that is promoted, while another one may still serve by an older grant: until ``at``."""

    at: float
    patience: float
    word: Word


class PrimarySnapshot(NamedTuple):
    """A primary. ``expected``: backups that are waited for, and when each was last seen to come nearer."""

    status: Status
    expected: Mapping[str, float]
    patience: float
    word: Word = FOR_EVER


class Decision(NamedTuple):
    """An action and its reason. ``status`` is what it becomes, ``members`` whom it gives up."""

    action: Action
    reason: str = ""
    status: Status | None = None
    members: frozenset[str] = frozenset()


_NOTHING = Decision(Action.NOTHING)


def decide(snapshot: StandbySnapshot | PromotedSnapshot | PrimarySnapshot, now: float) -> Decision:
    """Return what the member does now."""
    if isinstance(snapshot, StandbySnapshot):
        return _waits(snapshot)
    return _opens(snapshot, now) if isinstance(snapshot, PromotedSnapshot) else _serves(snapshot, now)


def _waits(member: StandbySnapshot) -> Decision:
    if member.status is Status.JOINING and member.follows:
        return Decision(Action.BECOME, "a primary copies to this broker", Status.CATCHUP)
    if member.status is Status.CATCHUP and member.follows and member.complete and member.ready:
        return Decision(Action.BECOME, "its copy is complete, by the primary's word", Status.READY)
    if member.status is Status.READY and not (member.complete and member.ready):
        why = "its copy is made anew" if not member.complete else "no primary has said for too long that it counts"
        return Decision(Action.BECOME, why, Status.CATCHUP)
    if member.status is Status.CATCHUP and not member.follows and not member.ready:
        return Decision(Action.BECOME, "there is no primary that it could follow", Status.JOINING)
    return _NOTHING


#: Why a primary ends whose grant is over.
UNWANTED = "the resource manager has not said for too long that this broker serves"

#: Why one ends that stops while its backups are missing.
UNCONFIRMED = "it was told to stop while too few backups had copies: what was not confirmed never will be"

_UNWANTED = Decision(Action.FENCE, UNWANTED)


def _opens(member: PromotedSnapshot, now: float) -> Decision:
    if now < member.at:
        return _NOTHING
    if member.word.until is None or now < member.word.until:
        return Decision(Action.OPEN, "nobody else serves any more")
    return _UNWANTED if now >= member.at + member.patience else _NOTHING


def _serves(member: PrimarySnapshot, now: float) -> Decision:
    at, until = member.word
    if until is not None and now >= until:
        return _UNWANTED
    if member.status is Status.ACTIVE:
        return _NOTHING
    if not member.expected:
        return Decision(Action.BECOME, "every backup that was ready has everything, or is given up", Status.ACTIVE)
    # By progress, not by connection: one that is connected and comes no nearer is waited for no longer than one that
    # is not there. Nor without the resource manager's word that it was not promoted while it could be.
    since = now if at is None else min(now, at)
    late = frozenset(name for name, seen in member.expected.items() if since >= seen + member.patience)
    if late:
        names = ", ".join(sorted(late))
        return Decision(Action.GIVE_UP, f"{names} came no nearer for {member.patience:g} s", members=late)
    return _NOTHING
