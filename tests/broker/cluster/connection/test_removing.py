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


@pytest.mark.parametrize("for_good", [True, False])
async def test_of_several_connections_all_that_know_it_let_it_go(nodes: Make, for_good: bool) -> None:
    """Breaks when only the first one does: by the others it is linked to again, and what waits for it stays."""
    one, two = await nodes(places=True, connections=("a", "b"))
    names = ("a.orders", "b.orders")
    for name in names:
        two.office.queue(name)
    links = [one.reach(two, number) for number in (0, 1)]
    await until(lambda: all(distance_by(one, number, two, name) for number, name in enumerate(names)))
    act = one.connections.remove if for_good else one.connections.forget
    connector = one.connector_to(two)
    links[0].close("it is to be reached by the second one alone")
    connector.failing = True
    await until(lambda: not links[0].connected)
    with pytest.raises(InvalidRequestError, match="'node2' is reached by"):
        act("node2")
    assert [two.id in each.spreading.outlets for each in one.connections.all] == [True, True], "all of them, or none"
    for link in connector.links:
        link.cut()
    await until(lambda: not links[1].connected)
    for name in names:
        one.post.send(message(b"x", name))
    await one.office.stable()
    assert act("node2") == {"nodeId": two.id.hex(), "routedAnew": 2}
    await until(lambda: all(one.post.space.queue(name) is not None and count(one, name) == 1 for name in names))
    assert [each.members.was_removed(two.id) for each in one.connections.all] == [for_good] * 2


def distance_by(at: Node, connection: int, owner: Node, name: str) -> int:
    path = at.connections.all[connection].table.path((owner.id, name))
    return path.distance if path is not None else 0
