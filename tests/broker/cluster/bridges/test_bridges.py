"""Bridges: what leaves a queue here arrives there once, in order and as it was, whatever breaks meanwhile."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from broker.cluster.connection.conftest import until
from broker.engine.conftest import Receiver, message
from harness.broker import free_udp_port
from pollux.cluster.bridges.service import Bridges
from pollux.cluster.discovery import Announcer
from pollux.config import bridges
from pollux.config.acceptors import Endpoint
from pollux.config.address_settings import AddressFullPolicy
from pollux.config.addresses import DivertRouting
from pollux.config.clusters import BroadcastGroup, DiscoveryGroup, DiscoveryGroupRef
from pollux.formats.forwards import ROUTE_TO
from pollux.message import RoutingType
from pollux.wire.core import ClusterKey

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.cluster.bridges.conftest import Site

    Make = Callable[..., Awaitable[list[Site]]]

pytestmark = pytest.mark.asyncio


def count(site: Site, name: str = "orders") -> int:
    return site.post.message_count(site.post.queue(name))


def on_the_way(site: Site) -> int:
    return sum(bridge.describe()["onTheWay"] for bridge in site.bridges.bridges)


async def test_a_message_arrives_as_it_was(sites: Make) -> None:
    one, two = await sites()
    two.office.queue("target")
    receiver = Receiver()
    two.post.attach(two.post.queue("target"), receiver)
    one.bridge(two, forwarding_address="target")
    sent = message(b"body", priority=7, timestamp=5, duplicate_id=b"dup", group="g", last_value="v", user="alice")
    sent.annotations = {"a": 1}
    one.post.send(sent)
    (got,) = await receiver.wait(1)
    names = ("encoding", "data", "durable", "priority", "timestamp", "duplicate_id", "group", "last_value")
    assert [getattr(got.message, name) for name in names] == [getattr(sent, name) for name in names]
    assert got.message.address == "target"
    assert ROUTE_TO not in (got.message.annotations or {})
    assert (got.message.annotations or {})["a"] == 1
    two.post.acknowledge([got])
    await until(lambda: not on_the_way(one))
    (shown,) = one.bridges.describe()["bridges"]
    assert (shown["connected"], shown["node"], shown["confirmed"], shown["waiting"]) == (True, "site2", 1, 0)
    assert two.bridges.describe()["incoming"] == [{"bridge": "b", "node": "site1", "nodeId": one.id.hex(), "taken": 1}]


async def test_only_what_the_filter_lets_through_goes(sites: Make) -> None:
    one, two = await sites()
    one.bridge(two, filter="_AMQ_VALIDATED_USER IS NULL AND JMSPriority > 4")
    for number in range(10):
        one.post.send(message(str(number).encode(), priority=number))
    await until(lambda: count(two) == 5)
    assert count(one) == 5


@pytest.mark.parametrize(
    ("routing", "expected"),
    [
        (DivertRouting.PASS, RoutingType.ANYCAST),
        (DivertRouting.STRIP, None),
        (DivertRouting.MULTICAST, RoutingType.MULTICAST),
    ],
)
async def test_the_routing_type_is_as_the_bridge_says(
    sites: Make, routing: DivertRouting, expected: RoutingType | None
) -> None:
    one, _ = await sites()
    bridge = one.bridge(one, routing_type=routing)
    assert bridge.given.routing_type(RoutingType.ANYCAST) is expected


async def test_a_link_that_breaks_again_and_again_loses_and_doubles_nothing(sites: Make) -> None:
    one, two = await sites()
    receiver = Receiver()
    two.post.attach(two.post.queue("orders"), receiver)
    bridge = one.bridge(two)
    for number in range(300):
        one.post.send(message(str(number).encode()))
        if number % 25 == 24:
            one.post.when_stable(None)
            await until(lambda: bridge.link.connected)
            await until(lambda number=number: len(receiver.got) > number // 2)  # type: ignore[misc]
            two.links[-1].cut()
    await receiver.wait(300)
    assert [int(body) for body in receiver.bodies] == list(range(300))
    assert len(two.links) > 5


async def test_what_was_taken_in_is_known_after_a_restart_of_the_receiver(sites: Make) -> None:
    """The confirm is lost, and the receiver killed: the sender sends it again, and it is left out."""
    one, two = await sites()
    bridge = one.bridge(two)
    await until(lambda: bridge.link.connected)
    two.links[-1].ends[1].cut = True  # nothing comes back any more
    one.post.send(message(b"once"))
    await until(lambda: count(two) == 1)
    two.reachable = False
    two.links[-1].cut()
    await two.reopen()
    assert on_the_way(one) == 1
    two.reachable = True
    await until(lambda: not on_the_way(one))
    await two.office.stable()
    assert count(two) == 1
    (shown,) = two.bridges.describe()["incoming"]
    assert shown["taken"] == 0


async def test_what_was_on_its_way_outlives_a_restart_of_the_sender(sites: Make) -> None:
    one, two = await sites()
    bridge = one.bridge(two)
    await until(lambda: bridge.link.connected)
    two.links[-1].ends[0].cut = True  # nothing arrives there
    for number in range(10):
        one.post.send(message(str(number).encode()))
    await until(lambda: on_the_way(one) == 10)
    await one.office.stable()
    two.links[-1].cut()
    await one.reopen()
    assert count(one) == 0
    one.bridge(two)
    await until(lambda: count(two) == 10)
    await until(lambda: not on_the_way(one))


async def test_what_waits_stays_in_the_queue_while_nobody_answers(sites: Make) -> None:
    one, two = await sites()
    two.reachable = False
    bridge = one.bridge(two)
    one.post.send(message(b"waits"))
    await until(lambda: bridge.link.reason == "nobody answers")
    await one.office.stable()
    assert (count(one), on_the_way(one)) == (1, 0)
    two.reachable = True
    await until(lambda: count(two) == 1)


async def test_another_broker_gets_none_of_what_may_have_arrived_at_the_first(sites: Make) -> None:
    one, two, three = await sites(3)
    bridge = one.bridge(two, three, reconnect_attempts_same_node=5)
    await until(lambda: bridge.link.connected)
    two.links[-1].ends[1].cut = True
    one.post.send(message(b"first"))
    await until(lambda: count(two) == 1)
    two.reachable = False
    two.links[-1].cut()
    one.post.send(message(b"second"))
    await until(lambda: count(three) == 1)  # after the attempts at the first one
    assert len(three.links) > 5
    await until(lambda: on_the_way(one) == 1)
    two.reachable = True
    three.reachable = False
    three.links[-1].cut()
    await until(lambda: not on_the_way(one))
    assert (count(two), count(three)) == (1, 1)


async def test_a_message_that_would_be_refused_there_stays_here(sites: Make, caplog: pytest.LogCaptureFixture) -> None:
    one, two = await sites()
    two.office.settings("nowhere", auto_create_addresses=False, auto_create_queues=False)
    await two.reopen()
    one.bridge(two, forwarding_address="nowhere")
    one.post.send(message(b"kept"))
    await until(lambda: "a forwarded message has no place here" in caplog.text)
    assert on_the_way(one) == 1
    two.post.ensure_address("nowhere", RoutingType.ANYCAST, auto=False)
    two.office.queue("here", "nowhere")
    await until(lambda: count(two, "here") == 1)


async def test_a_full_address_holds_the_bridge_up_and_no_more(sites: Make) -> None:
    one, two = await sites()
    two.office.settings("orders", max_size_bytes=10_000, address_full_policy=AddressFullPolicy.BLOCK)
    await two.reopen()
    one.bridge(two, producer_window_size=4096)
    for _ in range(1000):
        one.post.send(message(b"x" * 1000))
    await until(lambda: count(two) >= 100)
    receiver = Receiver(credit=0)
    two.post.attach(two.post.queue("orders"), receiver)
    assert count(two) < 400  # what may be on its way, and a payload
    while len(receiver.got) < 1000:
        receiver.credit = 200
        two.post.wake(two.post.queue("orders"))
        at = len(receiver.got)
        await until(lambda at=at: len(receiver.got) > at)  # type: ignore[misc]
        two.post.acknowledge(receiver.got[at:])
    await until(lambda: not on_the_way(one))


async def test_a_large_message_goes_in_pieces(sites: Make) -> None:
    one, two = await sites()
    writer = one.post.storage.large.create()
    body = bytes(range(256)) * 2000
    writer.write(body)
    large = message(b"head")
    large.large = writer.finish(durable=True)
    one.post.send(large)
    one.post.send(message(b"after"))
    receiver = Receiver()
    two.post.attach(two.post.queue("orders"), receiver)
    one.bridge(two)
    got = await receiver.wait(2)
    assert receiver.bodies == [b"head", b"after"]
    assert got[0].message.large is not None
    assert got[0].message.large.size == len(body)


async def test_a_bridge_takes_from_a_queue_that_is_made_later_and_made_again(sites: Make) -> None:
    one, two = await sites()
    one.post.delete_queue("orders")
    bridge = one.bridge(two)
    await until(lambda: bridge.feeder.reason == "its queue does not exist")
    for round_ in (1, 2):
        one.office.queue("orders")
        one.post.send(message(b"x"))
        bridge.look()
        await until(lambda round_=round_: count(two) == round_)  # type: ignore[misc]
        one.post.delete_queue("orders")


@pytest.mark.parametrize("which", ["initial", "again"])
async def test_attempts_are_used_up(sites: Make, which: str) -> None:
    one, two = await sites()
    if which == "initial":
        two.reachable = False
        bridge = one.bridge(two, initial_connect_attempts=3, reconnect_attempts=0)
    else:
        bridge = one.bridge(two, initial_connect_attempts=0, reconnect_attempts=3)
        await until(lambda: bridge.link.connected)
        two.reachable = False
        two.links[-1].cut()
    await until(lambda: bridge.link.stopped)
    one.post.send(message(b"waits"))
    await one.office.stable()
    assert (count(one), bridge.describe()["stopped"]) == (1, True)


async def test_a_bridge_to_its_own_broker_is_refused(sites: Make) -> None:
    one, _ = await sites()
    bridge = one.bridge(one)
    await until(lambda: "this broker itself" in bridge.link.reason)


async def test_the_last_connection_of_a_bridge_counts(sites: Make) -> None:
    one, two = await sites()
    first = one.bridge(two)
    await until(lambda: first.link.connected)
    one.bridge(two)
    await until(lambda: len(two.links) >= 2 and len(two.receiver.incoming) == 1)


async def test_a_bridge_finds_its_broker_by_discovery(sites: Make) -> None:
    """Over real multicast on the loopback interface."""
    one, _ = await sites()
    port, address = free_udp_port(), "239.255.7.9"
    group = DiscoveryGroup("g", address, port, local_bind_address="127.0.0.1", initial_wait_timeout=60_000)
    given = bridges.Bridge("b", "orders", discovery_group_ref=DiscoveryGroupRef("g"), retry_interval=1)
    configuration = replace(
        one.office.configuration, bridges=(given,), discovery_groups=(group,), cluster_password="ours"
    )
    made = await Bridges.make(configuration, one.id, one.post)
    (bridge,) = made.bridges
    announcer = Announcer(
        BroadcastGroup("b", "127.0.0.1", group_address=address, group_port=port, broadcast_period=20),
        (Endpoint("tcp", "127.0.0.1", free_udp_port()),),
        ClusterKey(configuration.cluster_user, "ours"),
        member="two",
    )
    made.start()
    announcer.open()
    announcer.start()
    try:
        await until(lambda: "onnect" in bridge.link.reason and bridge.link.reason != "not connected yet")
    finally:
        announcer.stop()
        await made.stop()
