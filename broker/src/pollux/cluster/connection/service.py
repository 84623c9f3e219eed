"""The cluster connection of a node: its links, what they learned, and the messages that go over them."""

from __future__ import annotations

import asyncio
import logging
import os
from typing import TYPE_CHECKING, Any

from pollux.cluster.connection.crossed import Crossed
from pollux.cluster.connection.forwarded import mark_moved, taken
from pollux.cluster.connection.homes import Homes
from pollux.cluster.connection.incoming import IncomingLink
from pollux.cluster.connection.late import Late
from pollux.cluster.connection.local import LocalQueues, Prefixes
from pollux.cluster.connection.looks import Looks
from pollux.cluster.connection.peers import Peers
from pollux.cluster.connection.redistribution import LOOK, Redistribution
from pollux.cluster.connection.refusals import Refusals, copied
from pollux.cluster.connection.remembered import Remembered
from pollux.cluster.connection.removal import Removing
from pollux.cluster.connection.spread import Outlet, Spreading
from pollux.cluster.connector import ClusterConnector
from pollux.cluster.membership import WAS_REMOVED
from pollux.cluster.routes.choice import Balancing
from pollux.cluster.routes.numbers import Lanes, Number, Taken
from pollux.cluster.routes.records import Telling
from pollux.cluster.routes.table import RoutingTable
from pollux.cluster.scale_down.plan import About
from pollux.cluster.topology import Topology, parse
from pollux.config.model import Configuration
from pollux.engine.forwards import Spread
from pollux.formats.forwards import OUTLETS
from pollux.logs import event
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from pollux.cluster.connection.forwarded import Forwarded
    from pollux.cluster.connection.outgoing import OutgoingLink
    from pollux.cluster.connection.settings import Settings
    from pollux.cluster.discovery import Others
    from pollux.cluster.link import Conversation, CoreHub, Handler
    from pollux.cluster.membership import Member, Members
    from pollux.cluster.routes.records import Key, QueueRecord
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference

logger = logging.getLogger("pollux.cluster")

#: Seconds: changes of that time are told together; a digest is told.
_TOGETHER, _DIGEST = 0.005, 30.0
#: Seconds between two portions of queues that are looked at: very many take longer, never all the processor.
_PAUSE = 0.01


class Cluster:
    """One cluster connection. All methods are called in the loop's thread."""

    def __init__(
        self,
        settings: Settings,
        name: str,
        node: bytes,
        hub: CoreHub,
        post: PostOffice,
        *,
        places: Callable[[], Iterable[tuple[str, int, bool]]],
        others: Others,
        configuration: Configuration | None = None,
    ) -> None:
        """``post`` was restored; ``node`` is this node's id, ``name`` the broker's.

        ``hub`` is what other brokers may ask for; of a pair also what its members do. ``places``: where this node is
        reached, ``others``: who is discovered, ``configuration``: where clients find this broker.
        """
        self.settings = settings
        self.name = name
        self.node = node
        self.post = post
        self.loop = post.loop
        self.hub = hub
        self.connector = ClusterConnector(self.hub, settings.silence)
        self.table = RoutingTable(node, hops=settings.hops)
        self.spreading = Spreading(post.space, self.table, node, settings.balancing)
        self.homes: Homes | None = None
        self.local = LocalQueues(post.space, node, post.storage.epoch, Prefixes(""), self.elsewhere)
        self.peers = Peers(self, others, places=places, recovered=post.recovered)
        self.spreading.held = self.peers.held
        self.incoming: dict[bytes, IncomingLink] = {}
        self._refusals = Refusals()
        #: Where clients find this node and the others.
        self.topology = Topology(configuration or Configuration(), node.hex())
        self.prefixes = Prefixes(settings.address)
        self._taken: dict[str, Taken] = {
            link: Taken(Number(*one) for one in numbers) for link, numbers in post.links.items()
        }
        self._life = os.urandom(8)
        self._remembered = Remembered(post.storage, post.recovered, settings.name)
        self.removing = Removing(
            settings.name,
            post,
            self.peers,
            self.incoming,
            self.spreading,
            unlearn=self._unlearn,
            tell=self._pass_on,
        )
        self.gave_up = self.removing.gave_up
        self._late = Late(post, self.peers, self.spreading, self._less_waits)
        handler = configuration.grouping_handler if configuration is not None else None
        if handler is not None and settings.balancing is not Balancing.OFF:
            self.spreading.grouped = Prefixes(handler.address)
        if (
            configuration is not None
            and configuration.cluster.duplicate_ids
            and settings.balancing is not Balancing.OFF
        ):
            self.homes = self.spreading.homes = Homes(
                Prefixes(configuration.cluster.duplicate_ids),
                node,
                within=self.prefixes,
                nodes=lambda: (one.node for one in self.members.others),
                takes=self._does_homes,
            )
        #: What of this node's queues moves to others.
        self.moving = Redistribution(
            post,
            self.table,
            self.spreading,
            self.prefixes,
            moves=settings.balancing.moves,
            changed=self.queue_changed,
            confirmed=lambda: sum([link.confirmed for link in self.peers.links]),
        )
        self.leave, self.stay, self.leaving = self.moving.leave, self.moving.stay, self.moving.leaving
        self.arrived = self.moving.arrived
        crossed = Crossed(post, self.spreading, self.table, self.members)
        self.crossed, self.follow = crossed.taken, crossed.follow
        self.local.leaving = self.spreading.leaving = self.moving.leaves.names
        #: Told of each node that is reached, with the connection to it.
        self.reached: Callable[[bytes, Conversation], None] = _nothing
        #: Told when a node was reached for the first time, or could not be.
        self.tried: Callable[[], None] = _nothing
        #: Told of the queues elsewhere of which something else is known now.
        self.learned: Callable[[set[Key]], None] = _nothing
        #: Told when nothing is known any more of a node that does not come back.
        self.unlearned: Callable[[], None] = _nothing
        self._dirty: set[Queue] = set()
        self._all_dirty = False
        self._planned = False
        self._looking: asyncio.Task[None] | None = None
        #: What peers are told of this node; what they may ask for, by name; who is told that something changed.
        self.about: Callable[[], About] = About
        self.requests: dict[str, Callable[[bytes, bytes], Awaitable[None] | None]] = {}
        #: What they asked for and takes several writes.
        self.under_way: set[asyncio.Task[None]] = set()
        self.progressed: Callable[[], None] = _nothing

    # -- start and stop

    def start(self) -> None:
        """Connect to the others, and spread messages from now on."""
        self.local.review_all()
        self._restore()
        self.peers.start()
        self.removing.start()
        self._late.start()
        for member in self.members.all:
            if member.gone and member.node in self.spreading.outlets:
                self.removing.route_anew(member.node)  # a stop came before all of it was
        self._looking = self.loop.create_task(self._look())

    def _restore(self) -> None:
        """Know again the nodes for which something may wait, and their queues: none of them is connected yet."""
        prefix = self._outlet_of(b"")
        for queue in list(self.post.space.queues):
            if queue.name.startswith(prefix) and len(queue.name) == len(prefix) + 32:
                node = bytes.fromhex(queue.name[len(prefix) :])
                self.spreading.outlets[node] = Outlet(queue, Lanes(self._life))
                self.table.hear(node, Telling(1, whole=True, records=self._remembered.of(node)))
                self.table.disconnected(node)
        self.spreading.learned()

    def _outlet_of(self, node: bytes) -> str:
        """Return the name of the store-and-forward queue for a node."""
        return f"{OUTLETS}{self.settings.name}.{node.hex()}"

    async def stop(self) -> None:
        """Send and take nothing any more."""
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        self._late.stop()
        await self.peers.stop()
        self.removing.stop()
        for incoming in list(self.incoming.values()):
            incoming.end("the broker stops")
        for task in self.under_way:
            task.cancel()
        await asyncio.gather(*self.under_way, return_exceptions=True)
        self.moving.stop()

    async def _look(self) -> None:
        """Look at queues that are other ones than before, and at every queue now and then: no event is relied on."""
        digest, looks = self.loop.time() + _DIGEST, Looks()
        while True:
            await asyncio.sleep(LOOK)
            try:
                for some in looks.portions(list(self.post.space.queues)):
                    self._dirty.update(some)
                    self._changed()
                    await asyncio.sleep(_PAUSE)
                self._pass_on(self.peers.look())
                if self.loop.time() >= digest:
                    digest = self.loop.time() + _DIGEST
                    looks.forget()
                    self.moving.tidy()
                    for link in self.incoming.values():
                        link.digest()
                        link.credited()
                    # Itself alone: all of them to everybody would grow with the square of the nodes.
                    self._pass_on([self.members.mine])
            except Exception:
                logger.exception("the cluster connection failed to look after its queues")

    # -- this node's queues

    def queue_changed(self, queue: Queue | None) -> None:
        """A queue, or who takes from it, is another one now; None: many are."""
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
        self.moving.review(dirty)

    def tell_now(self) -> None:
        """Tell the other nodes of what has changed so far."""
        self._changed()

    # -- queues that leave

    def all_tried(self) -> bool:
        """Whether every other node was reached once, or could not be. The other broker of a pair serves this one."""
        return all(link.tried or link.useless or self.peers.is_here(link) for link in self.peers.links)

    def complete(self) -> bool:
        """Whether every node that is known of is reached, and reaches this one."""
        links = self.peers.links
        nodes = {link.node for link in links if link.connected} | self.spreading.outlets.keys()
        return all(link.connected or link.useless or link.second for link in links) and all(
            node in self.incoming and self.reached_by(node) for node in nodes
        )

    def elsewhere(self, queue: Queue) -> bool:
        """Whether a node that is reached has a queue of the same group."""
        group = (queue.address, queue.name if queue.routing_type is RoutingType.MULTICAST else "")
        return any(path.connected for path in self.table.group(group).values())

    # -- links from others

    def open(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Handler | None:
        """Take a link from another node, or refuse it in words."""
        try:
            link = IncomingLink(self, conversation, channel, content)
            before = self._before(link)
        except ValueError as error:
            self._refusals.tell(content.get("name"), str(error))
            conversation.refuse(channel, str(error))
            return None
        if before is not None:
            before.end("another connection of this node takes its place")
        self.incoming[link.node] = link
        self._refusals.forget(link.name)
        link.begin()
        for one in self.peers.links:
            if one.node in (link.node, b""):  # who was never reached may be this one
                if one.connected and one.epoch < link.epoch:
                    # Its machine lost its power, or is cut off: nothing says so before connection-ttl.
                    one.close(f"{link.name} serves as this node in epoch {link.epoch}")
                one.again()
        return link

    def _before(self, link: IncomingLink) -> IncomingLink | None:
        """Return the link of a node that a new one takes the place of. Raises ValueError when it does not."""
        if self.members.was_removed(link.node):
            raise ValueError(WAS_REMOVED)
        before = self.incoming.get(link.node)
        if before is not None and before.epoch > link.epoch:
            raise ValueError(f"broker {before.name!r} serves as this node in a later life, epoch {before.epoch}")
        if before is not None and before.epoch == link.epoch and before.who != link.who:
            raise ValueError(copied(link.name, link.epoch, before.name, before.epoch))
        return before

    def left(self, node: bytes, link: object) -> None:
        """A peer's link is gone."""
        if self.incoming.get(node) is link:
            del self.incoming[node]

    def asked(self, node: bytes, what: str, content: bytes) -> Awaitable[None] | None:
        """Do what a peer asks for; return what has to be awaited for it. Raises PolluxError or ValueError."""
        request = self.requests.get(what)
        if request is None:
            raise ValueError(f"this broker does not know how to take {what!r}")
        return request(node, content)

    def withdraw(self, *, withdrawn: bool) -> None:
        """Have other nodes send nothing here from now on, but for subscriptions that nobody else has; or again."""
        self.local.withdrawn = withdrawn
        changed = self.local.review_all()
        for link in self.incoming.values():
            link.changed(changed)
            link.tell_about()

    def heard_of(self, node: bytes, clients: object) -> None:
        """Note where a peer says that it takes clients."""
        self.topology.heard(parse(node.hex(), clients))

    def servers(self, protocol: str, tls: bool) -> list[tuple[str, int, str]]:
        """Return the brokers of the other nodes that a client may turn to, as :meth:`Topology.servers`."""
        return self.topology.servers(protocol, tls, [place for one in self.members.others for place in one.places])

    def taken_of(self, key: str) -> Taken:
        """Return what was taken in of a link."""
        return self._taken.setdefault(key, Taken())

    def records_for(self, peer: bytes, hops: int, keys: Iterable[Key] | None) -> dict[Key, QueueRecord]:
        """Return the records a peer may hear that looks ``hops`` far: of these queues, or (None) of all."""
        mine, found = self.local.records, {}
        for key in keys if keys is not None else [*mine, *(self.table.queues if hops > 1 else ())]:
            record = mine.get(key) if key[0] == self.node else self.table.told(peer, key) if hops > 1 else None
            if record is not None and len(record.path) <= hops:
                found[key] = record
        return found

    def pass_on(self, message: Message, sent: Forwarded, tx: int) -> bool:
        """Send a message on that is for queues of another node; routed anew when they are gone."""
        forwards = self.spreading.onward(message, sent)
        for forward in forwards:
            self.post.forward(forward, tx)
        return bool(forwards) or self.place_again(message, sent, tx)

    def at_home(self, message: Message, tx: int) -> bool:
        """Look at the duplicate id of a message for all nodes, and route it; return whether it is kept."""
        if not self.post.remember(message, tx):
            return False
        found = self.spreading.from_home(message)
        queues, forwards = (found.queues, found.forwards) if isinstance(found, Spread) else (found, ())
        for forward in forwards:
            self.post.forward(forward, tx)
        if not queues and not forwards and message.routing_type is not RoutingType.MULTICAST:
            spec = QueueSpec(message.address, message.address, routing_type=RoutingType.ANYCAST, auto_created=True)
            queues = [self.post.create_queue(spec, auto_address=False)]
        return (bool(queues) and self.post.take(message, queues, tx, moved=True)) or bool(forwards)

    def _does_homes(self, node: bytes) -> bool:
        link = self.peers.to(node)
        return link is not None and link.homes and node in self.spreading.outlets

    def place_again(self, message: Message, sent: Forwarded, tx: int) -> bool:
        """Route a message whose queue is gone. ANYCAST with no queue left gets one here; a subscription is over."""
        found = self.spreading.again(message, sent)
        queues, forwards = (found.queues, found.forwards) if isinstance(found, Spread) else (found, ())
        for forward in forwards:
            if sent.moved:
                mark_moved(forward.message)
            self.post.forward(forward, tx)
        if not queues and not forwards and not sent.subscriptions:
            spec = QueueSpec(message.address, message.address, routing_type=RoutingType.ANYCAST, auto_created=True)
            queues = [self.post.create_queue(spec, auto_address=False)]
        return (bool(queues) and self.post.take(message, queues, tx, moved=sent.moved)) or bool(forwards)

    # -- who is there

    @property
    def members(self) -> Members:
        """The nodes of the cluster, as far as they are known here."""
        return self.peers.members

    def told_of(self, told: Iterable[Member]) -> None:
        """Take what a peer says of the nodes; what is new is passed on."""
        news = self.peers.hear(told)
        self._pass_on(news)
        self.removing.heard(news)

    def _pass_on(self, news: list[Member]) -> None:
        if news:
            for outgoing in self.peers.links:
                outgoing.tell_members(news)
            for incoming in self.incoming.values():
                incoming.tell_members(news)

    # -- links to others

    def reached_by(self, node: bytes) -> OutgoingLink | None:
        """Return the link by which a node is reached now; None: it is not."""
        return self.peers.to(node)

    def opened(self, node: bytes, *, apart: bool = False) -> Queue:
        """A peer was reached, which tells of full addresses or not (``apart``); return its store-and-forward queue."""
        self.removing.came_back(node)
        name = self._outlet_of(node)
        queue = self.post.space.queue(name)
        if queue is None:
            spec = QueueSpec(name, name, routing_type=RoutingType.MULTICAST, durable=True, internal=True)
            queue = self.post.create_queue(spec, auto_address=False)
        outlet = self.spreading.outlets.get(node)
        numbering = outlet.numbering if outlet is not None else Lanes(self._life)
        numbering.apart = apart
        self.spreading.outlets[node] = Outlet(queue, numbering)
        self.table.connected(node)
        for number in range(1, self.settings.tellings + 1):
            self.loop.call_later(number * self.settings.tell_every, self._tell_again, node)
        return queue

    def _tell_again(self, node: bytes) -> None:
        """Tell once more what crossed on its way."""
        link = self.peers.to(node)
        if link is not None:
            link.tell_members(self.members.all)

    def heard(self, node: bytes, telling: Telling) -> bool:
        """Take what a peer tells; return whether it has to tell everything again."""
        listener = self.table.listener(node)
        changed = self.table.hear(node, telling)
        self._remembered.keep(node, listener.records, changed)
        for key in changed:
            path = self.table.path(key)
            if path is not None and path.peer != node:  # it was known by another way, too, which counts now
                self._remembered.keep(path.peer, self.table.listener(path.peer).records, (key,))
        self._learned(changed)
        if listener.missed:
            event(
                logger, logging.WARNING, "a peer has to tell everything again", node=node.hex(), reason=listener.missed
            )
        return bool(listener.missed)

    def lost(self, node: bytes) -> None:
        """A peer is not reached any more by a link; it still may be by another one, which was there just before."""
        if self.reached_by(node) is None:
            self._learned(self.table.disconnected(node))

    def _unlearn(self, node: bytes) -> None:
        """Know nothing of a node's queues any more, and send no client there."""
        self.topology.forget(node.hex())
        self._remembered.forget(node)
        self._learned(self.table.forget(node))
        self.unlearned()

    def _learned(self, changed: set[Key]) -> None:
        if not changed:
            return
        self.spreading.learned()
        self.learned(changed)
        if any(self.table.path(key) is None for key in changed):
            self.post.address_manager.forget_sendable()
        for link in list(self.incoming.values()):
            if link.looks_further:
                link.changed(changed)
        addresses = {path.record.address for key in changed if (path := self.table.path(key)) is not None}
        found = [one for name in addresses if (one := self.post.space.address(name)) is not None]
        self.moving.review([queue for address in found for queue in address.queues])
        if self.local.withdrawn:
            self.queue_changed(None)  # of a subscription that another node has now nobody is told any more

    def give_up(self, reference: MessageReference, one: Forwarded) -> None:
        """Make a dead letter, at its own address, of a message that a node does not take."""
        message = taken(one, reference.message.large)
        event(logger, logging.WARNING, "a message is given up", address=message.address, number=one.number)
        self.post.dead_letters.bury(reference, message)

    def renumber(self, node: bytes, reference: MessageReference) -> None:
        """Forward a message anew that cannot be sent in order any more."""
        outlet = self.spreading.outlets[node]
        self.post.hand_over(outlet.queue, [(reference, self.spreading.renumbered(reference.message, outlet))])

    def _less_waits(self, node: bytes) -> None:
        if (link := self.peers.to(node)) is not None:
            link.say_empty()
        self.progressed()

    def waiting(self, node: bytes) -> int:
        """Return how many messages wait for a node."""
        outlet = self.spreading.outlets.get(node)
        return self.post.message_count(outlet.queue) if outlet is not None else 0


def _nothing(*_told: object) -> None:
    """Nobody is told."""
