"""Shows management a cluster connection: links to others and from them, and where queues of others are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pollux.cluster.connection import why as reasons
from pollux.cluster.connection.local import takers
from pollux.cluster.connection.mover import kept
from pollux.errors import InvalidRequestError
from pollux.message import RoutingType

if TYPE_CHECKING:
    from pollux.cluster.connection.outgoing import OutgoingLink
    from pollux.cluster.connection.service import Cluster
    from pollux.cluster.routes.records import Key
    from pollux.cluster.routes.table import Path
    from pollux.routing.queue import Queue


def describe(cluster: Cluster, address: str | None = None) -> dict[str, Any]:
    """Return all of it, as JSON has it; with an ``address`` only its routes, with an empty one none.

    There may be ten thousands of them, which takes the loop as many microseconds, and more to write.
    """
    names = _names(cluster)
    return {
        "name": cluster.settings.name,
        "nodeId": cluster.node.hex(),
        "balancing": cluster.settings.balancing.value,
        "maxHops": cluster.settings.hops,
        "members": [
            {
                "node": one.name,
                "nodeId": one.node.hex(),
                "places": [f"{host}:{port}" for host, port, _ in one.places],
            }
            for one in cluster.members.all
            if not one.gone
        ],
        "links": [_link(cluster, link) for link in cluster.peers.links],
        "incoming": [
            {"node": link.name, "nodeId": link.node.hex(), "clientId": link.client_id or None, "taken": link.taken}
            for link in cluster.incoming.values()
        ],
        "routes": [
            _route(key, path, names)
            for key, path in (cluster.table.queues.items() if address != "" else ())
            if address in (None, path.record.address)
        ],
        "moved": cluster.moving.moved,
        "duplicateIds": _homes(cluster, names),
    }


def _homes(cluster: Cluster, names: dict[bytes, str]) -> dict[str, Any] | None:
    """Return how many messages' ids their home did not look at because it was away, by its name; None: none has one."""
    homes = cluster.spreading.homes
    if homes is None:
        return None
    return {"homesAway": {names.get(node, node.hex()): count for node, count in homes.alone.items()}}


def _link(cluster: Cluster, link: OutgoingLink) -> dict[str, Any]:
    outlet = cluster.spreading.outlets.get(link.node)
    waiting = cluster.post.message_count(outlet.queue) if outlet is not None else 0
    return {
        "connector": link.name,
        "node": link.broker or None,
        "nodeId": link.node.hex() or None,
        "connected": link.connected,
        "reason": link.reason or None,
        "queue": outlet.queue.name if outlet is not None else None,
        "waiting": waiting,
        "inFlight": link.in_flight,
        "held": min(link.held.count, waiting),  # some of it may have expired
        "full": sorted(link.held.full),
        "sent": link.sent,
        "confirmed": link.confirmed,
    }


def _route(key: Key, path: Path, names: dict[bytes, str]) -> dict[str, Any]:
    owner, name = key
    record = path.record
    return {
        "address": record.address,
        "queue": name,
        "routingType": "MULTICAST" if record.multicast else "ANYCAST",
        "node": names.get(owner, owner.hex()),
        "nodeId": owner.hex(),
        "via": names.get(path.peer, path.peer.hex()),
        "distance": path.distance,
        "connected": path.connected,
        "consumers": record.consumers + sum(count for _, count in record.filtered),
        "filters": dict(record.filtered),
        "credit": record.credit,
        "backlog": record.backlog,
    }


def why(cluster: Cluster, name: str) -> list[str]:
    """Return why a queue does not drain, in words. Raises NoSuchQueueError."""
    post = cluster.post
    queue = post.queue(name)
    for node, outlet in cluster.spreading.outlets.items():
        if outlet.queue is queue:
            return list(reasons.of_outlet(_outlet(cluster, node, queue)))
    for node, forgetting in cluster.removing.forgetting.items():
        if forgetting.queue is queue:
            facts = reasons.Outlet(name, node.hex(), post.message_count(queue), False, 0, "", forgetting.held_by or "-")
            return list(reasons.of_outlet(facts))
    here = list(takers(queue))
    names = _names(cluster)
    group = (queue.address, queue.name if queue.routing_type is RoutingType.MULTICAST else "")
    others = [
        reasons.Other(
            names.get(key[0], key[0].hex()),
            path.record.consumers,
            sum(count for _, count in path.record.filtered),
            path.connected,
            path.record.credit,
            (held := cluster.peers.held(path.peer)) is not None and held.waits(queue.address),
        )
        for key, path in cluster.table.group(group).items()
    ]
    leaving = queue.name in cluster.moving.leaves.names
    facts_of_queue = reasons.Queue(
        queue.name,
        queue.address,
        post.message_count(queue),
        sum(one.selector is None for one in here),
        sum(one.selector is not None for one in here),
        queue.paused,
        0 if leaving else post.space.settings(queue.address).redistribution_delay,
        queue.address in cluster.prefixes,
        kept(queue, leaving=leaving),
        others,
    )
    return list(reasons.of_queue(facts_of_queue, cluster.settings.balancing))


def _outlet(cluster: Cluster, node: bytes, queue: Queue) -> reasons.Outlet:
    link = cluster.peers.to(node) or next((one for one in cluster.peers.links if one.node == node), None)
    return reasons.Outlet(
        queue.name,
        _names(cluster).get(node, node.hex()),
        waiting := cluster.post.message_count(queue),
        link is not None and link.connected,
        link.in_flight if link is not None else 0,
        link.reason if link is not None else "no connector leads there",
        "",
        min(link.held.count, waiting) if link is not None else 0,
        sorted(link.held.full) if link is not None else (),
        waiting - queue.waiting - queue.delivering,
    )


def _names(cluster: Cluster) -> dict[bytes, str]:
    names = {one.node: one.name for one in cluster.members.others}
    return names | {link.node: link.broker for link in cluster.peers.links if link.broker}


def node_of(cluster: Cluster, text: str) -> bytes:
    """Return the node that is meant by a name or an id. Raises InvalidRequestError."""
    names = _names(cluster)
    known = {*names, *cluster.spreading.outlets, *(member.node for member in cluster.members.others)}
    found = [node for node in known if text in (node.hex(), names.get(node))]
    if len(found) == 1:
        return found[0]
    listed = ", ".join(sorted(f"{names.get(node, '?')} ({node.hex()})" for node in known)) or "none"
    what = "several nodes have" if found else "no node has"
    raise InvalidRequestError(f"{what} the name or id {text[:100]!r}: give the id; known are {listed}")
