"""Durable subscriptions of AMQP and STOMP: each has one home, the node where a client took from it last.

When a client takes from one here all other nodes that are linked to hear of it. One that has a queue of that name and
nobody who takes from it has the queue leave: what is in it comes here, whatever message-load-balancing and
redistribution-delay say, and no more is put into it. When the client ends it for good, it ends everywhere.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from pollux.cluster.connection.local import takers
from pollux.engine.named import Found, Named
from pollux.message import RoutingType

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterator, Sequence

    from pollux.cluster.connection.outgoing import OutgoingLink
    from pollux.cluster.connection.service import Cluster
    from pollux.routing.queue import Queue

logger = logging.getLogger("pollux.cluster")

#: The requests' names.
_USED, _OVER = "subscription-used", "subscription-over"


class _Told(msgspec.Struct, frozen=True, array_like=True):
    """A subscription, and who has it; None: whoever may."""

    name: str
    address: str
    user: str | None


class EverySubscription(Named):
    """Those of all cluster connections of a node: an address belongs to one of them at most."""

    def __init__(self, clusters: Sequence[Cluster]) -> None:
        self._clusters = clusters
        self.all = [Subscriptions(cluster) for cluster in clusters]

    def stop(self) -> None:
        """Tell nobody any more."""
        for one in self.all:
            one.stop()

    def _of(self, address: str) -> Iterator[Subscriptions]:
        return (one for one, cluster in zip(self.all, self._clusters, strict=True) if address in cluster.prefixes)

    def used(self, queue: Queue) -> None:
        """A client takes from a subscription from now on: this node is its home."""
        for one in self._of(queue.address):
            one.used(queue)

    def unused(self, queue: Queue) -> None:
        """A client does not any more: where one does elsewhere, that is its home now."""
        for one in self._of(queue.address):
            one.unused(queue)

    def over(self, name: str, address: str, user: str | None) -> None:
        """A subscription ended for good: it does at all nodes."""
        for one in self._of(address):
            one.over(name, address, user)

    def find(self, name: str) -> Found | None:
        """Return a subscription that other nodes have; None: none has one."""
        return next((found for one in self.all if (found := one.find(name)) is not None), None)


class Subscriptions(Named):
    """Those of a node of a cluster connection. All methods are called in the loop's thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        #: Those that a client takes from here.
        self._used: dict[str, _Told] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        cluster.requests[_USED] = self._used_there
        cluster.requests[_OVER] = self._over_there
        cluster.unlearned = self._unlearned

    def stop(self) -> None:
        """Tell nobody any more."""
        self._cluster.post.named = Named()
        self._cluster.unlearned = lambda: None
        for task in self._tasks:
            task.cancel()

    # -- this node's clients

    def used(self, queue: Queue) -> None:
        """A client takes from a subscription from now on: this node is its home."""
        self._cluster.stay(queue)
        told = _Told(queue.name, queue.address, queue.user)
        self._used[queue.name] = told
        self._tell(_USED, told)

    def unused(self, queue: Queue) -> None:
        """A client does not any more: where one does elsewhere, that is its home now."""
        if next(takers(queue), None) is not None:
            return
        self._used.pop(queue.name, None)
        group = self._cluster.table.group((queue.address, queue.name))
        if any(path.connected and path.record.has_consumers for path in group.values()):
            self._leave(queue)

    def over(self, name: str, address: str, user: str | None) -> None:
        """A subscription ended for good: it does at all nodes."""
        self._used.pop(name, None)
        self._tell(_OVER, _Told(name, address, user))

    def find(self, name: str) -> Found | None:
        """Return a subscription that other nodes have; None: none has one."""
        for (_, queue), path in self._cluster.table.queues.items():
            if queue == name and path.record.multicast:
                return Found(path.record.address, path.record.filter)
        return None

    # -- other nodes

    def reached(self, node: bytes) -> None:
        """Tell a node that is reached from now on."""
        link = self._cluster.reached_by(node)
        if link is None:
            return
        for told in list(self._used.values()):
            queue = self._cluster.post.space.queue(told.name)
            if queue is not None and next(takers(queue), None) is not None:
                self._ask(link, _USED, told)
            else:  # an administrator deleted it
                del self._used[told.name]

    def _tell(self, what: str, told: _Told) -> None:
        for link in self._cluster.peers.links:
            if link.connected:
                self._ask(link, what, told)

    def _ask(self, link: OutgoingLink, what: str, told: _Told) -> None:
        task = self._cluster.loop.create_task(self._asked(link, what, told))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _asked(self, link: OutgoingLink, what: str, told: _Told) -> None:
        with suppress(ConnectionError):  # it is told when it is reached again
            refusal = await link.ask(what, msgspec.msgpack.encode(told))
            if refusal:
                logger.info("broker %r keeps subscription %r: %s", link.broker, told.name, refusal)

    def _used_there(self, _node: bytes, content: bytes) -> None:
        """Have what is here of a subscription go where a client takes from it. Raises ValueError."""
        queue = self._theirs(content)
        if queue is not None and next(takers(queue), None) is None:
            self._leave(queue)

    def _over_there(self, _node: bytes, content: bytes) -> None:
        """End what is here of a subscription. Raises ValueError, PolluxError."""
        queue = self._theirs(content)
        if queue is not None and next(takers(queue), None) is None:
            self._cluster.stay(queue)
            self._cluster.post.delete_queue(queue.name)

    def _unlearned(self) -> None:
        """Keep what leaves and was going to a node that does not come back: it is all there is of a subscription."""
        named = self._cluster.moving.leaves.named
        for queue in self._cluster.leaving():
            if queue.name in named and not self._cluster.elsewhere(queue):
                self._cluster.stay(queue)

    def _theirs(self, content: bytes) -> Queue | None:
        """Return the queue of a subscription that another node tells of. Raises ValueError: another user has it."""
        try:
            told = msgspec.msgpack.decode(content, type=_Told)
        except msgspec.MsgspecError as error:
            raise ValueError(f"a subscription that cannot be read: {error}") from error
        queue = self._cluster.post.space.queue(told.name)
        if (
            queue is None
            or queue.routing_type is not RoutingType.MULTICAST
            or not queue.durable
            or queue.address != told.address
        ):
            return None
        if queue.user is not None and queue.user != told.user and not told.name.endswith(":global"):
            raise ValueError("another user has it")
        return queue

    def _leave(self, queue: Queue) -> None:
        if queue.address in self._cluster.prefixes:
            self._cluster.leave(queue, named=True)
