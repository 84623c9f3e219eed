"""What brokers make of announcements: how the members that were heard of are reached, and what is dropped. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from pollux.config.acceptors import ConnectorSettings, Endpoint

if TYPE_CHECKING:
    from pollux.wire.core.datagram import Reached

#: Datagrams that are dropped for one reason are told of once in so many seconds.
TOLD_EVERY = 60.0


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
