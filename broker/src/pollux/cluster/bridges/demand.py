"""Federation: what is wanted here of another broker, by the policies of one upstream. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from pollux.cluster.connection.local import takers
from pollux.config.federation import AddressPolicy, QueuePolicy
from pollux.config.resolve import INTERNAL_PREFIX, pattern_of
from pollux.message import RoutingType

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pollux.config.federation import QueueMatch
    from pollux.config.match import Pattern
    from pollux.config.model import Configuration
    from pollux.engine.post_office import PostOffice
    from pollux.routing.queue import Queue

#: In front of the queues of copies at the broker that is fetched from.
COPIES = "federation."
#: Demands that are told at most.
MOST = 5000


class Demand(Struct, frozen=True, array_like=True):
    """Hold what is fetched: from ``queue``, or copies of what is sent to ``address`` (queue empty).

    ``filter``: what may be had. ``priority`` of the consumer. ``hops``: brokers that a message may come through, 0 any.
    """

    address: str
    queue: str
    filter: str = ""
    priority: int = 0
    hops: int = 0


class _Queues(NamedTuple):
    """A queue-policy, ready to be asked: pairs of patterns for queue and address."""

    includes: list[tuple[Pattern, Pattern]]
    excludes: list[tuple[Pattern, Pattern]]
    priority: int

    def takes(self, queue: Queue) -> bool:
        def among(pairs: list[tuple[Pattern, Pattern]]) -> bool:
            return any(name.matches(queue.name) and address.matches(queue.address) for name, address in pairs)

        return (not self.includes or among(self.includes)) and not among(self.excludes)


class _Addresses(NamedTuple):
    """An address-policy, ready to be asked."""

    includes: list[Pattern]
    excludes: list[Pattern]
    hops: int

    def takes(self, name: str) -> bool:
        included = not self.includes or any(each.matches(name) for each in self.includes)
        return included and not any(each.matches(name) for each in self.excludes)


class Matching:
    """Which of this broker's queues and addresses fetch, by the policies of one upstream."""

    def __init__(
        self, configuration: Configuration, policies: Iterable[QueuePolicy | AddressPolicy], priority: int
    ) -> None:
        def pattern(text: str) -> Pattern:
            return pattern_of(configuration, text)

        def pairs(side: Iterable[QueueMatch]) -> list[tuple[Pattern, Pattern]]:
            return [(pattern(each.queue_match), pattern(each.address_match)) for each in side]

        self._queues: list[_Queues] = []
        self._addresses: list[_Addresses] = []
        for policy in policies:
            if isinstance(policy, QueuePolicy):
                own = policy.priority_adjustment
                self._queues.append(
                    _Queues(pairs(policy.includes), pairs(policy.excludes), priority if own is None else own)
                )
            else:
                includes = [pattern(each.address_match) for each in policy.includes]
                excludes = [pattern(each.address_match) for each in policy.excludes]
                self._addresses.append(_Addresses(includes, excludes, policy.max_hops))

    def queue(self, queue: Queue) -> int | None:
        """Return the priority with which a queue fetches, None when it does not."""
        return next((each.priority for each in self._queues if each.takes(queue)), None)

    def address(self, name: str) -> int | None:
        """Return how many brokers a message for an address may come through, None when it fetches nothing."""
        return next((each.hops for each in self._addresses if each.takes(name)), None)

    def demand(self, post: PostOffice) -> Iterator[Demand]:
        """Return what is wanted now."""
        for queue in post.space.queues:
            if queue.spec.internal or queue.temporary or queue.name.startswith(COPIES):
                continue
            selectors = [consumer.selector for consumer in takers(queue)]
            priority = self.queue(queue) if selectors else None
            if priority is not None and queue.routing_type is RoutingType.ANYCAST:
                texts = sorted({each.text for each in selectors if each is not None})
                wanted = "" if None in selectors else " OR ".join(f"({text})" for text in texts)
                yield Demand(queue.address, queue.name, wanted, priority)
        for address in post.space.addresses:
            wants = any(
                queue.routing_type is RoutingType.MULTICAST and not queue.name.startswith(COPIES)
                for queue in address.queues
            )
            if wants and not address.wildcard and not address.name.startswith((INTERNAL_PREFIX, "activemq.")):
                hops = self.address(address.name)
                if hops is not None:
                    yield Demand(address.name, "", "", 0, hops)
