"""Message groups in a cluster: each at one node while its consumers stay, and moved as a whole when they go."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from broker.cluster.connection.conftest import nodes, until
from broker.engine.conftest import Receiver, message
from pollux.config.clusters import GroupingHandler, GroupingHandlerType

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make

__all__ = ["nodes"]
pytestmark = pytest.mark.asyncio
GROUPS = [f"g{number}" for number in range(12)]


async def grouped(make: Make, balancing: str = "ON_DEMAND", *, handler: bool = True) -> list[Node]:
    """Three nodes with a queue each, and a grouping-handler, that all reach each other."""
    found = await make(3, balancing)
    for node in found:
        await node.close()
        if handler:
            given = GroupingHandler("h", GroupingHandlerType.REMOTE, address="ord")
            node.office.configuration = replace(node.office.configuration, grouping_handler=given)
        await node.open()
        node.office.queue("orders")
    for node in found:
        for other in found:
            if node is not other:
                link = node.reach(other)
                await until(lambda link=link: link.connected)  # type: ignore[misc]
    await until(lambda: all(len(node.cluster.table.queues) == 2 for node in found))
    return found


async def consumer(node: Node, others: list[Node]) -> Receiver:
    receiver = Receiver()
    node.post.attach(node.post.queue("orders"), receiver)

    def known() -> bool:
        paths = [one.cluster.table.path((node.id, "orders")) for one in others if one is not node]
        return all(path is not None and path.record.consumers for path in paths)

    await until(known)
    return receiver


@pytest.mark.parametrize("balancing", ["ON_DEMAND", "STRICT"])
async def test_a_group_has_one_consumer_whichever_node_it_is_sent_to(nodes: Make, balancing: str) -> None:
    found = await grouped(nodes, balancing)
    receivers = [await consumer(node, found) for node in found]
    for number in range(6):
        for group in GROUPS:
            found[number % 3].post.send(message(f"{group} {number}".encode(), group=group))
    await until(lambda: sum(len(one.got) for one in receivers) == 6 * len(GROUPS))
    homes: dict[str | None, set[int]] = {}
    for at, receiver in enumerate(receivers):
        for reference in receiver.got:
            homes.setdefault(reference.message.group, set()).add(at)
    assert {len(at) for at in homes.values()} == {1}
    assert len({at for one in homes.values() for at in one}) > 1, "not all at one node"


async def test_other_addresses_and_messages_without_a_group_are_spread_as_ever(nodes: Make) -> None:
    found = await grouped(nodes, "STRICT")
    for node in found:
        node.office.queue("news")
    await until(lambda: all(len(node.cluster.table.queues) == 4 for node in found))
    for _ in range(6):
        found[0].post.send(message(b"", "news", group="g"))
        found[0].post.send(message(b"", "orders"))
    await until(
        lambda: all(
            node.post.message_count(node.post.queue(name)) == 2 for node in found for name in ("news", "orders")
        )
    )


@pytest.mark.parametrize("handler", [True, False])
async def test_a_group_moves_as_a_whole_and_in_order_to_where_a_consumer_is(nodes: Make, handler: bool) -> None:
    found = await grouped(nodes, "OFF_WITH_REDISTRIBUTION" if not handler else "ON_DEMAND", handler=handler)
    source = found[0]
    for number in range(5):
        for group in GROUPS:
            source.post.send(message(f"{number}".encode(), group=group))
    await until(lambda: sum(node.post.message_count(node.post.queue("orders")) for node in found) == 5 * len(GROUPS))
    receivers = [await consumer(node, found) for node in found[1:]]
    await until(lambda: sum(len(one.got) for one in receivers) == 5 * len(GROUPS))
    for group in GROUPS:
        got = [[ref.message.data for ref in one.got if ref.message.group == group] for one in receivers]
        assert sorted(got, key=len) == [[], [b"0", b"1", b"2", b"3", b"4"]], group
