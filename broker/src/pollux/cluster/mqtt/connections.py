"""All cluster connections of a node as MQTT sessions need them: a session is found at any node of any of them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pollux.cluster.connection.service import Cluster
    from pollux.routing.queue import Queue


class EveryConnection:
    """``clusters``: at least one; an address belongs to one of them at most. For the loop's thread."""

    def __init__(self, clusters: Sequence[Cluster]) -> None:
        self._clusters = clusters
        self.node = clusters[0].node
        self.post = clusters[0].post
        self.hub = clusters[0].hub

    def waiting(self, node: bytes) -> int:
        """Return how many messages wait for a node."""
        return sum(cluster.waiting(node) for cluster in self._clusters)

    def tell_now(self) -> None:
        """Tell the other nodes of changed queues now."""
        for cluster in self._clusters:
            cluster.tell_now()

    def all_tried(self) -> bool:
        """Whether every node was reached once since the start, or could not be."""
        return all(cluster.all_tried() for cluster in self._clusters)

    def complete(self) -> bool:
        """Whether every node that is known of is reached, and reaches this one."""
        return all(cluster.complete() for cluster in self._clusters)

    def hops(self, connection: str) -> int:
        """Return how far a cluster connection goes (max-hops)."""
        return next((one.settings.hops for one in self._clusters if one.settings.name == connection), 1)

    def elsewhere(self, queue: Queue) -> bool:
        """Whether a node that is reached has a queue of the same group."""
        return any(cluster.elsewhere(queue) for cluster in self._clusters)

    def leave(self, queue: Queue) -> None:
        """Send what a queue holds to the others of its group, and put nothing into it any more."""
        of_it = (cluster for cluster in self._clusters if queue.address in cluster.prefixes)
        next(of_it, self._clusters[0]).leave(queue)

    def stay(self, queue: Queue) -> None:
        """Keep a queue after all."""
        for cluster in self._clusters:
            cluster.stay(queue)

    def leaving(self) -> Iterable[Queue]:
        """Return the queues that leave."""
        return list(chain.from_iterable(cluster.leaving() for cluster in self._clusters))
