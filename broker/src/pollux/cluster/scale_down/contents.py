"""Find the queues of a broker that have to go: those with messages, and subscriptions that nobody else knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.message import RoutingType

if TYPE_CHECKING:
    from collections.abc import Container, Iterator

    from pollux.cluster.scale_down.every import EveryConnection
    from pollux.engine.post_office import PostOffice
    from pollux.routing.queue import Queue


class Contents:
    """The queues that may be handed over: none of the broker itself, and none that ends with a client."""

    def __init__(self, post: PostOffice, every: EveryConnection) -> None:
        self._post = post
        self._every = every

    def _lasting(self) -> Iterator[Queue]:
        return (each for each in list(self._post.space.queues) if not each.spec.internal and not each.temporary)

    def queues(self) -> list[Queue]:
        """Return the queues that are to be emptied."""
        return [queue for queue in self._lasting() if not self.is_empty(queue)]

    def subscriptions(self, node: bytes, known: Container[tuple[bytes, int]]) -> list[Queue]:
        """Return the empty queues that no other node knows: what is sent for them later would be nobody's.

        ``known``: (node, queue id) of those that were handed over. ``node``: the one that gets all of them.
        """
        return [
            queue
            for queue in self._lasting()
            if queue.routing_type is RoutingType.MULTICAST
            and queue.durable
            and self._every.concerns(queue.address)
            and (node, queue.id) not in known
            and self.is_empty(queue)
            and not self._every.elsewhere(queue)
        ]

    def is_empty(self, queue: Queue) -> bool:
        """Return whether a queue has no message left, or is gone."""
        return self._post.space.queue_by_id(queue.id) is not queue or not (
            self._post.message_count(queue) or self._post.in_flight(queue)
        )
