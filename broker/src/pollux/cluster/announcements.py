"""Announcements that were heard: how their members are reached, and what is dropped. Pure."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pollux.config.acceptors import ConnectorSettings, Endpoint

if TYPE_CHECKING:
    from pollux.wire.core.datagram import Reached

#: Datagrams that are dropped for one reason are told of once in so many seconds.
TOLD_EVERY = 60.0
#: Wrong passwords that are looked at in one second: of one source, and of all together that never had the right one.
GUESSES_OF_ONE, GUESSES_OF_STRANGERS = 5, 20
#: Sources of datagrams that are remembered; the least recently used are forgotten.
_SOURCES = 500


class Dropped:
    """Counts datagrams that are not taken, by reason, so that a flood of them does not fill the log."""

    def __init__(self) -> None:
        #: All that were dropped, for management and tests.
        self.total = 0
        self._counts: dict[str, tuple[int, float]] = {}

    def note(self, kind: str, now: float) -> int:
        """Count one more. How many there were since it was told of last when it is to be told of again, else 0."""
        self.total += 1
        count, told = self._counts.get(kind, (0, -TOLD_EVERY))
        if now - told < TOLD_EVERY:
            self._counts[kind] = (count + 1, told)
            return 0
        self._counts[kind] = (0, now)
        return count + 1


class Guesses:
    """Bounds how many datagrams with a wrong password are looked at: to guess by them costs nobody a connection.

    A source is an address, which anybody may write on a datagram; so what it gets is little in any case.
    """

    def __init__(self) -> None:
        #: Those that had the right password.
        self._members: OrderedDict[str, None] = OrderedDict()
        #: Wrong ones in the second of this number, by source; "" are all strangers.
        self._wrong: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def may_look(self, source: str, now: float) -> bool:
        """Whether a datagram of ``source`` is looked at (seconds, monotonic)."""
        if self._count(source, now) >= GUESSES_OF_ONE:
            return False
        return source in self._members or self._count("", now) < GUESSES_OF_STRANGERS

    def wrong(self, source: str, now: float) -> None:
        """Note that the one that was looked at had a wrong password."""
        for name in (source,) if source in self._members else (source, ""):
            self._wrong[name] = (int(now), self._count(name, now) + 1)
            self._wrong.move_to_end(name)
            if len(self._wrong) > _SOURCES:
                self._wrong.popitem(last=False)

    def right(self, source: str) -> None:
        """Note that the one that was looked at had the right password."""
        self._members[source] = None
        self._members.move_to_end(source)
        if len(self._members) > _SOURCES:
            self._members.popitem(last=False)

    def _count(self, name: str, now: float) -> int:
        second, count = self._wrong.get(name, (-1, 0))
        return count if second == int(now) else 0

    def __len__(self) -> int:
        return len(self._members) + len(self._wrong)


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
