"""Which broker of a list to try first: the client's load-balancing policies. Pure; the random source is injected.

The names are those of Artemis's classes (`connectionLoadBalancingPolicyClassName`), with or without their package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


class Policy(Protocol):
    """Chooses among `count` brokers, `count` at least 1."""

    def select(self, count: int) -> int:
        """Return the index of the broker for the next connection."""


class RoundRobin:
    """Starts with one at random, then each in its turn."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._next: int | None = None

    def select(self, count: int) -> int:
        """Return the one after the last one, at first one at random."""
        chosen = self._random.randrange(count) if self._next is None else self._next % count
        self._next = chosen + 1
        return chosen


class FirstElement:
    """Always the first."""

    def __init__(self, random: Random) -> None:
        del random

    def select(self, count: int) -> int:  # noqa: ARG002  (the interface's parameter)
        """Return 0."""
        return 0


class RandomChoice:
    """One at random each time."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def select(self, count: int) -> int:
        """Return one at random."""
        return self._random.randrange(count)


class RandomSticky:
    """One at random the first time, and that one from then on."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._chosen: int | None = None

    def select(self, count: int) -> int:
        """Return the one that was drawn the first time."""
        if self._chosen is None:
            self._chosen = self._random.randrange(count)
        return self._chosen % count


POLICIES: dict[str, Callable[[Random], Policy]] = {
    "RoundRobinConnectionLoadBalancingPolicy": RoundRobin,
    "FirstElementConnectionLoadBalancingPolicy": FirstElement,
    "RandomConnectionLoadBalancingPolicy": RandomChoice,
    "RandomStickyConnectionLoadBalancingPolicy": RandomSticky,
}
#: Artemis's package of those classes; names may be written with it.
PACKAGE = "org.apache.activemq.artemis.api.core.client.loadbalance."


def order(first: int, count: int) -> list[int]:
    """Return every index once: the chosen one, then those behind it, around."""
    return [(first + index) % count for index in range(count)]
