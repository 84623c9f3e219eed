"""The bridges of other brokers that end here: each message is sent to its address as a client would, exactly once."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from pollux.cluster.bridges.apart import Apart
from pollux.cluster.bridges.settings import plain_settings
from pollux.cluster.connection.forwarded import taken
from pollux.cluster.connection.incoming import IncomingLink
from pollux.cluster.routes.numbers import Number, Taken
from pollux.cluster.scale_down.plan import About
from pollux.logs import event

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable, Sequence

    from pollux.cluster.connection.forwarded import Forwarded
    from pollux.cluster.connection.homes import Homes
    from pollux.cluster.connection.owner import Owner
    from pollux.cluster.link import Conversation, Handler
    from pollux.cluster.routes.records import Key, QueueRecord
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.queue import Queue

logger = logging.getLogger("pollux.bridge")

#: In front of the keys under which it is stored what was taken in: a cluster connection's are its name.
_KEY = "bridge:"


#: The annotation that says which brokers a federated message came through: node ids, in hexadecimal.
VISITED = "_AMQ_FEDERATED"


def visited_of(message: Message) -> tuple[bytes, ...]:
    """Return the brokers that a message came through by federation."""
    text = (message.annotations or {}).get(VISITED)
    if not isinstance(text, str):
        return ()
    try:
        return tuple(bytes.fromhex(each) for each in text.split(","))
    except ValueError:  # a client's own
        return ()


class IncomingBridge(IncomingLink):
    """The link of one bridge of another broker."""

    what = "bridge"

    def _key(self, cluster: Owner, connection: str) -> str:
        if self.node == cluster.node:
            raise ValueError("it leads to the broker that it begins at: use a divert")
        self.bridge = connection[:255]
        return f"{_KEY}{self.bridge}/{self.node.hex()}"

    def _queues(self, one: Forwarded) -> list[Queue]:  # noqa: ARG002  (a link's)
        """Return none: each message is sent to its address."""
        return []

    def _place(self, one: Forwarded, tx: int) -> None:
        """Send a message. Raises PolluxError where a client's would be refused: its sender keeps it."""
        message = taken(one, self._finish_body(one))
        if self.bridge.startswith("federation."):
            message.annotations = {**(message.annotations or {}), VISITED: ",".join(each.hex() for each in one.visited)}
        kept = False
        try:
            kept = self._cluster.post.receive(message, tx)
        finally:
            if not kept and message.large is not None:
                self._cluster.post.storage.large.delete(message.large.id)


class Receiver(Apart):
    """Hold what the links of others' bridges belong to. Everything is called in the loop's thread."""

    homes: Homes | None = None

    def __init__(self, name: str, node: bytes, post: PostOffice) -> None:
        """``post`` was restored; ``node`` is this node's id, ``name`` the broker's."""
        self.settings = plain_settings("")
        self.name = name
        self.node = node
        self.post = post
        self.loop = post.loop
        self.under_way: set[asyncio.Task[None]] = set()
        self.incoming: dict[str, IncomingBridge] = {}
        self._taken: dict[str, Taken] = {
            key: Taken(Number(*one) for one in numbers) for key, numbers in post.links.items() if key.startswith(_KEY)
        }

    def open(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Handler | None:
        """Accept a link, or refuse it; a later one of the same bridge takes the place of one before."""
        try:
            link = IncomingBridge(self, conversation, channel, content)
        except ValueError as error:
            event(logger, logging.WARNING, "bridge refused", reason=error, broker=content.get("name"))
            conversation.refuse(channel, str(error))
            return None
        before = self.incoming.pop(link.key, None)
        if before is not None:
            before.end("another connection of this bridge takes its place")
        self.incoming[link.key] = link
        link.begin()
        return link

    def stop(self) -> None:
        """Take nothing any more."""
        for link in list(self.incoming.values()):
            link.end("the broker stops")

    def describe(self) -> list[dict[str, Any]]:
        """Return what management shows of each link."""
        return [
            {"bridge": link.bridge, "node": link.name, "nodeId": link.node.hex(), "taken": link.taken}
            for link in self.incoming.values()
        ]

    # -- for the links

    def records_for(self, _peer: bytes, _hops: int, _keys: Iterable[Key] | None) -> dict[Key, QueueRecord]:
        """Return nothing: who only sends is told of no queue."""
        return {}

    def about(self) -> About:
        """Return nothing of this node: a bridge joins no cluster."""
        return About()

    def asked(self, _node: bytes, what: str, _content: bytes) -> None:
        """Take no request. Raises ValueError."""
        raise ValueError(f"a bridge cannot ask for {what!r}")

    def pass_on(self, message: Message, _sent: Forwarded, tx: int) -> bool:
        """Send a message: what comes by a bridge is for no other node."""
        return self.post.receive(message, tx)

    def crossed(self, message: Message, sent: Forwarded) -> bool:  # noqa: ARG002  (an owner's)
        """Nothing comes back by a bridge."""
        return False

    def follow(self, message: Message, sent: Forwarded, tx: int) -> bool:  # noqa: ARG002  (an owner's)
        """Nothing goes on from a bridge."""
        return False

    def at_home(self, message: Message, tx: int) -> bool:
        """Send a message: its duplicate id is looked at like anybody's."""
        return self.post.receive(message, tx)

    def taken_of(self, key: str) -> Taken:
        """Return what was taken in of a link."""
        return self._taken.setdefault(key, Taken())

    def arrived(self, queues: Iterable[Queue], messages: Sequence[Message]) -> None:
        """Note messages that came: nothing is remembered of them."""

    def place_again(self, message: Message, sent: Forwarded, tx: int) -> bool:  # noqa: ARG002  (an owner's)
        """Send a message, as there is no queue that it was for."""
        return self.post.receive(message, tx)

    def left(self, node: bytes, link: object) -> None:  # noqa: ARG002  (an owner's signature)
        """A link is gone."""
        for key, known in list(self.incoming.items()):
            if known is link:
                del self.incoming[key]
