"""Who gets a message in a cluster: the cases of the reference's tests, each named by its class there."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import count, distance, held, quiet, waits, wanted
from broker.cluster.connection.nodes import ANYCAST, MULTICAST, Has, both_ways, mesh, queues, take
from broker.engine.conftest import message
from pollux.config.addresses import Divert
from pollux.routing.selector import parse
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from broker.cluster.connection.nodes import Make
    from pollux.message import RoutingType

pytestmark = pytest.mark.asyncio


USED, IDLE = (Has(),), (Has(consumer=False),)


@pytest.mark.parametrize(
    ("balancing", "has", "shares"),
    [
        pytest.param("STRICT", [USED] * 3, [100] * 3, id="rotation, consumers everywhere: STRICT"),
        pytest.param("ON_DEMAND", [USED] * 3, [100] * 3, id="rotation, consumers everywhere: ON_DEMAND"),
        pytest.param("OFF", [USED] * 3, [300, 0, 0], id="OFF keeps it local"),
        pytest.param("OFF_WITH_REDISTRIBUTION", [USED] * 3, [300, 0, 0], id="local first with redistribution"),
        pytest.param("STRICT", [IDLE] * 3, [100] * 3, id="no consumers: STRICT"),
        pytest.param("ON_DEMAND", [IDLE] * 3, [300, 0, 0], id="no consumers: ON_DEMAND"),
        pytest.param("ON_DEMAND", [IDLE, USED, USED], [0, 150, 150], id="consumers elsewhere only"),
        pytest.param("STRICT", [IDLE, USED, IDLE], [100] * 3, id="STRICT asks for no consumer"),
        pytest.param("ON_DEMAND", [USED, IDLE, USED], [150, 0, 150], id="one node without"),
    ],
)
async def test_many_messages_to_one_queue_of_each_node(
    nodes: Make, balancing: str, has: Sequence[tuple[Has, ...]], shares: list[int]
) -> None:
    """SymmetricClusterTest: round robin, many messages, no consumers true and false."""
    found = await mesh(nodes, 3, balancing)
    receivers = await queues(found, has)
    for number in range(300):
        found[0].post.send(message(b"%d" % number))
    await until(lambda: sum(held(found)) == 300)
    await quiet(found)
    assert held(found) == shares
    for receiver in receivers.values():
        numbers = list(map(int, receiver.bodies))
        assert numbers == sorted(numbers), "in order at each consumer"


@pytest.mark.parametrize("balancing", ["STRICT", "ON_DEMAND"])
async def test_each_address_is_spread_in_turns_of_its_own(nodes: Make, balancing: str) -> None:
    """SymmetricClusterTest: several queues, on several addresses."""
    found = await mesh(nodes, 3, balancing)
    names = ("a", "b")
    await queues(found, [tuple(Has(name, address=name) for name in names)] * 3)
    for _ in range(30):
        for name in names:
            found[1].post.send(message(b"x", name))
    await until(lambda: all(sum(held(found, name)) == 30 for name in names))
    assert [held(found, name) for name in names] == [[10] * 3] * 2


async def test_subscriptions_of_their_own_get_copies_and_shared_ones_a_part(nodes: Make) -> None:
    """SymmetricClusterTest: mixture of balanced and unique queues; AnycastRoutingWithClusterTest: multicast."""
    found = await mesh(nodes, 3)
    has = [(Has(f"own{at}", MULTICAST), Has("shared", MULTICAST)) for at in range(3)]
    await queues(found, has)
    for _ in range(30):
        found[2].post.send(message(b"x", routing_type=MULTICAST))
    await until(lambda: [count(found[at], f"own{at}") for at in range(3)] == [30] * 3)
    await quiet(found)
    assert held(found, "shared") == [10] * 3


async def test_anycast_queues_of_any_name_on_one_address_are_one_group(nodes: Make) -> None:
    """AnycastRoutingWithClusterTest: several queue names, each message to one of them."""
    found = await mesh(nodes, 3)
    await queues(found, [(Has(f"q{at}"),) for at in range(3)])
    for _ in range(30):
        found[0].post.send(message(b"x", routing_type=ANYCAST))
    await until(lambda: [count(found[at], f"q{at}") for at in range(3)] == [10] * 3)
    await quiet(found)
    assert sum(count(found[at], f"q{at}") for at in range(3)) == 30


@pytest.mark.parametrize("routing_type", [ANYCAST, MULTICAST])
@pytest.mark.parametrize("balancing", ["STRICT", "ON_DEMAND"])
async def test_filters_of_queues_and_of_consumers_are_kept_to(
    nodes: Make, balancing: str, routing_type: RoutingType
) -> None:
    """SymmetricClusterTest: filters on queues and on consumers; the first node has one that takes nothing of it."""
    found = await mesh(nodes, 3, balancing)
    has = [
        (Has(routing_type=routing_type, filter="JMSPriority > 8"),),
        (Has(routing_type=routing_type, filter="JMSPriority < 3"),),
        (Has(routing_type=routing_type, filter="JMSPriority BETWEEN 3 AND 8", by="JMSPriority <> 7"),),
    ]
    receivers = await queues(found, has)
    for priority in (0, 1, 4, 7, 9):
        for _ in range(4):
            found[0].post.send(message(b"%d" % priority, priority=priority, routing_type=routing_type))
    await until(lambda: sum(held(found)) == 20)
    await quiet(found)
    assert held(found) == [4, 8, 8]
    assert {at: set(one.bodies) for (at, _), one in receivers.items()} == {0: {b"9"}, 1: {b"0", b"1"}, 2: {b"4"}}


async def test_an_unfiltered_consumer_beside_a_filtered_one_counts(nodes: Make) -> None:
    """The reference judges a remote queue by its filters alone, and keeps away what the other consumer could take."""
    found = await mesh(nodes, 2)
    receivers = await queues(found, [IDLE, (Has(by="JMSPriority = 9"),)])
    everything = take(found[1])
    await until(lambda: (path := found[0].cluster.table.path((found[1].id, "orders"))) and path.record.consumers)
    found[0].post.send(message(b"low"))
    await everything.wait(1)
    assert not receivers[1, "orders"].got
    assert held(found)[0] == 0


@pytest.mark.parametrize("routing_type", [ANYCAST, MULTICAST])
@pytest.mark.parametrize("balancing", ["STRICT", "ON_DEMAND"])
async def test_without_a_queue_here_it_goes_to_the_others(
    nodes: Make, balancing: str, routing_type: RoutingType
) -> None:
    """SymmetricClusterTest: no local queue, balanced and not."""
    found = await mesh(nodes, 3, balancing)
    found[0].office.settings("orders", auto_create_queues=False)
    await found[0].reopen()
    for other in found[1:]:
        link = found[0].reach(other)
        await until(lambda link=link: link.connected)  # type: ignore[misc]
    own = routing_type is MULTICAST
    names = ["q1", "q2"] if own else ["orders"] * 2
    for node, name in zip(found[1:], names, strict=True):
        node.post.create_queue(QueueSpec(name, "orders", routing_type=routing_type))
    await until(lambda: all(distance(found[0], node, name) for node, name in zip(found[1:], names, strict=True)))
    for _ in range(10):
        found[0].post.send(message(b"x", routing_type=routing_type))
    each = 10 if own else 5
    await until(lambda: [count(node, name) for node, name in zip(found[1:], names, strict=True)] == [each] * 2)


@pytest.mark.parametrize("balancing", ["OFF", "OFF_WITH_REDISTRIBUTION"])
async def test_only_another_node_has_a_queue_and_nothing_is_sent_there(nodes: Make, balancing: str) -> None:
    """RemoteBindingWithoutLoadBalancingTest: it is unrouted, and does not recurse."""
    found = await mesh(nodes, 2, balancing)
    found[0].office.settings(
        "orders", auto_create_queues=False, dead_letter_address="dead", send_to_dla_on_no_route=True
    )
    await found[0].reopen()
    found[0].office.queue("dead")
    link = found[0].reach(found[1])
    await until(lambda: link.connected)
    found[1].office.queue("orders")
    take(found[1])
    await until(lambda: wanted(found[0], found[1]))
    found[0].post.send(message(b"nowhere"))
    await quiet(found)
    assert count(found[0], "dead") == 1
    assert held(found) == [-1, 0]


@pytest.mark.parametrize("balancing", ["OFF", "OFF_WITH_REDISTRIBUTION", "ON_DEMAND", "STRICT"])
async def test_subscriptions_elsewhere_get_it_whatever_the_way_of_spreading(nodes: Make, balancing: str) -> None:
    """TopicClusteredOffTest, AMQPMessageLoadBalancingTest, TopicClusterTest: each gets each message once, as it was."""
    found = await mesh(nodes, 2, balancing)
    receivers = await queues(
        found, [(Has("mine", MULTICAST),), (Has("theirs", MULTICAST), Has("idle", MULTICAST, consumer=False))]
    )
    for at in range(6):
        found[at % 2].post.send(message(b"%d" % at, routing_type=MULTICAST))
    for receiver in receivers.values():
        await receiver.wait(6)
    await until(lambda: count(found[1], "idle") == 6)
    await quiet(found)
    for receiver in receivers.values():
        assert sorted(receiver.bodies) == [b"%d" % at for at in range(6)]
        assert not any(one.message.annotations for one in receiver.got), "nothing of the cluster's is seen"


@pytest.mark.parametrize("routing_type", [ANYCAST, MULTICAST])
@pytest.mark.parametrize("alternative", [True, False])
async def test_a_node_that_is_down_gets_what_nobody_else_may_have(
    nodes: Make, alternative: bool, routing_type: RoutingType
) -> None:
    """BindingsClusterTest: what only a node that is down has waits for it, else nothing is put into its queue."""
    found = await mesh(nodes, 2)
    one, two = found
    two.post.create_queue(QueueSpec("orders", "orders", routing_type=routing_type))
    if alternative:
        one.post.create_queue(QueueSpec("orders", "orders", routing_type=routing_type))
    else:
        one.post.ensure_address("orders", routing_type)
        one.office.settings("orders", auto_create_queues=False)
        await one.reopen()
        link = one.reach(two)
        await until(lambda: link.connected)
    take(two, credit=0)
    await until(lambda: wanted(one, two))
    connector = one.connector_to(two)
    connector.allowed.clear()
    connector.links[-1].cut()
    await until(lambda: not wanted(one, two))
    for _ in range(10):
        one.post.send(message(b"x", routing_type=routing_type))
    await one.office.stable()
    assert waits(one) == (0 if alternative else 10)
    if alternative:
        assert count(one) == 10
    connector.allowed.set()
    await until(lambda: count(two) == 10)


@pytest.mark.parametrize("where", ["here", "there"])
@pytest.mark.parametrize("named", [True, False])
async def test_a_queue_of_its_own_name_is_sent_to_and_taken_from_anywhere(nodes: Make, named: bool, where: str) -> None:
    """SimpleSymmetricClusterTest: send to FQQN or address, consume from FQQN or queue, at this node or another."""
    found = await mesh(nodes, 2)
    consumer = where == "there"
    receivers = await queues(
        found, [(Has("q", consumer=not consumer), Has("other", consumer=False)), (Has("q", consumer=consumer),)]
    )
    for _ in range(4):
        found[0].post.send(message(b"x", "orders::q" if named else "orders"))
    (receiver,) = receivers.values()
    await receiver.wait(4)
    await quiet(found)
    assert count(found[0], "other") == 0


async def test_a_queue_and_its_address_that_are_deleted_elsewhere_are_not_sent_to(nodes: Make) -> None:
    """SimpleSymmetricClusterTest: address deletion."""
    one, two = found = await mesh(nodes, 2)
    await queues(found, [IDLE, USED])
    two.post.delete_queue("orders")
    two.post.address_manager.delete_address("orders", force=True)
    await until(lambda: not distance(one, two))
    one.post.send(message(b"stays"))
    await quiet(found)
    assert held(found) == [1, -1]


async def test_a_wildcard_elsewhere_gets_a_topic_under_its_own_name(nodes: Make) -> None:
    """SimpleSymmetricClusterTest and MqttClusterWildcardTest: the topic stays the one that was published to."""
    one, _ = found = await mesh(nodes, 2)
    receivers = await queues(
        found, [(), (Has("w", MULTICAST, address="news.#"), Has("x", MULTICAST, address="news.*"))]
    )
    for topic in ("news.a", "news.a.b", "old.a"):
        one.post.send(message(topic.encode(), topic, routing_type=MULTICAST))
    await receivers[1, "w"].wait(2)
    await receivers[1, "x"].wait(1)
    await quiet(found)
    assert [(each.message.address, each.message.data) for each in receivers[1, "w"].got] == [
        ("news.a", b"news.a"),
        ("news.a.b", b"news.a.b"),
    ]
    assert receivers[1, "x"].bodies == [b"news.a"]


@pytest.mark.parametrize("exclusive", [True, False])
async def test_what_is_diverted_here_goes_once_to_who_takes_it_elsewhere(nodes: Make, exclusive: bool) -> None:
    """ExclusiveDivertWithClusterTest: no duplicate; an exclusive one takes it from the address altogether."""
    one, two = found = await mesh(nodes, 2)
    one.office.configuration = replace(
        one.office.configuration, diverts=(Divert("d", "orders", "audit", exclusive=exclusive),)
    )
    await one.reopen()
    link = one.reach(two)
    await until(lambda: link.connected)
    receivers = await queues(found, [IDLE, (Has(), Has("audit", address="audit"))])
    for at in range(5):
        one.post.send(message(b"%d" % at))
    await receivers[1, "audit"].wait(5)
    if not exclusive:
        await receivers[1, "orders"].wait(5)
    await quiet(found)
    assert len(receivers[1, "audit"].got) == 5
    assert len(receivers[1, "orders"].got) == (0 if exclusive else 5)


@pytest.mark.parametrize("exclusive", [True, False])
async def test_what_nodes_with_one_divert_send_and_move_to_each_other_is_diverted_once(
    nodes: Make, exclusive: bool
) -> None:
    """SimpleSymmetricClusterTest: divert of a redistributed message. Brokers of a cluster have the same diverts."""
    one, two = found = await nodes(2)
    for node in found:
        divert = Divert("d", "orders", "audit", exclusive=exclusive)
        node.office.configuration = replace(node.office.configuration, diverts=(divert,))
        await node.reopen()
    both_ways(one, two)
    await queues(found, [(Has(consumer=False), Has("audit", address="audit", consumer=False))] * 2)
    for at in range(5):
        one.post.send(message(b"%d" % at))
    await one.office.stable()
    assert (count(one), count(one, "audit")) == (0 if exclusive else 5, 5)
    receivers = [take(two, name) for name in ("audit", "orders")]
    expected = [10, 0 if exclusive else 10]
    await until(lambda: all(wanted(one, two, name) for name in ("audit", "orders")))
    for at in range(5, 10):
        one.post.send(message(b"%d" % at))
    for receiver, messages in zip(receivers, expected, strict=True):
        await receiver.wait(messages)
    await quiet(found)
    assert [sorted(map(int, one.bodies)) for one in receivers] == [list(range(messages)) for messages in expected]
    assert [count(one, name) for name in ("audit", "orders")] == [0, 0]


@pytest.mark.parametrize("before", [True, False])
async def test_a_link_one_way_tells_one_way_whenever_the_queue_was_made(nodes: Make, before: bool) -> None:
    """OnewayTwoNodeClusterTest: queues made before and after the peer starts; nothing comes back."""
    one, two = await nodes()
    if before:
        two.office.queue("orders")
    one.office.queue("orders")
    link = one.reach(two)
    await until(lambda: link.connected)
    if not before:
        two.office.queue("orders")
    receiver = take(two)
    await until(lambda: wanted(one, two))
    other = take(one)
    one.post.detach(one.post.queue("orders"), other)
    two.post.detach(two.post.queue("orders"), receiver)
    await until(lambda: not wanted(one, two))
    taker = take(one)
    two.post.send(message(b"no link leads back"))
    await two.office.stable()
    assert not two.cluster.table.queues
    assert count(two) == 1
    assert not taker.got


async def test_an_address_that_the_connection_is_not_for_stays_here(nodes: Make) -> None:
    """OnewayTwoNodeClusterTest: a non-matching address; SymmetricClusterTest: include and exclude lists."""
    one, two = found = await mesh(nodes, 2, address="orders,!orders.private")
    names = ("orders.public", "orders.private", "news")
    for node in found:
        for name in names:
            node.office.queue(name)
    for name in names:
        take(two, name)
    await until(lambda: wanted(one, two, "orders.public"))
    for name in names:
        one.post.send(message(b"x", name))
    await until(lambda: count(two, "orders.public") == 1)
    await quiet(found)
    assert [count(one, name) for name in names] == [0, 1, 1]


@pytest.mark.parametrize(
    ("changed", "known"), [({"address": "news"}, {"news"}), ({"max_hops": 0}, set()), ({}, {"news", "orders"})]
)
async def test_a_restart_with_another_configuration_counts_from_then_on(
    nodes: Make, changed: dict[str, Any], known: set[str]
) -> None:
    """TwoWayTwoNodeClusterTest: restart with a changed configuration; with max-hops 0 nothing is learned."""
    one, two = await mesh(nodes, 2)
    for name in ("orders", "news"):
        two.office.queue(name)
        take(two, name)
    await until(lambda: wanted(one, two, "orders") and wanted(one, two, "news"))
    (connection,) = one.office.configuration.cluster_connections
    one.office.configuration = replace(one.office.configuration, cluster_connections=(replace(connection, **changed),))
    await one.reopen()
    link = one.reach(two)
    await until(lambda: link.connected)
    await until(lambda: {key[1] for key in one.cluster.table.queues} == known)
    for name in ("orders", "news"):
        one.post.send(message(b"x", name, routing_type=ANYCAST))
    names = ("orders", "news")
    await until(lambda: [count(two, name) for name in names] == [int(name in known) for name in names])
    await one.office.stable()
    assert [count(one, name) for name in names] == [int(name not in known) for name in names]


async def test_what_waits_finds_its_queues_by_name_when_they_were_made_anew_in_another_order(nodes: Make) -> None:
    """ClusterRestartTest: queues have other numbers after a restart; the reference's messages name the number."""
    one, two = await nodes()
    one.office.settings("news", auto_create_queues=False)
    await one.reopen()
    one.reach(two)
    names = ("a", "b", "c")
    for name in names:
        two.post.create_queue(QueueSpec(name, "news", routing_type=MULTICAST))
    await until(lambda: all(distance(one, two, name) for name in names))
    connector = one.connector_to(two)
    connector.allowed.clear()
    connector.links[-1].cut()
    for name in names:
        one.post.send(message(name.encode(), f"news::{name}", routing_type=MULTICAST))
    await one.office.stable()
    assert waits(one) == 3
    for name in names:
        two.post.delete_queue(name)
    await two.reopen()
    for name in reversed(names):
        two.post.create_queue(QueueSpec(name, "news", routing_type=MULTICAST))
    connector.allowed.set()
    await until(lambda: not waits(one))
    assert [[each.message.data for each in two.post.queue(name).iterate()] for name in names] == [
        [name.encode()] for name in names
    ]


async def test_a_queue_that_is_made_anew_with_another_filter_is_known_by_that(nodes: Make) -> None:
    """MessageLoadBalancingTest: a filter's change reaches the other nodes."""
    one, two = found = await mesh(nodes, 2)
    for text, priority in (("JMSPriority > 5", 1), ("JMSPriority < 5", 9)):
        two.post.create_queue(QueueSpec("s", "news", routing_type=MULTICAST, selector=text))

        def told(text: str) -> bool:
            path = one.cluster.table.path((two.id, "s"))
            return path is not None and path.record.filter == text

        await until(partial(told, text))
        one.post.send(message(b"no", "news", priority=priority, routing_type=MULTICAST))
        one.post.send(message(b"yes", "news", priority=10 - priority, routing_type=MULTICAST))
        await until(lambda: count(two, "s") == 1)
        await quiet(found)
        assert [each.message.data for each in two.post.queue("s").iterate()] == [b"yes"]
        two.post.delete_queue("s")


async def test_consumers_are_counted_by_filter_and_only_those_that_take(nodes: Make) -> None:
    """RemoteQueueBindImplTest: counts, the same filter twice, an empty one; a browser is no consumer."""
    one, two = await mesh(nodes, 2)
    queue = two.office.queue("orders")

    def record() -> tuple[int, tuple[tuple[str, int], ...]]:
        path = one.cluster.table.path((two.id, "orders"))
        return (path.record.consumers, path.record.filtered) if path is not None else (-1, ())

    await until(lambda: record() == (0, ()))
    low = [take(two, selector=parse("JMSPriority < 5")) for _ in range(2)]
    high = take(two, selector=parse("JMSPriority > 5"))
    every = take(two)
    take(two, browsing=True)
    await until(lambda: record() == (1, (("JMSPriority < 5", 2), ("JMSPriority > 5", 1))))
    for gone in (low[0], every):
        two.post.detach(queue, gone)
    await until(lambda: record() == (0, (("JMSPriority < 5", 1), ("JMSPriority > 5", 1))))
    for gone in (low[1], high):
        two.post.detach(queue, gone)
    await until(lambda: record() == (0, ()))


async def test_halves_that_are_apart_go_on_and_lose_nothing_when_they_meet(nodes: Make) -> None:
    """SymmetricClusterTest: a partition; what is sent meanwhile stays in the half, afterwards all share again."""
    found = await mesh(nodes, 4)
    await queues(found, [USED] * 4)
    halves = found[:2], found[2:]
    across = [(a, b) for a in halves[0] for b in halves[1]] + [(b, a) for a in halves[0] for b in halves[1]]
    for source, sink in across:
        source.connector_to(sink).allowed.clear()
        source.connector_to(sink).links[-1].cut()
    await until(lambda: not any(wanted(source, sink) for source, sink in across))
    for node in found:
        for _ in range(10):
            node.post.send(message(b"apart"))
    await until(lambda: sum(held(found)) == 40)
    assert held(found) == [10] * 4
    for source, sink in across:
        source.connector_to(sink).allowed.set()
    await until(lambda: all(wanted(source, sink) for source, sink in across))
    for _ in range(40):
        found[0].post.send(message(b"together"))
    await until(lambda: sum(held(found)) == 80)
    assert held(found) == [20] * 4
