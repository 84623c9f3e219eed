"""The cluster connection of a node: its links, what they learned, and the messages that go over them."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

from pollux.cluster.connection.incoming import IncomingLink
from pollux.cluster.connection.local import LocalQueues, Prefixes
from pollux.cluster.connection.mover import Mover
from pollux.cluster.connection.outgoing import OutgoingLink
from pollux.cluster.connection.remembered import Remembered
from pollux.cluster.connection.settings import PURPOSE, settings_of
from pollux.cluster.connection.spread import Outlet, Spreading
from pollux.cluster.connector import ClusterConnector
from pollux.cluster.link import CoreHub
from pollux.cluster.routes.numbers import Number, Numbering, Taken
from pollux.cluster.routes.records import Telling
from pollux.cluster.routes.table import RoutingTable
from pollux.config.resolve import INTERNAL_PREFIX
from pollux.engine.spreading import Spread
from pollux.logs import event
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec
from pollux.wire.core.peer import ClusterKey

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.cluster.connection.settings import Settings
    from pollux.cluster.link import Conversation, Handler
    from pollux.cluster.routes.records import Key
    from pollux.config.model import Configuration
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference

logger = logging.getLogger("pollux.cluster")

#: Seconds: changes of that time are told together; everything is looked at; a digest is told.
_TOGETHER, _LOOK, _DIGEST = 0.005, 1.0, 30.0
#: So many queues are looked at, then that pause is made (seconds): very many take longer, never all the processor.
_SOME, _PAUSE = 200, 0.01


class Cluster:
    """One cluster connection. All methods are called in the loop's thread."""

    def __init__(self, settings: Settings, name: str, node: bytes, key: ClusterKey, post: PostOffice) -> None:
        """``post`` was restored; ``node`` is this node's id, ``name`` the broker's."""
        self.settings = settings
        self.name = name
        self.node = node
        self.post = post
        self.loop = post.loop
        self.hub = CoreHub(key, name=name, node_id=node, timeout=settings.silence)
        self.hub.purposes[PURPOSE] = self._open
        self.connector = ClusterConnector(self.hub)
        self.table = RoutingTable(node, hops=settings.hops)
        self.spreading = Spreading(post.space, self.table, node, settings.balancing)
        self.local = LocalQueues(post.space, node, post.storage.epoch, Prefixes(""))
        self.outgoing = [OutgoingLink(self, one, endpoints) for one, endpoints in settings.peers]
        self.incoming: dict[bytes, IncomingLink] = {}
        self._prefixes = Prefixes(settings.address)
        self._taken: dict[str, Taken] = {
            link: Taken(Number(*one) for one in numbers) for link, numbers in post.links.items()
        }
        self._life = os.urandom(8)
        self._remembered = Remembered(post.storage, post.recovered)
        self._movers: dict[int, Mover] = {}
        self._dirty: set[Queue] = set()
        self._all_dirty = False
        self._planned = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @staticmethod
    async def make(configuration: Configuration, node: bytes, post: PostOffice) -> Cluster:
        """Return the cluster connection that broker.xml asks for; the key of its password takes a tenth of a second."""
        key = await asyncio.to_thread(ClusterKey, configuration.cluster_user, configuration.cluster_password)
        return Cluster(settings_of(configuration), configuration.name, node, key, post)

    # -- start and stop

    def start(self) -> None:
        """Connect to the others, and spread messages from now on."""
        self.local.review_all()
        self._restore()
        self.post.spread_over(self.spreading.route)
        self.post.space.on_change = self._queue_changed
        self.post.consumers_changed = self._queue_changed
        for link in self.outgoing:
            self._tasks.append(self.loop.create_task(link.run()))
        self._tasks.append(self.loop.create_task(self._look()))

    def _restore(self) -> None:
        """Know again the nodes for which something may wait, and their queues: none of them is connected yet."""
        prefix = self._outlet_of(b"")
        for queue in list(self.post.space.queues):
            if queue.name.startswith(prefix) and len(queue.name) == len(prefix) + 32:
                node = bytes.fromhex(queue.name[len(prefix) :])
                self.spreading.outlets[node] = Outlet(queue, Numbering(self._life))
                self.table.hear(node, Telling(1, whole=True, records=self._remembered.of(node)))
                self.table.disconnected(node)
        self.spreading.learned()

    def _outlet_of(self, node: bytes) -> str:
        """Return the name of the store-and-forward queue for a node."""
        return f"{INTERNAL_PREFIX}sf.{self.settings.name}.{node.hex()}"

    async def stop(self) -> None:
        """Send and take nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        self.post.space.on_change = _nobody
        self.post.consumers_changed = _nobody
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for incoming in list(self.incoming.values()):
            incoming.end("the broker stops")
        for mover in self._movers.values():
            mover.stop()

    async def _look(self) -> None:
        """Look at every queue now and then, some at a time, so that nothing depends on an event."""
        digest = self.loop.time() + _DIGEST
        while True:
            await asyncio.sleep(_LOOK)
            try:
                queues = list(self.post.space.queues)
                for start in range(0, len(queues), _SOME):
                    self._dirty.update(queue for queue in queues[start : start + _SOME] if not queue.spec.internal)
                    self._changed()
                    await asyncio.sleep(_PAUSE)
                for gone in [each for each in self._movers if self.post.space.queue_by_id(each) is None]:
                    del self._movers[gone]
                if self.loop.time() >= digest:
                    digest = self.loop.time() + _DIGEST
                    for link in self.incoming.values():
                        link.digest()
                        link.credited()
            except Exception:
                logger.exception("the cluster connection failed to look after its queues")

    # -- this node's queues

    def _queue_changed(self, queue: Queue | None) -> None:
        if queue is None:
            self._all_dirty = True
        elif queue.spec.internal:
            return
        else:
            self._dirty.add(queue)
        if not self._planned:
            self._planned = True
            self.loop.call_later(_TOGETHER, self._changed)

    def _changed(self) -> None:
        self._planned = False
        dirty, self._dirty = self._dirty, set()
        if self._all_dirty:
            self._all_dirty = False
            changed = self.local.review_all()
            dirty = set(self.post.space.queues)
        else:
            changed = {(self.node, queue.name) for queue in dirty if self.local.review(queue)}
        if changed:
            for link in list(self.incoming.values()):
                link.changed(changed)
        self._redistribute(dirty)

    # -- links from others

    def _open(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Handler | None:
        try:
            link = IncomingLink(self, conversation, channel, content)
        except ValueError as error:
            event(logger, logging.WARNING, "cluster link refused", reason=error, broker=content.get("name"))
            conversation.refuse(channel, str(error))
            return None
        before = self.incoming.pop(link.node, None)
        if before is not None:
            before.end("another connection of this node takes its place")
        self.incoming[link.node] = link
        link.begin()
        return link

    def left(self, node: bytes, link: object) -> None:
        """A peer's link is gone."""
        if self.incoming.get(node) is link:
            del self.incoming[node]

    def taken_of(self, key: str) -> Taken:
        """Return what was taken in of a link."""
        return self._taken.setdefault(key, Taken())

    def arrived(self, queues: Iterable[Queue], message: Message) -> None:
        """Note a message that came from another node."""
        for queue in queues:
            mover = self._movers.get(queue.id)
            if mover is not None:
                mover.arrived(message, self.loop.time())

    def place_again(self, message: Message, visited: tuple[bytes, ...], tx: int) -> bool:
        """Route a message whose queue is gone. ANYCAST with no queue left gets one here; a subscription is over."""
        found = self.spreading.again(message, visited)
        queues, forwards = (found.queues, found.forwards) if isinstance(found, Spread) else (found, ())
        for forward in forwards:
            self.post.forward(forward, tx)
        if not queues and not forwards and message.routing_type is not RoutingType.MULTICAST:
            spec = QueueSpec(message.address, message.address, routing_type=RoutingType.ANYCAST, auto_created=True)
            queues = [self.post.create_queue(spec, auto_address=False)]
        return (bool(queues) and self.post.take(message, queues, tx)) or bool(forwards)

    # -- links to others

    def reached_by(self, node: bytes) -> str:
        """Return the connector by which a node is reached now; empty: by none."""
        return next((link.name for link in self.outgoing if link.node == node and link.connected), "")

    def opened(self, node: bytes) -> Queue:
        """A peer was reached; return its store-and-forward queue."""
        name = self._outlet_of(node)
        queue = self.post.space.queue(name)
        if queue is None:
            spec = QueueSpec(name, name, routing_type=RoutingType.MULTICAST, durable=True, internal=True)
            queue = self.post.create_queue(spec, auto_address=False)
        outlet = self.spreading.outlets.get(node)
        numbering = outlet.numbering if outlet is not None else Numbering(self._life)
        self.spreading.outlets[node] = Outlet(queue, numbering)
        self.table.connected(node)
        return queue

    def heard(self, node: bytes, telling: Telling) -> bool:
        """Take what a peer tells; return whether it has to tell everything again."""
        listener = self.table.listener(node)
        changed = self.table.hear(node, telling)
        self._remembered.keep(node, listener.records, changed)
        self._learned(changed)
        if listener.missed:
            event(
                logger, logging.WARNING, "a peer has to tell everything again", node=node.hex(), reason=listener.missed
            )
        return bool(listener.missed)

    def lost(self, node: bytes) -> None:
        """A peer is not reached any more."""
        self._learned(self.table.disconnected(node))

    def _learned(self, changed: set[Key]) -> None:
        if not changed:
            return
        self.spreading.learned()
        addresses = {path.record.address for key in changed if (path := self.table.path(key)) is not None}
        found = [one for name in addresses if (one := self.post.space.address(name)) is not None]
        self._redistribute([queue for address in found for queue in address.queues])

    def renumber(self, node: bytes, reference: MessageReference) -> None:
        """Forward a message anew that cannot be sent in order any more."""
        outlet = self.spreading.outlets[node]
        self.post.hand_over(outlet.queue, [(reference, self.spreading.renumbered(reference.message, outlet))])

    # -- redistribution

    def _redistribute(self, queues: Iterable[Queue]) -> None:
        if not self.settings.balancing.moves:
            return
        now = self.loop.time()
        soonest: float | None = None
        for queue in queues:
            mover = self._mover(queue)
            if mover is not None:
                again = mover.review(now)
                if again is not None and again < now + _LOOK:
                    soonest = again if soonest is None else min(soonest, again)
        if soonest is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_at(soonest + 0.001, self._review_movers)

    def _review_movers(self) -> None:
        space = self.post.space
        self._redistribute([queue for each in self._movers if (queue := space.queue_by_id(each)) is not None])

    def _mover(self, queue: Queue) -> Mover | None:
        delay = self.post.space.settings(queue.address).redistribution_delay
        wanted = delay >= 0 and not queue.spec.internal and queue.address in self._prefixes
        mover = self._movers.get(queue.id)
        if not wanted:
            if mover is not None:
                mover.stop()
                del self._movers[queue.id]
            return None
        if mover is None:
            mover = Mover(queue, delay / 1000, post=self.post, table=self.table, spreading=self.spreading)
            self._movers[queue.id] = mover
        return mover

    def describe(self) -> dict[str, Any]:
        """Return what management shows: links to others and from them, and where queues of others are reached."""
        links = [
            {
                "connector": link.name,
                "node": link.broker or None,
                "nodeId": link.node.hex() or None,
                "connected": link.connected,
                "reason": link.reason or None,
                "queue": self._outlet_name(link.node),
                "waiting": self._waiting(link.node),
                "inFlight": link.in_flight,
                "sent": link.sent,
                "confirmed": link.confirmed,
            }
            for link in self.outgoing
        ]
        names = {link.node: link.broker for link in self.outgoing}
        return {
            "name": self.settings.name,
            "nodeId": self.node.hex(),
            "balancing": self.settings.balancing.value,
            "maxHops": self.settings.hops,
            "links": links,
            "incoming": [
                {"node": link.name, "nodeId": link.node.hex(), "taken": link.taken} for link in self.incoming.values()
            ],
            "routes": [
                {
                    "address": path.record.address,
                    "queue": name,
                    "routingType": "MULTICAST" if path.record.multicast else "ANYCAST",
                    "node": names.get(owner, owner.hex()),
                    "nodeId": owner.hex(),
                    "distance": path.distance,
                    "connected": path.connected,
                    "consumers": path.record.consumers + sum(count for _, count in path.record.filtered),
                    "filters": dict(path.record.filtered),
                    "credit": path.record.credit,
                    "backlog": path.record.backlog,
                }
                for (owner, name), path in self.table.queues.items()
            ],
            "moved": {
                queue.name: mover.moved
                for each, mover in self._movers.items()
                if mover.moved and (queue := self.post.space.queue_by_id(each)) is not None
            },
        }

    def _outlet_name(self, node: bytes) -> str | None:
        outlet = self.spreading.outlets.get(node)
        return outlet.queue.name if outlet is not None else None

    def _waiting(self, node: bytes) -> int:
        outlet = self.spreading.outlets.get(node)
        return self.post.message_count(outlet.queue) if outlet is not None else 0


def _nobody(_queue: Queue | None) -> None:
    """Nobody is told of changed queues."""
