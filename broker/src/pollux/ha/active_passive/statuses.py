"""The statuses of a broker in an active-passive cluster, in Qpid's words, and which may follow which. Pure."""

from __future__ import annotations

from enum import StrEnum

from pollux.errors import PolluxError


class Status(StrEnum):
    """Name where a broker is. The words are Qpid's."""

    STANDALONE = "standalone"
    #: Looks for a primary.
    JOINING = "joining"
    #: Copies from a primary, or cannot say any more that it has everything.
    CATCHUP = "catchup"
    #: Has everything that was confirmed, by its primary's word.
    READY = "ready"
    #: Was promoted; confirms nothing until the backups that were ready have everything, or are given up.
    RECOVERING = "recovering"
    ACTIVE = "active"


class Cause(StrEnum):
    """Name who causes a change."""

    START = "the broker's start"
    #: A primary takes this backup.
    PRIMARY = "a primary"
    #: The copy is complete, by the primary's word.
    MARK = "the primary's mark"
    #: The primary's word has run out, or it begins to copy anew.
    LAPSE = "the lease of ready has run out"
    #: The resource manager, by ``promote``.
    PROMOTE = "promote"
    #: Nobody is waited for any more.
    RECOVERED = "no backup is waited for"


#: What may follow what, and why. Qpid's table, and two that it does not have, as its ``ready`` lasts for ever: a backup
#: that was ready takes itself back when its lease has run out, and one that lost its primary looks for one again. No
#: change leads away from ``active``: a primary that is demoted ends its life, and the next one begins as ``joining``.
CHANGES: dict[tuple[Status, Status], Cause] = {
    (Status.STANDALONE, Status.JOINING): Cause.START,
    (Status.JOINING, Status.CATCHUP): Cause.PRIMARY,
    (Status.JOINING, Status.RECOVERING): Cause.PROMOTE,
    (Status.CATCHUP, Status.READY): Cause.MARK,
    (Status.READY, Status.CATCHUP): Cause.LAPSE,
    (Status.CATCHUP, Status.JOINING): Cause.LAPSE,
    (Status.READY, Status.RECOVERING): Cause.PROMOTE,
    (Status.RECOVERING, Status.ACTIVE): Cause.RECOVERED,
}
#: Statuses of a primary; what Qpid's ``--is-primary`` accepts.
PRIMARY = frozenset({Status.RECOVERING, Status.ACTIVE})
#: Statuses of a broker that belongs to a cluster with a primary.
ESTABLISHED = PRIMARY | {Status.CATCHUP, Status.READY}


class IllegalChangeError(PolluxError):
    """A change that the table does not have: a defect. The process ends."""


def change(before: Status, after: Status) -> Cause:
    """Return who may cause this change. Raises IllegalChangeError."""
    try:
        return CHANGES[before, after]
    except KeyError:
        raise IllegalChangeError(f"a broker that is {before} cannot become {after}") from None
