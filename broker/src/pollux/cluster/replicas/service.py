"""All queue replicas of a broker: its own of others' queues, kept in its store, and those that others have of its."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from pollux.cluster.connector import ClusterConnector
from pollux.cluster.replicas.feed import PURPOSE, Feeds, stable
from pollux.cluster.replicas.queue_replica import QueueReplica
from pollux.config.acceptors import Endpoint
from pollux.config.active_passive import connector_of, parse_url
from pollux.errors import InvalidRequestError, PolluxError
from pollux.logs import event
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from pollux.cluster.link import CoreHub
    from pollux.config.active_passive import ActivePassive
    from pollux.config.model import Configuration
    from pollux.engine.post_office import PostOffice
    from pollux.routing.queue import Queue

logger = logging.getLogger("pollux.replica")

#: The kind of the records in the bindings; their key is the replica's name.
RECORD = "replica"
#: Seconds: whether a replica was deleted is looked at.
_LOOK = 1.0


class Replica(Struct, frozen=True):
    """A replica as it is kept: of ``queue``, at whichever broker of ``source`` (a URL) serves."""

    queue: str
    source: str

    @property
    def words(self) -> str:
        """Return how it is named to whoever is refused."""
        return f"{self.queue}@{self.source}"


_decode = msgspec.msgpack.Decoder(Replica).decode
_encode = msgspec.msgpack.Encoder().encode


class Replicas:
    """The replicas of one broker while it serves. All methods are called in the loop's thread."""

    def __init__(
        self, configuration: Configuration, given: ActivePassive, hub: CoreHub, *, node: bytes, post: PostOffice
    ) -> None:
        """``post`` was restored; ``node`` is this node's id, ``hub`` by what it connects."""
        self.feeds = Feeds(configuration.name, node, post)
        self.all: dict[str, QueueReplica] = {}
        self._configuration = configuration
        self._pause = given.link_maintenance_interval
        self._post = post
        self._node = node
        self._connector = ClusterConnector(hub)
        self._task: asyncio.Task[None] | None = None
        for (kind, name), value in post.recovered.items():
            if kind == RECORD:
                self._restore(name, value)

    def _restore(self, name: str, value: bytes) -> None:
        try:
            kept = _decode(value)
            queue = self._post.space.queue(name) or self._queue(name)
            self._make(queue, kept)
        except (PolluxError, ValueError) as error:
            event(logger, logging.ERROR, "a replica cannot go on", queue=name, reason=error)

    def _queue(self, name: str) -> Queue:
        return self._post.create_queue(QueueSpec(name, name, routing_type=RoutingType.ANYCAST, auto_delete=False))

    def _make(self, queue: Queue, kept: Replica) -> QueueReplica:
        replica = QueueReplica(
            self._post,
            queue,
            kept.queue,
            self._endpoints(kept.source),
            name=self._configuration.name,
            node=self._node,
            connector=self._connector,
            pause=self._pause,
        )
        self._post.address_manager.make_replica(queue, kept.words)
        self.all[queue.name] = replica
        return replica

    def _endpoints(self, source: str) -> list[Endpoint]:
        """Return where the source may be. Raises InvalidRequestError."""
        found: list[Endpoint] = []
        try:
            addresses = parse_url(source)
        except ValueError as error:
            raise InvalidRequestError(f"source {source[:200]!r}: {error}") from error
        for address in addresses:
            endpoint: Endpoint | None = Endpoint("tcp", address.host, address.port)
            if address.tls:
                endpoint = connector_of(self._configuration.connectors, address)
            if endpoint is None:
                raise InvalidRequestError(f"{address} needs a <connector> with sslEnabled and this host and port")
            found.append(endpoint)
        return found

    def offer(self, hub: CoreHub) -> None:
        """Feed others by the acceptors that ``hub`` is for."""
        hub.purposes[PURPOSE] = self.feeds.open

    def start(self) -> None:
        """Follow from now on."""
        for replica in self.all.values():
            replica.start()
        self._task = self._post.loop.create_task(self._look())

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(_LOOK)
            for name, replica in list(self.all.items()):
                if self._post.space.queue(name) is not replica.queue:
                    await self._end(name)
                else:
                    self._post.cooling.cool(replica.queue)

    async def stop(self) -> None:
        """Follow and feed nothing any more."""
        if self._task is not None:
            self._task.cancel()
        for replica in self.all.values():
            await replica.stop()
        self.feeds.stop()

    # -- what is asked

    async def replicate(self, queue: str, source: str, target: str | None = None) -> dict[str, Any]:
        """Have a replica of ``queue`` of the brokers at ``source``, by the name of ``target`` or the same.

        Asked again nothing changes. Raises InvalidRequestError, and what creating a queue raises.
        """
        name = target or queue
        kept = Replica(queue, source.strip())
        if not queue or not kept.source:
            raise InvalidRequestError("a replica needs the name of a queue, and the address of its broker")
        self._endpoints(kept.source)
        before = self.all.get(name)
        if before is not None:
            if before.queue.replica_of != kept.words:
                raise InvalidRequestError(f"queue {name!r} is a replica of {before.queue.replica_of}: detach it first")
            return before.describe()
        found = self._post.space.queue(name)
        if found is None:
            found = self._queue(name)
        elif count := self._post.message_count(found):
            raise InvalidRequestError(f"queue {name!r} has {count} messages of its own: a replica begins empty")
        elif found.consumer_count:
            raise InvalidRequestError(f"queue {name!r} has {found.consumer_count} consumers")
        elif not found.durable or found.spec.internal:
            raise InvalidRequestError(f"queue {name!r} is not durable, or the broker's own")
        replica = self._make(found, kept)
        self._post.storage.put(RECORD, name, _encode(kept))
        await stable(self._post)
        event(logger, logging.INFO, "replica made", queue=name, source=kept.words)
        replica.start()
        return replica.describe()

    async def detach(self, name: str) -> dict[str, Any]:
        """Have a replica be a queue like others, with what it has. Raises InvalidRequestError."""
        replica = self.all.get(name)
        if replica is None:
            raise InvalidRequestError(f"queue {name!r} is no replica")
        await self._end(name)
        self._post.address_manager.make_replica(replica.queue, "")
        await stable(self._post)
        return {"name": name, "messages": self._post.message_count(replica.queue)}

    async def _end(self, name: str) -> None:
        replica = self.all.pop(name)
        await replica.stop()
        self._post.storage.put(RECORD, name, None)
        event(logger, logging.INFO, "replica is none any more", queue=name, source=replica.queue.replica_of)

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        return {
            "replicas": [each.describe() for each in self.all.values()],
            "fed": [each.describe() for each in self.feeds.all.values()],
        }
