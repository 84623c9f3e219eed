"""Where connections come from, and how room is shared between those places. Pure.

A place is an IPv4 address, or the /64 network of an IPv6 address: whoever has one of its addresses has all of them.
"""

from __future__ import annotations

import heapq
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_network
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pollux.engine.peer import Peer

Who = TypeVar("Who")


@lru_cache(4096)
def place_of(address: str) -> str:
    """Return the place of an address as a socket names it; of what is none (a path), itself."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(found, IPv6Address):
        return address
    if found.ipv4_mapped is not None:
        return str(found.ipv4_mapped)
    if found.is_loopback:
        return str(found)
    return str(ip_network((found, 64), strict=False))


class Droppable(Protocol):
    """A connection, as those see it that bound what connections hold."""

    peer: Peer
    #: When it came in, seconds on the loop's clock.
    opened: float

    def measure(self) -> int:
        """Return the bytes that its buffers hold."""

    def drop(self, reason: str) -> None:
        """Cut it off for what it costs, and count it out at once."""


class Held(NamedTuple):
    """Hold what somebody at a place costs: bytes, and since when (seconds on any clock)."""

    place: str
    size: int
    since: float


def who_goes(held: Iterable[tuple[Who, Held]], excess: int) -> Iterator[Who]:
    """Yield who has to go so that ``excess`` bytes become free: who has the most where most is held, oldest first.

    So those who hold little where little is held are the last, however many the others are: one host's flood costs that
    host alone, and somebody who logs in beside it from the same host is smaller and younger than what floods.
    """
    places: dict[str, list[tuple[int, float, int]]] = {}
    everybody: list[Who] = []
    for who, (place, size, since) in held:
        places.setdefault(place, []).append((-size, since, len(everybody)))
        everybody.append(who)
    heap = []
    for place, there in places.items():
        heapq.heapify(there)
        heap.append((sum(size for size, _, _ in there), place))
    heapq.heapify(heap)
    while excess > 0 and heap:
        total, place = heapq.heappop(heap)
        there = places[place]
        size, _, number = heapq.heappop(there)
        excess += size
        if there:
            heapq.heappush(heap, (total - size, place))
        yield everybody[number]
