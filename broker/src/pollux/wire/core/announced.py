"""A table of the members that discovery heard of; it forgets who is silent. Pure; time is passed in.

An announcement only says where to try: who answers there has to prove who it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pollux.wire.core.datagram import Announcement, Reached

#: Members remembered; more are not taken while these are there.
MAXIMUM_MEMBERS = 64


class Known(NamedTuple):
    """A member, what it said last, and until when that holds (the table's clock, seconds)."""

    said: Announcement
    until: float


class Table:
    """The members heard of. ``silence`` (refresh-timeout) in seconds; ``me``: announcements of this one are our own."""

    def __init__(self, me: str, *, silence: float) -> None:
        self._me = me
        self._silence = silence
        self._known: dict[str, Known] = {}

    def heard(self, said: Announcement, now: float) -> str:
        """Take an announcement. Empty when it counts, else why it does not: ``own``, ``old`` or ``full``."""
        if said.member == self._me:
            return "own"
        before = self._known.get(said.member)
        if before is not None and not _newer(said, before.said):
            return "old"
        if before is None and len(self._known) >= MAXIMUM_MEMBERS and not said.leaving:
            return "full"
        # One that leaves stays known for as long: what it said before it left must not bring it back.
        if before is not None or not said.leaving:
            self._known[said.member] = Known(said, now + self._silence)
        return ""

    def expire(self, now: float) -> list[str]:
        """Forget who was silent for too long; return their names."""
        gone = [member for member, one in self._known.items() if one.until <= now]
        for member in gone:
            del self._known[member]
        return gone

    def due(self) -> float | None:
        """Return when somebody will have been silent for too long; None when nobody is known."""
        return min((one.until for one in self._known.values()), default=None)

    def members(self) -> dict[str, tuple[Reached, ...]]:
        """Return who is there, in the order in which they came, and where each is reached."""
        return {name: one.said.connectors for name, one in self._known.items() if not one.said.leaving}


def _newer(said: Announcement, before: Announcement) -> bool:
    """Whether an announcement was made after another one: later in one life, or in a life that began later."""
    if said.life == before.life:
        return said.number > before.number
    return said.began > before.began
