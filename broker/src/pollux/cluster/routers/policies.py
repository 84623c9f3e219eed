"""How a connection router chooses among the brokers that are ready: its policies, by the reference's names. Pure.

``RENDEZVOUS_HASH`` is our own. The reference's ring has one point for each broker: shares are uneven, and what a lost
broker had goes to one other. With the highest of a hash for each pair of key and broker they are even, and what a lost
one had is spread (Thaler and Ravishankar, 1998).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from random import Random

_OFFSET, _PRIME, _MASK = 0x811C9DC5, 0x01000193, 0xFFFFFFFF
#: What counts as many connections: nobody was asked yet.
_UNKNOWN = 1 << 62


class Candidate(NamedTuple):
    """A broker that is ready. ``connections``: its clients', as far as is known; None: it is not."""

    node: str
    connections: int | None = None


class Policy(Protocol):
    """A policy of one router."""

    def key(self, key: str) -> str:
        """Return the key that counts in place of a client's."""

    def select(self, ready: Sequence[Candidate], key: str) -> int | None:
        """Return the index of the chosen one; None: nobody."""


class FirstElement:
    """The first in the pool's order."""

    def __init__(self, properties: Mapping[str, str], random: Random) -> None:
        del properties, random

    def key(self, key: str) -> str:
        """Return it as it is."""
        return key

    def select(self, ready: Sequence[Candidate], key: str) -> int | None:  # noqa: ARG002  (the interface's parameter)
        """Return 0 when there is one."""
        return 0 if ready else None


class RoundRobin(FirstElement):
    """Each in its turn, beginning with one at random."""

    def __init__(self, properties: Mapping[str, str], random: Random) -> None:
        super().__init__(properties, random)
        self._next = random.randrange(1 << 16)

    def select(self, ready: Sequence[Candidate], key: str) -> int | None:  # noqa: ARG002
        """Return the one after the last one."""
        if not ready:
            return None
        chosen = self._next % len(ready)
        self._next = chosen + 1
        return chosen


class LeastConnections(RoundRobin):
    """The one with the fewest clients; in turn among those that have as few, or fewer than the threshold."""

    THRESHOLD = "CONNECTION_COUNT_THRESHOLD"

    def __init__(self, properties: Mapping[str, str], random: Random) -> None:
        super().__init__(properties, random)
        self._threshold = int(properties.get(self.THRESHOLD, "0"))

    def select(self, ready: Sequence[Candidate], key: str) -> int | None:
        """Return one of the least loaded."""
        loads = [self._load(one) for one in ready]
        least = [index for index, load in enumerate(loads) if load == min(loads)]
        turn = super().select([ready[index] for index in least], key)
        return None if turn is None else least[turn]

    def _load(self, one: Candidate) -> int:
        if one.connections is None:
            return _UNKNOWN
        return 0 if one.connections < self._threshold else one.connections


class ConsistentHash(FirstElement):
    """The broker whose point on the ring is the last one not behind the key's; before the first one, the smallest."""

    def select(self, ready: Sequence[Candidate], key: str) -> int | None:
        """Return the one that has the key's part of the ring."""
        if not ready:
            return None
        points = {_signed(fnv(one.node)): index for index, one in enumerate(ready)}
        wanted = _signed(fnv(key))
        before = [point for point in points if point <= wanted]
        return points[max(before) if before else min(points)]


class ConsistentHashModulo(FirstElement):
    """Nobody: it makes a number below ``MODULO`` of the key, for local-target-filter to look at."""

    MODULO = "MODULO"

    def __init__(self, properties: Mapping[str, str], random: Random) -> None:
        super().__init__(properties, random)
        self._modulo = int(properties.get(self.MODULO, "0"))

    def key(self, key: str) -> str:
        """Return the number as text."""
        return str((fnv(key) & 0x7FFFFFFF) % self._modulo) if self._modulo > 0 else key

    def select(self, ready: Sequence[Candidate], key: str) -> int | None:  # noqa: ARG002
        """Return None."""
        return None


class RendezvousHash(FirstElement):
    """The broker with the highest hash of key and node."""

    def select(self, ready: Sequence[Candidate], key: str) -> int | None:
        """Return the one that the key has with these brokers."""
        weights = [hashlib.blake2b(f"{one.node}\0{key}".encode(errors="replace")).digest() for one in ready]
        return weights.index(max(weights)) if weights else None


POLICIES: dict[str, type[FirstElement]] = {
    "FIRST_ELEMENT": FirstElement,
    "ROUND_ROBIN": RoundRobin,
    "LEAST_CONNECTIONS": LeastConnections,
    "CONSISTENT_HASH": ConsistentHash,
    "CONSISTENT_HASH_MODULO": ConsistentHashModulo,
    "RENDEZVOUS_HASH": RendezvousHash,
}


def fnv(text: str) -> int:
    """Return the reference's hash of a text: FNV-1a with 32 bits, over UTF-16 code units instead of bytes."""
    value = _OFFSET
    units = text.encode("utf-16-le", errors="surrogatepass")
    for low, high in zip(units[::2], units[1::2], strict=True):
        value = ((value ^ (low | high << 8)) * _PRIME) & _MASK
    return value


def _signed(value: int) -> int:
    return value - (1 << 32) if value >> 31 else value
