"""One message with a duplicate id that its producer sent at several nodes, which sent their copies past each other."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import TYPE_CHECKING

import pytest

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import count, quiet, waits
from broker.cluster.connection.nodes import Has, mesh, queues
from broker.cluster.connection.test_checklist import send_past

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make

pytestmark = pytest.mark.asyncio
IDLE = (Has(consumer=False),)
#: Who sent to whom.
Ways = Sequence[tuple[int, int]]
UP, DOWN = ((0, 1), (1, 2), (2, 0)), ((0, 2), (2, 1), (1, 0))


async def sent_past(nodes: Make, size: int, ways: Ways) -> list[Node]:
    """Nodes that have sent one message each from the first to the second of ``ways``; nothing has arrived."""
    found = await mesh(nodes, size)
    await queues(found, [IDLE] * size)
    for source, sink in ways:
        await send_past(found[source], found[sink], again=False)
    return found


async def arrives(source: Node, sink: Node) -> None:
    """Have the link made anew; what waits for the sink arrives there, whatever becomes of it."""
    connector = source.connector_to(sink)
    connector.allowed.set()
    connector.links[-1].cut()
    queue = source.cluster.spreading.outlets[sink.id].queue
    await until(lambda: not source.post.message_count(queue))


def total(found: Sequence[Node]) -> int:
    return sum(count(node) for node in found)


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=lambda order: "".join(map(str, order)))
@pytest.mark.parametrize("ring", [UP, DOWN], ids=["up", "down"])
async def test_of_three_copies_that_go_round_one_is_left(nodes: Make, ring: Ways, order: Sequence[int]) -> None:
    """Breaks when a node takes what arrives for a duplicate of what it sent to a third one: then all are dropped."""
    found = await sent_past(nodes, 3, ring)
    for at in order:
        source, sink = ring[at]
        await arrives(found[source], found[sink])
    await quiet(found)
    assert total(found) == 1


@pytest.mark.parametrize("restarted", range(3))
async def test_of_three_copies_one_is_left_whoever_is_started_anew_in_between(nodes: Make, restarted: int) -> None:
    found = await sent_past(nodes, 3, UP)
    node = found[restarted]
    await arrives(found[0], found[1])
    await node.reopen()
    for other in found:
        if other is not node:
            node.reach(other)
    for source, sink in UP:
        await arrives(found[source], found[sink])
    await quiet(found)
    assert total(found) == 1


@pytest.mark.parametrize("tail", [0, 3])
async def test_a_fourth_copy_that_runs_into_the_ring_ends_and_one_is_left(nodes: Make, tail: int) -> None:
    first, second, third = (at for at in range(4) if at != tail)
    ways = [(tail, first), (first, second), (second, third), (third, first)]
    found = await sent_past(nodes, 4, ways)
    for source, sink in ways:
        await arrives(found[source], found[sink])
    await quiet(found)
    assert total(found) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize("ways", [((0, 1), (1, 2)), ((1, 0), (0, 2)), ((2, 1), (1, 0))])
async def test_a_copy_that_follows_another_one_to_where_it_is_kept_is_dropped(
    nodes: Make, ways: Ways, order: Sequence[int]
) -> None:
    found = await sent_past(nodes, 3, ways)
    for at in order:
        source, sink = ways[at]
        await arrives(found[source], found[sink])
    await quiet(found)
    assert total(found) == 1
    assert count(found[ways[1][1]]) == 1


async def test_a_copy_that_follows_another_one_to_a_node_that_is_forgotten_is_not_doubled(nodes: Make) -> None:
    """Its own copy and the one that came after it wait for that node; one of them is routed anew."""
    one, two, three = found = await sent_past(nodes, 3, ((0, 1), (1, 2)))
    two.connector_to(three).links[-1].cut()
    await arrives(one, two)
    await until(lambda: waits(two) == 2)
    two.connections.forget("node3")
    await until(lambda: three.id not in two.cluster.removing.forgetting)
    await quiet([one, two])
    assert total(found) == 1
