"""Clients are told of every node of the cluster: of those that are linked to, of those further on, and of backups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.cluster.connection.conftest import until
from broker.cluster.connection.nodes import both_ways
from broker.cluster.connection.test_removing import leave, three_nodes
from pollux.cluster.routers.service import linked
from pollux.cluster.topology import Address, Announcement
from pollux.config.clusters import StaticConnectors

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make

pytestmark = pytest.mark.asyncio
DIRECT = StaticConnectors((), allow_direct_connections_only=True)


def told(node: Node) -> list[int]:
    """The ports of the servers that a client of a node is told of: the nodes' numbers, unless they announce more."""
    servers = node.cluster.servers("AMQP", tls=False)
    assert all((host, scheme) == ("host", "amqp") for host, _, scheme in servers)
    return sorted(port for _, port, _ in servers)


async def test_of_nodes_further_on_of_those_that_join_and_of_a_pairs_backup(nodes: Make) -> None:
    """A chain, where nobody announces anything to the one after the next."""
    one, two, three = await nodes(3, places=True, static_connectors=DIRECT, max_hops=3)
    assert told(one) == []
    both_ways(one, two)
    await until(lambda: told(one) == [2])
    both_ways(two, three)
    await until(lambda: told(one) == [2, 3])
    await until(lambda: told(three) == [1, 2])
    three.places.append(("host", 33, False))
    await until(lambda: told(one) == [2, 3, 33])


async def test_one_that_announces_where_it_takes_clients_is_not_named_by_its_link(nodes: Make) -> None:
    one, two = await nodes(2, places=True)
    both_ways(one, two)
    await until(lambda: told(one) == [2])
    one.cluster.heard_of(two.id, {"links": [["host", 2]], "addresses": [["host", 5672, False, ["AMQP"]]]})
    assert told(one) == [5672]
    assert one.cluster.servers("MQTT", tls=False) == []


async def test_of_one_that_was_removed_no_more_and_of_one_that_is_down_still(nodes: Make) -> None:
    one, two, three = await three_nodes(nodes)
    one.cluster.heard_of(two.id, {"links": [["host", 2]], "addresses": [["host", 20, False, ["AMQP"]]]})
    assert told(one) == [3, 20]
    leave(two, [one, three])
    await until(lambda: not one.cluster.reached_by(two.id) and not three.cluster.reached_by(two.id))
    assert told(one) == [3, 20]
    one.connections.remove("node2")
    assert told(one) == [3]
    await until(lambda: told(three) == [1])


async def test_a_routers_pool_has_all_nodes_also_those_that_were_told_of(nodes: Make) -> None:
    """Breaks when a router chooses only from those that a connector names, where one connector is enough."""
    one, two, three = await nodes(3, places=True)
    for node in (two, three):
        node.reach(one)
    await until(lambda: all(len(node.cluster.incoming) == 2 for node in (one, two, three)))

    def pool(node: Node) -> list[set[int]]:
        return [{endpoint.port for endpoint in member.endpoints} for member in linked(node.cluster)]

    assert [pool(one), pool(two), pool(three)] == [[{2}, {3}], [{1}, {3}], [{1}, {2}]]
    three.places.append(("host", 33, False))  # it is a pair: its backup has announced itself
    await until(lambda: pool(one) == [{2}, {3, 33}])
    await until(lambda: pool(two) == [{1}, {3, 33}])


async def test_of_one_that_was_removed_not_again_when_it_asks_to_be_linked(nodes: Make) -> None:
    """Breaks when the words of a node that is refused are believed: clients were sent to it again."""
    one, two, three = await three_nodes(nodes)
    two.cluster.topology.mine = Announcement(two.id.hex(), (("host", 2),), (Address("host", 20, False, ("AMQP",)),))
    leave(two, [one, three])
    await until(lambda: not one.cluster.reached_by(two.id) and not three.cluster.reached_by(two.id))
    one.connections.remove("node2")
    assert told(one) == [3]
    two.connector_to(one).failing = False
    link = two.reach(one)
    await until(lambda: "was removed from the cluster" in link.reason)
    assert told(one) == [3]
