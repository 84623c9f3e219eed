"""Decide why a connection ends: what it means that its deadline passed, and who ended it. Pure."""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from pollux.protocols.base import Session


class Due(Enum):
    """The step that follows when a connection's deadline passed."""

    #: It is being closed, and its client does not take what was queued for it: cut it off.
    CUT_OFF = auto()
    #: Nobody has logged in: refuse it.
    NO_LOGIN = auto()
    #: Its client has more time to take something: look again when that is over.
    EARLY = auto()
    #: Its client took nothing of what is written: refuse it.
    TAKES_NOTHING = auto()
    #: It took something: look again after the write timeout.
    TAKES = auto()
    #: Only the heart-beats of its protocol decide: look no more.
    NEVER = auto()
    #: It was heard of: look again after the time to live.
    LIVES = auto()
    #: It was silent: end it.
    SILENT = auto()


class Seen(Struct, frozen=True):
    """A connection whose deadline passed. ``closing``: it is being closed, or its session says farewell.

    ``blocked``: more is written than its client takes at once; ``early``: not yet for as long as it may be; ``took``:
    it took some since the last look, or what is written is held back by the broker itself. ``ttl``: seconds of silence
    after which it is dead, 0: never. ``heard``: it sent something since the last look, or is not being read.
    """

    closing: bool = False
    logged_in: bool = True
    blocked: bool = False
    early: bool = False
    took: bool = False
    ttl: float = 0.0
    heard: bool = False


def due(seen: Seen) -> Due:
    """Return what follows."""
    if seen.closing:
        return Due.CUT_OFF
    if not seen.logged_in:
        return Due.NO_LOGIN
    if seen.blocked and seen.early:
        return Due.EARLY
    if seen.blocked:
        return Due.TAKES if seen.took else Due.TAKES_NOTHING
    if seen.ttl <= 0.0:
        return Due.NEVER
    return Due.LIVES if seen.heard else Due.SILENT


def who_ended(reason: str, session: Session | None, error: BaseException | None, *, closing: bool) -> tuple[str, str]:
    """Return who ended a connection (broker, network, client or what its session says), and why.

    ``reason``: the broker's own, empty without one. ``closing``: the broker closed it.
    """
    if reason:
        return "broker", reason
    if session is not None and session.ended is not None:
        return session.ended
    if closing:
        return "broker", "it was closed"
    if error is not None:
        return "network", str(error)
    return "client", "without a farewell"
