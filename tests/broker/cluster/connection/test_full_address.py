"""An address that is full at another node: what is for it waits for itself, and what is for others goes on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from broker.cluster.connection.conftest import until
from broker.cluster.connection.nodes import take
from broker.engine.conftest import message
from pollux.cluster.connection import crowded, incoming, mover, view
from pollux.cluster.connection.crowded import Crowded
from pollux.cluster.connection.outgoing import OutgoingLink
from pollux.config import resolve
from pollux.config.address_settings import AddressFullPolicy
from pollux.message import RoutingType

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make
    from broker.engine.conftest import Receiver
    from pollux.routing.queue import Queue

pytestmark = pytest.mark.asyncio

BODY = b"z" * 20_000
#: The limit of the address, and how many messages are sent to it: several payloads more than it takes.
LIMIT, COUNT = 30_000, 60


async def crowd(
    nodes: Make, policy: AddressFullPolicy = AddressFullPolicy.BLOCK, **orders: Any
) -> tuple[Node, Node, Receiver, Receiver]:
    """Two nodes, the second with consumers of `orders`, of which one takes nothing yet, and of `prices`."""
    one, two = await nodes(producer_window_size=8000)
    two.office.settings("orders", max_size_bytes=LIMIT, address_full_policy=policy)
    await two.reopen()
    for name in ("orders", "prices"):
        two.office.queue(name, **(orders if name == "orders" else {}))
    one.reach(two)
    receivers = [take(two, "orders", credit=0), take(two, "prices", credit=1000)]
    await until(lambda: all(wants(one, two, name) for name in ("orders", "prices")))
    return one, two, receivers[0], receivers[1]


def wants(one: Node, two: Node, name: str) -> bool:
    path = one.cluster.table.path((two.id, name))
    return path is not None and path.connected and path.record.has_consumers


def outlet(one: Node, two: Node) -> Queue:
    return one.cluster.spreading.outlets[two.id].queue


def send(one: Node, first: int = 0, count: int = COUNT) -> None:
    for number in range(first, first + count):
        one.post.send(message(b"%d " % number + BODY, "orders"))
        one.post.send(message(b"%d" % number, "prices"))


def numbers(receiver: Receiver) -> list[int]:
    return [int(body.split(b" ")[0]) for body in receiver.bodies]


async def held(one: Node) -> None:
    link = one.cluster.peers.links[0]
    await until(lambda: link.held.full == {"orders"} and link.held.count and not link.in_flight)


async def drain(two: Node, receiver: Receiver, count: int = COUNT, name: str = "orders") -> None:
    """Take all, and a few at a time, so that it becomes full again in between."""
    settled = len(receiver.got)
    while settled < count:
        receiver.credit = 5
        two.post.wake(two.post.queue(name))
        got = await receiver.wait(settled + 1)
        two.post.acknowledge(got[settled:])
        settled = len(got)


@pytest.mark.parametrize("policy", [AddressFullPolicy.BLOCK, AddressFullPolicy.FAIL])
async def test_others_go_on_and_it_goes_on_when_there_is_room(
    nodes: Make, policy: AddressFullPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what is told when there is room: no timer looks for it."""
    monkeypatch.setattr(crowded, "_LOOK", 3600.0)
    monkeypatch.setattr(incoming, "_LOOK_AGAIN", 3600.0)
    one, two, orders, prices = await crowd(nodes, policy)
    send(one)
    await prices.wait(COUNT)
    assert numbers(prices) == list(range(COUNT))
    await held(one)
    there = two.post.message_count(two.post.queue("orders"))
    assert there < 20
    assert one.post.message_count(outlet(one, two)) == COUNT - there
    (link,) = view.describe(one.cluster)["links"]
    assert (link["held"], link["full"]) == (COUNT - there, ["orders"])
    (said,) = view.why(one.cluster, outlet(one, two).name)
    assert f"{COUNT - there} messages wait for room at broker 'node2', where these addresses are full: orders;" in said
    await drain(two, orders)
    assert numbers(orders) == list(range(COUNT))
    await until(lambda: not one.post.message_count(outlet(one, two)))
    await until(lambda: not one.cluster.peers.links[0].held.full)
    await one.office.stable()
    one.office.check_accounts()


@pytest.mark.parametrize("how", ["sender", "receiver", "connection"])
async def test_what_is_held_back_comes_once_and_in_order_after_an_interruption(nodes: Make, how: str) -> None:
    one, two, orders, prices = await crowd(nodes)
    send(one)
    await prices.wait(COUNT)
    await held(one)
    two.post.acknowledge(prices.got)
    await two.office.stable()
    if how == "connection":
        one.connectors[two.id].links[-1].cut()
    elif how == "sender":
        await one.reopen()
        one.reach(two)
    else:
        one.connector_to(two).links[-1].cut()
        await two.reopen()
        orders, prices = take(two, "orders", credit=0), take(two, "prices", credit=1000)
    await until(lambda: one.cluster.peers.links[0].connected)
    await until(lambda: all(wants(one, two, name) for name in ("orders", "prices")))
    before = len(prices.got)
    send(one, COUNT, 20)
    await prices.wait(before + 20)
    assert numbers(prices)[before:] == list(range(COUNT, COUNT + 20))
    await drain(two, orders, COUNT + 20)
    assert numbers(orders) == list(range(COUNT + 20))
    await until(lambda: not one.post.message_count(outlet(one, two)))
    assert two.post.message_count(two.post.queue("prices")) == 20


async def test_more_than_fits_into_memory_waits_on_disk_with_what_is_behind_it(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of it comes once and in order when there is room, also with a restart while it is in pages."""
    small = replace(resolve._INTERNAL, max_size_bytes=300_000, max_read_page_bytes=200_000, page_size_bytes=100_000)
    monkeypatch.setattr(resolve, "_INTERNAL", small)
    one, two, orders, prices = await crowd(nodes)
    send(one, count=3 * COUNT)
    await held(one)
    await one.office.stable()
    queue = outlet(one, two)
    await until(lambda: one.post.message_count(queue) > queue.message_count)
    said = view.why(one.cluster, queue.name)
    assert "messages are behind these on disk, and are read when there is memory" in said[1]
    assert len(prices.got) < 3 * COUNT
    two.post.acknowledge(prices.got)
    await one.reopen()
    one.reach(two)
    await until(lambda: one.cluster.peers.links[0].connected)
    await asyncio.gather(drain(two, orders, 3 * COUNT), prices.wait(3 * COUNT))
    assert numbers(orders) == numbers(prices) == list(range(3 * COUNT))
    await until(lambda: not one.post.message_count(outlet(one, two)))


async def test_with_an_older_version_all_waits_as_before(nodes: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OutgoingLink, "apart", False)
    one, two, orders, prices = await crowd(nodes)
    send(one)
    await until(lambda: not two.post.accounts.has_room("orders"))
    link = one.cluster.peers.links[0]
    await until(lambda: link._link is not None and not link._link.conversation.credit(link._channel))
    assert not link.held.full
    assert len(prices.got) < COUNT
    assert not one.cluster.spreading.outlets[two.id].numbering.apart
    await drain(two, orders)
    await prices.wait(COUNT)
    assert numbers(orders) == numbers(prices) == list(range(COUNT))


async def test_subscriptions_of_a_full_address_each_get_all(nodes: Make) -> None:
    one, two, orders, prices = await crowd(nodes, routing_type=RoutingType.MULTICAST)
    two.office.queue("also", "orders", routing_type=RoutingType.MULTICAST)
    also = take(two, "also", credit=0)
    await until(lambda: wants(one, two, "also"))
    send(one)
    await prices.wait(COUNT)
    await held(one)
    await asyncio.gather(drain(two, orders), drain(two, also, name="also"))
    assert numbers(also) == numbers(orders) == list(range(COUNT))


async def test_a_large_message_for_a_full_address_waits_in_its_place(nodes: Make) -> None:
    one, two, orders, prices = await crowd(nodes)
    send(one)
    await prices.wait(COUNT)
    await held(one)
    writer = one.post.storage.large.create()
    for _ in range(10):
        writer.write(b"l" * 20_000)
    large = message(b"%d head" % COUNT)
    large.large = writer.finish()
    one.post.send(large)
    one.post.send(message(b"%d" % (COUNT + 1)))
    send(one, COUNT + 2, 1)
    await prices.wait(COUNT + 1)
    await drain(two, orders, COUNT + 3)
    assert numbers(orders) == list(range(COUNT + 3))
    body = orders.got[COUNT].message.large
    assert body is not None
    assert body.size == 200_000


async def test_what_is_moved_waits_here_and_other_queues_are_moved(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A queue of a full address is moved no more; what is held back of it does not count for others."""
    monkeypatch.setattr(mover, "_ON_THE_WAY", 250)
    one, two = await nodes(producer_window_size=8000)
    two.office.settings("orders", max_size_bytes=LIMIT, address_full_policy=AddressFullPolicy.BLOCK)
    await two.reopen()
    for name in ("orders", "prices"):
        one.office.queue(name)
        two.office.queue(name)
    for number in range(1000):
        one.post.send(message(b"%d " % number + BODY[:2000], "orders"))
        one.post.send(message(b"%d" % number, "prices"))
    await one.office.stable()
    one.reach(two)
    orders = take(two, "orders", credit=0)
    await until(lambda: one.cluster.peers.links[0].held.full == {"orders"})
    prices = take(two, "prices", credit=1000)
    await prices.wait(1000)
    assert numbers(prices) == list(range(1000))
    assert one.post.message_count(one.post.queue("orders")) > 300
    assert "'orders' is full at node2: what is for there waits until there is room" in view.why(one.cluster, "orders")
    await drain(two, orders, 1000)
    assert numbers(orders) == list(range(1000))
    assert not one.post.message_count(one.post.queue("orders"))


async def test_of_a_broker_that_is_full_as_a_whole_all_waits(nodes: Make) -> None:
    one, two, orders, _ = await crowd(nodes)
    told: list[tuple[str, ...]] = []
    accounts = two.post.accounts
    accounts.of("orders")
    watch = Crowded(accounts, one.post.loop, told.append)
    accounts.total.limit(0, -1)
    assert not accounts.has_room("orders")
    assert watch.note({"orders"}) == {"orders"}
    assert not told
    accounts.total.limit(-1, -1)
    assert not orders.got
    watch.stop()


async def test_of_very_many_full_addresses_the_rest_waits_as_before(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(crowded, "MOST_FULL", 2)
    (one,) = await nodes(1)
    names = ["a", "b", "c"]
    for name in names:
        one.office.settings(name, max_size_messages=1, address_full_policy=AddressFullPolicy.BLOCK)
    await one.reopen()
    queues = [one.office.queue(name) for name in names]
    for name in names:
        one.post.send(message(b"x", name))
    await one.office.stable()
    told: list[tuple[str, ...]] = []
    watch = Crowded(one.post.accounts, one.post.loop, told.append)
    assert watch.note(["a::q", "b"]) == set()
    assert watch.note(["a", "c"]) == {"c"}
    assert told == [("a", "b")]
    one.post.purge(queues[0])
    await until(lambda: told[-1] == ("b",))
    assert watch.note(["c"]) == set()
    assert told[-1] == ("b", "c")
    watch.stop()
    one.post.purge(queues[1])
    await one.office.settle()
    assert told[-1] == ("b", "c")
