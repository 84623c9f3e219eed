"""The few methods that a link needs of its owner: a cluster connection, or a bridge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Iterable, Sequence

    from pollux.cluster.connection.forwarded import Forwarded
    from pollux.cluster.connection.homes import Homes
    from pollux.cluster.connection.settings import Settings
    from pollux.cluster.connector import ClusterConnector
    from pollux.cluster.link import Conversation, CoreHub
    from pollux.cluster.membership import Member, Members
    from pollux.cluster.routes.numbers import Taken
    from pollux.cluster.routes.records import Key, QueueRecord, Telling
    from pollux.cluster.scale_down.plan import About
    from pollux.cluster.topology import Topology
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference


class ToNode(Protocol):
    """A link to another node, as other links see it. ``node`` and ``broker``: who it led to, ``epoch`` its life's."""

    name: str
    node: bytes
    broker: str
    epoch: int
    reason: str

    def close(self, reason: str) -> None:
        """End the connection."""


class Sender(Protocol):
    """The owner of links to others. ``node`` is this node's id, ``name`` the broker's."""

    settings: Settings
    name: str
    node: bytes
    post: PostOffice
    loop: asyncio.AbstractEventLoop
    hub: CoreHub
    connector: ClusterConnector

    @property
    def members(self) -> Members | None:
        """The nodes of the cluster, as far as they are known here; None: nobody is told of any."""

    @property
    def topology(self) -> Topology | None:
        """Where clients find the nodes; None: nobody is told."""

    def heard_of(self, node: bytes, clients: object) -> None:
        """Note where a peer says that it takes clients."""

    def told_of(self, told: Iterable[Member]) -> None:
        """Take what a peer says of the nodes."""

    def reached_by(self, node: bytes) -> ToNode | None:
        """Return the link by which a node is reached now; None: it is not."""

    def opened(self, node: bytes, *, apart: bool = False) -> Queue:
        """A peer was reached, which tells of full addresses or not (``apart``); return its store-and-forward queue."""

    def gave_up(self, link: ToNode) -> None:
        """A node was tried as often as it may be: it is taken for gone."""

    def reached(self, node: bytes, conversation: Conversation) -> None:
        """A peer was reached by this connection, and has its queue."""

    def tried(self) -> None:
        """A peer was reached for the first time, or could not be."""

    def lost(self, node: bytes) -> None:
        """A peer is not reached any more."""

    def heard(self, node: bytes, telling: Telling) -> bool:
        """Take what a peer tells; return whether it has to tell everything again."""

    def give_up(self, reference: MessageReference, one: Forwarded) -> None:
        """Make a dead letter of a message that the peer does not take."""

    def renumber(self, node: bytes, reference: MessageReference) -> None:
        """Forward a message anew that cannot be sent in order any more."""

    def progressed(self) -> None:
        """A peer confirmed messages, told of itself, or is reached or not any more."""


class Owner(Protocol):
    """The owner of links from others. ``node`` is this node's id, ``name`` the broker's.

    ``homes``: who looks at duplicate ids for all nodes; None: each for itself.
    """

    homes: Homes | None
    settings: Settings
    name: str
    node: bytes
    post: PostOffice
    loop: asyncio.AbstractEventLoop
    #: What peers asked for and takes several writes.
    under_way: set[asyncio.Task[None]]

    @property
    def members(self) -> Members | None:
        """The nodes of the cluster, as far as they are known here; None: nobody is told of any."""

    @property
    def topology(self) -> Topology | None:
        """Where clients find the nodes; None: nobody is told."""

    def heard_of(self, node: bytes, clients: object) -> None:
        """Note where a peer says that it takes clients."""

    def told_of(self, told: Iterable[Member]) -> None:
        """Take what a peer says of the nodes."""

    def records_for(self, peer: bytes, hops: int, keys: Iterable[Key] | None) -> dict[Key, QueueRecord]:
        """Return the records a peer may hear that looks ``hops`` far: of these queues, or (None) of all."""

    def progressed(self) -> None:
        """A peer confirmed messages, told of itself, or is reached or not any more."""

    def taken_of(self, key: str) -> Taken:
        """Return what was taken in of a link."""

    def about(self) -> About:
        """Return what peers are told of this node."""

    def asked(self, node: bytes, what: str, content: bytes) -> Awaitable[None] | None:
        """Do what a peer asks for; return what has to be awaited for it, None: nothing.

        Either raises PolluxError or ValueError, in words for the peer, when that cannot be.
        """

    def arrived(self, queues: Iterable[Queue], messages: Sequence[Message]) -> None:
        """Note messages that came from another node."""

    def pass_on(self, message: Message, sent: Forwarded, tx: int) -> bool:
        """Send a message on that is for queues of another node; return whether it is kept. Raises PolluxError."""

    def crossed(self, message: Message, sent: Forwarded) -> bool:
        """Whether a message is taken although its duplicate id is known: its copies went past each other."""

    def follow(self, message: Message, sent: Forwarded, tx: int) -> bool:
        """Send a message after the one of the same duplicate id that went to another node; False: it is not to go."""

    def at_home(self, message: Message, tx: int) -> bool:
        """Look at the duplicate id of a message for all nodes, and route it; return whether it is kept."""

    def place_again(self, message: Message, sent: Forwarded, tx: int) -> bool:
        """Route a message whose queue is gone; return whether it is kept. Raises PolluxError when that cannot be."""

    def left(self, node: bytes, link: object) -> None:
        """A peer's link is gone."""
