"""Message groups over several nodes: the cases of the reference's ClusteredGroupingTest, each by its meaning.

There one node decides for all, and senders wait for its answer; here every node computes it, so the cases of timeouts,
proposals and a decider that fails have nothing that could go wrong: what they are for is in the ones below.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import count, quiet, wanted
from broker.cluster.connection.nodes import MULTICAST, Has, mesh, queues
from broker.cluster.connection.test_grouping import GROUPS, consumer, grouped
from broker.engine.conftest import message
from pollux.cluster.routes.grouped import weight
from pollux.config.clusters import GroupingHandler, GroupingHandlerType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make
    from broker.engine.conftest import Receiver

pytestmark = pytest.mark.asyncio


def home(found: Iterable[Node], group: str, queue: str = "orders") -> Node:
    """The node whose queue has a group, of those that could."""
    return max(found, key=lambda node: weight(node.id, queue, group))


def groups_at(node: Node, queue: str = "orders") -> set[str | None]:
    return {reference.message.group for reference in node.post.queue(queue).iterate()}


async def send(node: Node, body: bytes = b"x") -> None:
    for group in GROUPS:
        node.post.send(message(body, group=group))
    await node.office.stable()


async def total(found: list[Node], messages: int) -> None:
    await until(lambda: sum(count(node) for node in found) == messages)
    await quiet(found)


@pytest.mark.parametrize("kind", list(GroupingHandlerType))
@pytest.mark.parametrize("address", ["", "orders"])
async def test_whatever_kind_of_handler_all_nodes_come_to_the_same(
    nodes: Make, kind: GroupingHandlerType, address: str
) -> None:
    """testGroupingSimple, without an address; sent to all nodes, with no consumer anywhere."""
    found = await nodes(3)
    for number, node in enumerate(found):
        await node.close()
        # One of them is LOCAL in the reference, and must be; here it does not matter which, or whether.
        given = GroupingHandler("h", kind if number == 0 else GroupingHandlerType.REMOTE, address=address)
        node.office.configuration = replace(node.office.configuration, grouping_handler=given)
        await node.open()
    for node in found:
        node.office.queue("orders")
        for other in found:
            if other is not node:
                link = node.reach(other)
                await until(lambda link=link: link.connected)  # type: ignore[misc]
    await until(lambda: all(len(node.cluster.table.queues) == 2 for node in found))
    for node in found:
        await send(node)
    await total(found, 3 * len(GROUPS))
    for node in found:
        assert groups_at(node) == {group for group in GROUPS if home(found, group) is node}


async def test_each_subscription_of_an_address_decides_for_itself(nodes: Make) -> None:
    """Several queues on one address: every one has all messages of a group at one node, not all at the same."""
    found = await mesh(nodes, 3)
    for node in found:
        node.cluster.spreading.grouped = node.cluster.prefixes
    names = ("a", "b")
    receivers = await queues(found, [tuple(Has(name, MULTICAST) for name in names)] * 3)
    for node in found:
        for group in GROUPS:
            node.post.send(message(b"x", group=group, routing_type=MULTICAST))
    await until(lambda: sum(len(one.got) for one in receivers.values()) == 3 * 2 * len(GROUPS))
    for name in names:
        for group in GROUPS:
            at = [sum(each.message.group == group for each in receivers[number, name].got) for number in range(3)]
            assert at == [3 * (node is home(found, group, name)) for node in found]
    assert any(home(found, group, "a") is not home(found, group, "b") for group in GROUPS)


async def test_only_queues_that_somebody_takes_from_have_groups(nodes: Make) -> None:
    """No local consumer: groups of nodes without one are spread over those that have one."""
    found = await grouped(nodes)
    receivers = [await consumer(node, found) for node in found[1:]]
    await send(found[0])
    await until(lambda: sum(len(one.got) for one in receivers) == len(GROUPS))
    for node, receiver in zip(found[1:], receivers, strict=True):
        assert {each.message.group for each in receiver.got} == {
            group for group in GROUPS if home(found[1:], group) is node
        }


async def test_groups_of_a_node_that_is_down_go_on_elsewhere_and_return(nodes: Make) -> None:
    """Pinned node down before and after a send. In the reference what is sent then waits for that node."""
    found = await grouped(nodes)
    receivers = [await consumer(node, found) for node in found]
    await send(found[0], b"1")
    await until(lambda: sum(len(one.got) for one in receivers) == len(GROUPS))
    down, there = found[2], found[:2]
    for node in there:
        node.connector_to(down).allowed.clear()
        node.connector_to(down).links[-1].cut()
    await until(lambda: not any(wanted(node, down) for node in there))
    before = len(receivers[2].got)
    for node in there:
        await send(node, b"2")
    await until(lambda: sum(len(one.got) for one in receivers) == 3 * len(GROUPS))
    assert len(receivers[2].got) == before
    for node, receiver in zip(there, receivers, strict=False):
        later = {each.message.group for each in receiver.got if each.message.data == b"2"}
        assert later == {group for group in GROUPS if home(there, group) is node}
    for node in there:
        node.connector_to(down).allowed.set()
    await until(lambda: all(wanted(node, down) for node in there))
    await send(found[0], b"3")
    await until(lambda: sum(len(one.got) for one in receivers) == 4 * len(GROUPS))
    again = {each.message.group for each in receivers[2].got if each.message.data == b"3"}
    assert again == {group for group in GROUPS if home(found, group) is down}


@pytest.mark.parametrize("case", ["queue", "consumer"])
async def test_a_group_whose_queue_or_consumer_is_gone_is_decided_anew(nodes: Make, case: str) -> None:
    """Bindings removed, queue removed: what waits goes along, and what comes later is behind it."""
    found = await grouped(nodes)
    receivers = [await consumer(node, found) for node in found]
    gone, there = found[1], [found[0], found[2]]
    if case == "queue":
        gone.post.delete_queue("orders")
        await until(lambda: all((gone.id, "orders") not in node.cluster.table.queues for node in there))
    else:
        receivers[1].credit = 0
        await send(found[0], b"1")
        await total(found, len(GROUPS))
        gone.post.detach(gone.post.queue("orders"), receivers[1])
        await until(lambda: count(gone) == 0)
        await until(lambda: not any(wanted(node, gone) for node in there))
        # What is on its way to its new home meanwhile is behind what is sent there at once.
        await until(lambda: len(receivers[0].got) + len(receivers[2].got) == len(GROUPS))
    await send(found[0], b"2")
    expected = len(GROUPS) * (1 if case == "queue" else 2)
    await until(lambda: len(receivers[0].got) + len(receivers[2].got) == expected)
    for node, receiver in ((found[0], receivers[0]), (found[2], receivers[2])):
        mine = {group for group in GROUPS if home(there, group) is node}
        assert {each.message.group for each in receiver.got if each.message.data == b"2"} == mine
        for group in mine if case == "consumer" else ():
            assert [each.message.data for each in receiver.got if each.message.group == group] == [b"1", b"2"]


async def test_a_group_has_the_same_place_after_its_senders_restart(nodes: Make) -> None:
    """Bindings that are not there at the start of the deciding node: nothing has to be remembered of a group."""
    found = await grouped(nodes)
    receivers = [await consumer(node, found) for node in found[1:]]
    sender = found[0]
    for body in (b"1", b"2"):
        await send(sender, body)
        await until(partial(_all_got, receivers, body))
        await sender.reopen()
        for other in found[1:]:
            sender.reach(other)
        await until(lambda: all(wanted(sender, node) for node in found[1:]))
    for receiver in receivers:
        groups = [{each.message.group for each in receiver.got if each.message.data == body} for body in (b"1", b"2")]
        assert groups[0] == groups[1] != set()


def _all_got(receivers: list[Receiver], body: bytes) -> bool:
    got = [each for one in receivers for each in one.got if each.message.data == body]
    return len(got) == len(GROUPS)


async def test_with_off_groups_stay_where_they_are_sent(nodes: Make) -> None:
    found = await grouped(nodes, "OFF")
    receivers = [await consumer(node, found) for node in found]
    await send(found[0])
    await receivers[0].wait(len(GROUPS))
    await quiet(found)
    assert [len(one.got) for one in receivers] == [len(GROUPS), 0, 0]
