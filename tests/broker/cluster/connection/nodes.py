"""Nodes at work: linked, with queues, consumers and messages."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import count, distance, wanted
from broker.engine.conftest import Receiver, message
from pollux.message import RoutingType
from pollux.routing.selector import parse
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from broker.cluster.connection.conftest import Node

    Make = Callable[..., Awaitable[list[Node]]]

ANYCAST, MULTICAST = RoutingType.ANYCAST, RoutingType.MULTICAST


class Has(NamedTuple):
    """A queue of a node: ``filter`` is its own, ``consumer`` whether somebody takes from it, ``by`` what filter."""

    name: str = "orders"
    routing_type: RoutingType = ANYCAST
    filter: str | None = None
    consumer: bool = True
    by: str | None = None
    address: str = "orders"


def both_ways(*nodes: Node) -> None:
    for one, two in pairwise(nodes):
        one.reach(two)
        two.reach(one)


async def mesh(make: Make, count: int, balancing: str = "ON_DEMAND", **more: Any) -> list[Node]:
    """Nodes of which each has a link to each other one."""
    found = await make(count, balancing, **more)
    for node in found:
        for other in found:
            if other is not node:
                link = node.reach(other)
                await until(lambda link=link: link.connected)  # type: ignore[misc]
    return found


async def queues(found: list[Node], has: Sequence[tuple[Has, ...]]) -> dict[tuple[int, str], Receiver]:
    """Give each node what it has, and wait until all know of it; return the consumers by node and queue."""
    receivers: dict[tuple[int, str], Receiver] = {}
    for at, (node, those) in enumerate(zip(found, has, strict=True)):
        for one in those:
            spec = QueueSpec(one.name, one.address, routing_type=one.routing_type, selector=one.filter)
            node.post.create_queue(spec)
            if one.consumer:
                selector = parse(one.by) if one.by is not None else None
                receivers[at, one.name] = take(node, one.name, selector=selector)

    def all_known() -> bool:
        return all(
            wanted(node, other, one.name) if one.consumer else distance(node, other, one.name)
            for other, those in zip(found, has, strict=True)
            for one in those
            for node in found
            if node is not other
        )

    await until(all_known)
    return receivers


async def linked(make: Make, balancing: str = "ON_DEMAND", **settings: Any) -> tuple[Node, Node]:
    """Two nodes with these settings of `orders`, linked both ways, each with a queue `orders` without consumers."""
    one, two = await make(2, balancing)
    for node in (one, two):
        if settings:
            node.office.settings("orders", **settings)
            await node.reopen()
    for node, other in ((one, two), (two, one)):
        link = node.reach(other)
        await until(lambda link=link: link.connected)  # type: ignore[misc]
    await queues([one, two], [(Has(consumer=False),)] * 2)
    return one, two


def take(node: Node, name: str = "orders", **more: Any) -> Receiver:
    """A consumer at a node that acknowledges nothing."""
    receiver = Receiver(**more)
    node.post.attach(node.post.queue(name), receiver)
    return receiver


async def fill(node: Node, messages: int = 10, **more: Any) -> list[bytes]:
    """Send to a node's queue while nobody takes from any."""
    bodies = [b"%d" % number for number in range(messages)]
    for body in bodies:
        node.post.send(message(body, **more))
    await node.office.stable()
    assert count(node) == messages
    return bodies
