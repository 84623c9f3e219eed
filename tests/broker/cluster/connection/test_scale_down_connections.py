"""Scale-down of a node with several cluster connections: one hands over everything, nothing is left of the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from broker.cluster.connection.conftest import until
from broker.cluster.connection.scaled import count
from broker.engine.conftest import Receiver, message
from pollux.config.clusters import HaPolicy, PrimaryOnly, ScaleDown
from pollux.config.extensions import HighAvailability
from pollux.message import RoutingType
from pollux.node import scale_down

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make
    from pollux.cluster.scale_down.drain import Drain

pytestmark = pytest.mark.asyncio

NEAR, FAR = 0, 1


@pytest.fixture
async def joined() -> AsyncIterator[Callable[..., Drain]]:
    made: list[Drain] = []

    def join(node: Node, by: str | None = None) -> Drain:
        configuration = replace(
            node.office.configuration,
            ha_policy=HaPolicy(primary_only=PrimaryOnly(ScaleDown())),
            high_availability=HighAvailability(scale_down_cluster=by),
        )
        made.append(scale_down.join(node.connections.all, configuration, lambda: False, None))
        made[-1].start()
        return made[-1]

    yield join
    for each in made:
        await each.stop()


@pytest.mark.parametrize("by", [None, "far"])
async def test_everything_goes_by_the_connection_that_is_named(
    nodes: Make, joined: Callable[..., Drain], by: str | None
) -> None:
    """Breaks when another one is taken, or when what is of another one's addresses stays."""
    one, two, three = await nodes(3, connections=("near", "far"))
    ways = {None: (NEAR, two, three), "far": (FAR, three, two)}
    _, takes, other = ways[by]
    drain = joined(one, by)
    for node in (two, three):
        joined(node, by)
    one.reach(two, NEAR)
    one.reach(three, FAR)
    for name in ("near.orders", "far.orders"):
        one.office.queue(name)
        one.post.send(message(name.encode(), name))
    for name in ("near.news", "far.news"):
        one.office.queue(f"subscription of {name}", name, routing_type=RoutingType.MULTICAST)
    await one.office.stable()
    await until(lambda: all(cluster.peers.links[0].connected for cluster in one.connections.all))
    await until(lambda: all(peer.about is not None for peer in drain.peers()))
    drain.begin()
    await until(lambda: drain.look().state == "drained")
    assert [count(takes, name) for name in ("near.orders", "far.orders")] == [1, 1]
    for name in ("near.news", "far.news"):
        assert takes.post.space.queue(f"subscription of {name}") is not None
        assert other.post.space.queue(f"subscription of {name}") is None
    assert [count(other, name) for name in ("near.orders", "far.orders")] == [0, 0]


async def test_what_is_on_its_way_by_another_connection_is_waited_for(
    nodes: Make, joined: Callable[..., Drain]
) -> None:
    """Breaks when a node is called drained while messages of another connection wait in it for a node that is away."""
    one, two, three = await nodes(3, connections=("near", "far"))
    drain = joined(one)
    for node in (two, three):
        joined(node)
    one.reach(two, NEAR)
    link = one.reach(three, FAR)
    receiver = Receiver()
    three.post.attach(three.office.queue("far.orders"), receiver)
    (far,) = [cluster for cluster in one.connections.all if cluster.settings.name == "far"]
    await until(lambda: link.connected and (three.id, "far.orders") in far.table.queues)
    connector = one.connectors[three.id]
    connector.allowed.clear()
    connector.links[-1].cut()
    await until(lambda: not link.connected)
    one.post.send(message(b"x", "far.orders"))
    await one.office.stable()
    await until(lambda: one.connections.all[NEAR].peers.links[0].connected)
    await until(lambda: all(peer.about is not None for peer in drain.peers()))
    drain.begin()
    await until(lambda: drain.look().state == "waiting")
    assert "node3" in drain.look().reason
    connector.allowed.set()
    await receiver.wait(1)
    await until(lambda: drain.look().state == "drained")


async def test_others_send_nothing_here_by_any_connection(nodes: Make, joined: Callable[..., Drain]) -> None:
    """Breaks when a node that goes is told of as one that takes messages by a connection that hands nothing over."""
    one, two = await nodes(2, connections=("near", "far"))
    drain = joined(one)
    joined(two)
    one.reach(two, NEAR)
    two.reach(one, FAR)
    one.post.attach(one.office.queue("far.orders"), Receiver())
    far = two.connections.all[FAR]
    await until(lambda: (one.id, "far.orders") in far.table.queues)
    await until(lambda: drain.peers() and all(peer.about is not None for peer in drain.peers()))
    drain.begin()
    await until(lambda: (one.id, "far.orders") not in far.table.queues)
    about = far.peers.links[0].about
    assert about is not None
    assert about.draining
    drain.cancel()
    await until(lambda: (one.id, "far.orders") in far.table.queues)
