"""All cluster connections of a node, each for a part of the addresses. They share the acceptors and the post office."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from pollux.cluster.connection.refusals import Refusals
from pollux.cluster.connection.service import Cluster
from pollux.cluster.connection.settings import PURPOSE, settings_of
from pollux.cluster.connection.view import describe, node_of, why
from pollux.cluster.discovery import Others
from pollux.cluster.meeting import Meeting
from pollux.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pollux.cluster.connection.forgotten import Forgetting
    from pollux.cluster.connection.settings import Settings
    from pollux.cluster.connection.spread import Spreading
    from pollux.cluster.discovery import Announcer
    from pollux.cluster.link import Conversation, CoreHub, Handler
    from pollux.config.model import Configuration
    from pollux.engine.forwards import Spread, Way
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.queue import Queue

logger = logging.getLogger("pollux.cluster")


class Connections:
    """Everything is called in the loop's thread."""

    def __init__(
        self,
        configuration: Configuration,
        node: bytes,
        post: PostOffice,
        hub: CoreHub,
        *,
        places: Callable[[], Iterable[tuple[str, int, bool]]],
        announced: bool = False,
    ) -> None:
        """``post`` was restored. ``places``: where this node is reached, of a pair all its brokers.

        ``announced``: the pair's policy announces this broker in the broadcast groups itself.
        """
        self.hub = hub
        hub.node_id, hub.epoch = node, post.storage.epoch
        hub.purposes[PURPOSE] = self._open
        self._post = post
        self._refusals = Refusals()
        self._announcers: list[Announcer] = []
        meeting = Meeting(configuration, hub.key, node.hex())
        if not announced:
            self._announcers = meeting.announcers()
        self.all = [
            Cluster(
                settings := settings_of(configuration, number),
                configuration.name,
                node,
                hub,
                post,
                places=places,
                configuration=configuration,
                others=_others(configuration, settings, meeting),
            )
            for number in range(len(configuration.cluster_connections))
        ]

    def start(self) -> None:
        """Connect to the others, and spread messages from now on. Raises DiscoveryError."""
        post, clusters = self._post, self.all
        for cluster in clusters:
            cluster.start()
        spreading = clusters[0].spreading if len(clusters) == 1 else self
        post.spread_over(spreading.route, spreading.route_alike)
        changed = clusters[0].queue_changed if len(clusters) == 1 else self._queue_changed
        post.space.on_change = post.consumers_changed = changed
        post.space.elsewhere = self._elsewhere
        post.address_manager.keeps = self._has_home
        for announcer in self._announcers:
            announcer.open()
            announcer.start()

    async def stop(self) -> None:
        """Send and take nothing any more."""
        for announcer in self._announcers:
            announcer.stop()
        self.hub.purposes.pop(PURPOSE, None)
        self._post.space.on_change = self._post.consumers_changed = _nobody
        self._post.space.elsewhere = _nowhere
        await asyncio.gather(*(cluster.stop() for cluster in self.all))

    def route(self, message: Message) -> Sequence[Queue] | Spread:
        """Return where a message goes, as the connection says whose addresses this one is of."""
        return self._spreading(message).route(message)

    def route_alike(self, message: Message) -> Sequence[Queue] | Way | None:
        """Return where all messages go that are like this one, as that connection says."""
        return self._spreading(message).route_alike(message)

    def _spreading(self, message: Message) -> Spreading:
        """Return that of the connection whose addresses this one is of; they have none in common."""
        for cluster in self.all:
            if cluster.spreading.concerns(message.address) or (
                message.duplicate_id is not None and message.address in cluster.prefixes
            ):
                return cluster.spreading
        return self.all[0].spreading

    def _elsewhere(self, name: str) -> bool:
        return any(cluster.spreading.takes(name) for cluster in self.all)

    def _has_home(self, address: str) -> bool:
        homes = [cluster.spreading.homes for cluster in self.all]
        return any(each is not None and each.covers(address) for each in homes)

    def _queue_changed(self, queue: Queue | None) -> None:
        for cluster in self.all:
            cluster.queue_changed(queue)

    def _open(self, conversation: Conversation, channel: int, content: dict[str, Any]) -> Handler | None:
        wanted = content.get("connection")
        for cluster in self.all:
            if cluster.settings.name == wanted:
                self._refusals.forget(str(content.get("name")))
                return cluster.open(conversation, channel, content)
        names = " and ".join(repr(cluster.settings.name) for cluster in self.all)
        reason = f"this broker's cluster-connection is {names}, not {wanted!r}: give both one name"
        self._refusals.tell(content.get("name"), reason)
        conversation.refuse(channel, reason)
        return None

    # -- for management

    def named(self, name: str | None) -> Cluster:
        """Return the connection of this name; None: the first one. Raises InvalidRequestError."""
        for cluster in self.all:
            if name in (None, cluster.settings.name):
                return cluster
        raise InvalidRequestError(f"there is no cluster-connection {name!r}")

    def why(self, name: str, connection: str | None = None) -> dict[str, Any]:
        """Return why a queue does not drain. Raises NoSuchQueueError, InvalidRequestError.

        ``connection``: the one that is asked; None: the one whose addresses the queue's is of.
        """
        cluster = self._of(name) if connection is None else self.named(connection)
        return {"queue": name, "reasons": why(cluster, name)}

    def _of(self, name: str) -> Cluster:
        """Return the connection that a queue's messages go by, or that has it to send by; the first one of none."""
        queue = self._post.queue(name)
        for cluster in self.all:
            waits = [one.queue for one in cluster.spreading.outlets.values()]
            waits += [one.queue for one in cluster.removing.forgetting.values()]
            if queue.address in cluster.prefixes or queue in waits:
                return cluster
        return self.all[0]

    def forget(self, node: str, connection: str | None = None, *, first: bool = False) -> dict[str, Any]:
        """Route anew what waits for a node, by name or id, that does not come back. Raises InvalidRequestError.

        ``connection``: that one alone; None: all that know it, if none reaches it.
        ``first``: of a node that is there only give up the message that it does not take.
        """
        if first:
            cluster = self.named(connection)
            found = node_of(cluster, node)
            cluster.removing.forget_first(found)
            return {"nodeId": found.hex(), "routedAnew": 0}
        found, clusters = self._knowing(node, connection)
        for cluster in clusters:
            cluster.removing.may_forget(found)
        return self._gone(found, [cluster.removing.forget(found) for cluster in clusters])

    def remove(self, node: str, connection: str | None = None) -> dict[str, Any]:
        """Forget a node, by name or id, for good: it is not learnt again, nor counted. Raises InvalidRequestError.

        ``connection``: as in :meth:`forget`.
        """
        found, clusters = self._knowing(node, connection)
        for cluster in clusters:
            cluster.removing.may_remove(found)
        return self._gone(found, [cluster.removing.remove(found) for cluster in clusters])

    def _knowing(self, node: str, connection: str | None) -> tuple[bytes, list[Cluster]]:
        """Return a node's id, and which connections know it: the named one; None: all. Raises InvalidRequestError."""
        if connection is not None:
            cluster = self.named(connection)
            return node_of(cluster, node), [cluster]
        refusals: list[InvalidRequestError] = []
        found, clusters = b"", []
        for cluster in self.all:
            try:
                found = node_of(cluster, found.hex() or node)  # by its id, once that is known
            except InvalidRequestError as error:
                refusals.append(error)
            else:
                clusters.append(cluster)
        if not clusters:
            raise refusals[0]
        return found, clusters

    def _gone(self, node: bytes, works: Iterable[Forgetting | None]) -> dict[str, Any]:
        waiting = sum(self._post.message_count(work.queue) for work in works if work is not None)
        return {"nodeId": node.hex(), "routedAnew": waiting}

    def on_removed(self, told: Callable[[bytes], object]) -> None:
        """Have ``told`` called for each node that is removed, or was before; before :meth:`start`."""
        for cluster in self.all:
            cluster.removing.told = told

    def describe(self, name: str | None = None, address: str | None = None) -> dict[str, Any]:
        """Return what is shown of one, and the names of all. ``address``: only routes to its queues; empty: none."""
        return {**describe(self.named(name), address), "connections": [cluster.settings.name for cluster in self.all]}


def _others(configuration: Configuration, settings: Settings, meeting: Meeting) -> Others:
    """Return who finds other nodes for a connection: a discovery group, or nobody."""
    for group in configuration.discovery_groups:
        if group.name == settings.discovery_group:
            return meeting.others(group, settings.template)
    return Others(())


def _nowhere(_name: str) -> bool:
    """No other node gets anything."""
    return False


def _nobody(_queue: Queue | None) -> None:
    """Nobody is told of changed queues."""
