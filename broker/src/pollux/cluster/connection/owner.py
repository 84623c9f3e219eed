"""What a link needs of the cluster connection that it belongs to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from pollux.cluster.connection.local import LocalQueues
    from pollux.cluster.connection.settings import Settings
    from pollux.cluster.connector import ClusterConnector
    from pollux.cluster.routes.numbers import Taken
    from pollux.cluster.routes.records import Telling
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference


class Owner(Protocol):
    """A cluster connection as its links see it. ``node`` is this node's id, ``name`` the broker's."""

    settings: Settings
    name: str
    node: bytes
    post: PostOffice
    loop: asyncio.AbstractEventLoop
    connector: ClusterConnector
    local: LocalQueues

    # -- for links to others

    def reached_by(self, node: bytes) -> str:
        """Return the connector by which a node is reached now; empty: by none."""

    def opened(self, node: bytes) -> Queue:
        """A peer was reached; return its store-and-forward queue."""

    def lost(self, node: bytes) -> None:
        """A peer is not reached any more."""

    def heard(self, node: bytes, telling: Telling) -> bool:
        """Take what a peer tells; return whether it has to tell everything again."""

    def renumber(self, node: bytes, reference: MessageReference) -> None:
        """Forward a message anew that cannot be sent in order any more."""

    # -- for links from others

    def taken_of(self, key: str) -> Taken:
        """Return what was taken in of a link."""

    def arrived(self, queues: Iterable[Queue], message: Message) -> None:
        """Note a message that came from another node."""

    def place_again(self, message: Message, visited: tuple[bytes, ...], tx: int) -> bool:
        """Route a message whose queue is gone; return whether it is kept. Raises PolluxError when that cannot be."""

    def left(self, node: bytes, link: object) -> None:
        """A peer's link is gone."""
