"""A node that is removed for good: what waits for it finds another place, and nobody learns of it again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import count, distance, wanted
from broker.cluster.connection.nodes import take
from broker.engine.conftest import message
from pollux.cluster.membership import Member
from pollux.errors import InvalidRequestError

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make

pytestmark = pytest.mark.asyncio


async def three_nodes(nodes: Make) -> list[Node]:
    """All linked to each other, the first two with a queue of one address."""
    made: list[Node] = await nodes(3, places=True)
    for source in made:
        for sink in made:
            if source is not sink:
                source.reach(sink)
    made[1].office.queue("orders")
    for node in made:
        await until(lambda node=node: all(node.cluster.reached_by(other.id) for other in made if other is not node))  # type: ignore[misc]
        await until(lambda node=node: len(node.cluster.members.others) == 2)  # type: ignore[misc]
    return made


def leave(gone: Node, others: list[Node]) -> None:
    """Cut a node off, as when its machine is switched off."""
    for one in others:
        for source, sink in ((one, gone), (gone, one)):
            source.connector_to(sink).failing = True
            for link in source.connectors[sink.id].links:
                link.cut()


async def test_it_is_routed_anew_and_not_learnt_again_on_any_node(
    nodes: Make, caplog: pytest.LogCaptureFixture
) -> None:
    one, two, three = await three_nodes(nodes)
    take(two, credit=0)
    await until(lambda: wanted(one, two))
    told: list[bytes] = []
    for node in (one, three):
        node.connections.on_removed(told.append)
    with pytest.raises(InvalidRequestError, match="'node2' is reached by"):
        one.connections.remove("node2")
    leave(two, [one, three])
    await until(lambda: not one.cluster.reached_by(two.id) and not three.cluster.reached_by(two.id))
    for number in range(20):
        one.post.send(message(str(number).encode()))
    await one.office.stable()
    assert one.connections.remove("node2") == {"nodeId": two.id.hex(), "routedAnew": 20}
    await until(lambda: one.post.space.queue("orders") is not None and count(one) == 20)
    await until(lambda: three.cluster.members.was_removed(two.id))
    assert told == [two.id, two.id]
    assert two.id not in three.cluster.spreading.outlets
    await one.reopen()
    await until(lambda: one.cluster.members.was_removed(two.id))

    # It comes back, and says that it is there.
    for node in (one, three):
        two.connector_to(node).failing = False
        node.connector_to(two).failing = False
    link = two.reach(one)
    await until(lambda: "was removed from the cluster" in link.reason)
    back = one.reach(two)
    await until(lambda: "was removed from the cluster" in back.reason)
    three.cluster.told_of([Member(two.id, 99, 0, "node2", (("host", 2, False),))])
    assert [member.name for member in three.cluster.members.others] == ["node1"]
    assert not distance(one, two)
    two.cluster.told_of(three.cluster.members.all)
    assert "this node was removed from the cluster" in caplog.text
    assert two.cluster.members.mine.incarnation < 99


async def test_it_is_refused_where_most_of_the_others_are_away(nodes: Make) -> None:
    one, two, three = await three_nodes(nodes)
    leave(two, [one, three])
    leave(one, [three])
    await until(lambda: not one.cluster.reached_by(two.id) and not one.cluster.reached_by(three.id))
    with pytest.raises(InvalidRequestError, match=r"does not reach most of the others \(node3 are away\)"):
        one.connections.remove("node2")
    assert not one.cluster.members.was_removed(two.id)


async def test_a_link_that_stands_elsewhere_ends(nodes: Make) -> None:
    """Removed on the side that does not reach it: it is let go on the other side, too."""
    one, two, three = await three_nodes(nodes)
    leave(two, [one])
    await until(lambda: not one.cluster.reached_by(two.id))
    link = three.cluster.reached_by(two.id)
    assert link is not None
    one.connections.remove("node2")
    await until(lambda: not three.cluster.reached_by(two.id) and two.id not in three.cluster.incoming)
    assert three.cluster.members.was_removed(two.id)
