"""The activation sequence: who has the newest data, decided from two numbers. Pure.

Every member keeps a **local** sequence beside its journal, the coordination service keeps the **coordinated** one. A
copy that is complete carries the live's sequence. Whoever goes on without a copy that was complete (it was lost, or the
live is new) first raises the sequence: the copy left behind is then told from the newest data by its smaller number.
Raising from L takes three steps, all with the lock held: coordinated L -> -(L+1), the *claim*; L+1 beside the journal,
synced; coordinated -(L+1) -> L+1. Dying between them leaves a claim, which the rules below settle. See
docs/replication.md.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Action(Enum):
    """The consequence of the numbers for who would like to serve."""

    #: The data is the newest: serve, after raising the sequence.
    ACTIVATE = "activate"
    #: Somebody else has newer data: wait for a live and copy from it.
    WAIT = "wait"
    #: The claim is our own, we died before its last step: finish it, then as ACTIVATE.
    REPAIR = "repair"
    #: Whoever claimed had what we have, and confirmed nothing since: take its number, then as ACTIVATE.
    TAKE_OVER = "take over"
    #: The numbers contradict each other: only an operator can tell what is right.
    REFUSE = "refuse"


class Verdict(NamedTuple):
    """The action, the sequence that both sides must have for it, and why."""

    action: Action
    sequence: int
    reason: str


def judge(local: int, coordinated: int) -> Verdict:
    """May the member with the ``local`` sequence serve? Both are 0 where nothing was ever written."""
    claim = -coordinated
    if coordinated == local:
        return Verdict(Action.ACTIVATE, local, f"our data is the newest (sequence {local})")
    if coordinated > local:
        return Verdict(Action.WAIT, local, f"newer data exists (sequence {coordinated}, ours is {local})")
    if coordinated == 0:
        return Verdict(
            Action.REFUSE,
            local,
            f"the coordination service has forgotten the sequence, ours is {local}: if this broker has the newest "
            f"data, run 'pollux activation set --remote {local}'",
        )
    if coordinated > 0:
        return Verdict(
            Action.REFUSE,
            local,
            f"our sequence {local} is higher than the coordinated one, {coordinated}: the coordination service was "
            "restored from an older state; compare both with 'pollux activation list'",
        )
    if claim == local:
        return Verdict(Action.REPAIR, local, f"we died while raising the sequence to {local}: the claim is ours")
    if claim == local + 1:
        return Verdict(Action.TAKE_OVER, claim, f"the claim of {claim} was not finished: ours is as new")
    if claim > local:
        return Verdict(Action.WAIT, local, f"a member with newer data claimed sequence {claim}, ours is {local}")
    return Verdict(
        Action.REFUSE,
        local,
        f"our sequence {local} is higher than the claimed one, {claim}: compare both with 'pollux activation list'",
    )
