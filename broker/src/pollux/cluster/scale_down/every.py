"""All cluster connections of a node that is scaled down: one hands over, and nothing may be left of the others either.

Each has addresses of its own, and messages on their way to nodes; by each of them others send here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.cluster.scale_down.left import Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pollux.cluster.connection.service import Cluster
    from pollux.cluster.scale_down.plan import About
    from pollux.cluster.scale_down.ways import NodeWay
    from pollux.routing.queue import Queue


class EveryConnection:
    """``clusters``: the one that hands over is the first. All methods are called in the loop's thread."""

    def __init__(self, clusters: Sequence[Cluster]) -> None:
        self._clusters = clusters

    def listen(self, about: Callable[[], About], progressed: Callable[[], None]) -> None:
        """Have nodes told ``about`` this one, and ``progressed`` called when something went or came."""
        for cluster in self._clusters:
            cluster.about, cluster.progressed = about, progressed

    def tell_about(self) -> None:
        """Tell all nodes anew about this one."""
        for cluster in self._clusters:
            for incoming in cluster.incoming.values():
                incoming.tell_about()

    def withdraw(self, *, withdrawn: bool) -> None:
        """Have other nodes send nothing here from now on, or again."""
        for cluster in self._clusters:
            cluster.withdraw(withdrawn=withdrawn)

    # -- queues

    def concerns(self, address: str) -> bool:
        """Return whether an address is one of the cluster's."""
        return any(address in cluster.prefixes for cluster in self._clusters)

    def elsewhere(self, queue: Queue) -> bool:
        """Return whether a node that is reached has a queue of the same group."""
        return any(cluster.elsewhere(queue) for cluster in self._clusters)

    def takers(self, address: str) -> set[bytes]:
        """Return the nodes where something takes what is sent to an ANYCAST address."""
        groups = (cluster.table.group((address, "")) for cluster in self._clusters)
        return {key[0] for group in groups for key, path in group.items() if path.record.has_consumers}

    # -- what is on its way

    @property
    def confirmed(self) -> int:
        """Return how many messages were confirmed by other nodes; it grows."""
        return sum(link.confirmed for cluster in self._clusters for link in cluster.peers.links)

    @property
    def subscribers(self) -> bool:
        """Return whether somebody here has a subscription in the cluster."""
        return any(cluster.local.records for cluster in self._clusters)

    def coming(self) -> tuple[str, ...]:
        """Return the names of nodes that still hold messages for this one."""
        links = (link for cluster in self._clusters for link in cluster.incoming.values())
        return tuple(dict.fromkeys(link.name for link in links if not link.empty))

    def sent(self, ways: Mapping[bytes, NodeWay]) -> tuple[Sent, ...]:
        """Return what each node has not confirmed. ``ways``: those of the connection that hands over, by node."""
        found = []
        for cluster in self._clusters:
            links = cluster.peers.links
            reached = {link.node for link in links if link.connected}
            names = {link.node: link.broker for link in links if link.broker}
            for node, outlet in cluster.spreading.outlets.items():
                way = ways.get(node) if cluster is self._clusters[0] else None
                count = way.waiting if way is not None else cluster.post.message_count(outlet.queue)
                found.append(Sent(names.get(node, node.hex()), count, node in reached))
        return tuple(found)
