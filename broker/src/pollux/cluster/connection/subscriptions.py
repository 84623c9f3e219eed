"""Durable subscriptions of AMQP and STOMP: each has one home, the node where a client took from it last.

When a client takes from one here the other nodes hear of it with the queue, as far as they hear of queues. One that has
a queue of that name and nobody who takes from it has the queue leave: what is in it comes here, whatever
message-load-balancing and redistribution-delay say, and no more is put into it. When the client ends it for good, it
ends everywhere.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import msgspec

from pollux.cluster.connection.local import takers
from pollux.cluster.once import Once
from pollux.engine.named import Found, Named
from pollux.message import RoutingType

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Iterator, Sequence

    from pollux.cluster.connection.outgoing import OutgoingLink
    from pollux.cluster.connection.service import Cluster
    from pollux.cluster.routes.records import Key
    from pollux.routing.queue import Queue

logger = logging.getLogger("pollux.cluster")

#: The request's name.
_OVER = "subscription-over"
#: Endings that are remembered: one may come by several ways.
_ENDINGS = 10_000


class _Over(msgspec.Struct, frozen=True, array_like=True):
    """A subscription that ended, and who had it; None: whoever may.

    ``hops``: how many it goes from here, as max-hops. ``ending``: tells it from all others.
    """

    name: str
    address: str
    user: str | None
    hops: int = 1
    ending: Annotated[bytes, msgspec.Meta(max_length=8)] = b""


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
        #: The names of those that a client takes from here.
        self._used: set[str] = set()
        self._ended = Once(_ENDINGS)
        self._tasks: set[asyncio.Task[None]] = set()
        cluster.local.homes = self._used
        cluster.requests[_OVER] = self._over_there
        cluster.learned, cluster.unlearned = self._learned, self._unlearned

    def stop(self) -> None:
        """Tell nobody any more."""
        self._cluster.post.named = Named()
        self._cluster.learned, self._cluster.unlearned = lambda _: None, lambda: None
        for task in self._tasks:
            task.cancel()

    # -- this node's clients

    def used(self, queue: Queue) -> None:
        """A client takes from a subscription from now on: this node is its home."""
        self._cluster.stay(queue)
        self._used.add(queue.name)
        self._cluster.queue_changed(queue)

    def unused(self, queue: Queue) -> None:
        """A client does not any more: where one does elsewhere, that is its home now."""
        if next(takers(queue), None) is not None:
            return
        self._used.discard(queue.name)
        group = self._cluster.table.group((queue.address, queue.name))
        if any(path.connected and path.record.has_consumers for path in group.values()):
            self._leave(queue)

    def over(self, name: str, address: str, user: str | None) -> None:
        """A subscription ended for good: it does at all nodes."""
        self._used.discard(name)
        told = _Over(name, address, user, self._cluster.settings.hops, os.urandom(8))
        self._ended.first(told.ending, told.hops)
        self._tell(told)

    def find(self, name: str) -> Found | None:
        """Return a subscription that other nodes have; None: none has one."""
        for (_, queue), path in self._cluster.table.queues.items():
            if queue == name and path.record.multicast:
                return Found(path.record.address, path.record.filter, path.record.no_local)
        return None

    # -- other nodes

    def _learned(self, changed: Iterable[Key]) -> None:
        """Have what is here of subscriptions go where their clients take from them."""
        for key in changed:
            path = self._cluster.table.path(key)
            if path is None or not path.connected or not path.record.home:
                continue
            record = path.record
            with suppress(ValueError):
                queue = self._theirs(record.queue, record.address, record.user)
                if queue is not None and next(takers(queue), None) is None:
                    self._leave(queue)

    def _tell(self, told: _Over, sender: bytes = b"") -> None:
        """Tell the other nodes but for who told this one."""
        for link in self._cluster.peers.links:
            if link.connected and link.node != sender:
                task = self._cluster.loop.create_task(self._told(link, told))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    async def _told(self, link: OutgoingLink, told: _Over) -> None:
        with suppress(ConnectionError):
            refusal = await link.ask(_OVER, msgspec.msgpack.encode(told))
            if refusal:
                logger.info("broker %r keeps subscription %r: %s", link.broker, told.name, refusal)

    def _over_there(self, node: bytes, content: bytes) -> None:
        """End what is here of a subscription, and beyond. Raises ValueError, PolluxError."""
        try:
            told = msgspec.msgpack.decode(content, type=_Over)
        except msgspec.MsgspecError as error:
            raise ValueError(f"a subscription that cannot be read: {error}") from error
        if told.hops > 1 and self._ended.first(told.ending, told.hops - 1):
            self._tell(msgspec.structs.replace(told, hops=told.hops - 1), sender=node)
        queue = self._theirs(told.name, told.address, told.user)
        if queue is not None and next(takers(queue), None) is None:
            self._cluster.stay(queue)
            self._cluster.post.delete_queue(queue.name)

    def _unlearned(self) -> None:
        """Keep what leaves and was going to a node that does not come back: it is all there is of a subscription."""
        named = self._cluster.moving.leaves.named
        for queue in self._cluster.leaving():
            if queue.name in named and not self._cluster.elsewhere(queue):
                self._cluster.stay(queue)

    def _theirs(self, name: str, address: str, user: str | None) -> Queue | None:
        """Return the queue of a subscription that another node tells of. Raises ValueError: another user has it."""
        queue = self._cluster.post.space.queue(name)
        if (
            queue is None
            or queue.routing_type is not RoutingType.MULTICAST
            or not queue.durable
            or queue.address != address
        ):
            return None
        if queue.user is not None and queue.user != user and not name.endswith(":global"):
            raise ValueError("another user has it")
        return queue

    def _leave(self, queue: Queue) -> None:
        if queue.address in self._cluster.prefixes:
            self._cluster.leave(queue, named=True)
