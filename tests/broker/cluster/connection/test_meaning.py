"""A queue's meaning of its messages holds where they arrive: expiry, priority, schedule, last value, ring, owner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import count, distance, waits, wanted
from broker.cluster.connection.nodes import take
from broker.engine.conftest import message
from pollux.cluster.connection.mover import kept
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make

pytestmark = pytest.mark.asyncio


async def there(nodes: Make, **attributes: Any) -> tuple[Node, Node]:
    """Two nodes; only the second one has the queue, with these attributes."""
    one, two = await nodes()
    two.office.queue("orders", **attributes)
    one.reach(two)
    await until(lambda: distance(one, two))
    return one, two


async def arrived(one: Node, two: Node, messages: int) -> None:
    await until(lambda: sum(link.taken for link in two.cluster.incoming.values()) == messages)
    await until(lambda: not waits(one))


async def test_expiry_is_that_of_where_it_arrives(nodes: Make) -> None:
    one, two = await there(nodes)
    two.office.settings("orders", expiry_address="late")
    await two.reopen()
    two.office.queue("late")
    await until(lambda: distance(one, two, "late"))
    one.post.send(message(b"late", expiration=one.office.wall_ms() + 1))
    one.post.send(message(b"in time"))
    await arrived(one, two, 2)
    two.post.dead_letters.scan()
    await until(lambda: count(two, "late") == 1)
    assert count(two) == 1


async def test_priority_orders_where_it_arrives_and_not_on_the_way(nodes: Make) -> None:
    """In the store-and-forward queue the order is that of arrival: nothing overtakes on a link."""
    one, two = await there(nodes)
    connector = one.connectors[two.id]
    connector.allowed.clear()
    connector.links[-1].cut()
    for priority in (1, 9, 5):
        one.post.send(message(str(priority).encode(), priority=priority))
    await one.office.stable()
    outlet = one.cluster.spreading.outlets[two.id].queue
    assert [reference.message.data for reference in outlet.iterate()] == [b"1", b"9", b"5"]
    connector.allowed.set()
    await arrived(one, two, 3)
    receiver = take(two)
    await receiver.wait(3)
    assert receiver.bodies == [b"9", b"5", b"1"]


async def test_a_scheduled_message_waits_where_it_arrives(nodes: Make) -> None:
    one, two = await there(nodes)
    due = two.office.wall_ms() + 3_600_000
    one.post.send(message(b"later", deliver_at=due))
    one.post.send(message(b"now"))
    await arrived(one, two, 2)
    receiver = take(two)
    await receiver.wait(1)
    assert receiver.bodies == [b"now"]
    assert count(two) == 2


async def test_the_last_value_of_a_key_stays_also_from_elsewhere(nodes: Make) -> None:
    one, two = await there(nodes, last_value=True)
    for number in range(5):
        one.post.send(message(str(number).encode(), last_value="k"))
    await arrived(one, two, 5)
    two.post.send(message(b"here", last_value="k"))
    await two.office.stable()
    assert [reference.message.data for reference in two.post.queue("orders").iterate()] == [b"here"]


async def test_a_ring_keeps_the_newest_of_what_arrived(nodes: Make) -> None:
    one, two = await there(nodes, ring_size=2)
    for number in range(5):
        one.post.send(message(str(number).encode()))
    await arrived(one, two, 5)
    assert [reference.message.data for reference in two.post.queue("orders").iterate()] == [b"3", b"4"]


async def test_an_exclusive_queue_has_one_consumer_on_each_node_and_is_not_moved_from(nodes: Make) -> None:
    one, two = await there(nodes, exclusive=True)
    first, second = take(two), take(two)
    await until(lambda: wanted(one, two))
    for number in range(4):
        one.post.send(message(str(number).encode()))
    await first.wait(4)
    assert second.got == []
    assert kept(two.post.queue("orders")) == "it is exclusive"


async def test_a_backlog_for_a_node_that_is_down_goes_to_pages_and_arrives_in_order(nodes: Make) -> None:
    """The store-and-forward queue pages like any other, beyond 16 MiB."""
    one, two = await there(nodes)
    connector = one.connectors[two.id]
    connector.allowed.clear()
    connector.links[-1].cut()
    body = b"p" * 400_000
    for number in range(60):
        one.post.send(message(str(number).encode() + b" " + body))
    await one.office.stable()
    outlet = one.cluster.spreading.outlets[two.id].queue
    assert one.post.message_count(outlet) == 60
    assert one.post.storage.pages.messages > 0
    await one.reopen()
    assert waits(one) == 60
    receiver = take(two)
    one.connector_to(two).allowed.set()
    one.reach(two)
    await receiver.wait(60)
    assert [int(body.split(b" ")[0]) for body in receiver.bodies] == list(range(60))
    await until(lambda: not waits(one))


async def test_a_full_disk_at_the_receiver_ends_the_link_until_there_is_room(nodes: Make) -> None:
    one, two = await there(nodes)
    two.post.storage.full = True
    one.post.send(message(b"waits"))
    await until(lambda: len(one.connectors[two.id].links) > 3)  # it was ended, and made again
    assert waits(one) == 1
    assert count(two) == 0
    two.post.storage.full = False
    await until(lambda: count(two) == 1)
    await until(lambda: not waits(one))


async def test_groups_and_duplicate_ids_go_along(nodes: Make) -> None:
    """A producer that fails over to the other node is known there by its ids."""
    one, two = await there(nodes)
    receiver = take(two)
    await until(lambda: wanted(one, two))
    for number in range(3):
        one.post.send(message(str(number).encode(), group="g", duplicate_id=bytes([number])))
    await receiver.wait(3)
    assert {reference.message.group for reference in receiver.got} == {"g"}
    for number in range(4):
        two.post.send(message(str(number).encode(), group="g", duplicate_id=bytes([number])))
    await receiver.wait(4)
    assert receiver.bodies == [b"0", b"1", b"2", b"3"]


async def test_a_topic_with_a_filter_gets_only_what_it_lets_through(nodes: Make) -> None:
    one, two = await nodes()
    spec = QueueSpec("urgent", "news", routing_type=RoutingType.MULTICAST, selector="JMSPriority > 5")
    two.post.create_queue(spec)
    one.reach(two)
    await until(lambda: distance(one, two, "urgent"))
    for priority in (9, 1, 8):
        one.post.send(message(str(priority).encode(), "news", priority=priority, routing_type=RoutingType.MULTICAST))
    await arrived(one, two, 2)
    assert [reference.message.data for reference in two.post.queue("urgent").iterate()] == [b"9", b"8"]
