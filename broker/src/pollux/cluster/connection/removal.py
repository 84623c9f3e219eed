"""Nodes that do not come back: what waits for them is routed anew. Those that are removed are never learnt again."""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING

from pollux.cluster.connection.forgotten import Forgetting
from pollux.cluster.membership import WAS_REMOVED
from pollux.errors import InvalidRequestError
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pollux.cluster.connection.incoming import IncomingLink
    from pollux.cluster.connection.owner import ToNode
    from pollux.cluster.connection.peers import Peers
    from pollux.cluster.connection.spread import Spreading
    from pollux.cluster.membership import Member
    from pollux.engine.post_office import PostOffice

logger = logging.getLogger("pollux.cluster")


class Removing:
    """Removes nodes from a cluster connection. ``told``: what is done elsewhere for each of them, by node id."""

    def __init__(
        self,
        name: str,
        post: PostOffice,
        peers: Peers,
        incoming: Mapping[bytes, IncomingLink],
        spreading: Spreading,
        *,
        unlearn: Callable[[bytes], None],
        tell: Callable[[list[Member]], None],
    ) -> None:
        """``name``: the cluster connection's. ``unlearn``: nothing of its queues is known. ``tell``: the others."""
        #: What waited for nodes that do not come back, by their ids.
        self.forgetting: dict[bytes, Forgetting] = {}
        self._name = name
        self._post = post
        self._peers = peers
        self._incoming = incoming
        self._spreading = spreading
        self._unlearn = unlearn
        self._tell = tell
        self.told: Callable[[bytes], object] = lambda _node: None

    def start(self) -> None:
        """Tell of those that were removed before this start."""
        for member in self._peers.members.all:
            if member.removed:
                self.told(member.node)

    def stop(self) -> None:
        """Leave what is left where it is."""
        for forgetting in list(self.forgetting.values()):
            forgetting.stop()

    def came_back(self, node: bytes) -> None:
        """Send to a node what is left, as it is reached after all."""
        forgetting = self.forgetting.pop(node, None)
        if forgetting is not None:
            forgetting.stop()

    def gave_up(self, link: ToNode) -> None:
        """A node was tried as often as it may be: what waits for it is routed anew, unless it is reached elsewhere."""
        if link.node and self._peers.to(link.node) is not None:
            return  # the other broker of the pair serves
        event(
            logger,
            logging.WARNING,
            "a node is taken for gone: what waits for it is routed anew",
            connector=link.name,
            broker=link.broker or None,
            reason=link.reason,
            remedy="start it: it is connected to again when it connects to this node",
        )
        if link.node:
            self.route_anew(link.node)

    def forget(self, node: bytes, *, for_good: bool = False) -> Forgetting | None:
        """Route anew what waits for a node that does not come back, and know nothing of it any more, or ever.

        Returns what does that; None: nothing waits. Raises InvalidRequestError while the node is reached.
        """
        self.may_forget(node)
        self._peers.forget(node, for_good=for_good)
        self._tell(self._peers.members.all)
        return self.route_anew(node)

    def may_forget(self, node: bytes) -> None:
        """Raise InvalidRequestError while a node is reached, or when nobody knows it."""
        link = self._peers.to(node)
        if link is not None:
            raise InvalidRequestError(
                f"broker {link.broker!r} is reached by {link.name!r}: stop it first; what waits for it is sent"
            )
        if node not in self._spreading.outlets and self._peers.members.get(node) is None:
            raise InvalidRequestError(f"no node {node.hex()} is known to cluster-connection {self._name!r}")

    def forget_first(self, node: bytes) -> None:
        """Give up the next message that a node was sent and did not take. Raises InvalidRequestError: there is none."""
        link = next((one for one in self._peers.links if one.node == node and one.holds), None)
        if link is None:
            raise InvalidRequestError("no message was sent to this node that it did not take: nothing is given up")
        link.give_up_first()

    def route_anew(self, node: bytes) -> Forgetting | None:
        """Route anew what waits for a node, and know nothing of it; None: nothing waits, or it is under way."""
        outlet = self._spreading.outlets.pop(node, None)
        self._unlearn(node)
        if outlet is None or node in self.forgetting:
            return None
        work = Forgetting(
            outlet.queue,
            post=self._post,
            spreading=self._spreading,
            over=partial(self.forgetting.pop, node),
        )
        self.forgetting[node] = work
        work.start()
        return work

    def remove(self, node: bytes) -> Forgetting | None:
        """Forget a node for good; return what routes anew what waits for it, None: nothing waits.

        Raises InvalidRequestError when it may not be.
        """
        self.may_remove(node)
        work = self.forget(node, for_good=True)
        self.told(node)
        return work

    def may_remove(self, node: bytes) -> None:
        """Raise InvalidRequestError while a node is reached, and where most of the others are not.

        They may be the ones that go on.
        """
        others = [one for one in self._peers.members.others if one.node != node and one.node in self._spreading.outlets]
        away = [member.name for member in others if self._peers.to(member.node) is None]
        if 2 * (len(others) - len(away) + 1) <= len(others) + 1:
            raise InvalidRequestError(
                f"this node does not reach most of the others ({', '.join(away)} are away): remove it at one that does,"
                " or remove those first that do not come back"
            )
        self.may_forget(node)

    def heard(self, news: Iterable[Member]) -> None:
        """Let go of nodes that were removed elsewhere."""
        for member in news:
            if not member.removed:
                continue
            incoming = self._incoming.get(member.node)
            if incoming is not None:
                incoming.end(WAS_REMOVED)
            link = self._peers.to(member.node)
            if link is not None:
                link.close(WAS_REMOVED)
            self._peers.forget(member.node, for_good=True)
            self.route_anew(member.node)
            self.told(member.node)
