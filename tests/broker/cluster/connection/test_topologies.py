"""Clusters of more than two nodes: chains, rings, links both ways, nodes that are told of, and nodes that are gone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import count, distance, waits, wanted
from broker.cluster.connection.nodes import both_ways, take
from broker.engine.conftest import message
from pollux.cluster.connection.forwarded import stored, to_send
from pollux.cluster.routes.numbers import Number
from pollux.config.acceptors import Endpoint
from pollux.config.clusters import StaticConnectors
from pollux.errors import InvalidRequestError
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from broker.cluster.connection.nodes import Make

pytestmark = pytest.mark.asyncio


async def test_a_chain_brings_a_message_as_far_as_max_hops(nodes: Make) -> None:
    """The middle nodes have no queue; each hop has the message on its disk before the one before lets go of it."""
    chain = await nodes(4, max_hops=3)
    both_ways(*chain)
    first, *middle, last = chain
    last.office.queue("orders")
    receiver = take(last)
    await until(lambda: wanted(first, last))
    assert distance(first, last) == 3
    first.post.send(message(b"along", duplicate_id=b"d"))
    (got,) = await receiver.wait(1)
    assert got.message.data == b"along"
    await until(lambda: not any(waits(node) for node in chain))
    assert [list(node.cluster.local.records) for node in middle] == [[], []]
    assert middle[0].cluster.peers.links[1].sent == 1


async def test_one_hop_too_few_and_nobody_hears_of_it(nodes: Make) -> None:
    chain = await nodes(3, max_hops=1)
    both_ways(*chain)
    chain[2].office.queue("orders")
    await until(lambda: distance(chain[1], chain[2]))
    await chain[0].office.stable()
    assert not distance(chain[0], chain[2])


async def test_a_ring_takes_the_shorter_way_and_the_other_one_when_it_is_cut(nodes: Make) -> None:
    ring = await nodes(4, max_hops=4)
    both_ways(*ring, ring[0])
    first, second, third, _fourth = ring
    third.office.queue("orders")
    second.office.queue("orders")
    receiver = take(second)
    await until(lambda: wanted(first, second))
    assert distance(first, second) == 1
    first.connectors[second.id].allowed.clear()
    first.connectors[second.id].links[-1].cut()
    await until(lambda: distance(first, second) == 3)
    await until(lambda: wanted(first, second))
    first.post.send(message(b"the long way"))
    await receiver.wait(1)
    await until(lambda: not any(waits(node) for node in ring))
    assert count(third) == 0


async def test_links_both_ways_and_two_paths_bring_everything_once(nodes: Make) -> None:
    """In the reference a pair with max-hops 2 and links both ways sees its own queue through the other one."""
    square = await nodes(4, max_hops=3)
    both_ways(*square, square[0])
    for node in square:
        node.office.queue("orders")
    receiver = take(square[2])
    await until(lambda: all(wanted(node, square[2]) for node in square if node is not square[2]))
    assert not any((node.id, "orders") in node.cluster.table.queues for node in square)
    for node in square:
        for number in range(20):
            node.post.send(message(f"{node.number}/{number}".encode()))
    await receiver.wait(80)
    assert len(set(receiver.bodies)) == 80
    await until(lambda: not any(waits(node) for node in square))


async def test_a_topic_over_two_hops_reaches_each_subscription_once(nodes: Make) -> None:
    ring = await nodes(4, max_hops=3)
    both_ways(*ring, ring[0])
    for node in ring:
        node.post.create_queue(QueueSpec(f"s{node.number}", "news", routing_type=RoutingType.MULTICAST))
    await until(lambda: all(len(node.cluster.table.queues) == 3 for node in ring))
    ring[0].post.send(message(b"all", "news", routing_type=RoutingType.MULTICAST))
    await until(lambda: all(count(node, f"s{node.number}") == 1 for node in ring))
    await until(lambda: not any(waits(node) for node in ring))
    assert [count(node, f"s{node.number}") for node in ring] == [1, 1, 1, 1]


async def test_what_is_on_its_way_outlives_a_restart_of_the_node_in_the_middle(nodes: Make) -> None:
    one, two, three = chain = await nodes(3, max_hops=2)
    both_ways(*chain)
    three.office.queue("orders")
    take(three, credit=0)
    await until(lambda: wanted(one, three))
    two.connectors[three.id].allowed.clear()
    two.connectors[three.id].links[-1].cut()
    await until(lambda: (path := one.cluster.table.path((three.id, "orders"))) is not None and not path.connected)
    one.post.send(message(b"waits in the middle"))
    await until(lambda: waits(two) == 1)
    one.connectors[two.id].allowed.clear()
    one.connectors[two.id].links[-1].cut()
    await two.reopen()
    two.connectors[three.id].allowed.set()
    two.reach(three)
    await until(lambda: count(three) == 1)
    await until(lambda: not waits(two))


async def test_one_connector_is_enough_to_know_all_nodes(nodes: Make) -> None:
    """Each node names the first one alone; they hear of each other, and link to each other."""
    everybody = await nodes(4, places=True)
    for node in everybody[1:]:
        node.reach(everybody[0])
    await until(lambda: all(len(node.cluster.incoming) == 3 for node in everybody))
    assert all(len(node.cluster.members.others) == 3 for node in everybody)
    everybody[3].office.queue("orders")
    receiver = take(everybody[3])
    await until(lambda: wanted(everybody[1], everybody[3]))
    everybody[1].post.send(message(b"direct"))
    await receiver.wait(1)
    # It is known over a restart, also while the node that told of it is not there.
    for node in everybody:
        connector = node.connector_to(everybody[0])
        connector.allowed.clear()
    await everybody[1].reopen()
    await until(lambda: wanted(everybody[1], everybody[3]))


async def test_a_node_that_was_discovered_and_is_cut_off_is_found_again(nodes: Make) -> None:
    """SymmetricClusterWithDiscoveryTest: a partition, of datagrams too; and somebody announces a wrong connector."""
    one, two, wrong = await nodes(3)
    one.connector_to(wrong).failing = True
    others = one.cluster.peers._others

    def announced(*numbers: int) -> None:
        others.endpoints = tuple(Endpoint("tcp", "host", number) for number in numbers)
        for told in others.on_change:
            told()

    two.office.queue("orders")
    take(two, credit=0)
    announced(wrong.number, two.number)
    await until(lambda: wanted(one, two))
    connector = one.connector_to(two)
    connector.allowed.clear()
    connector.links[-1].cut()
    await until(lambda: not wanted(one, two))
    announced(wrong.number)
    assert [link.endpoints[0].port for link in one.cluster.peers.links] == [wrong.number]
    two.post.create_queue(QueueSpec("s", "news", routing_type=RoutingType.MULTICAST))
    connector.allowed.set()
    announced(wrong.number, two.number)
    await until(lambda: wanted(one, two) and distance(one, two, "s"))
    announced(wrong.number)  # it is silent, and reached: that is what counts
    assert len(one.cluster.peers.links) == 2
    one.post.send(message(b"x", "news", routing_type=RoutingType.MULTICAST))
    await until(lambda: count(two, "s") == 1)


async def test_direct_connections_only_links_to_nobody_else(nodes: Make) -> None:
    only = StaticConnectors((), allow_direct_connections_only=True)
    chain = await nodes(3, places=True, static_connectors=only, max_hops=2)
    both_ways(*chain)
    await until(lambda: all(len(node.cluster.members.others) == 2 for node in chain))
    chain[2].office.queue("orders")
    take(chain[2])
    await until(lambda: wanted(chain[0], chain[2]))
    assert distance(chain[0], chain[2]) == 2
    assert [len(node.cluster.peers.links) for node in chain] == [1, 2, 1]


async def test_a_node_that_joins_later_gets_what_waits_and_one_that_leaves_is_passed_over(nodes: Make) -> None:
    one, two, three = await nodes(3, places=True)
    two.reach(one)
    await until(lambda: len(one.cluster.incoming) == 1)
    one.office.queue("orders")
    one.post.send(message(b"waits"))
    three.office.queue("orders")
    receiver = take(three)
    three.reach(one)
    await receiver.wait(1)
    two.office.queue("orders")
    other = take(two)
    await until(lambda: wanted(one, two))
    await three.connections.stop()
    for node in (one, two):
        node.connector_to(three).allowed.clear()
    await until(lambda: not wanted(one, three))
    for number in range(4):
        one.post.send(message(str(number).encode()))
    await other.wait(4)
    assert not one.post.message_count(one.cluster.spreading.outlets[three.id].queue)


async def test_the_later_one_of_two_brokers_of_a_node_is_linked_to_at_once(nodes: Make) -> None:
    """A pair's live is cut off without a word, and the other one serves with its node id in a later epoch."""
    one, old, new = await nodes(3)
    for node in (old, new):
        node.cluster.node = node.connections.hub.node_id = b"n" * 16
        node.cluster.name = "pair"
    old.connections.hub.epoch, new.connections.hub.epoch = 3, 4
    first = one.reach(old)
    await until(lambda: first.connected)
    first_connection = one.connectors[old.id].links[-1]
    first_connection.ends[0].cut = first_connection.ends[1].cut = True
    one.connectors[old.id].allowed.clear()
    second = one.reach(new)
    await until(lambda: second.connected)
    assert not first.connected
    assert "in epoch 4" in first.reason
    one.connectors[old.id].allowed.set()
    first.again()
    await until(lambda: "it leads where" in first.reason)
    assert second.connected


async def test_a_link_is_ended_when_who_it_leads_to_links_back_from_elsewhere(nodes: Make) -> None:
    """A live's machine lost its power, which nothing says before connection-ttl; its backup serves and links here."""
    one, old, new = await nodes(3)
    for node in (old, new):
        node.cluster.node = node.connections.hub.node_id = b"n" * 16
    old.connections.hub.epoch, new.connections.hub.epoch = 3, 4
    first = one.reach(old)
    await until(lambda: first.connected)
    connection = one.connectors[old.id].links[-1]
    connection.ends[0].cut = connection.ends[1].cut = True
    one.connectors[old.id].allowed.clear()
    back = new.reach(one)
    await until(lambda: back.connected)
    await until(lambda: not first.connected)
    assert "serves as this node in epoch 4" in first.reason


async def test_an_earlier_life_is_refused_while_a_later_one_is_linked(
    nodes: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one, old, new = await nodes(3)
    for node in (old, new):
        node.cluster.node = node.connections.hub.node_id = b"n" * 16
    old.connections.hub.epoch, new.connections.hub.epoch = 3, 4
    later = new.reach(one)
    await until(lambda: later.connected)
    earlier = old.reach(one)
    await until(lambda: "in a later life, epoch 4" in earlier.reason)
    assert later.connected
    assert "cluster link refused" in caplog.text


async def test_two_brokers_of_one_id_in_the_same_epoch_are_told_apart_by_their_names(nodes: Make) -> None:
    """A data directory was copied: neither takes the place of the other one, and both are told what to do."""
    one, first, copy = await nodes(3)
    for node in (first, copy):
        node.cluster.node = node.connections.hub.node_id = b"n" * 16
        node.connections.hub.epoch = 3
    copy.connections.hub.process = b"another"
    link = first.reach(one)
    await until(lambda: link.connected)
    refused = copy.reach(one)
    await until(lambda: "broker 'node3' has the node id of broker 'node2': its data directory is" in refused.reason)
    assert link.connected
    between = first.reach(copy)
    await until(lambda: "broker 'node3' has the node id of broker 'node2'" in between.reason)
    assert not between.useless


async def test_forget_routes_anew_what_waits_and_deletes_the_queue(nodes: Make) -> None:
    """ANYCAST goes to another queue of the address, a copy for a subscription of that node to the dead letters."""
    one, two, three = await nodes(3)
    one.office.settings("news", dead_letter_address="dead")
    await one.reopen()
    for node in (two, three):
        node.office.queue("orders")
        one.reach(node)
    one.office.queue("dead")
    two.post.create_queue(QueueSpec("s", "news", routing_type=RoutingType.MULTICAST))
    take(two, credit=0)
    await until(lambda: wanted(one, two) and distance(one, three) and distance(one, two, "s"))
    with pytest.raises(InvalidRequestError, match="'node2' is reached by"):
        one.connections.forget("node2")
    connector = one.connectors[two.id]
    connector.allowed.clear()
    connector.links[-1].ends[0].cut = True  # sent, and never there
    for number in range(250):
        one.post.send(message(str(number).encode(), duplicate_id=str(number).encode()))
    one.post.send(message(b"topic", "news", routing_type=RoutingType.MULTICAST))
    await one.office.stable()
    queue = one.cluster.spreading.outlets[two.id].queue
    assert one.post.message_count(queue) == 251
    connector.links[-1].cut()
    with pytest.raises(InvalidRequestError, match="no node has the name or id 'node9'"):
        one.connections.forget("node9")
    found = one.connections.forget("node2")
    assert found == {"nodeId": two.id.hex(), "routedAnew": 251}
    await until(lambda: count(three) == 250)
    assert count(one, "dead") == 1
    await until(lambda: one.post.space.queue(queue.name) is None)
    assert not one.cluster.removing.forgetting
    assert not distance(one, two)
    await one.reopen()
    assert two.id not in one.cluster.spreading.outlets
    assert not distance(one, two)


async def test_reconnect_attempts_used_up_routes_anew_and_the_node_is_linked_to_when_it_is_back(
    nodes: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await nodes(reconnect_attempts=2)
    two.office.queue("orders")
    link = one.reach(two)
    await until(lambda: distance(one, two))
    one.connectors[two.id].failing = True
    one.connectors[two.id].links[-1].ends[0].cut = True
    one.post.send(message(b"goes here instead"))
    await one.office.stable()
    one.connectors[two.id].links[-1].cut()
    await until(lambda: "taken for gone" in caplog.text)
    await until(lambda: one.post.space.queue("orders") is not None and count(one) == 1)
    one.connectors[two.id].failing = False
    take(two)
    two.reach(one)
    await until(lambda: link.connected)
    await until(lambda: count(one) == 0)


async def test_several_cluster_connections_are_for_their_own_addresses(nodes: Make) -> None:
    one, two = await nodes(connections=("a", "b"))
    for node in (one, two):
        node.office.queue("a.orders")
        node.office.queue("b.orders")
    one.reach(two)  # the first one alone
    await until(lambda: distance(one, two, "a.orders"))
    a, b = one.connections.all
    assert set(a.table.queues) == {(two.id, "a.orders")}
    assert not b.table.queues
    one.reach(two, connection=1)
    await until(lambda: (two.id, "b.orders") in b.table.queues)
    assert set(b.table.queues) == {(two.id, "b.orders")}
    receivers = [take(two, "a.orders"), take(two, "b.orders")]
    await until(lambda: wanted(one, two, "a.orders") and b.table.queues[two.id, "b.orders"].record.consumers)
    for name in ("a.orders", "b.orders"):
        one.post.send(message(name.encode(), name))
    for receiver in receivers:
        await receiver.wait(1)
    assert [cluster.peers.links[0].sent for cluster in one.connections.all] == [1, 1]
    assert {outlet.queue.name.split(".")[4] for each in (a, b) for outlet in each.spreading.outlets.values()} == {
        "a",
        "b",
    }
    assert one.connections.describe("b")["connections"] == ["a", "b"]
    with pytest.raises(InvalidRequestError, match="no cluster-connection 'x'"):
        one.connections.describe("x")


async def test_a_message_on_its_way_does_not_go_back_where_it_was(nodes: Make) -> None:
    """In a ring of four the node in the middle knows two ways that are equally long."""
    ring = await nodes(4, max_hops=4)
    both_ways(*ring, ring[0])
    first, second, third, fourth = ring
    third.office.queue("orders")
    await until(lambda: distance(first, third) == 2)
    path = first.cluster.table.path((third.id, "orders"))
    assert path is not None
    before, other = (second, fourth) if path.peer == second.id else (fourth, second)
    copy = stored(message(b"x"), "sf", Number(bytes(8), 1), ("orders",), (before.id,), owner=third.id)
    sent = to_send(copy)
    assert sent is not None
    forwards = first.cluster.spreading.onward(message(b"x"), sent)
    assert [one.queue for one in forwards] == [first.cluster.spreading.outlets[other.id].queue]


async def test_the_other_broker_of_a_pair_is_no_node_that_is_waited_for(nodes: Make) -> None:
    """Breaks when MQTT clients of who takes over wait for a host that has no power, as if a session could be there."""
    one, two = await nodes()
    one.connector_to(two).allowed.clear()
    link = one.reach(two)
    assert not link.tried
    assert not one.cluster.all_tried()
    one.places = [("host", one.number, False), ("host", two.number, False)]
    assert one.cluster.all_tried()


async def test_of_several_connections_the_one_of_the_queue_says_why_it_does_not_drain(nodes: Make) -> None:
    """Breaks when the first one is asked, which says that it leaves the address out."""
    one, two = await nodes(connections=("a", "b"))
    for node in (one, two):
        node.office.queue("b.orders")
    link = one.reach(two, connection=1)
    b = one.connections.all[1]
    await until(lambda: (two.id, "b.orders") in b.table.queues)
    one.post.send(message(b"x", "b.orders::b.orders"))
    await one.office.stable()
    (reason,) = one.connections.why("b.orders")["reasons"]
    assert "none of them has a consumer" in reason
    outlet = b.spreading.outlets[two.id].queue
    one.connector_to(two).allowed.clear()
    one.connector_to(two).links[-1].cut()
    await until(lambda: not link.connected)
    b.post.send(message(b"no message of a link's", outlet.address))
    await one.office.stable()
    (reason,) = one.connections.why(outlet.name)["reasons"]
    assert "'node2' is not reached" in reason
