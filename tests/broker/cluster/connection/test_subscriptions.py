"""Durable subscriptions of AMQP and STOMP have one home in a cluster: a client finds them, and their messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import count, distance, quiet, wanted
from broker.cluster.connection.nodes import take
from broker.engine.conftest import message
from pollux.cluster.connection.subscriptions import EverySubscription
from pollux.engine.named import Found
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make
    from broker.engine.conftest import Receiver

pytestmark = pytest.mark.asyncio
NAME = "client.news"


async def clustered(nodes: Make, size: int = 2, balancing: str = "ON_DEMAND", delay: int = -1) -> list[Node]:
    """Nodes that know of each other's subscriptions; nothing of other queues is moved."""
    found = await nodes(size, balancing)
    for node in found:
        node.office.settings("#", redistribution_delay=delay)
        await node.reopen()
        join(node)
    for node in found:
        for other in found:
            if other is not node:
                link = node.reach(other)
                await until(lambda link=link: link.connected)  # type: ignore[misc]
    return found


def join(node: Node) -> None:
    node.post.named = EverySubscription(node.connections.all)


def subscribe(node: Node, user: str | None = "alice", name: str = NAME, address: str = "news") -> Receiver:
    """As a protocol does it: the queue is made where there is none, then taken from."""
    if node.post.space.queue(name) is None:
        node.post.create_queue(QueueSpec(name, address, routing_type=RoutingType.MULTICAST, user=user))
    receiver = take(node, name)
    node.post.named.used(node.post.queue(name))
    return receiver


def leave(node: Node, receiver: Receiver, name: str = NAME) -> None:
    queue = node.post.queue(name)
    node.post.detach(queue, receiver)
    node.post.named.unused(queue)


async def publish(node: Node, *bodies: bytes, address: str = "news") -> None:
    for body in bodies:
        node.post.send(message(body, address, routing_type=RoutingType.MULTICAST))
    await node.office.stable()


def taken(receiver: Receiver) -> list[bytes]:
    return sorted(reference.message.data for reference in receiver.got)


@pytest.mark.parametrize("balancing", ["ON_DEMAND", "STRICT", "OFF", "OFF_WITH_REDISTRIBUTION"])
async def test_a_client_finds_its_messages_at_another_node_and_new_ones_come_there_alone(
    nodes: Make, balancing: str
) -> None:
    """Breaks with the reference's rules: with STRICT half of it is kept at the first node, for ever."""
    one, two = found = await clustered(nodes, balancing=balancing)
    leave(one, subscribe(one))
    await publish(one, b"1", b"2")
    await until(lambda: distance(two, one, NAME))
    await publish(two, b"3")
    await quiet(found)
    assert count(one, NAME) == 3
    receiver = subscribe(two)
    await receiver.wait(3)
    await until(lambda: not distance(two, one, NAME))
    await publish(one, b"4", b"5")
    await publish(two, b"6", b"7")
    await receiver.wait(7)
    assert taken(receiver) == [b"1", b"2", b"3", b"4", b"5", b"6", b"7"]
    assert not count(one, NAME)


async def test_other_nodes_know_whether_it_takes_messages_of_its_own_connection(nodes: Make) -> None:
    """Breaks when it is not told, when it is told only while a client is there, or when a change of it is not."""
    one, two = await clustered(nodes)
    receiver = subscribe(one)
    for own in (7, 0):
        leave(one, receiver)
        one.post.address_manager.exclude_own(one.post.queue(NAME), own)
        receiver = subscribe(one)
        known = Found("news", "", no_local=bool(own))
        await until(lambda known=known: two.post.named.find(NAME) == known)  # type: ignore[misc]
        await until(lambda: has_consumers(two, one))
        leave(one, receiver)
        await until(lambda: not has_consumers(two, one))
        assert two.post.named.find(NAME) == known
        receiver = subscribe(one)


def has_consumers(at: Node, home: Node) -> bool:
    path = at.cluster.table.path((home.id, NAME))
    return path is not None and path.record.has_consumers


@pytest.mark.parametrize("place", ["near", "far"])
async def test_a_client_finds_its_messages_by_any_cluster_connection(nodes: Make, place: str) -> None:
    """Breaks when only the nodes of the first one hear of it, or are asked for it."""
    one, two, three = await nodes(3, connections=("near", "far"))
    for node in (one, two, three):
        node.office.settings("#", redistribution_delay=-1)
        await node.reopen()
        join(node)
    for other, number in ((two, 0), (three, 1)):
        for link in (one.reach(other, number), other.reach(one, number)):
            await until(lambda link=link: link.connected)  # type: ignore[misc]
    home = two if place == "near" else three
    address = f"{place}.news"
    leave(home, subscribe(home, address=address))
    await publish(home, b"1", b"2", address=address)
    await until(lambda: one.post.named.find(NAME) is not None)
    found = one.post.named.find(NAME)
    assert found is not None
    assert found.address == address
    receiver = subscribe(one, address=address)
    await receiver.wait(2)
    await publish(home, b"3", address=address)
    await receiver.wait(3)
    assert taken(receiver) == [b"1", b"2", b"3"]
    leave(one, receiver)
    one.post.delete_queue(NAME)
    one.post.named.over(NAME, address, "alice")
    await until(lambda: home.post.space.queue(NAME) is None)


async def test_a_client_goes_back_and_forth_and_is_connected_to_both_for_a_while(nodes: Make) -> None:
    one, two = found = await clustered(nodes)
    first = subscribe(one)
    second = subscribe(two)
    await until(lambda: wanted(one, two, NAME) and wanted(two, one, NAME))
    first.credit = second.credit = 0
    await publish(one, b"1", b"2", b"3", b"4")
    await quiet(found)
    leave(one, first)
    await until(lambda: count(two, NAME) == 4)
    leave(two, second)
    third = subscribe(one)
    await third.wait(4)
    await publish(two, b"5")
    await third.wait(5)
    assert taken(third) == [b"1", b"2", b"3", b"4", b"5"]


async def test_what_a_node_that_was_down_has_comes_when_it_is_back(nodes: Make) -> None:
    one, two = await clustered(nodes)
    leave(one, subscribe(one))
    await publish(one, b"1")
    for node, other in ((one, two), (two, one)):
        node.connector_to(other).allowed.clear()
        node.connector_to(other).links[-1].cut()
    receiver = subscribe(two)
    await one.reopen()
    join(one)
    assert not receiver.got
    for node, other in ((one, two), (two, one)):
        node.connector_to(other).allowed.set()
    one.reach(two)
    await receiver.wait(1)
    assert taken(receiver) == [b"1"]


async def test_where_its_home_does_not_come_back_another_node_has_it(nodes: Make) -> None:
    """Breaks when it goes on leaving: no third node hears of it, and what is published there is nobody's."""
    one, two, three = await clustered(nodes, 3)
    leave(one, subscribe(one))
    subscribe(two)
    await until(one.cluster.leaving)
    home = two.id
    await two.close()
    await until(lambda: one.cluster.reached_by(home) is None and three.cluster.reached_by(home) is None)
    await one.reopen()
    join(one)
    assert one.cluster.leaving(), "kept over a restart"
    one.reach(three)
    await until(lambda: one.cluster.reached_by(three.id) and three.cluster.reached_by(one.id))
    one.cluster.removing.forget(home)
    three.cluster.removing.forget(home)
    assert not one.cluster.leaving()
    await until(lambda: distance(three, one, NAME))
    await publish(three, b"1")
    await until(lambda: count(one, NAME) == 1)


async def test_one_that_is_ended_at_a_node_is_ended_at_all(nodes: Make) -> None:
    one, two, three = await clustered(nodes, 3)
    leave(one, subscribe(one))
    await publish(one, b"1")
    await until(lambda: three.post.named.find(NAME) is not None)
    found = three.post.named.find(NAME)
    assert found is not None
    assert found == Found("news", "")
    three.post.named.over(NAME, found.address, "alice")
    await until(lambda: one.post.space.queue(NAME) is None)
    await until(lambda: two.post.named.find(NAME) is None)
    assert two.post.named.find("another") is None


async def test_another_users_subscription_and_a_queue_that_is_none_are_not_ended(nodes: Make) -> None:
    one, two = found = await clustered(nodes)
    leave(one, subscribe(one))
    one.post.create_queue(QueueSpec("volatile", "news", routing_type=RoutingType.MULTICAST, durable=False))
    one.post.create_queue(QueueSpec("queue", "news", routing_type=RoutingType.ANYCAST))
    await publish(one, b"1")
    link = two.cluster.reached_by(one.id)
    assert link is not None
    refusals = {}
    for name in (NAME, "volatile", "queue", "nobody's"):
        refusals[name] = await link.ask("subscription-over", msgspec.msgpack.encode((name, "news", "mallory")))
    assert refusals == {NAME: "another user has it", "volatile": "", "queue": "", "nobody's": ""}
    assert "cannot be read" in await link.ask("subscription-over", b"\xc1")
    await quiet(found)
    assert count(one, NAME) == 1
    assert one.post.space.queue("volatile") is not None
    assert one.post.space.queue("queue") is not None


async def test_another_users_subscription_and_a_queue_that_is_none_do_not_leave(nodes: Make) -> None:
    """Breaks when who takes from a queue elsewhere of any name has what is here of that name."""
    one, two = found = await clustered(nodes)
    for name, user in ((NAME, "alice"), ("no subscription", None)):
        leave(one, subscribe(one, user, name), name)
    one.post.create_queue(QueueSpec("volatile", "news", routing_type=RoutingType.MULTICAST, durable=False))
    one.post.create_queue(QueueSpec("queue", "news", routing_type=RoutingType.ANYCAST))
    for name in (NAME, "volatile", "queue"):
        subscribe(two, "mallory", name)
    two.post.create_queue(QueueSpec("no subscription", "news", routing_type=RoutingType.MULTICAST))
    take(two, "no subscription")
    subscribe(two, "alice", "last")
    await until(lambda: wanted(one, two, "last"))
    await quiet(found)
    assert not list(one.cluster.leaving())


async def test_one_that_somebody_takes_from_stays_also_when_it_is_ended_elsewhere(nodes: Make) -> None:
    one, two = await clustered(nodes)
    receiver = subscribe(one)
    link = two.cluster.reached_by(one.id)
    assert link is not None
    assert not await link.ask("subscription-over", msgspec.msgpack.encode((NAME, "news", "alice")))
    await until(lambda: wanted(two, one, NAME))
    await publish(two, b"1")
    await receiver.wait(1)


async def chained(nodes: Make, size: int, ring: bool = False) -> list[Node]:
    """Nodes that reach their neighbours alone, and know of the others by these."""
    found = await nodes(size, max_hops=size - 1)
    for node in found:
        node.office.settings("#", redistribution_delay=-1)
        await node.reopen()
        join(node)
    for at, node in enumerate(found if ring else found[:-1]):
        other = found[(at + 1) % size]
        for link in (node.reach(other), other.reach(node)):
            await until(lambda link=link: link.connected)  # type: ignore[misc]
    return found


@pytest.mark.parametrize("ring", [False, True])
async def test_a_client_finds_its_messages_at_a_node_that_is_reached_by_way_of_others(nodes: Make, ring: bool) -> None:
    """Breaks when a home is told of to neighbours alone."""
    found = await chained(nodes, 4, ring)
    home, away = found[0], found[2 if ring else 3]
    leave(home, subscribe(home))
    await publish(home, b"1", b"2")
    await until(lambda: away.post.named.find(NAME) is not None)
    receiver = subscribe(away)
    await receiver.wait(2)
    await until(lambda: not distance(found[1], home, NAME))
    for node in found:
        await publish(node, b"at %d" % node.number)
    await receiver.wait(6)
    await quiet(found)
    assert len(receiver.got) == 6
    leave(away, receiver)
    away.post.delete_queue(NAME)
    away.post.named.over(NAME, "news", "alice")
    await until(lambda: home.post.space.queue(NAME) is None)


async def test_a_home_is_told_of_when_a_link_on_the_way_is_there_again(nodes: Make) -> None:
    one, two, three = await chained(nodes, 3)
    leave(one, subscribe(one))
    await publish(one, b"1")
    await until(lambda: distance(three, one, NAME))
    for node, other in ((one, two), (two, one)):
        node.connector_to(other).allowed.clear()
        node.connector_to(other).links[-1].cut()
    receiver = subscribe(three)
    await until(lambda: wanted(two, three, NAME))
    assert not list(one.cluster.leaving())
    for node, other in ((one, two), (two, one)):
        node.connector_to(other).allowed.set()
    await receiver.wait(1)


async def test_one_that_an_administrator_deleted_is_not_asked_for_any_more(nodes: Make) -> None:
    """Else one that is made anew at another node would be no node's: it leaves for where it is not."""
    one, two = await clustered(nodes)
    subscribe(one)
    one.post.delete_queue(NAME)
    two.connector_to(one).allowed.clear()
    one.connector_to(two).allowed.clear()
    for node, other in ((one, two), (two, one)):
        node.connector_to(other).links[-1].cut()
    leave(two, subscribe(two))
    for node, other in ((one, two), (two, one)):
        node.connector_to(other).allowed.set()
    await until(lambda: one.cluster.reached_by(two.id) and two.cluster.reached_by(one.id))
    await until(lambda: distance(one, two, NAME))
    await publish(one, b"1")
    await until(lambda: count(two, NAME) == 1)
    assert not list(two.cluster.leaving())
