"""The rest of the reference's list of cluster tests, by the class that has each there."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import count, distance, quiet, waits, wanted
from broker.cluster.connection.nodes import ANYCAST, MULTICAST, Has, both_ways, mesh, queues, take
from broker.engine.conftest import message
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make
    from pollux.config.model import Configuration

pytestmark = pytest.mark.asyncio


async def test_a_node_that_is_back_while_it_is_forgotten_gets_what_is_left_and_has_its_queue(nodes: Make) -> None:
    """ClusterConnectionSfQueueRaceTest: the record is removed while the node is back; its queue is there again."""
    one, two = found = await mesh(nodes, 2)
    await queues(found, [(), (Has(),)])
    connector = one.connector_to(two)
    connector.allowed.clear()
    connector.links[-1].cut()
    await until(lambda: not wanted(one, two))
    for number in range(300):
        one.post.send(message(b"%d" % number))
    await one.office.stable()
    before = waits(one)
    assert before == 300
    one.connections.forget("node2")
    connector.allowed.set()
    link = one.reach(two)
    await until(lambda: link.connected or any(each.connected for each in one.cluster.peers.links))
    here = take(one) if one.post.space.queue("orders") is not None else None
    await until(lambda: count(two) + (len(here.got) if here is not None else 0) == 300 or _all(found) == 300)
    await quiet(found)
    assert two.id in one.cluster.spreading.outlets
    # What was confirmed to the node before is in its queue a moment later.
    await until(lambda: _all(found) == 300)
    one.post.send(message(b"goes on"))
    await quiet(found)
    await until(lambda: _all(found) == 301)


def _all(found: list[Node]) -> int:
    return sum(count(node) for node in found if node.post.space.queue("orders") is not None)


async def test_a_large_message_whose_transfer_is_cut_off_arrives_whole_and_leaves_nothing(nodes: Make) -> None:
    """ClusteredLargeMessageInterruptTest: killed during the transfer; no file of a half message stays."""
    one, two = found = await mesh(nodes, 2, producer_window_size=70_000)
    (receiver,) = (await queues(found, [(), (Has(),)])).values()
    writer = one.post.storage.large.create()
    for _ in range(20):
        writer.write(b"x" * 100_000)
    large = message(b"head")
    large.large = writer.finish()
    connector = one.connector_to(two)
    one.post.send(large)
    incoming = two.cluster.incoming[one.id]
    await until(lambda: incoming._body is not None)
    connector.links[-1].cut()
    (got,) = await receiver.wait(1)
    assert got.message.large is not None
    assert got.message.large.size == 2_000_000
    await quiet(found)
    assert len(connector.links) > 1
    files = two.office.configuration.large_messages_directory
    await until(lambda: len([each for each in files.iterdir() if each.is_file()]) == 1)
    assert len(receiver.got) == 1


@pytest.mark.parametrize("routing_type", [ANYCAST, MULTICAST])
async def test_nothing_is_charged_any_more_when_all_is_consumed(nodes: Make, routing_type: object) -> None:
    """TopicClusterPageStoreSizeTest, PageCounterOnBridgeFailoverTest, ClusteredMessageCounterTest."""
    found = await mesh(nodes, 2)
    receivers = await queues(found, [(Has("a", routing_type),), (Has("b", routing_type),)])  # type: ignore[arg-type]
    for number in range(50):
        found[number % 2].post.send(message(b"p" * 1000, routing_type=routing_type))
    expected = 100 if routing_type is MULTICAST else 50
    await until(lambda: sum(len(one.got) for one in receivers.values()) == expected)
    await quiet(found)
    for (at, _), receiver in receivers.items():
        found[at].post.acknowledge(receiver.got)
    await quiet(found)
    for node in found:
        assert {account.name: account.gauge.bytes for account in node.post.accounts if account.gauge.bytes} == {}
        assert {account.name: account.gauge.messages for account in node.post.accounts if account.gauge.messages} == {}


async def test_queues_that_clients_make_on_either_node_are_found(nodes: Make) -> None:
    """AutoCreateQueueClusterTest: the consumer's queue at one node, a producer's at the other; both go when unused."""
    one, two = found = await mesh(nodes, 2)
    queue = two.office.queue("orders", auto_created=True, auto_delete=True)
    receiver = take(two)
    await until(lambda: wanted(one, two))
    one.post.send(message(b"x", routing_type=ANYCAST))
    (got,) = await receiver.wait(1)
    assert count(one) == 0, "a producer's queue was made, and is empty"
    await until(lambda: distance(two, one))
    two.post.acknowledge([got])
    two.post.detach(queue, receiver)
    assert two.post.space.queue("orders") is None
    await until(lambda: not distance(one, two))
    await quiet(found)


async def test_a_queue_that_is_paused_there_is_filled_all_the_same(nodes: Make) -> None:
    """ClusteredBridgeReconnectTest.testPauseAddressBlockingSnFQueue: nothing else is held up by it."""
    one, two = found = await mesh(nodes, 2)
    await queues(found, [(), (Has(), Has("news", address="news"))])
    two.post.address_manager.pause_queue(two.post.queue("orders"), paused=True)
    for name in ("orders", "news"):
        one.post.send(message(b"x", name))
    await until(lambda: (count(two), count(two, "news")) == (1, 1))
    await quiet(found)


async def test_a_stop_in_order_and_a_start_are_no_warning(nodes: Make, caplog: pytest.LogCaptureFixture) -> None:
    """ClusterCleanNodeShutdownTest: neither at the node that stops nor at the other one."""
    one, two = found = await mesh(nodes, 2)
    await queues(found, [(Has(),), (Has(),)])
    with caplog.at_level(logging.WARNING):
        await two.reopen()
        two.reach(one)
        await until(lambda: wanted(two, one))
        await until(lambda: distance(one, two))
        await until(lambda: all(link.connected for node in found for link in node.cluster.peers.links))
    assert [record.message for record in caplog.records] == []


async def test_clusters_of_two_names_among_the_same_brokers_do_not_mix(nodes: Make) -> None:
    """IsolatedTopologyTest, NonHATopologyTest: nobody hears of the nodes of another cluster."""
    found = await nodes(4, places=True)
    halves = found[:2], found[2:]
    for number, half in enumerate(halves):
        for node in half:
            await node.close()
            node.office.configuration = _named(node, f"cluster{number}")
            await node.open()
    for half in halves:
        both_ways(*half)
    refused = halves[0][0].reach(halves[1][0])
    await until(lambda: "give both one name" in refused.reason)
    await until(lambda: all(len(node.cluster.members.others) == 1 for node in found))
    halves[1][0].office.queue("orders")
    await until(lambda: distance(halves[1][1], halves[1][0]))
    assert not halves[0][0].cluster.table.queues
    assert [{one.node for one in node.cluster.members.others} for node in found] == [
        {other.id} for half in halves for other in reversed(half)
    ]


def _named(node: Node, name: str) -> Configuration:
    configuration = node.office.configuration
    (connection,) = configuration.cluster_connections
    return replace(configuration, cluster_connections=(replace(connection, name=name),))


async def send_past(source: Node, sink: Node, *, again: bool = True) -> None:
    """Have a node send a message with a duplicate id to another one, which does not get it, and has no consumer then.

    ``again``: the link may be made anew.
    """
    consumer = take(sink, credit=0)
    await until(lambda: wanted(source, sink))
    connector = source.connector_to(sink)
    if not again:
        connector.allowed.clear()
    connector.links[-1].ends[0].cut = True
    source.post.send(message(b"x", duplicate_id=b"d"))
    await source.office.stable()
    assert waits(source) == 1
    sink.post.detach(sink.post.queue("orders"), consumer)
    await until(lambda: not wanted(source, sink))


@pytest.mark.parametrize("first", [0, 1])
async def test_of_two_copies_that_go_past_each_other_one_is_left(nodes: Make, first: int) -> None:
    """A producer sent it at one node, heard nothing, and sent it again at the other one; each sent it to the other.

    Breaks when each takes what arrives for a duplicate of what it sent away: then both are dropped.
    """
    found = await mesh(nodes, 2)
    await queues(found, [(Has(consumer=False),), (Has(consumer=False),)])
    for source, sink in ((found[0], found[1]), (found[1], found[0])):
        await send_past(source, sink)
    for at in (first, 1 - first):  # whichever arrives first
        source, sink = found[at], found[1 - at]
        source.connector_to(sink).links[-1].cut()
        await until(lambda source=source: not waits(source))  # type: ignore[misc]
    await quiet(found)
    assert _all(found) == 1


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("between", [False, True])
@pytest.mark.parametrize("restarts", [(0,), (1,), (0, 1)])
async def test_of_two_copies_one_is_left_whoever_is_started_anew_before_the_other_one_arrives(
    nodes: Make, first: int, between: bool, restarts: tuple[int, ...]
) -> None:
    """Breaks when a node knows after its start that it had an id, and not that it sent its message to the other one."""
    found = await mesh(nodes, 2)
    await queues(found, [(Has(consumer=False),), (Has(consumer=False),)])
    ways = [(found[0], found[1]), (found[1], found[0])]
    for source, sink in ways:
        await send_past(source, sink, again=False)
    for at in (first, 1 - first):  # whichever arrives first
        if between == (at != first):
            for one in restarts:
                await found[one].reopen()
                found[one].reach(found[1 - one])
        source, sink = ways[at]
        connector = source.connector_to(sink)
        connector.allowed.set()
        connector.links[-1].cut()
        await until(lambda source=source: not waits(source))  # type: ignore[misc]
    await quiet(found)
    assert _all(found) == 1


async def test_a_request_and_its_reply_to_a_temporary_queue_of_another_node(nodes: Make) -> None:
    """ClusteredRequestResponseTest, TemporaryQueueClusterTest, TemporaryJMSQueueClusterTest: nothing stays of it."""
    one, two = found = await mesh(nodes, 2)
    receivers = await queues(found, [(), (Has("requests", address="requests"),)])
    name = "reply-1"
    queue = one.post.create_queue(
        QueueSpec(name, name, routing_type=ANYCAST, durable=False, temporary=True, auto_created=True)
    )
    replies = take(one, name)
    one.post.send(message(b"request", "requests", duplicate_id=b"d"))
    (request,) = await receivers[1, "requests"].wait(1)
    await until(lambda: wanted(two, one, name))  # whoever answers at once is not sooner than the request was
    two.post.send(message(b"reply", name, duplicate_id=b"r"))
    (reply,) = await replies.wait(1)
    assert (request.message.data, reply.message.data) == (b"request", b"reply")
    one.post.acknowledge([reply])
    one.post.detach(queue, replies)
    one.post.address_manager.delete_address(name, force=True)
    await until(lambda: not distance(two, one, name))
    await quiet(found)
    assert not one.post.accounts.remembers_duplicates(name)
    for _ in range(2):  # the first look sees that nobody uses it, the second that it is long ago
        two.post.address_manager.reap()
        await two.office.stable()
        two.office.now += 3 * two.office.configuration.address_queue_scan_period
    two.post.address_manager.reap()
    await until(lambda: two.post.space.address(name) is None)
    assert not two.post.accounts.remembers_duplicates(name)
