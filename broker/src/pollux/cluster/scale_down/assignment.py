"""Which node gets each queue: chosen once, remembered in the store, and waited for while it is away.

Messages of a queue have an order, and a part of them may be on its node already: the rest goes to the same one, also
after a restart here or there. Subscriptions have one node together: a client that had several finds them there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.cluster.scale_down.plan import Peer, choose
from pollux.message import RoutingType

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from pollux.engine.post_office import PostOffice
    from pollux.routing.queue import Queue

#: What the store keeps: a node for each queue's id, and for all subscriptions.
KIND, HOME = "scale-down-target", "subscriptions"
#: Seconds that a node may be away before another one gets the rest: while clients are served, and while a stop waits.
PATIENCE, PATIENCE_OF_A_STOP = 60.0, 5.0


class Assignment:
    """Who gets what of one broker's scale-down. ``host``: the machine. ``takers``: who has consumers of an address."""

    def __init__(self, post: PostOffice, host: str, takers: Callable[[str], Collection[bytes]]) -> None:
        self._post = post
        self._host = host
        self._takers = takers
        self._nodes: dict[str, bytes] = {}
        #: Bytes given to each node.
        self._given: dict[bytes, int] = {}
        self._fitting: dict[bytes, Peer] = {}
        self._gone_since: dict[bytes, float] = {}
        #: The broker stops.
        self.stopping = False

    def resume(self) -> None:
        """Go on with what the last life chose."""
        self._nodes = {key: node for (kind, key), node in self._post.recovered.items() if kind == KIND}

    def forget(self) -> None:
        """Nothing is handed over any more: who is asked next begins anew."""
        for key in self._nodes:
            self._post.storage.put(KIND, key, None)
        self._nodes.clear()
        self._given.clear()

    def look(self, fitting: Sequence[Peer]) -> None:
        """Take note of who may get something now; who may not for too long gets nothing more."""
        now = self._post.loop.time()
        patience = PATIENCE_OF_A_STOP if self.stopping else PATIENCE
        self._fitting = {peer.node: peer for peer in fitting}
        lost = set()
        for node in set(self._nodes.values()):
            if node in self._fitting:
                self._gone_since.pop(node, None)
            elif now - self._gone_since.setdefault(node, now) >= patience:
                lost.add(node)
        for key in [key for key, node in self._nodes.items() if node in lost]:
            del self._nodes[key]

    @property
    def home(self) -> bytes:
        """Return the id of the node that gets subscriptions and sessions; empty: none was chosen."""
        return self._nodes.get(HOME, b"")

    def node_of(self, queue: Queue) -> bytes:
        """Return the id of the node that was chosen for a queue, reached or not; empty: none was."""
        return self._nodes.get(_key(queue), b"")

    def waits_for(self, queue: Queue) -> bytes:
        """Return the id of the node that was chosen for a queue and may get nothing now; empty: there is none."""
        node = self.node_of(queue)
        return b"" if node in self._fitting else node

    def give(self, queue: Queue) -> Peer | None:
        """Return the node that gets a queue now; None: nobody may, or the one that was chosen is waited for."""
        if queue.routing_type is RoutingType.MULTICAST:
            return self.give_home()
        return self._give(_key(queue), self._takers(queue.address), queue.bytes)

    def give_home(self) -> Peer | None:
        """Return the node that gets subscriptions and sessions now; None as of a queue."""
        return self._give(HOME, (), 0)

    def _give(self, key: str, takers: Collection[bytes], size: int) -> Peer | None:
        node = self._nodes.get(key)
        if node is None and self._fitting:
            node = choose(list(self._fitting.values()), takers, self._given, size, self._host).node
            self._nodes[key] = node
            self._post.storage.put(KIND, key, node)
        peer = self._fitting.get(node) if node is not None else None
        if peer is not None:
            self._given[peer.node] = self._given.get(peer.node, 0) + size
        return peer


def _key(queue: Queue) -> str:
    return HOME if queue.routing_type is RoutingType.MULTICAST else str(queue.id)
