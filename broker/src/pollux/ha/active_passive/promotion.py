"""May this member be promoted? Decided from what its disk says, and what the others answer. Pure.

Every member has a **record** of its data: the number (epoch, sequence), who served with it, and the **heirs**, the
backups that had all of it. A primary writes a new record, and has its heirs write it, before it confirms anything
without one of them. So data that may be newer than ours is with its heirs and with who served, nowhere else: those have
to be **accounted for**, by an answer, by a proof that they are gone with nothing newer, or by an operator who says by
name whose data is discarded. Qpid asks too, and takes silence for consent.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from pollux.ha.active_passive.statuses import PRIMARY, Status

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence


class Number(NamedTuple):
    """How new data is. A larger one is newer; two copies with one number have the same that was confirmed."""

    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.sequence}"


class Record(NamedTuple):
    """Hold what a member knows of its own data. Members are named by their addresses in ha-brokers-url.

    ``node_id``: whose data it is. ``complete``: it is all there. ``primary``: who served with it last.
    """

    node_id: str
    number: Number
    complete: bool
    primary: str
    heirs: frozenset[str]


class Answer(NamedTuple):
    """Hold what another member says. ``status`` None: it does not answer; ``absent``: its machine says nobody listens.

    ``record`` None: it has no data.
    """

    member: str
    status: Status | None = None
    record: Record | None = None
    absent: bool = False


class Proof(NamedTuple):
    """Hold what whoever promotes vouches for. ``fenced``: certainly gone. ``discarded``: their data may be lost.

    ``recorded``: the newest number that the resource manager was told.
    """

    fenced: frozenset[str] = frozenset()
    discarded: frozenset[str] = frozenset()
    recorded: Number | None = None


class Candidate(NamedTuple):
    """The member that is to be promoted. ``ready``: its lease of ready holds now. ``min_in_sync``: of the cluster.

    ``told``: who has said since the others were asked that it serves, and since which epoch.
    """

    me: str
    status: Status
    record: Record | None
    ready: bool
    min_in_sync: int = 0
    told: Mapping[str, int] = MappingProxyType({})


class Why(StrEnum):
    """Name the outcome, for exit codes and tests."""

    PROMOTED = "promoted"
    #: It was promoted before.
    ALREADY = "already"
    CATCHING_UP = "catching up"
    ANOTHER_SERVES = "another serves"
    OTHER_DATA = "other data"
    NEWER_EXISTS = "newer data exists"
    UNKNOWN = "newer data may exist"


class Verdict(NamedTuple):
    """The outcome. ``expected``: backups that have to have everything before the new primary confirms."""

    why: Why
    reason: str
    expected: frozenset[str] = frozenset()
    #: Larger than every epoch that anybody has heard of.
    epoch: int = 0
    #: Who may still serve by an older grant: nobody knows that it is gone.
    unfenced: frozenset[str] = frozenset()

    @property
    def promoted(self) -> bool:
        """Whether the member is primary now."""
        return self.why in (Why.PROMOTED, Why.ALREADY)


def judge(candidate: Candidate, answers: Sequence[Answer], proof: Proof) -> Verdict:
    """Return whether the candidate may serve. ``answers``: one of each other member of ha-brokers-url."""
    if candidate.status in PRIMARY:
        return Verdict(Why.ALREADY, f"this broker is {candidate.status}")
    mine = candidate.record
    if candidate.status is Status.CATCHUP or (mine is not None and not mine.complete):
        return Verdict(Why.CATCHING_UP, "still catching up: its copy is not complete")
    heard = [one for one in answers if one.member not in proof.discarded]
    for one in heard:
        if one.status in PRIMARY:
            return Verdict(Why.ANOTHER_SERVES, f"{one.member} is {one.status}: demote or fence it first")
    for member, epoch in promoted_after(mine, candidate.told).items():
        if member not in proof.discarded:
            why = f"{member} says that it serves since epoch {epoch}: demote or fence it first"
            return Verdict(Why.ANOTHER_SERVES, why)
    if (refused := _older(mine, heard)) is not None:
        return refused
    if missing := _unaccounted(candidate, answers, proof):
        names = ", ".join(sorted(missing))
        fence = ", have it fenced (--fenced)" if candidate.ready else ""
        return Verdict(
            Why.UNKNOWN,
            f"{names} may have newer data and cannot be asked: start it{fence}, or discard what it has"
            f" (--discard {','.join(sorted(missing))})",
        )
    heirs = mine.heirs if mine is not None else frozenset[str]()
    gone = proof.fenced | proof.discarded | {candidate.me}
    epochs = [one.record.number.epoch for one in answers if one.record is not None]
    epoch = max([mine.number.epoch if mine is not None else 0, *epochs]) + 1
    newest = f"its data is the newest ({mine.number})" if mine is not None else "nobody has any data"
    silent = frozenset(one.member for one in answers if one.status is None and not one.absent)
    served = proof.discarded if mine is None else proof.discarded | {mine.primary}
    return Verdict(Why.PROMOTED, newest, heirs - gone, epoch, silent & served - proof.fenced)


def promoted_after(mine: Record | None, told: Mapping[str, int]) -> dict[str, int]:
    """Return who was promoted after this data was written, of those that say that they serve (since which epoch)."""
    return {member: epoch for member, epoch in told.items() if mine is None or epoch > mine.number.epoch}


def _older(mine: Record | None, heard: Sequence[Answer]) -> Verdict | None:
    """Return the refusal where somebody who answers has newer data, or data of another cluster."""
    held = [(one.record, one.member) for one in heard if one.record is not None]
    if mine is None and held:
        names = ", ".join(sorted(member for _, member in held))
        return Verdict(Why.NEWER_EXISTS, f"this broker has no data, and {names} has: promote that one")
    if mine is None:
        return None
    for record, member in held:
        if record.node_id != mine.node_id:
            return Verdict(
                Why.OTHER_DATA,
                f"{member} has data of the node {record.node_id}, here is data of {mine.node_id}: they are two"
                " clusters with one ha-brokers-url, or one of them was begun anew; move the data away that is not"
                " wanted",
            )
    newest = max(((record.number, member) for record, member in held), default=None)
    if newest is None or newest[0] <= mine.number:
        return None
    number, member = newest
    return Verdict(
        Why.NEWER_EXISTS,
        f"{member} has newer data ({number}, here it is {mine.number}): promote it, or discard what it has"
        f" (--discard {member})",
    )


def _unaccounted(candidate: Candidate, answers: Sequence[Answer], proof: Proof) -> frozenset[str]:
    """Return who may have newer data, for all that is known."""
    mine = candidate.record
    answered = {one.member for one in answers if one.status is not None}
    absent = {one.member for one in answers if one.absent}
    if mine is None:
        # Whoever has no data knows of no heirs: anybody may have some.
        return frozenset(one.member for one in answers) - answered - proof.discarded
    suspects = (mine.heirs | {mine.primary}) - {candidate.me, ""} - answered - proof.discarded
    others = frozenset(one.member for one in answers) - {mine.primary}
    # With a least number of copies the primary confirms nothing alone: one of the others has it, whoever was an heir
    # when this record was written, and none has more.
    shared = candidate.min_in_sync > 0 and candidate.me in mine.heirs and others <= answered
    if candidate.ready or shared:
        # The primary has gone nowhere without us, and who is promoted in our place waits for us.
        suspects -= {mine.primary} | absent
        suspects -= proof.fenced
    newest = proof.recorded is not None and proof.recorded <= mine.number
    if newest:
        # Nobody goes on without an heir before the resource manager has the new number.
        suspects -= proof.fenced
    if candidate.min_in_sync > 0 and mine.primary == candidate.me:
        suspects |= _replaced_by(candidate, answers, proof.discarded | (proof.fenced if newest else frozenset()))
    return suspects


def _replaced_by(candidate: Candidate, answers: Sequence[Answer], known: frozenset[str]) -> frozenset[str]:
    """Return who is silent where one of them may have been promoted in the candidate's place, and has confirmed since.

    With a least number of copies that was possible without the candidate, and without being its heir any more: see
    ``shared``. What was confirmed then is with whoever was promoted and that many more, one of which is heard unless
    more than that many are silent. ``known``: they need not be heard.
    """
    silent = frozenset(one.member for one in answers if one.status is None) - known
    return silent if len(silent) > candidate.min_in_sync else frozenset()


def judge_demotion(status: Status) -> Verdict:
    """Return whether a broker with this status has anything to give up."""
    if status in PRIMARY:
        return Verdict(Why.PROMOTED, "demoted")
    return Verdict(Why.ALREADY, f"this broker is {status}")


def promoted_since(answers: Iterable[Answer], epoch: int) -> str:
    """Say who else is primary, with data of a later epoch than ``epoch``; empty: nobody that answers."""
    for one in answers:
        if one.status in PRIMARY and one.record is not None and one.record.number.epoch > epoch:
            return f"{one.member} was promoted (epoch {one.record.number.epoch})"
    return ""
