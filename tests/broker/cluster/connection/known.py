"""The messages that nodes have, and what each knows of the others' queues."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.cluster.connection.conftest import until

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node


def wanted(at: Node, owner: Node, name: str = "orders") -> bool:
    path = at.cluster.table.path((owner.id, name))
    return path is not None and path.connected and path.record.has_consumers


def distance(at: Node, owner: Node, name: str = "orders") -> int:
    path = at.cluster.table.path((owner.id, name))
    return path.distance if path is not None else 0


def count(node: Node, name: str = "orders") -> int:
    return node.post.message_count(node.post.queue(name))


def held(found: list[Node], name: str = "orders") -> list[int]:
    """How many messages a queue has at each node; -1: it is not there."""
    return [count(node, name) if node.post.space.queue(name) is not None else -1 for node in found]


def waits(node: Node) -> int:
    return sum(node.post.message_count(outlet.queue) for outlet in node.cluster.spreading.outlets.values())


async def quiet(found: list[Node]) -> None:
    """Wait until nothing is on its way."""
    for node in found:
        await node.office.stable()
    await until(lambda: not any(waits(node) for node in found))
    for node in found:
        await node.office.stable()
