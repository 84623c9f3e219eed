"""Nodes that are gone for good: they are not learnt again, nor counted, whoever tells of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.cluster.membership import WAS_REMOVED
from pollux.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from pollux.cluster.connection.forgetting import Forgetting
    from pollux.cluster.connection.incoming import IncomingLink
    from pollux.cluster.connection.peers import Peers
    from pollux.cluster.membership import Member


class Removing:
    """Removes nodes from a cluster connection. ``told``: what is done elsewhere for each of them, by node id."""

    def __init__(
        self,
        peers: Peers,
        incoming: Mapping[bytes, IncomingLink],
        linked: Container[bytes],
        *,
        forget: Callable[[bytes], Forgetting | None],
        route_anew: Callable[[bytes], object],
    ) -> None:
        """``linked``: nodes to which there is a link. ``forget`` raises InvalidRequestError where it is reached."""
        self._peers = peers
        self._incoming = incoming
        self._linked = linked
        self._forget = forget
        self._route_anew = route_anew
        self.told: Callable[[bytes], object] = lambda _node: None

    def start(self) -> None:
        """Tell of those that were removed before this start."""
        for member in self._peers.members.all:
            if member.removed:
                self.told(member.node)

    def remove(self, node: bytes) -> Forgetting | None:
        """Forget a node for good; return what routes anew what waits for it, None: nothing waits.

        Raises InvalidRequestError while the node is reached, and where most of the others are not: they may be the ones
        that go on.
        """
        others = [one for one in self._peers.members.others if one.node != node and one.node in self._linked]
        away = [member.name for member in others if self._peers.to(member.node) is None]
        if 2 * (len(others) - len(away) + 1) <= len(others) + 1:
            raise InvalidRequestError(
                f"this node does not reach most of the others ({', '.join(away)} are away): remove it at one that does,"
                " or remove those first that do not come back"
            )
        work = self._forget(node)
        self.told(node)
        return work

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
                link.removed()
            self._peers.forget(member.node, for_good=True)
            self._route_anew(member.node)
            self.told(member.node)
