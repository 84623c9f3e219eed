"""Every connection of the broker: counts, limits, the sweep that enforces deadlines, and finding one by id."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections import Counter
from typing import TYPE_CHECKING

from pollux import logs
from pollux.audit import Trail
from pollux.engine.share import Share
from pollux.logs import event
from pollux.process.buffers import Buffers
from pollux.process.resources import let_writers_in
from pollux.process.sources import place_of
from pollux.process.strangers import Strangers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.engine.peer import Peer
    from pollux.process.connection import Connection

logger = logging.getLogger("pollux.connection")

#: Refused connections logged per second; a flood is counted and summed up instead.
REFUSALS_PER_SECOND = 20
SWEEP_INTERVAL = 0.5


class Connections:
    """Hold the connections of one node. All methods are called in the loop's thread."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        *,
        maximum: int,
        per_host: int = -1,
        before_login: int = 1 << 62,
        interval: float = SWEEP_INTERVAL,
        trail: Trail | None = None,
    ) -> None:
        """``per_host``: connections of one place, -1 no limit, 0 as many as are left for others.

        ``before_login``: bytes that those who have not logged in may hold together. ``interval``: seconds between two
        sweeps, at most :data:`SWEEP_INTERVAL`.
        """
        self._loop = loop
        self.trail = trail or Trail.off()
        self._ids = itertools.count(1)
        self._connections: dict[int, Connection] = {}
        #: Connections of other brokers, while clients leave a broker that stops: nobody waits for them.
        self._detached: dict[int, Connection] = {}
        self._per_host: Counter[str] = Counter()
        self._sweeper: asyncio.TimerHandle | None = None
        self._refusals = 0
        self._refusals_logged = 0
        self.maximum = maximum
        self.per_host = per_host
        self.strangers = Strangers(before_login)
        self.buffers = Buffers()
        self.share = Share(loop)
        self.share.on_pressed = let_writers_in
        self.interval = min(interval, SWEEP_INTERVAL)
        self.accepted = 0
        self.refused = 0
        #: Bytes of connections that are gone.
        self.closed_bytes_in = 0
        self.closed_bytes_out = 0
        #: Set while there are no connections; awaited by a graceful stop.
        self.empty = asyncio.Event()
        self.empty.set()

    def start(self) -> None:
        """Sweep from here on."""
        self._sweeper = self._loop.call_later(self.interval, self._sweep)

    def stop(self) -> None:
        """Sweep no more; connections stay."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            self._sweeper = None

    def next_id(self) -> int:
        """Return an id for a new connection, never used before."""
        return next(self._ids)

    def add(self, connection: Connection) -> str | None:
        """Count a connection in; returns why it is refused, None when it is taken."""
        place = place_of(connection.peer.address)
        if self._has_enough(place) and not self.strangers.give_way(place):
            return f"{place} has {self._per_host[place]} connections already, and may have no more ({self._rule()})"
        if len(self._connections) >= self.maximum and not self.strangers.give_way():
            return f"there are {self.maximum} connections already (max-connections)"
        self._connections[connection.peer.connection_id] = connection
        self._per_host[place] += 1
        self.strangers.add(connection)
        self.accepted += 1
        self.empty.clear()
        return None

    def relocate(self, connection: Connection, peer: Peer) -> str | None:
        """Count a connection for another place, as a proxy says whose it is; returns why it is refused."""
        self.strangers.remove(connection)
        self._leave(place_of(connection.peer.address))
        connection.peer = peer
        place = place_of(peer.address)
        has_enough = self._has_enough(place) and not self.strangers.give_way(place)
        self._per_host[place] += 1
        self.strangers.add(connection)
        self.strangers.grew(connection, connection.bytes_in)
        if has_enough:
            return f"{place} has {self._per_host[place] - 1} connections already, and may have no more ({self._rule()})"
        return None

    def _leave(self, place: str) -> None:
        self._per_host[place] -= 1
        if self._per_host[place] <= 0:
            del self._per_host[place]

    def _has_enough(self, place: str) -> bool:
        """Whether this place may have no more: it never gets the last ones, so that others can come in."""
        limit = self.per_host or max(self.maximum - len(self._connections) - 1, 1)
        return 0 <= limit <= self._per_host[place]

    def _rule(self) -> str:
        return "max-connections-per-host" + ("" if self.per_host else ": as many as are left for other hosts")

    def remove(self, connection: Connection) -> Connection | None:
        """Count a connection out; None when it was not in."""
        number = connection.peer.connection_id
        found = self._connections.pop(number, None) or self._detached.pop(number, None)
        if found is not None:
            self.closed_bytes_in += found.bytes_in
            self.closed_bytes_out += found.bytes_out
            self.strangers.remove(found)
            self._leave(place_of(found.peer.address))
            if not self._connections:
                self.empty.set()
        return found

    def detach_brokers(self) -> None:
        """Set the connections of other brokers apart from those that clients have."""
        for number, connection in list(self._connections.items()):
            if connection.session is not None and connection.session.of_broker:
                self._detached[number] = self._connections.pop(number)
        if not self._connections:
            self.empty.set()

    def detached_brokers(self) -> list[Connection]:
        """Return the connections of other brokers that were set apart and are still there."""
        return list(self._detached.values())

    def get(self, connection_id: int) -> Connection | None:
        """Return the connection with this id; None when it is gone."""
        return self._connections.get(connection_id)

    def __len__(self) -> int:
        return len(self._connections)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._connections.values()))

    def logged_in(self, connection_id: int, _user: str) -> None:
        """Count a connection no longer among strangers: it has logged in."""
        connection = self._connections.get(connection_id)
        if connection is not None:
            connection.known()

    def log_refusal(self, peer: Peer, reason: str) -> None:
        """Log one line for a refused connection, up to a rate; the rest is summed up by the sweep."""
        self.refused += 1
        self._refusals += 1
        if self._refusals <= REFUSALS_PER_SECOND * self.interval:
            self._refusals_logged += 1
            event(
                logger,
                logging.WARNING,
                "connection refused",
                connection=peer.connection_id,
                source=peer.address,
                port=peer.port,
                acceptor=peer.acceptor,
                reason=reason,
            )

    def look_at_buffers(self) -> None:
        """Look at what connections hold in buffers."""
        self.buffers.look(self._connections.values())

    def _sweep(self) -> None:
        self._sweeper = self._loop.call_later(self.interval, self._sweep)
        logs.flush()
        now = self._loop.time()
        for connection in [found for found in self._connections.values() if found.deadline <= now]:
            connection.expire(now)
        self.look_at_buffers()
        missed = self._refusals - self._refusals_logged
        if missed > 0:
            event(logger, logging.WARNING, "more connections refused", count=missed)
        self._refusals = self._refusals_logged = 0
