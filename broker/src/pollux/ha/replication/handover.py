"""When a live with backups hands over, to whom, and what it leaves behind. Pure.

It hands over because the preferred broker is back, because an operator asks for it, or because this host is cut off.
:mod:`pollux.ha.replication.activation` and :mod:`pollux.ha.replication.replicas` carry that out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

from pollux.errors import InvalidRequestError
from pollux.ha.machine import Phase
from pollux.ha.replication.settings import Role

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pollux.ha.copies.replicas import Backup
    from pollux.ha.members import Member

Key = TypeVar("Key")

#: How long one that hands over waits for the other to take over, before it starts again as a standby, seconds.
SUCCESSION = 10.0


def preferred(backup: Backup) -> bool:
    """Return whether its broker.xml prefers it to others."""
    return backup.member.role == Role.LIVE


def wants_back(backup: Backup) -> bool:
    """Return whether it asks to serve again."""
    return preferred(backup) and not backup.stay


class Live(NamedTuple):
    """A live that is asked to hand over: its phase and role, whether it hands over already, and its backups."""

    phase: Phase
    role: Role
    handing_over: bool
    backups: Sequence[Backup]


class HandOver(NamedTuple):
    """A hand-over and its reason. ``to``: who can take over, for who asked for it."""

    reason: str
    #: This broker starts again as a standby.
    restart: bool
    #: It does not ask for the right by itself from then on.
    stay: bool = False
    to: tuple[Member, ...] = ()


def synced(backup: Backup, *, allow_failback: bool, restart_backup: bool) -> HandOver | None:
    """Return the hand-over to a backup that has everything now; None: it just follows."""
    if not (allow_failback and wants_back(backup)):
        return None
    name = backup.member.name
    return HandOver(f"failback: {name}, the preferred broker, is in sync again", restart_backup)


def cut_off(phase: Phase, problem: str) -> HandOver | None:
    """Return the hand-over of a live whose host is cut off (``problem`` empty: it is not, or not any more).

    It ends in order: a backup that is reached on another way has everything, and takes over.
    """
    return HandOver(problem, restart=True) if problem and phase is Phase.LIVE else None


def switchover(live: Live) -> HandOver:
    """Return the hand-over that an operator asks for. Raises InvalidRequestError when nobody can take over."""
    ready = _ready(live)
    if not ready:
        raise InvalidRequestError("no backup is in sync: nobody can take over without losing messages")
    # The preferred broker does not ask for what it gave away on request.
    return HandOver("switchover asked for by an administrator", restart=True, stay=True, to=ready)


def failback(live: Live) -> HandOver:
    """Return the hand-over to the preferred broker. Raises InvalidRequestError when there is none that can serve."""
    if live.role is Role.SYMMETRIC:
        raise InvalidRequestError("peers with a coordination-id are equals: use a switchover")
    if live.role is not Role.BACKUP:
        raise InvalidRequestError("this is the preferred broker: there is nothing to fail back")
    wanted = tuple(one for one in _ready(live) if one.role == Role.LIVE)
    if not wanted:
        raise InvalidRequestError("the preferred broker is not in sync")
    return HandOver("failback asked for by an administrator", restart=True, to=wanted)


def _ready(live: Live) -> tuple[Member, ...]:
    if live.phase is not Phase.LIVE:
        raise InvalidRequestError(f"this broker is {live.phase}, only a live one can hand over")
    if live.handing_over:
        raise InvalidRequestError("this broker is stopping already")
    return tuple(one.member for one in live.backups if one.ready)


def heirs(backups: Mapping[Key, Backup]) -> list[Key]:
    """Return who can take over, in the order in which they do: the preferred broker first."""
    ready = [key for key, one in backups.items() if one.ready]
    return sorted(ready, key=lambda key: not wants_back(backups[key]))


class Legacy(NamedTuple):
    """The state in which a live leaves the right and its data that has stopped in order."""

    #: Our data is the beginning of a complete copy's, and can be completed later.
    prefix: bool
    #: We do not ask for the right by ourselves.
    stay: bool
    #: How long to wait for somebody to take over, seconds.
    seconds: float
    #: The first of the heirs is told that it may serve.
    names_heir: bool


def legacy(*, complete: bool, decided: HandOver | None, restart: bool, votes: bool) -> Legacy:
    """Return what is left behind. ``complete``: a backup has everything; ``restart``: as a standby.

    With ``votes`` the right is given to one heir by name, which needs none then; else whoever gets the lock has it, and
    who starts again gives the others time to get it first.
    """
    stay = complete and decided is not None and decided.stay
    seconds = SUCCESSION if complete and restart and not votes else 0.0
    return Legacy(complete, stay, seconds, names_heir=complete and votes)
