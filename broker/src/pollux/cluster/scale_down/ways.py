"""The way of messages to one node: into the queue from which its link sends, no faster than they are confirmed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.cluster.connection.forwarded import stored
from pollux.cluster.scale_down.plan import room_for
from pollux.engine.forwards import Forward
from pollux.message import RoutingType

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.cluster.connection.outgoing import OutgoingLink
    from pollux.cluster.connection.service import Cluster
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference


class NodeWay:
    """The way to the node that ``link`` leads to. It stays the same when the link breaks and comes again."""

    def __init__(
        self, cluster: Cluster, link: OutgoingLink, mark: Callable[[MessageReference], dict[str, str]]
    ) -> None:
        """``mark`` returns annotations that a message takes along."""
        self._mark = mark
        self.link = link
        self.node = link.node
        self._cluster = cluster
        #: Written, and not seen in the queue yet.
        self._unstable = 0

    @property
    def open(self) -> bool:
        """Return whether the node is reached now."""
        return self.link.connected and self.link.node == self.node

    @property
    def waiting(self) -> int:
        """Return how many messages the node has not confirmed."""
        outlet = self._cluster.spreading.outlets.get(self.node)
        return self._unstable + (self._cluster.post.message_count(outlet.queue) if outlet is not None else 0)

    @property
    def room(self) -> int:
        """Return how many messages may be written for it now."""
        outlet = self._cluster.spreading.outlets.get(self.node)
        if outlet is None or not self.open:
            return 0
        return room_for(self.waiting, outlet.queue.bytes)

    def forward(self, reference: MessageReference, queue: Queue) -> Forward:
        """Return the copy of a message for the queue of the same name there."""
        outlet = self._cluster.spreading.outlets[self.node]
        number = outlet.numbering.next(reference.message.address)
        names, visited = (queue.name,), (self._cluster.node,)
        topic = queue.routing_type is RoutingType.MULTICAST
        copy = stored(reference.message, outlet.queue.address, number, names, visited, reference=reference, topic=topic)
        marks = self._mark(reference)
        if marks:
            copy.annotations = {**(copy.annotations or {}), **marks}
        return Forward(outlet.queue, copy)

    def written(self, count: int) -> None:
        """So many messages were written for it."""
        self._unstable += count
        self._cluster.post.when_stable(lambda _error: self._stable(count))

    def _stable(self, count: int) -> None:
        self._unstable -= count
