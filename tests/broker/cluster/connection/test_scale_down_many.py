"""Scale-down in numbers: thousands of each kind as they were, and a dozen nodes into one."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from broker.cluster.connection.scaled import Scaled, contents, count
from broker.cluster.connection.test_scale_down import HOUR
from broker.engine.conftest import message
from pollux.cluster.scale_down.plan import Wanted

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(300)]

SCHEDULED, GROUPED, LARGE, UNIQUE, PREPARED = 10_000, 1_000, 100, 1_000, 10


async def begun(one: Node, other: Node) -> Scaled:
    """Have a node hand over what it has to another one."""
    found = Scaled(one, [other], Wanted())
    await found.join()
    await found.linked()
    await one.office.stable()
    found.drain.begin()
    return found


def binary(number: int) -> bytes:
    """A duplicate id that is no text in any encoding."""
    return bytes([255, number >> 8, number & 255, 0])


async def test_thousands_of_each_kind_are_as_they_were(nodes: Make) -> None:
    one, two = await nodes()
    now = one.office.wall_ms()
    for name in ("scheduled", "grouped", "large", "unique", "prepared"):
        one.office.queue(name)
    for number in range(SCHEDULED):
        one.post.send(message(str(number).encode(), "scheduled", deliver_at=now + HOUR + number))
    for number in range(GROUPED):
        group = f"g{number % 10}"
        one.post.send(
            message(str(number).encode(), "grouped", group=group, group_sequence=number, priority=number % 10)
        )
    for number in range(LARGE):
        writer = one.post.storage.large.create()
        writer.write(bytes([number]) * (1 << 20))
        large = message(str(number).encode(), "large")
        large.large = writer.finish()
        one.post.send(large)
    for number in range(UNIQUE):
        one.post.send(message(str(number).encode(), "unique", duplicate_id=binary(number)))
    queues = [one.post.queue("prepared")]
    for number in range(PREPARED):
        sent = message(f"sent {number}".encode(), "prepared", priority=number % 10, user="bob")
        had = message(f"had {number}".encode(), "prepared", group=f"g{number}")
        await one.post.prepared.take(
            binary(number), f"{one.id.hex()}/{number}", [(sent, queues)], [(had, queues, number)]
        )
    found = await begun(one, two)
    await found.done()
    scheduled = two.post.queue("scheduled")
    due = {int(each.message.data): each.deliver_at for each in scheduled.iterate()}
    assert due == {number: now + HOUR + number for number in range(SCHEDULED)}
    grouped = await contents(two, "grouped")
    assert {int(each.data): (each.group, each.group_sequence, each.priority) for each in grouped} == {
        number: (f"g{number % 10}", number, number % 10) for number in range(GROUPED)
    }
    bodies = await contents(two, "large")
    assert [int(each.data) for each in bodies] == list(range(LARGE))
    for each in bodies:
        body = two.post.storage.large.path(each.large.id).read_bytes()
        assert body == bytes([int(each.data)]) * (1 << 20), each.data
    for number in range(UNIQUE):
        two.post.send(message(b"again", "unique", duplicate_id=binary(number)))
    await two.office.stable()
    assert [int(each.data) for each in await contents(two, "unique")] == list(range(UNIQUE))
    assert one.post.space.queue("unique") is None or count(one, "unique") == 0
    assert [view["xid"] for view in two.post.prepared.views()] == [binary(each).hex() for each in range(PREPARED)]
    assert (len(one.post.prepared), count(two, "prepared")) == (0, 0)
    for number in range(PREPARED):
        assert (await two.post.prepared.resolve(binary(number), commit=number % 2 == 0)).appeared == 1
    await two.office.stable()
    decided = {each.message.data.decode(): each for each in two.post.queue("prepared").iterate()}
    assert sorted(decided) == sorted(f"{('had', 'sent')[number % 2 == 0]} {number}" for number in range(PREPARED))
    for name, reference in decided.items():
        number = int(name.split(" ")[1])
        if number % 2:
            assert (reference.message.group, reference.delivery_count) == (f"g{number}", number)
        else:
            assert (reference.message.priority, reference.message.user) == (number, "bob")
    await found.drain.stop()


async def test_twelve_nodes_hand_over_to_one_and_it_knows_the_duplicates_of_the_last_as_of_the_first(
    nodes: Make,
) -> None:
    stays, *leave = await nodes(13)
    for node in leave:
        node.office.queue("orders")
        for number in range(20):
            node.post.send(message(f"{node.number}-{number}".encode(), duplicate_id=bytes([node.number, number, 255])))
    found = [await begun(node, stays) for node in leave]
    await asyncio.gather(*(each.done() for each in found))
    for node in leave:
        for number in range(20):
            stays.post.send(message(b"again", duplicate_id=bytes([node.number, number, 255])))
    await stays.office.stable()
    got = [each.data.decode() for each in await contents(stays, "orders")]
    assert sorted(got) == sorted(f"{node.number}-{number}" for node in leave for number in range(20))
    for each in found:
        await each.drain.stop()
