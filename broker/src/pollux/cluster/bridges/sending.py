"""One bridge of this broker: a consumer of its queue, a queue of what is on its way, and the link that drains it.

Each message leaves its queue and gets its number for the link in one transaction. So a bridge holds in its own queue
what it sent and the other broker has not confirmed, and no more: what waits stays where its users see it.
"""

from __future__ import annotations

import asyncio
import copy
import logging
import os
from typing import TYPE_CHECKING, Any

from pollux.cluster.bridges.settings import PURPOSE
from pollux.cluster.connection.forwarded import renumbered, stored
from pollux.cluster.connection.outgoing import OutgoingLink
from pollux.cluster.connection.spread import Outlet
from pollux.cluster.connector import ClusterConnector
from pollux.cluster.discovery import DiscoveryError
from pollux.cluster.routes.numbers import Numbering
from pollux.config.resolve import INTERNAL_PREFIX
from pollux.engine.spreading import Forward
from pollux.errors import PolluxError
from pollux.logs import event
from pollux.message import RoutingType
from pollux.routing.selector import parse
from pollux.routing.spec import QueueSpec
from pollux.wire.core.frames import CoreError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.cluster.bridges.settings import BridgeSettings
    from pollux.cluster.connection.owner import ToNode
    from pollux.cluster.discovery import Others
    from pollux.cluster.link import CoreHub
    from pollux.cluster.membership import Member
    from pollux.cluster.routes.records import Telling
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference

logger = logging.getLogger("pollux.bridge")

#: Messages that left their queue and were not confirmed: more than a link has in flight, so that it never waits.
_ON_THE_WAY = 4000


class BridgeLink(OutgoingLink):
    """The link of a bridge: to whichever of its brokers answers, the one that was reached last first."""

    purpose = PURPOSE
    what = "bridge"

    def __init__(self, bridge: Bridge, others: Others) -> None:
        super().__init__(bridge, bridge.given.name, others.endpoints)
        #: Attempts were used up.
        self.stopped = False
        self._bridge = bridge
        self._others = others
        self._ups = 0
        self._failed = 0

    async def run(self) -> None:
        """Connect, and again whenever the connection is gone; until cancelled, or attempts are used up."""
        given, settings = self._bridge.given, self._bridge.settings
        wait = settings.retry
        try:
            self._others.start()
            await self._others.first()
            while not self._useless:
                before = self._ups
                for endpoint in self._in_order():
                    await self._connection(endpoint)
                    if self._ups > before or self._useless:
                        break
                if self._ups > before:
                    self._failed, wait = 0, settings.retry
                else:
                    self._failed += 1
                    allowed = given.again if self._ups else given.initial
                    if 0 <= allowed <= self._failed:
                        self._give_up()
                        return
                await self._others.pause(wait)
                wait = min(wait * settings.multiplier, settings.longest_retry)
        except DiscoveryError as error:
            self._unreachable(str(error), "set local-bind-address of the discovery-group, and start the broker again")
        finally:
            self._lost("stopped")
            self._others.stop()
            if self._link is not None:
                self._link.close("the broker stops")

    def _in_order(self) -> list[Any]:
        """The broker that was reached last is tried first."""
        endpoints = list(self._others.endpoints)
        last = self._last_endpoint
        return sorted(endpoints, key=lambda endpoint: endpoint != last)

    _last_endpoint: object = None

    async def _connection(self, endpoint: Any) -> bool:
        before = self._ups
        found = await super()._connection(endpoint)
        if self._ups > before:
            self._last_endpoint = endpoint
        return found

    def _give_up(self) -> None:
        self.stopped = True
        event(
            logger,
            logging.ERROR,
            "bridge stopped: its attempts to connect are used up",
            bridge=self.name,
            attempts=self._failed,
            reason=self.reason,
            remedy="start this broker again when the other one can be reached, or set reconnect-attempts to -1",
        )

    def accepted(self, content: dict[str, Any]) -> None:
        """Begin, unless it is another broker and the one that has part of the messages may come back soon."""
        wanted = self._bridge.wanted
        node = content.get("node_id")
        if wanted and node != wanted.hex() and self._failed < self._bridge.given.same_node:
            self._end(CoreError("stopping", "the broker that was reached last is waited for"))
            return
        self._ups += 1
        super().accepted(content)

    def _done(self, references: list[MessageReference]) -> None:
        super()._done(references)
        if references:
            self._bridge.feeder.more()


class Feeder:
    """The consumer of a bridge's queue. It takes while the link stands, and no more than may be on its way."""

    priority = 0
    browsing = False
    no_local = False
    origin = 0

    def __init__(self, bridge: Bridge) -> None:
        self.credit = 0
        self.selector = parse(bridge.given.filter) if bridge.given.filter else None
        #: Why it takes nothing.
        self.reason = ""
        self._bridge = bridge
        self._queue: Queue | None = None
        self._taken: list[MessageReference] = []

    def attach(self) -> None:
        """Take from the queue, if it exists."""
        post = self._bridge.post
        if self._queue is not None or self._bridge.outlet is None:
            return
        queue = post.space.queue(self._bridge.given.queue)
        if queue is None or post.storage.full:
            self.reason = "its queue does not exist" if queue is None else "the disk is full"
            return
        self.credit = self._room()
        try:
            post.attach(queue, self)
        except PolluxError as error:
            self.reason = str(error)
            return
        self._queue, self.reason = queue, ""

    def detach(self) -> None:
        """Take nothing any more; what was taken and is not on its way goes back."""
        queue, self._queue = self._queue, None
        self._taken.clear()
        if queue is not None:
            self._bridge.post.detach(queue, self)

    def more(self) -> None:
        """Something was confirmed: as much may be taken."""
        if self._queue is not None:
            self.credit = self._room()
            self._bridge.post.wake(self._queue)

    def _room(self) -> int:
        outlet = self._bridge.outlet
        waiting = self._bridge.post.message_count(outlet.queue) if outlet is not None else _ON_THE_WAY
        return max(0, _ON_THE_WAY - waiting - len(self._taken))

    # -- the queue's consumer

    def deliver(self, references: list[MessageReference]) -> None:
        """Take messages."""
        self.credit -= len(references)
        if not self._taken:
            self._bridge.loop.call_soon(self._hand_over)
        self._taken += references

    def queue_deleted(self, _queue: Queue) -> None:
        """Somebody deleted the queue, with what it held."""
        self._queue = None
        self._taken.clear()

    def _hand_over(self) -> None:
        references, self._taken = self._taken, []
        outlet, queue = self._bridge.outlet, self._queue
        if queue is None or outlet is None or not references:
            return
        if self._bridge.post.storage.full:
            self.detach()  # with what it holds; it is looked at again
            return
        moves = [(each, self._bridge.forward(each.message, outlet)) for each in references]
        self._bridge.post.hand_over(queue, moves)


class Bridge:
    """One bridge, and what its link belongs to. All methods are called in the loop's thread."""

    def __init__(self, given: BridgeSettings, hub: CoreHub, others: Others, node: bytes, post: PostOffice) -> None:
        """``post`` was restored; ``node`` is this node's id."""
        self.given = given
        self.settings = given.link
        self.name = hub.name
        self.node = node
        self.post = post
        self.loop = post.loop
        hub.node_id, hub.epoch = node, post.storage.epoch
        self.hub = hub
        self.connector = ClusterConnector(hub)
        self.outlet: Outlet | None = None
        self.feeder = Feeder(self)
        self.link = BridgeLink(self, others)
        #: The node that was reached last.
        self._reached = b""
        self._life = os.urandom(8)
        self._outlets: dict[bytes, Outlet] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def prefix(self) -> str:
        """The names of queues of what is on its way begin so; the other broker's node id follows."""
        return f"{INTERNAL_PREFIX}bridge.{self.given.name}."

    def start(self) -> None:
        """Connect, and send from now on."""
        for queue in list(self.post.space.queues):
            if queue.name.startswith(self.prefix) and len(queue.name) == len(self.prefix) + 32:
                self._outlets[bytes.fromhex(queue.name[len(self.prefix) :])] = Outlet(queue, Numbering(self._life))
        self._task = self.loop.create_task(self.link.run())

    async def stop(self) -> None:
        """Send nothing any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self.feeder.detach()

    def look(self) -> None:
        """Go on where the queue was made, or has room, meanwhile; called once a second."""
        if self.link.connected:
            self.feeder.attach()
            self.feeder.more()

    @property
    def wanted(self) -> bytes:
        """The broker that was reached last, or has part of the messages since before this start; empty: any."""
        if self._reached:
            return self._reached
        waiting = (node for node, outlet in self._outlets.items() if self.post.message_count(outlet.queue))
        return next(waiting, b"")

    def forward(self, message: Message, outlet: Outlet) -> Forward:
        """Return what is sent of a message, with its number."""
        sent = copy.copy(message)
        sent.address = self.given.address or message.address
        sent.routing_type = self.given.routing_type(message.routing_type)
        number = outlet.numbering.next()
        return Forward(outlet.queue, stored(sent, outlet.queue.address, number, (), (self.node,)))

    # -- for the link

    #: Nobody is told of other nodes.
    members = None

    def told_of(self, told: Iterable[Member]) -> None:
        """Take nothing: a bridge joins no cluster."""

    def reached_by(self, _node: bytes) -> ToNode | None:
        """Return the link by which a node is reached now: a bridge has one, which asks."""
        return None

    def gave_up(self, link: ToNode) -> None:
        """Nothing: the link counts its attempts, and says so."""

    def opened(self, node: bytes) -> Queue:
        """The other broker was reached; return the queue of what is on its way to it."""
        self._reached = node
        outlet = self._outlets.get(node)
        if outlet is None or self.post.space.queue(outlet.queue.name) is not outlet.queue:
            name = f"{self.prefix}{node.hex()}"
            spec = QueueSpec(name, name, routing_type=RoutingType.MULTICAST, durable=True, internal=True)
            queue = self.post.space.queue(name) or self.post.create_queue(spec, auto_address=False)
            outlet = self._outlets[node] = Outlet(queue, Numbering(self._life) if outlet is None else outlet.numbering)
        self.outlet = outlet
        self.loop.call_soon(self.look)
        self.post.trail.tell("bridge-connected", bridge=self.given.name)
        return outlet.queue

    def lost(self, _node: bytes) -> None:
        """The other broker is not reached any more."""
        self.outlet = None
        self.feeder.detach()
        self.post.trail.tell("bridge-disconnected", bridge=self.given.name, reason=self.link.reason)

    def heard(self, _node: bytes, _telling: Telling) -> bool:
        """Take what the other broker tells: a bridge is told of no queue."""
        return False

    def renumber(self, node: bytes, reference: MessageReference) -> None:
        """Send a message with the next number, as later ones went before it."""
        outlet = self._outlets[node]
        copied = renumbered(reference.message, outlet.numbering.next())
        self.post.hand_over(outlet.queue, [(reference, Forward(outlet.queue, copied))])

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        link = self.link
        source = self.post.space.queue(self.given.queue)
        reason = link.reason or self.feeder.reason
        return {
            "name": self.given.name,
            "queue": self.given.queue,
            "forwardingAddress": self.given.address,
            "filter": self.given.filter,
            "connected": link.connected,
            "stopped": link.stopped,
            "reason": reason or None,
            "node": link.broker or None,
            "nodeId": link.node.hex() or None,
            "waiting": self.post.message_count(source) if source is not None else 0,
            "onTheWay": sum(self.post.message_count(outlet.queue) for outlet in self._outlets.values()),
            "inFlight": link.in_flight,
            "sent": link.sent,
            "confirmed": link.confirmed,
        }
