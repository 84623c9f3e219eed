"""The records of this node's own queues, as other nodes are told of them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from msgspec.structs import replace

from pollux.cluster.routes.moves import Demand
from pollux.cluster.routes.records import QueueRecord
from pollux.config.resolve import INTERNAL_PREFIX
from pollux.message import RoutingType

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterator

    from pollux.cluster.routes.records import Key
    from pollux.routing.consumer import Consumer
    from pollux.routing.queue import Queue
    from pollux.routing.space import AddressSpace


class Prefixes:
    """Which addresses a cluster connection is for: those with one of the prefixes, and none of those after a ``!``."""

    def __init__(self, text: str) -> None:
        listed = [each.strip() for each in text.split(",") if each.strip()]
        self._excluded = tuple(each[1:] for each in listed if each.startswith("!"))
        self._included = tuple(each for each in listed if not each.startswith("!"))

    def __contains__(self, address: str) -> bool:
        if address.startswith((INTERNAL_PREFIX, *self._excluded)):
            return False
        return not self._included or address.startswith(self._included)


def takers(queue: Queue) -> Iterator[Consumer]:
    """Return the consumers of clients that take messages: no browsers, and not redistribution."""
    for consumer in queue.consumers:
        if not consumer.browsing and not getattr(consumer, "moves_messages", False):
            yield consumer


def demand(queue: Queue) -> Demand:
    """Return who takes messages of a queue."""
    selectors = [consumer.selector for consumer in takers(queue)]
    return Demand(None in selectors, frozenset(each.text for each in selectors if each is not None))


class LocalQueues:
    """All of them that others may know of. ``epoch`` is that of the store, which grows with each life.

    ``elsewhere`` says whether another node that is reached has a queue of the same group.
    """

    def __init__(
        self, space: AddressSpace, node: bytes, epoch: int, prefixes: Prefixes, elsewhere: Callable[[Queue], bool]
    ) -> None:
        self.records: dict[Key, QueueRecord] = {}
        self._space = space
        self._node = node
        self._prefixes = prefixes
        self._version = epoch << 32
        self._elsewhere = elsewhere
        #: This node gives away what it has: nobody is told of its queues, but of subscriptions that nobody else has.
        self.withdrawn = False
        #: Names of queues that leave: nobody is told of them.
        self.leaving: Container[str] = ()
        #: Names of the durable subscriptions that their clients take from here.
        self.homes: Container[str] = ()

    def review(self, queue: Queue) -> bool:
        """Look at a queue; return whether its record is another one now."""
        key = (self._node, queue.name)
        before = self.records.get(key)
        there = self._space.queue_by_id(queue.id) is queue and queue.address in self._prefixes and self._told(queue)
        if not there or not queue.enabled or queue.spec.internal or queue.name in self.leaving:
            if before is None or self._space.queue(queue.name) not in (None, queue):
                return False
            del self.records[key]
            return True
        now = self._record(queue, before.version if before is not None else 0)
        if now == before:
            return False
        self._version += 1
        self.records[key] = replace(now, version=self._version)
        return True

    def review_all(self) -> set[Key]:
        """Look at all queues; return those whose record is another one now."""
        changed = {(self._node, queue.name) for queue in list(self._space.queues) if self.review(queue)}
        for key in [key for key in self.records if self._space.queue(key[1]) is None]:
            del self.records[key]
            changed.add(key)
        return changed

    def _told(self, queue: Queue) -> bool:
        """Whether others may send here for a queue: what is sent for a subscription that nobody has is nobody's."""
        if not self.withdrawn:
            return True
        return queue.routing_type is RoutingType.MULTICAST and (queue.consumer_count > 0 or not self._elsewhere(queue))

    def _record(self, queue: Queue, version: int) -> QueueRecord:
        everything, filtered, credit = 0, Counter[str](), 0
        for consumer in takers(queue):
            credit += max(0, consumer.credit)
            if consumer.selector is None:
                everything += 1
            else:
                filtered[consumer.selector.text] += 1
        home = queue.name in self.homes and bool(everything or filtered)
        return QueueRecord(
            self._node,
            queue.name,
            version,
            queue.address,
            queue.routing_type is RoutingType.MULTICAST,
            (self._node,),
            queue.selector.text if queue.selector is not None else "",
            everything,
            tuple(sorted(filtered.items())),
            _coarse(credit),
            _coarse(queue.waiting + queue.cold),
            home=home,
            user=queue.user if home else None,
            no_local=queue.spec.no_local,
        )


def _coarse(number: int) -> int:
    """Return the power of two below: what is told need not change with each message."""
    return 1 << (number.bit_length() - 1) if number > 0 else 0
