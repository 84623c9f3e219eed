"""Messages move to a consumer elsewhere, or stay: the cases of the reference's tests, named by their class."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import count, distance, quiet, waits, wanted
from broker.cluster.connection.nodes import ANYCAST, MULTICAST, Has, fill, linked, mesh, queues, take
from broker.engine.conftest import message
from pollux.cluster.connection import mover
from pollux.cluster.connection.local import takers
from pollux.cluster.connection.mover import kept
from pollux.cluster.connection.view import why
from pollux.config.address_settings import AddressFullPolicy
from pollux.config.resolve import AddressSettingsResolver
from pollux.errors import InvalidRequestError
from pollux.routing.selector import parse
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make

pytestmark = pytest.mark.asyncio
IDLE = (Has(consumer=False),)
LOCAL = "OFF_WITH_REDISTRIBUTION"


async def fill_moved(one: Node, two: Node) -> None:
    """Send to the first node's queue, and wait until it is at the second one."""
    before = count(two)
    one.post.send(message(b"x", "orders::orders"))
    await until(lambda: count(two) == before + 1)
    await quiet([one, two])


@pytest.mark.parametrize("balancing", ["ON_DEMAND", LOCAL])
async def test_when_the_last_consumer_leaves_the_rest_goes_in_order_to_the_other_node(
    nodes: Make, balancing: str
) -> None:
    """MessageRedistributionTest: consumer closed; AMQPMessageRedistributionTest: no duplicates."""
    one, two = await linked(nodes, balancing)
    bodies = await fill(one)
    first = take(one)
    await first.wait(10)
    other = take(two)
    await until(lambda: wanted(one, two))
    one.post.acknowledge(first.got[:3])
    one.post.release(first.got[3:], failed=False)
    one.post.detach(one.post.queue("orders"), first)
    await other.wait(7)
    await quiet([one, two])
    assert other.bodies == bodies[3:]
    assert (count(one), count(two)) == (0, 7)


@pytest.mark.parametrize("balancing", ["STRICT", "OFF"])
async def test_ways_of_spreading_that_move_nothing(nodes: Make, balancing: str) -> None:
    """MessageRedistributionTest: not under STRICT."""
    one, two = await linked(nodes, balancing)
    one.post.send(message(b"here", "orders::orders"))
    await one.office.stable()
    held = count(one), count(two)
    other = take(two)
    await until(lambda: wanted(one, two))
    one.cluster.moving.review(one.post.space.queues)
    await quiet([one, two])
    assert (count(one), count(two)) == held
    assert len(other.got) == held[1]
    assert balancing in "; ".join(why(one.cluster, "orders")) or not held[0]


async def test_without_another_consumer_anywhere_it_stays(nodes: Make) -> None:
    """MessageRedistributionTest: none when there are no other consumers."""
    one, two = await linked(nodes)
    await fill(one)
    consumer = take(one, credit=0)
    one.post.detach(one.post.queue("orders"), consumer)
    one.cluster.moving.review(one.post.space.queues)
    await quiet([one, two])
    assert (count(one), count(two)) == (10, 0)


async def test_it_stops_when_somebody_takes_it_here_again(nodes: Make) -> None:
    """MessageRedistributionTest: redistribution stops when a consumer is added; what was moved is not called back."""
    one, two = await linked(nodes)
    connector = one.connector_to(two)
    bodies = await fill(one, 600)
    other = take(two)
    await other.wait(1)
    here = take(one)
    connector.links[-1].ends[0].cut = False
    await until(lambda: len(here.got) + len(other.got) == 600)
    await quiet([one, two])
    assert sorted(here.bodies + other.bodies) == sorted(bodies)
    assert count(one) + count(two) == 600


@pytest.mark.parametrize("where", ["queue", "consumer"])
async def test_only_what_the_other_nodes_filter_lets_through_is_moved(nodes: Make, where: str) -> None:
    """MessageRedistributionTest: filters on queues, on consumers, and those that match a part alone."""
    one, two = await nodes()
    text = "JMSPriority > 5"
    for source, sink in ((one, two), (two, one)):
        link = source.reach(sink)
        await until(lambda link=link: link.connected)  # type: ignore[misc]
    spec = Has(filter=text if where == "queue" else None, consumer=False)
    await queues([one, two], [IDLE, (spec,)])
    for number in range(10):
        one.post.send(message(b"%d" % number, "orders::orders" if where == "queue" else "orders", priority=number))
    await one.office.stable()
    before = count(one)
    other = take(two, selector=parse(text) if where == "consumer" else None)
    await other.wait(4)
    await quiet([one, two])
    assert sorted(other.bodies) == [b"6", b"7", b"8", b"9"]
    assert before - count(one) == 4


async def test_what_is_there_already_is_noticed_without_a_further_event(nodes: Make) -> None:
    """SelectorRedistributionClusterTest, where the reference needs another remote consumer to come.

    A local consumer with a filter, and one elsewhere that was there before: what only the other one takes is moved.
    """
    one, two = await linked(nodes, LOCAL)
    here = take(one, selector=parse("JMSPriority < 5"))
    other = take(two, selector=parse("JMSPriority > 5"))
    await until(lambda: wanted(one, two))
    for priority in (9, 1, 5, 8):
        one.post.send(message(b"%d" % priority, priority=priority))
    await here.wait(1)
    await other.wait(2)
    await quiet([one, two])
    assert (here.bodies, sorted(other.bodies), count(one)) == ([b"1"], [b"8", b"9"], 2)


@pytest.mark.parametrize("case", ["a consumer comes there", "the one here leaves", "the queue is made later"])
async def test_what_was_kept_here_follows_its_consumer(nodes: Make, case: str) -> None:
    """MessageRedistributionTest: the three cases with load balancing off, and from a newly created queue."""
    one, two = await nodes(2, LOCAL)
    for source, sink in ((one, two), (two, one)):
        link = source.reach(sink)
        await until(lambda link=link: link.connected)  # type: ignore[misc]
    two.office.queue("orders")
    if case == "the queue is made later":
        other = take(two)
        await until(lambda: wanted(one, two))
        one.office.queue("orders")
        one.post.send(message(b"x"))
    else:
        one.office.queue("orders")
        here = take(one, credit=0)
        one.post.send(message(b"x"))
        await one.office.stable()
        other = take(two)
        await until(lambda: wanted(one, two))
        one.cluster.moving.review(one.post.space.queues)
        await quiet([one, two])
        assert count(one) == 1, "somebody takes it here"
        one.post.detach(one.post.queue("orders"), here)
    await other.wait(1)


@pytest.mark.parametrize("to", ["orders", "orders::orders", "anycast"])
async def test_however_it_was_addressed_it_is_moved(nodes: Make, to: str) -> None:
    """MessageRedistributionTest: FQQN anycast, prefixes that tell the routing type."""
    one, two = await linked(nodes)
    more = {"routing_type": ANYCAST} if to == "anycast" else {}
    one.post.send(message(b"x", "orders" if to == "anycast" else to, **more))
    await one.office.stable()
    other = take(two)
    (got,) = await other.wait(1)
    assert got.message.routing_type == more.get("routing_type")
    await until(lambda: count(one) == 0)


async def test_a_queue_whose_name_is_not_its_address_is_moved_from(nodes: Make) -> None:
    """The reference looks such a queue up by its name, finds nothing, and moves nothing."""
    found = await mesh(nodes, 2)
    await queues(found, [(Has("mine", consumer=False),), (Has("theirs", consumer=False),)])
    found[0].post.send(message(b"x", routing_type=ANYCAST))
    await found[0].office.stable()
    await take(found[1], "theirs").wait(1)
    await until(lambda: count(found[0], "mine") == 0)


@pytest.mark.parametrize("to", ["news", "news::shared"])
async def test_a_subscription_of_one_name_on_both_nodes_moves_its_part_and_no_other(nodes: Make, to: str) -> None:
    """MessageRedistributionTest: multicast, FQQN multicast; JMS and OpenWire variants of it."""
    found = await mesh(nodes, 2)
    one, two = found
    shared, own = (
        Has("shared", MULTICAST, consumer=False, address="news"),
        Has("own", MULTICAST, consumer=False, address="news"),
    )
    await queues(found, [(shared, own), (shared, own._replace(name="own2"))])
    for number in range(6):
        one.post.send(message(b"%d" % number, to, routing_type=MULTICAST))
    await one.office.stable()
    other = take(two, "shared")
    await other.wait(6)
    await quiet(found)
    assert sorted(other.bodies) == [b"%d" % number for number in range(6)]
    owned = 6 if to == "news" else 0
    assert (count(one, "own"), count(two, "own2")) == (owned, owned)


@pytest.mark.parametrize("duplicate_ids", [True, False])
async def test_back_and_forth_nothing_is_lost_or_doubled(nodes: Make, duplicate_ids: bool) -> None:
    """MessageRedistributionTest: back and forth, with and without duplicate detection."""
    one, two = await linked(nodes)
    for number in range(20):
        identity = b"%d" % number if duplicate_ids else None
        one.post.send(message(b"%d" % number, duplicate_id=identity))
    await one.office.stable()
    for source, sink in ((one, two), (two, one)) * 2:
        consumer = take(sink, credit=0)
        await until(lambda source=source, sink=sink: (count(source), count(sink)) == (0, 20))  # type: ignore[misc]
        sink.post.detach(sink.post.queue("orders"), consumer)
        await quiet([one, two])
    assert sorted(int(each.message.data) for each in one.post.queue("orders").iterate()) == list(range(20))


async def test_more_than_a_batch_goes_in_order(nodes: Make) -> None:
    """MessageRedistributionTest: more than a batch."""
    one, two = await linked(nodes)
    bodies = await fill(one, 1500)
    other = take(two)
    await other.wait(1500)
    assert other.bodies == bodies
    await quiet([one, two])
    assert one.cluster.moving.moved == {"orders": 1500}


@pytest.mark.parametrize(("window", "sent"), [(20_000, 80), (4 << 20, 600)])
async def test_no_more_is_on_its_way_than_the_window_lets(nodes: Make, window: int, sent: int) -> None:
    """ClusterConnectionConfigTest.testRedistributionFlowControl: the window, and a payload of 128 KiB at most."""
    one, two = await mesh(nodes, 2, producer_window_size=window, confirmation_window_size=4 << 20)
    await queues([one, two], [IDLE, IDLE])
    other = take(two)
    await until(lambda: wanted(one, two))
    connector = one.connector_to(two)
    connector.links[-1].ends[1].cut = True  # nothing comes back: neither room nor confirmations
    for number in range(600):
        one.post.send(message(b"%d " % number + b"p" * 2000, "orders::orders"))
    await until(lambda: waits(one) == 600)
    link = next(each for each in one.cluster.peers.links if each.connected)
    if sent == 600:
        await until(lambda: link.in_flight == sent)
    else:
        await one.office.stable()
        assert 0 < link.in_flight <= sent
    connector.links[-1].cut()
    await other.wait(600)
    assert [int(body.split(b" ")[0]) for body in other.bodies] == list(range(600))
    await quiet([one, two])


async def test_what_the_address_there_has_no_room_for_in_memory_goes_to_its_pages(nodes: Make) -> None:
    """MessageRedistributionTest: paging on the target."""
    one, two = await linked(nodes)
    two.office.settings("orders", max_size_bytes=10_000, address_full_policy=AddressFullPolicy.PAGE)
    await two.reopen()
    link = two.reach(one)
    await until(lambda: link.connected)
    body = b"p" * 1000
    for number in range(50):
        one.post.send(message(b"%d " % number + body))
    await one.office.stable()
    assert count(one) == 50
    other = take(two, credit=1)
    await until(lambda: count(one) == 0)
    await quiet([one, two])
    assert two.post.storage.pages.messages > 0
    other.credit = 100
    two.post.wake(two.post.queue("orders"))
    await other.wait(50)
    assert [int(each.split(b" ")[0]) for each in other.bodies] == list(range(50))


async def test_what_is_paged_here_moves_as_it_comes_from_the_pages(nodes: Make) -> None:
    """MessageRedistributionTest: messages that are not depaged yet."""
    one, two = await nodes()
    one.office.settings("orders", max_size_bytes=10_000, address_full_policy=AddressFullPolicy.PAGE)
    await one.reopen()
    for source, sink in ((one, two), (two, one)):
        link = source.reach(sink)
        await until(lambda link=link: link.connected)  # type: ignore[misc]
    await queues([one, two], [IDLE, IDLE])
    for number in range(50):
        one.post.send(message(b"%d " % number + b"p" * 1000))
    await one.office.stable()
    assert one.post.storage.pages.messages > 0
    other = take(two)
    await other.wait(50)
    assert [int(each.split(b" ")[0]) for each in other.bodies] == list(range(50))
    await until(lambda: count(one) == 0)


async def test_a_scheduled_message_moves_and_is_given_when_it_is_due(nodes: Make) -> None:
    """MessageRedistributionTest: scheduling. The others do not wait for it."""
    one, two = await linked(nodes)
    due = one.office.wall_ms() + 3_600_000
    one.post.send(message(b"later", deliver_at=due))
    one.post.send(message(b"now"))
    await one.office.stable()
    other = take(two)
    await other.wait(1)
    await quiet([one, two])
    assert other.bodies == [b"now"]
    assert count(one) + count(two) == 2
    for node in (one, two):
        node.office.now += 3_600_000
        node.post.due.look()
    await other.wait(2)
    await quiet([one, two])
    assert (other.bodies, count(one)) == ([b"now", b"later"], 0)


async def test_what_a_transaction_sends_is_moved_when_it_commits(nodes: Make) -> None:
    """MessageRedistributionWithDiscoveryTest: transactions, and a restart in between."""
    one, two = await linked(nodes)
    other = take(two)
    await until(lambda: wanted(one, two))
    committed, open_still = one.post.begin(), one.post.begin()
    for number in range(3):
        one.post.send(message(b"%d" % number, "orders::orders"), committed)
    one.post.send(message(b"never", "orders::orders"), open_still)
    await quiet([one, two])
    assert other.got == []
    one.post.commit(committed)
    await one.office.stable()
    await other.wait(3)
    await one.reopen()
    await quiet([one, two])
    assert other.bodies == [b"0", b"1", b"2"]
    assert count(one) == 0


async def test_a_large_messages_file_is_gone_here_when_it_is_there(nodes: Make) -> None:
    """LargeMessageRedistributionTest: the source's file is removed."""
    one, two = await linked(nodes)
    writer = one.post.storage.large.create()
    writer.write(b"x" * 300_000)
    large = message(b"head")
    large.large = writer.finish()
    one.post.send(large)
    await one.office.stable()
    other = take(two)
    (got,) = await other.wait(1)
    assert got.message.large is not None
    assert got.message.large.size == 300_000
    await quiet([one, two])
    await until(lambda: not list(one.office.configuration.large_messages_directory.glob("*.msg")))
    assert len(list(two.office.configuration.large_messages_directory.glob("*.msg"))) == 1


async def test_an_automatically_deleted_queue_goes_when_all_of_it_is_elsewhere(nodes: Make) -> None:
    """AutoDeleteClusteredDestinationTest, AutoDeleteDistributedTest: nothing is stranded, and the queue goes."""
    one, two = await linked(nodes)
    one.post.delete_queue("orders")
    queue = one.office.queue("orders", auto_created=True, auto_delete=True, auto_delete_message_count=0)
    await until(lambda: distance(two, one))
    await fill(one, 5)
    first = take(one)
    await first.wait(5)
    one.post.release(first.got, failed=False)
    one.post.detach(queue, first)
    one.post.address_manager.reap()
    await quiet([one, two])
    assert count(one) == 5, "it holds messages"
    await take(two).wait(5)
    await quiet([one, two])
    one.cluster.moving.review(one.post.space.queues)
    one.post.address_manager.maybe_delete(queue, one.office.wall_ms() + 10)
    assert one.post.space.queue("orders") is None
    await until(lambda: not distance(two, one))


async def test_what_moves_messages_is_no_consumer(nodes: Make) -> None:
    """Breaks when a client is refused by max-consumers because messages of its queue are being moved elsewhere."""
    one, two = await linked(nodes)
    one.post.delete_queue("orders")
    queue = one.office.queue("orders", max_consumers=1)
    await until(lambda: distance(two, one))
    await take(two).wait(0)
    await until(lambda: wanted(one, two))
    await fill_moved(one, two)
    assert [getattr(each, "moves_messages", False) for each in queue.consumers] == [True]
    assert queue.consumer_count == 0
    take(one, credit=0)
    await until(lambda: wanted(two, one))


@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"exclusive": True}, "it is exclusive"),
        ({"non_destructive": True}, "non-destructive"),
        ({"purge_on_no_consumers": True}, "purged when nobody takes"),
        ({"consumers_before_dispatch": 2}, "it waits for more consumers"),
    ],
)
async def test_queues_that_another_consumer_would_change_are_left_alone(
    nodes: Make, attributes: dict[str, Any], reason: str
) -> None:
    """In the reference redistribution becomes the exclusive consumer; here `why` says why nothing is moved."""
    found = await mesh(nodes, 2)
    one, two = found
    queue = one.office.queue("orders", **attributes)
    two.office.queue("orders")
    other = take(two)
    await until(lambda: wanted(one, two))
    one.post.send(message(b"x", "orders::orders"))
    await quiet(found)
    one.cluster.moving.review(one.post.space.queues)
    await quiet(found)
    assert reason in kept(queue)
    assert other.got == [] or attributes.get("purge_on_no_consumers") or count(one) == 0
    assert not one.cluster.moving.moved
    if count(one):
        assert reason in "; ".join(why(one.cluster, "orders"))


async def test_its_expiry_and_priority_are_what_they_were(nodes: Make) -> None:
    """All that a queue acts on goes along; only failed deliveries here count on there, unlike in the reference."""
    one, two = await linked(nodes)
    expires = one.office.wall_ms() + 3_600_000
    one.post.send(message(b"x", priority=8, expiration=expires, last_value="v", user="alice"))
    await one.office.stable()
    (got,) = await take(two).wait(1)
    assert (got.message.priority, got.message.expiration, got.message.last_value) == (8, expires, "v")


async def test_nothing_is_moved_towards_a_node_that_is_not_reached(nodes: Make) -> None:
    """The reference may fill the queue of a node that is down, as it keeps the counts of its consumers."""
    one, two = await linked(nodes)
    connector = one.connector_to(two)
    take(two, credit=0)
    await until(lambda: wanted(one, two))
    connector.allowed.clear()
    connector.links[-1].cut()
    await until(lambda: not wanted(one, two))
    await fill(one, 5)
    one.cluster.moving.review(one.post.space.queues)
    await one.office.stable()
    assert (count(one), waits(one)) == (5, 0)
    assert "no node with a consumer is reached: node2" in "; ".join(why(one.cluster, "orders"))
    connector.allowed.set()
    await until(lambda: count(two) == 5)


async def test_a_node_that_joins_with_a_consumer_gets_the_backlog_over_two_hops(nodes: Make) -> None:
    """MessageRedistributionTest: a new node joins with a consumer; here at the end of a chain."""
    one, two, three = await nodes(3, max_hops=2)
    one.office.queue("orders")
    await fill(one, 10)
    three.office.queue("orders")
    other = take(three)
    for source, sink in ((two, three), (one, two)):
        link = source.reach(sink)
        await until(lambda link=link: link.connected)  # type: ignore[misc]
    await other.wait(10)
    await until(lambda: count(one) == 0)


async def test_a_queue_that_is_not_there_has_no_reasons(nodes: Make) -> None:
    one, _ = await linked(nodes)
    with pytest.raises(Exception, match="does not exist"):
        why(one.cluster, "nowhere")
    with pytest.raises(InvalidRequestError, match="no cluster-connection"):
        one.connections.why("orders", "other")
    one.post.create_queue(QueueSpec("empty", "empty"))
    assert why(one.cluster, "empty") == ["it is empty"]


async def test_what_arrived_is_looked_at_again_only_where_something_is_to_be_moved(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stream of messages from elsewhere, each kept for 2 s, had its queue looked at 1,000 times a second."""
    monkeypatch.setattr(mover, "HOLD", 60.0)  # a busy machine may take 2 s for this
    one, two = found = await mesh(nodes, 2)
    await queues(found, [(), (Has(),)])
    for number in range(20):
        one.post.send(message(b"%d" % number))
    await quiet(found)
    await until(lambda: two.cluster.moving._movers)
    (moving,) = two.cluster.moving._movers.values()
    assert len(moving._arrived) == 20
    now = two.cluster.loop.time()
    assert moving.review(now) is None
    # Its consumer goes, and there is one elsewhere: now it is to be known when they may be moved on.
    queue = two.post.queue("orders")
    (receiver,) = takers(queue)
    one.post.create_queue(QueueSpec("orders", "orders", routing_type=ANYCAST))
    take(one, credit=0)
    await until(lambda: wanted(two, one))
    two.post.detach(queue, receiver)
    first = moving._arrived.oldest
    again = moving.review(max(now, first))
    assert moving._attached
    assert again is not None
    assert first < again <= first + 60.0


@pytest.mark.parametrize("after", [0, 1])
async def test_a_delay_that_a_reload_changes_counts_at_once(nodes: Make, after: int) -> None:
    """Breaks when a queue that was looked at before keeps the redistribution-delay that it had then."""
    one, two = await linked(nodes, redistribution_delay=3_600_000)
    await fill(one, 5)
    other = take(two)
    await until(lambda: wanted(one, two))
    await quiet([one, two])
    assert (count(one), other.got) == (5, [])
    one.office.settings("orders", redistribution_delay=after)
    one.post.space.reload_settings(AddressSettingsResolver(one.office.configuration).of)
    one.post.address_manager.reload_settings()
    await other.wait(5)
