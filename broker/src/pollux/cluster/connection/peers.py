"""The peers of a cluster connection: a link for each static connector, each node that is discovered or told of.

A node is told of by its peers (:mod:`pollux.cluster.membership`): one static connector is enough to reach all. With
``allow-direct-connections-only`` only the connectors that are named are connected to.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

import msgspec

from pollux.cluster.announcements import endpoints as reached_by
from pollux.cluster.connection.outgoing import OutgoingLink
from pollux.cluster.membership import Member, Members
from pollux.logs import event
from pollux.wire.core.datagram import Reached

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pollux.cluster.connection.held import Held
    from pollux.cluster.connection.owner import Sender
    from pollux.cluster.discovery import Others
    from pollux.config.acceptors import Endpoint

logger = logging.getLogger("pollux.cluster")

#: What nodes are kept as in the bindings; the key is CONNECTION/NODE.
KIND = "cluster-member"


class Peers:
    """Who this node links to. Everything is called in the loop's thread."""

    def __init__(
        self,
        cluster: Sender,
        others: Others,
        *,
        places: Callable[[], Iterable[tuple[str, int, bool]]],
        recovered: Mapping[tuple[str, str], bytes],
    ) -> None:
        """``others``: who is discovered. ``places``: where this node is reached, of a pair all its brokers."""
        self._cluster = cluster
        self._others = others
        self._places = places
        self._prefix = f"{cluster.settings.name}/"
        known = [
            msgspec.msgpack.decode(value, type=Member)
            for (kind, name), value in recovered.items()
            if kind == KIND and name.startswith(self._prefix)
        ]
        self.members = Members(cluster.node, cluster.name, cluster.post.storage.epoch, known)
        self.members.reached_at(places())
        self.links = [OutgoingLink(cluster, name, endpoints) for name, endpoints in cluster.settings.peers]
        self._tasks: dict[OutgoingLink, asyncio.Task[None]] = {}
        self._left_out: set[str] = set()
        #: What links sent that are no more: by node and life the highest number.
        self._ended: dict[tuple[bytes, bytes], int] = {}

    # -- start and stop

    def start(self) -> None:
        """Connect to them from now on. Raises DiscoveryError."""
        for link in list(self.links):
            self._run(link)
        for member in self.members.others:
            self._link_to(member)
        self._others.on_change.append(self._discovered)
        self._others.start()

    async def stop(self) -> None:
        """End all links."""
        self._others.stop()
        tasks, self._tasks = list(self._tasks.values()), {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def add(self, link: OutgoingLink) -> None:
        """Have one more link."""
        self.links.append(link)
        self._run(link)

    def _run(self, link: OutgoingLink) -> None:
        self._tasks[link] = self._cluster.loop.create_task(link.run())

    def remove(self, link: OutgoingLink) -> None:
        """End a link, and have it no more."""
        self.links.remove(link)
        for where, number in link.sent_numbers.items():
            self._ended[where] = max(number, self._ended.get(where, 0))
        task = self._tasks.pop(link, None)
        if task is not None:
            task.cancel()

    # -- who is there

    def to(self, node: bytes) -> OutgoingLink | None:
        """Return the link by which a node is reached now; None: it is not."""
        return next((link for link in self.links if link.node == node and link.connected), None)

    def sent_up_to(self, node: bytes, life: bytes) -> int:
        """Return the highest number of a life that this process ever sent to a node; 0: none was."""
        return max((self._ended.get((node, life), 0), *(link.sent_up_to(node, life) for link in self.links)))

    def held(self, node: bytes) -> Held | None:
        """Return what is held back of what waits for a node, as addresses there are full; None: it is not reached."""
        link = self.to(node)
        return link.held if link is not None else None

    def look(self) -> list[Member]:
        """Look where this node is reached now; return what has to be told."""
        return [self.members.mine] if self.members.reached_at(self._places()) else []

    def is_here(self, link: OutgoingLink) -> bool:
        """Whether a link is to brokers of this node alone: to the other one of a pair."""
        mine = {(host, port) for host, port, _ in self._places()}
        return bool(link.endpoints) and all((one.host, one.port) in mine for one in link.endpoints)

    def hear(self, told: Iterable[Member]) -> list[Member]:
        """Take what a peer says of the nodes; return what is new."""
        before, was_out = self.members.contradictions, self.members.out
        news = self.members.hear(told)
        if self.members.out and not was_out:
            event(
                logger,
                logging.ERROR,
                "this node was removed from the cluster",
                remedy="stop it; to take part again it needs an empty data directory. What it still has is on its disk"
                " alone: `pollux journal` shows it",
            )
        if self.members.contradictions > before:
            event(
                logger,
                logging.WARNING,
                "others knew something newer of this node than it said itself",
                remedy="nothing, after its store was restored or it was removed; else look for a broker with a copy of"
                " its data directory",
            )
        for member in news:
            if member.node == self._cluster.node:
                continue
            self._keep(member)
            if not member.gone:
                self._link_to(member)
        return news

    def _keep(self, member: Member) -> None:
        name = f"{self._prefix}{member.node.hex()}"
        self._cluster.post.storage.put(KIND, name, msgspec.msgpack.encode(member))

    def _link_to(self, member: Member) -> None:
        """Have a link to a node that others told of, or more places for the one there is."""
        settings = self._cluster.settings
        if not member.places:
            return
        places = {member.name: tuple(Reached(*place) for place in member.places)}
        found, refused = reached_by(places, settings.template)
        link = next((one for one in self.links if one.node == member.node or _meet(one, found)), None)
        if link is not None and not link.node:
            link.node = member.node  # who waits there, as long as nobody else is reached
        if settings.direct_only:
            return
        if refused and member.name not in self._left_out:
            self._left_out.add(member.name)
            event(
                logger,
                logging.WARNING,
                "a node is not connected to, as it would be without TLS",
                broker=member.name,
                remedy="give its connector sslEnabled=true, as this broker's own has",
            )
        if link is not None:
            link.told = found
            link.again()
        elif found:
            event(logger, logging.INFO, "a node was told of", broker=member.name, node=member.node.hex())
            link = OutgoingLink(self._cluster, member.name, ())
            link.node, link.broker, link.told = member.node, member.name, found
            self.add(link)

    def _discovered(self) -> None:
        """Link to who announces itself, and no more to who does not and is not reached."""
        found = self._others.endpoints
        for link in [one for one in self.links if one.discovered]:
            if not link.connected and not set(link.endpoints) & set(found):
                self.remove(link)
        for endpoint in found:
            if not any(_meet(link, (endpoint,)) for link in self.links):
                link = OutgoingLink(self._cluster, f"{endpoint.host}:{endpoint.port}", (endpoint,))
                link.discovered = True
                self.add(link)

    def forget(self, node: bytes, *, for_good: bool = False) -> None:
        """Have no link to a node that is not reached, and remember it no more; ``for_good``: nor learn of it again."""
        for link in [one for one in self.links if one.node == node]:
            if any(link.name == name for name, _ in self._cluster.settings.peers):
                link.node, link.told = b"", ()  # its connector is tried on
            else:
                self.remove(link)
        removed = self.members.remove(node, for_good=for_good)
        if removed is not None:
            self._keep(removed)


def _meet(link: OutgoingLink, endpoints: Iterable[Endpoint]) -> bool:
    """Whether a link leads to one of these places."""
    places = {(one.host, one.port) for one in endpoints}
    return any((one.host, one.port) in places for one in (*link.endpoints, *link.told))
