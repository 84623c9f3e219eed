"""Backlogs move to the node whose consumers want it, as it is: how it was delivered before, and with its id."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.cluster.connection.conftest import until
from broker.cluster.connection.test_links import consumer, pair
from broker.engine.conftest import Receiver, message
from pollux.message import RoutingType
from pollux.routing.selector import parse
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from broker.cluster.connection.nodes import Make

pytestmark = pytest.mark.asyncio


async def test_a_backlog_moves_and_what_nobody_wants_stays(nodes: Make) -> None:
    one, two = await pair(nodes)
    for number in range(10):
        one.post.send(message(str(number).encode(), priority=9 if number % 2 else 1))
    await one.office.stable()
    receiver = Receiver(selector=parse("JMSPriority > 5"))
    two.post.attach(two.post.queue("orders"), receiver)
    await receiver.wait(5)
    assert receiver.bodies == [b"1", b"3", b"5", b"7", b"9"]
    assert one.post.message_count(one.post.queue("orders")) == 5


async def test_strict_and_off_move_nothing(nodes: Make) -> None:
    one, two = await pair(nodes, balancing="OFF")
    one.post.send(message(b"stays"))
    await one.office.stable()
    await consumer(one, two)
    one.cluster.moving.review(one.post.space.queues)
    assert not one.cluster.moving._movers
    assert one.post.message_count(one.post.queue("orders")) == 1


async def test_what_is_moved_back_and_forth_is_not_taken_for_a_copy_of_itself(nodes: Make) -> None:
    """Its duplicate id is known where it was before; it is the same message, and lost if it were left out."""
    one, two = await pair(nodes)
    two.reach(one)
    await until(lambda: (one.id, "orders") in two.cluster.table.queues)
    for name in ("first", "second"):
        for node in (one, two):
            node.post.create_queue(QueueSpec(name, "news", routing_type=RoutingType.MULTICAST))
    one.post.send(message(b"1", "news", duplicate_id=b"d"))
    await one.office.stable()
    for source, sink in ((one, two), (two, one)):
        takers = [Receiver(credit=0) for _ in range(2)]
        for name, taker in zip(("first", "second"), takers, strict=True):
            sink.post.attach(sink.post.queue(name), taker)
        for name in ("first", "second"):
            await until(lambda name=name, sink=sink: sink.post.message_count(sink.post.queue(name)) == 1)  # type: ignore[misc]
            assert not source.post.message_count(source.post.queue(name))
        for name, taker in zip(("first", "second"), takers, strict=True):
            sink.post.detach(sink.post.queue(name), taker)


async def test_what_a_consumer_may_have_had_is_marked_where_it_is_moved_to(nodes: Make) -> None:
    """It was given back, or was in the queue when its broker started: who takes it elsewhere is told of the first."""
    one, two = await pair(nodes)
    receiver = Receiver()
    one.post.attach(one.post.queue("orders"), receiver)
    one.post.send(message(b"1"))
    had = await receiver.wait(1)
    one.post.release(had, failed=False)
    one.post.detach(one.post.queue("orders"), receiver)
    one.post.send(message(b"2"))
    taker = await consumer(one, two)
    found = {reference.message.data: reference.redelivered for reference in await taker.wait(2)}
    assert found == {b"1": True, b"2": False}


async def test_how_often_a_delivery_failed_goes_along_and_is_known_after_a_restart(nodes: Make) -> None:
    one, two = await pair(nodes)
    receiver = Receiver()
    one.post.attach(one.post.queue("orders"), receiver)
    one.post.send(message(b"1"))
    (failed,) = await receiver.wait(1)
    failed.delivery_count = 3
    one.post.release([failed], failed=True)
    one.post.detach(one.post.queue("orders"), receiver)
    taker = await consumer(one, two)
    (got,) = await taker.wait(1)
    assert got.delivery_count == 4
    await two.reopen()
    taker = Receiver()
    two.post.attach(two.post.queue("orders"), taker)
    (got,) = await taker.wait(1)
    assert got.delivery_count == 4
