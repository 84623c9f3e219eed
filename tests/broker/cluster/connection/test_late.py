"""Messages expire while they wait for another node."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import count, distance
from broker.cluster.connection.nodes import take
from broker.engine.conftest import message
from pollux.message import RoutingType

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make
    from pollux.message import Message

pytestmark = pytest.mark.asyncio


async def parted(nodes: Make, **settings: object) -> tuple[Node, Node]:
    """Two nodes that do not reach each other now; the second one has the queue, expired messages have one at both."""
    one, two = await nodes()
    one.office.settings("orders", **({"expiry_address": "late"} | settings))
    await one.reopen()
    for node in (one, two):
        node.office.queue("late")
    two.office.queue("orders")
    one.reach(two)
    await until(lambda: distance(one, two))
    part(one, two)
    return one, two


def part(one: Node, two: Node) -> None:
    connector = one.connectors[two.id]
    connector.allowed.clear()
    connector.links[-1].cut()


def late(node: Node) -> list[Message]:
    queue = node.post.space.queue("late")
    assert queue is not None
    return [reference.message for reference in queue.iterate()]


async def scan(node: Node) -> None:
    """Look for expired messages, in all queues to their end."""
    await node.office.stable()
    node.post.dead_letters.scan()
    await until(lambda: not node.post.dead_letters._scanning)
    await node.office.stable()


async def test_it_expires_where_it_waits_at_the_expiry_address_of_where_it_was_sent_to(nodes: Make) -> None:
    one, two = await parted(nodes)
    now = one.office.wall_ms()
    for body, expiration in ((b"first", 0), (b"late", now - 1), (b"in time", now + 3_600_000), (b"plain", 0)):
        one.post.send(message(body, expiration=expiration))
    await scan(one)
    (found,) = late(one)
    assert found.data == b"late"
    assert found.annotations is not None
    assert found.annotations["_AMQ_ORIG_ADDRESS"] == found.annotations["_AMQ_ORIG_QUEUE"] == "orders"
    assert found.annotations["_AMQ_ORIG_ROUTING_TYPE"] == int(RoutingType.ANYCAST)
    assert int(found.annotations["_AMQ_ACTUAL_EXPIRY"]) >= now
    assert not [name for name in found.annotations if name.startswith("_PX")]
    assert one.cluster.waiting(two.id) == 3
    one.connectors[two.id].allowed.set()
    await until(lambda: count(two) == 3)
    await until(lambda: not one.cluster.waiting(two.id))
    assert late(two) == []


async def test_it_is_gone_after_a_restart_and_what_it_became_is_there(nodes: Make) -> None:
    """Breaks when the two are not one transaction."""
    one, two = await parted(nodes)
    one.post.send(message(b"late", expiration=one.office.wall_ms() - 1))
    await scan(one)
    await one.reopen()
    assert count(one, "late") == 1
    assert one.cluster.waiting(two.id) == 0


async def test_what_may_be_there_already_expires_there(nodes: Make) -> None:
    """Breaks when it becomes two messages: it was sent, and is in the other node's queue."""
    one, two = await parted(nodes)
    one.connectors[two.id].allowed.set()
    await until(lambda: one.cluster.peers.to(two.id))
    link = one.cluster.peers.to(two.id)
    assert link is not None
    one.connectors[two.id].links[-1].ends[1].cut = True  # what it confirms is not heard
    one.post.send(message(b"sent", expiration=one.office.wall_ms() - 1))
    await until(lambda: count(two) == 1)
    part(one, two)
    assert one.cluster.waiting(two.id) == 1
    one.post.send(message(b"not sent", expiration=one.office.wall_ms() - 1))
    await scan(one)
    assert [each.data for each in late(one)] == [b"not sent"]
    one.cluster.peers.remove(link)
    await scan(one)
    assert one.cluster.waiting(two.id) == 1
    one.reach(two)
    one.connectors[two.id].allowed.set()
    await until(lambda: not one.cluster.waiting(two.id))
    assert count(two) == 1


async def test_what_another_process_may_have_sent_waits(nodes: Make) -> None:
    """Breaks when the numbers of an earlier process are taken for those of this one, which sent nothing."""
    one, two = await parted(nodes)
    one.post.send(message(b"sent?", expiration=one.office.wall_ms() - 1))
    await one.office.stable()
    await one.reopen()
    queue = one.cluster.spreading.outlets[two.id].queue
    receiver = take(one, queue.name)  # reads it into memory again, as a link does that ends at once
    await receiver.wait(1)
    one.post.detach(queue, receiver)
    await scan(one)
    assert late(one) == []
    assert one.cluster.waiting(two.id) == 1


async def test_without_an_expiry_address_it_is_dropped_and_counted(
    nodes: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = await parted(nodes, expiry_address=None)
    one.post.send(message(b"late", expiration=one.office.wall_ms() - 1))
    await scan(one)
    assert (one.cluster.waiting(two.id), one.post.dead_letters.dropped) == (0, 1)
    assert "address orders has no expiry-address" in caplog.text


async def test_without_a_place_for_it_it_goes_on_waiting(nodes: Make) -> None:
    one, two = await parted(nodes, expiry_address="nowhere")
    one.office.settings("nowhere", auto_create_queues=False, auto_create_addresses=False)
    await one.reopen()
    one.post.send(message(b"late", expiration=one.office.wall_ms() - 1))
    await scan(one)
    assert (one.cluster.waiting(two.id), one.post.dead_letters.stayed) == (1, 1)


async def test_a_backlog_is_looked_through_to_its_end(nodes: Make) -> None:
    """Breaks when only the first portion is, or what is behind a hole is not."""
    one, two = await parted(nodes)
    now = one.office.wall_ms()
    for number in range(10_000):
        one.post.send(message(b"%d" % number, expiration=now - 1 if number % 3 else 0))
    await scan(one)
    assert len(late(one)) == one.cluster.spreading.outlets[two.id].queue.counters.expired == 6666
    assert one.cluster.waiting(two.id) == 3334


async def test_who_waits_for_the_queue_to_be_empty_is_told(nodes: Make) -> None:
    one, _ = await parted(nodes)
    told: list[None] = []
    one.cluster.progressed = lambda: told.append(None)
    one.post.send(message(b"late", expiration=one.office.wall_ms() - 1))
    await scan(one)
    assert told
