"""Who was heard of by discovery: a table of members that forgets who is silent. Pure; time is passed in.

Every announcement in it was made by somebody who knows the cluster password. It says where to try: who answers there
has to prove the password again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from pollux.config.acceptors import ConnectorSettings, Endpoint

if TYPE_CHECKING:
    from pollux.wire.core.datagram import Announcement, Reached

#: Members remembered; more are not taken while these are there.
MAXIMUM_MEMBERS = 64
#: Datagrams that are dropped for one reason are told of once in so many seconds.
TOLD_EVERY = 60.0


class Known(NamedTuple):
    """A member, what it said last, and until when that holds (the table's clock, seconds)."""

    said: Announcement
    until: float


class Table:
    """See the module. ``silence`` (refresh-timeout) in seconds; ``me``: announcements of this one are our own."""

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
        """Forget who was silent for too long; their names."""
        gone = [member for member, one in self._known.items() if one.until <= now]
        for member in gone:
            del self._known[member]
        return gone

    def due(self) -> float | None:
        """When somebody will have been silent for too long; None when nobody is known."""
        return min((one.until for one in self._known.values()), default=None)

    def members(self) -> dict[str, tuple[Reached, ...]]:
        """Who is there, in the order in which they came, and where each is reached."""
        return {name: one.said.connectors for name, one in self._known.items() if not one.said.leaving}


class Dropped:
    """Counts datagrams that are not taken, by reason, so that a flood of them does not fill the log."""

    def __init__(self) -> None:
        #: All that were dropped, for management and tests.
        self.total = 0
        self._counts: dict[str, tuple[int, float]] = {}

    def note(self, kind: str, now: float) -> int:
        """One more. How many there were since it was told of last when it is to be told of again, else 0."""
        self.total += 1
        count, told = self._counts.get(kind, (0, -TOLD_EVERY))
        if now - told < TOLD_EVERY:
            self._counts[kind] = (count + 1, told)
            return 0
        self._counts[kind] = (0, now)
        return count + 1


def _newer(said: Announcement, before: Announcement) -> bool:
    """Whether an announcement was made after another one: later in one life, or in a life that began later."""
    if said.life == before.life:
        return said.number > before.number
    return said.began > before.began


def endpoints(
    members: dict[str, tuple[Reached, ...]], template: ConnectorSettings
) -> tuple[tuple[Endpoint, ...], list[str]]:
    """How to reach the members, and those that are left out because they would be reached without TLS.

    ``template`` are the parameters of our own connector: trust store, certificate, options. With TLS in it nobody is
    reached without; a member that announces TLS is never reached without either.
    """
    found: dict[Endpoint, None] = {}
    refused = []
    for name, connectors in members.items():
        for one in connectors:
            if template.ssl_enabled and not one.tls:
                refused.append(name)
                continue
            found[Endpoint("tcp", one.host, one.port, replace(template, ssl_enabled=one.tls))] = None
    return tuple(found), refused
