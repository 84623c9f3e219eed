"""Count connections that have not logged in yet, and the bytes that all of them together may hold.

Each counts with what it costs by itself and every byte it sent, whatever the protocol has made of them: an upper bound
that needs no look inside. When they hold too much, who goes is decided by :func:`pollux.process.sources.who_goes`; when
there is no room for another connection, the oldest of the place with the most makes room, as somebody honest has
logged in by then.
"""

from __future__ import annotations

from pollux.process.sources import Droppable, Held, place_of, who_goes

#: Bytes a connection costs before it has said anything, and more when it speaks TLS (both measured, rounded up).
PLAIN = 8 << 10
TLS = 56 << 10
#: Room is made for a share of the limit at a time, not for each byte: looking at all of them is dear.
_SHARE = 8


class Strangers:
    """Bound the connections that have not logged in. ``limit`` is px:max-handshake-size in bytes."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        #: Bytes of all of them, and how many had to go.
        self.held = 0
        self.dropped = 0
        #: Place -> its connections, oldest first, and what each holds.
        self._places: dict[str, dict[Droppable, int]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._places.values()))

    def add(self, connection: Droppable) -> None:
        """Count in a connection that was accepted."""
        self._places.setdefault(place_of(connection.peer.address), {})[connection] = 0
        self.grew(connection, PLAIN)

    def grew(self, connection: Droppable, size: int) -> None:
        """Count ``size`` bytes more for a connection: it sent them, or costs them."""
        there = self._places.get(place_of(connection.peer.address))
        if there is None or connection not in there:
            return
        there[connection] += size
        self.held += size
        if self.held > self.limit:
            self._make_room()

    def remove(self, connection: Droppable) -> None:
        """Count out a connection that logged in or is gone."""
        place = place_of(connection.peer.address)
        there = self._places.get(place)
        if there is not None:
            self.held -= there.pop(connection, 0)
            if not there:
                del self._places[place]

    def give_way(self, place: str | None = None) -> bool:
        """Make room for another: the oldest at ``place`` goes (None: at the one with the most). False: nobody can."""
        there = max(self._places.values(), key=len, default=None) if place is None else self._places.get(place)
        if not there:
            return False
        self._drop(next(iter(there)), "it has not logged in, and others want in (max-connections)")
        return True

    def _make_room(self) -> None:
        everybody = (
            (connection, Held(place, size, connection.opened))
            for place, there in self._places.items()
            for connection, size in there.items()
        )
        for connection in list(who_goes(everybody, self.held - self.limit + self.limit // _SHARE)):
            self._drop(
                connection,
                f"those that have not logged in may hold {self.limit} bytes together (max-handshake-size), "
                "and this one held the most, or for longest, of the host with the most",
            )

    def _drop(self, connection: Droppable, reason: str) -> None:
        self.dropped += 1
        self.remove(connection)
        connection.drop(reason)
