"""Takes messages from a queue and has them sent: a consumer of the queue, and the queue of those on their way.

Each message leaves its queue and gets its number for the link in one transaction. So what was sent and is not confirmed
is held here, and no more: what waits stays where its users see it.
"""

from __future__ import annotations

import copy
import os
from typing import TYPE_CHECKING

from pollux.cluster.bridges.apart import Apart
from pollux.cluster.connection.forwarded import renumbered, stored
from pollux.cluster.connection.spread import Outlet
from pollux.cluster.connection.taker import Taker
from pollux.cluster.routes.numbers import Lanes
from pollux.config.resolve import INTERNAL_PREFIX
from pollux.engine.forwards import Forward
from pollux.errors import PolluxError
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pollux.cluster.connection.forwarded import Forwarded
    from pollux.cluster.connection.owner import ToNode
    from pollux.cluster.connection.settings import Settings
    from pollux.cluster.connector import ClusterConnector
    from pollux.cluster.link import Conversation, CoreHub
    from pollux.cluster.routes.records import Telling
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.routing.selector import Selector

#: Messages that left their queue and were not confirmed: more than a link has in flight, so that it never waits.
ON_THE_WAY = 4000


class Feeder(Taker):
    """A consumer that takes while the link stands, and no more than may be on its way.

    ``most``: messages at a time.
    """

    def __init__(self, owner: Sending, name: str, selector: Selector | None = None, *, most: int = ON_THE_WAY) -> None:
        super().__init__(owner.loop)
        self.name = name
        self.priority = 0
        self.selector = selector
        #: Why it takes nothing.
        self.reason = ""
        #: Whether it is none of those that show what is wanted here.
        self.moves_messages = False
        self._owner = owner
        self._most = most
        self._queue: Queue | None = None

    def target(self, message: Message) -> tuple[str, RoutingType | None, tuple[bytes, ...]] | None:
        """Return where a message is sent there, its routing type, and the brokers that it came through.

        None: nowhere, as it was there.
        """
        return message.address, message.routing_type, ()

    def attach(self) -> None:
        """Take from the queue, if it exists."""
        post = self._owner.post
        if self._queue is not None or self._owner.outlet is None:
            return
        queue = post.space.queue(self.name)
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
            self._owner.post.detach(queue, self)

    def more(self) -> None:
        """Something was confirmed: as much may be taken."""
        if self._queue is not None:
            self.credit = self._room()
            self._owner.post.wake(self._queue)

    def _room(self) -> int:
        outlet = self._owner.outlet
        waiting = self._owner.post.message_count(outlet.queue) if outlet is not None else ON_THE_WAY
        return max(0, min(self._most, ON_THE_WAY - waiting) - len(self._taken))

    # -- the queue's consumer

    def queue_deleted(self, queue: Queue) -> None:
        """Somebody deleted the queue, with what it held."""
        self._queue = None
        super().queue_deleted(queue)

    def _hand_over(self) -> None:
        references, self._taken = self._taken, []
        outlet, queue, post = self._owner.outlet, self._queue, self._owner.post
        if queue is None or outlet is None or not references:
            return
        if post.storage.full:
            self.detach()  # with what it holds; it is looked at again
            return
        moves = []
        useless = []
        for each in references:
            target = self.target(each.message)
            if target is None:
                useless.append(each)
            else:
                moves.append((each, self._owner.forward(each.message, outlet, *target)))
        if moves:
            post.hand_over(queue, moves)
        if useless:
            post.acknowledge(useless)
            self.more()


class Sending(Apart):
    """Hold what a link that sends belongs to: feeders, and queues of what is on its way, one for each other broker."""

    def __init__(
        self, settings: Settings, name: str, node: bytes, post: PostOffice, connector: ClusterConnector
    ) -> None:
        """``post`` was restored; ``node`` is this node's id, ``name`` what the other broker is told of this one."""
        self.settings = settings
        self.name = name
        self.node = node
        self.post = post
        self.loop = post.loop
        self.connector = connector
        self.outlet: Outlet | None = None
        #: The node that was reached last; empty: none yet.
        self.last = b""
        self.feeders: Sequence[Feeder] = ()
        self._life = os.urandom(8)
        self.outlets: dict[bytes, Outlet] = {}

    @property
    def prefix(self) -> str:
        """The names of queues of what is on its way begin so; the other broker's node id follows."""
        return f"{INTERNAL_PREFIX}bridge.{self.settings.name}."

    def restore(self) -> None:
        """Know again what was on its way before this start."""
        for queue in list(self.post.space.queues):
            if queue.name.startswith(self.prefix) and len(queue.name) == len(self.prefix) + 32:
                self.outlets[bytes.fromhex(queue.name[len(self.prefix) :])] = Outlet(queue, Lanes(self._life))

    def look(self) -> None:
        """Go on where a queue was made, or has room, meanwhile; called once a second."""
        if self.outlet is not None:
            for feeder in self.feeders:
                feeder.attach()
                feeder.more()

    def more(self) -> None:
        """Something was confirmed."""
        for feeder in self.feeders:
            feeder.more()

    def forward(
        self,
        message: Message,
        outlet: Outlet,
        address: str,
        routing: RoutingType | None,
        visited: tuple[bytes, ...],
    ) -> Forward:
        """Return what is sent of a message, with its number. ``visited``: brokers that it came through."""
        sent = copy.copy(message)
        sent.address, sent.routing_type = address, routing
        number = outlet.numbering.next(address)
        return Forward(outlet.queue, stored(sent, outlet.queue.address, number, (), (*visited, self.node)))

    @property
    def on_the_way(self) -> int:
        """Return how many messages left their queues and are not confirmed."""
        return sum(self.post.message_count(outlet.queue) for outlet in self.outlets.values())

    # -- for the link

    #: By what the link connects, where it does.
    hub: CoreHub

    def reached_by(self, _node: bytes) -> ToNode | None:
        """Return the link by which a node is reached now: there is one, which asks."""
        return None

    def reached(self, node: bytes, conversation: Conversation) -> None:
        """Nothing more is said on that connection."""

    def tried(self) -> None:
        """Nobody waits for it."""

    def give_up(self, reference: MessageReference, one: Forwarded) -> None:
        """Nothing: nobody can ask for it."""

    def gave_up(self, link: ToNode) -> None:
        """Nothing: the link counts its attempts, and says so."""

    def opened(self, node: bytes, *, apart: bool = False) -> Queue:  # noqa: ARG002  (a link's)
        """The other broker was reached; return the queue of what is on its way to it."""
        self.last = node
        outlet = self.outlets.get(node)
        if outlet is None or self.post.space.queue(outlet.queue.name) is not outlet.queue:
            name = f"{self.prefix}{node.hex()}"
            spec = QueueSpec(name, name, routing_type=RoutingType.MULTICAST, durable=True, internal=True)
            queue = self.post.space.queue(name) or self.post.create_queue(spec, auto_address=False)
            outlet = self.outlets[node] = Outlet(queue, Lanes(self._life) if outlet is None else outlet.numbering)
        self.outlet = outlet
        self.loop.call_soon(self.look)
        self.post.trail.tell("bridge-connected", bridge=self.settings.name)
        return outlet.queue

    def lost(self, _node: bytes) -> None:
        """The other broker is not reached any more."""
        self.outlet = None
        for feeder in self.feeders:
            feeder.detach()
        self.post.trail.tell("bridge-disconnected", bridge=self.settings.name)

    def heard(self, _node: bytes, _telling: Telling) -> bool:
        """Take what the other broker tells: nothing is told of its queues."""
        return False

    def renumber(self, node: bytes, reference: MessageReference) -> None:
        """Send a message with the next number, as later ones went before it."""
        outlet = self.outlets[node]
        copied = renumbered(reference.message, outlet.numbering.next(""))
        self.post.hand_over(outlet.queue, [(reference, Forward(outlet.queue, copied))])
