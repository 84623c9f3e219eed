"""Duplicate ids that count at every node: one node looks at those of an address, and the others send there first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import count, distance, quiet, waits, wanted
from broker.cluster.connection.nodes import ANYCAST, MULTICAST, take
from broker.engine.conftest import message
from pollux.cluster.connection.homes import Homes, home_of
from pollux.cluster.connection.local import Prefixes
from pollux.config.extensions import ClusterOptions
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from broker.cluster.connection.conftest import Node
    from broker.cluster.connection.nodes import Make
    from pollux.message import RoutingType


def address_of(home: Node, found: list[Node]) -> str:
    """An address whose home is this node."""
    return next(name for at in range(100) if home_of([one.id for one in found], name := f"orders{at}") == home.id)


async def linked(found: list[Node]) -> None:
    for node in found:
        for other in found:
            if other is not node:
                link = node.reach(other)
                await until(lambda link=link: link.connected)  # type: ignore[misc]
    await until(lambda: all(len(node.cluster.members.others) == len(found) - 1 for node in found))


async def cluster(make: Make, count: int, address: str = "orders", balancing: str = "ON_DEMAND") -> list[Node]:
    found = await make(count, balancing)
    for node in found:
        await node.close()
        node.office.configuration = replace(node.office.configuration, cluster=ClusterOptions(duplicate_ids=address))
        await node.open()
    await linked(found)
    return found


async def queues(found: list[Node], address: str, routing_type: RoutingType = ANYCAST) -> None:
    """A queue of its own at each node; ANYCAST ones are one group, subscriptions are not."""
    for node in found:
        node.post.create_queue(QueueSpec(f"q{node.number}", address, routing_type=routing_type))
    await until(
        lambda: all(distance(node, other, f"q{other.number}") for node in found for other in found if other is not node)
    )


def held(found: list[Node]) -> list[int]:
    return [count(node, f"q{node.number}") for node in found]


@pytest.mark.parametrize("balancing", ["ON_DEMAND", "STRICT", "OFF_WITH_REDISTRIBUTION"])
@pytest.mark.parametrize("at_home", [True, False])
async def test_one_id_sent_at_two_nodes_is_one_message(nodes: Make, balancing: str, at_home: bool) -> None:
    """As a producer does whose node went down before it confirmed."""
    found = await cluster(nodes, 3, balancing=balancing)
    home, *others = found
    address = address_of(home, found)
    await queues(found, address)
    first, second = (home, others[0]) if at_home else (others[0], others[1])
    for number in range(10):
        for node in (first, second):
            node.post.send(message(b"%d" % number, address, duplicate_id=b"id %d" % number))
    await quiet(found)
    await until(lambda: sum(held(found)) == 10)
    await quiet(found)
    bodies = [each.message.data for node in found for each in node.post.queue(f"q{node.number}").iterate()]
    assert sorted(bodies) == [b"%d" % number for number in range(10)]
    assert found[1].cluster.spreading.homes is not None
    assert found[1].cluster.spreading.homes.alone == {}


async def test_what_is_not_asked_for_is_as_ever(nodes: Make) -> None:
    """Other addresses, and messages without an id: each node goes by what it knows."""
    found = await cluster(nodes, 2, address="orders", balancing="OFF_WITH_REDISTRIBUTION")
    other = next(name for at in range(100) if home_of([one.id for one in found], name := f"news{at}") == found[0].id)
    await queues(found, other)
    for node in found:
        node.post.send(message(b"x", other, duplicate_id=b"d"))
    await quiet(found)
    assert held(found) == [1, 1]


@pytest.mark.parametrize("queue", [True, False])
async def test_the_home_knows_its_ids_after_its_restart(nodes: Make, queue: bool) -> None:
    """Or at the other broker of its pair, which goes on with the same store: nothing else is kept anywhere."""
    found = await cluster(nodes, 3)
    home, one, two = found
    address = address_of(home, found)
    await queues(found if queue else [one, two], address)
    receiver = take(two, "q3")
    await until(lambda: wanted(one, two, "q3") and wanted(home, two, "q3"))
    one.post.send(message(b"once", address, duplicate_id=b"d"))
    await receiver.wait(1)
    await quiet(found)
    if not queue:  # an address whose ids would go with it, as it was made by itself and nobody uses it
        home.post.ensure_address(address, ANYCAST)
        home.office.queue("for a while", address)
        take(home, "for a while")
        home.post.delete_queue("for a while")
        for _ in range(3):
            home.office.now += 3_600_000
            home.post.address_manager.reap()
            await home.office.settle()
        assert home.post.space.address(address) is not None
    await home.reopen()
    for other in (one, two):
        link = home.reach(other)
        await until(lambda link=link: link.connected)  # type: ignore[misc]
    await until(lambda: all(node.cluster._does_homes(home.id) for node in (one, two)))
    two.post.send(message(b"again", address, duplicate_id=b"d"))
    two.post.send(message(b"another", address, duplicate_id=b"e"))
    await receiver.wait(2)
    await quiet(found)
    assert receiver.bodies == [b"once", b"another"]


async def test_what_was_sent_before_a_crash_and_again_elsewhere_is_there_once(nodes: Make) -> None:
    """The first copy waits at a node that does not reach the home; the second one is there before it."""
    found = await cluster(nodes, 3)
    home, one, two = found
    address = address_of(home, found)
    await queues(found, address)
    connector = one.connector_to(home)
    connector.links[-1].ends[0].cut = True  # sent, and never there
    one.post.send(message(b"x", address, duplicate_id=b"d"))
    await one.office.stable()
    assert waits(one) == 1
    two.post.send(message(b"x", address, duplicate_id=b"d"))
    await until(lambda: sum(held(found)) == 1)
    connector.links[-1].cut()
    await until(lambda: one.cluster._does_homes(home.id))
    await quiet(found)
    assert sum(held(found)) == 1


async def test_each_subscription_gets_one_of_two_copies(nodes: Make) -> None:
    found = await cluster(nodes, 3)
    home, one, two = found
    address = address_of(home, found)
    await queues(found, address, MULTICAST)
    for node in (one, two, home):
        node.post.send(message(b"x", address, duplicate_id=b"d", routing_type=MULTICAST))
    await until(lambda: held(found) == [1, 1, 1])
    await quiet(found)
    assert held(found) == [1, 1, 1]


async def test_while_its_home_is_away_a_node_goes_by_its_own_ids_and_says_so(
    nodes: Make, caplog: pytest.LogCaptureFixture
) -> None:
    found = await cluster(nodes, 2)
    home, one = found
    address = address_of(home, found)
    await queues(found, address)
    connector = one.connector_to(home)
    connector.allowed.clear()
    connector.links[-1].cut()
    await until(lambda: not one.cluster._does_homes(home.id))
    for number in (1, 1, 2):
        one.post.send(message(b"%d" % number, address, duplicate_id=b"%d" % number))
    await one.office.stable()
    assert count(one, "q2") == 2
    homes = one.cluster.spreading.homes
    assert homes is not None
    assert homes.alone == {home.id: 2}
    assert one.connections.describe()["duplicateIds"] == {"homesAway": {"node1": 2}}
    assert sum("the home of duplicate ids is away" in record.message for record in caplog.records) == 1
    connector.allowed.set()
    await until(lambda: one.cluster._does_homes(home.id))
    for node in (one, home):
        node.post.send(message(b"3", address, duplicate_id=b"3"))
    await quiet(found)
    assert sum(held(found)) == 3
    assert homes.alone == {home.id: 2}


@pytest.mark.parametrize("routing_type", [ANYCAST, MULTICAST])
async def test_what_waits_for_a_home_that_is_forgotten_has_another(nodes: Make, routing_type: RoutingType) -> None:
    found = await cluster(nodes, 3)
    home, one, two = found
    address = address_of(home, found)
    await queues(found, address, routing_type)
    for node in (one, two):
        connector = node.connector_to(home)
        connector.allowed.clear()
        connector.links[-1].ends[0].cut = True  # sent, and never there
        node.post.send(message(b"x", address, duplicate_id=b"d", routing_type=routing_type))
        await node.office.stable()
        assert waits(node) == 1
        connector.links[-1].cut()
    for node in (one, two):
        await until(lambda node=node: node.cluster.peers.to(home.id) is None)  # type: ignore[misc]
        if node.cluster.members.get(home.id) is not None:
            node.connections.forget("node1")
        await until(lambda node=node: node.cluster.members.get(home.id) is None)  # type: ignore[misc]
        if home.id in node.cluster.spreading.outlets:
            node.cluster.removing.route_anew(home.id)
    await until(lambda: not one.cluster.removing.forgetting and not two.cluster.removing.forgetting)
    await quiet([one, two])
    expected = [1, 1] if routing_type is MULTICAST else [1]
    await until(lambda: sorted(held([one, two])) == sorted([*expected, *[0] * (2 - len(expected))]))


async def test_a_home_of_an_older_version_is_away(nodes: Make) -> None:
    found = await cluster(nodes, 2)
    home, one = found
    address = address_of(home, found)
    await queues(found, address)
    for link in one.cluster.peers.links:
        link.homes = False
    one.post.send(message(b"x", address, duplicate_id=b"d"))
    await quiet(found)
    assert held(found) == [0, 1]


def test_a_node_less_moves_only_its_own_homes() -> None:
    found = [bytes([at]) * 16 for at in range(5)]
    names = [f"address{at}" for at in range(200)]
    before: dict[str, Any] = {name: home_of(found, name) for name in names}
    assert set(before.values()) == set(found)
    after = {name: home_of(found[1:], name) for name in names}
    assert all(after[name] == home for name, home in before.items() if home != found[0])


def test_the_home_of_an_address_is_another_one_as_soon_as_nodes_come_and_go() -> None:
    """Breaks when what was computed once is kept."""
    mine, *others = found = [bytes([at]) * 16 for at in range(6)]
    there: list[bytes] = []
    homes = Homes(Prefixes("orders"), mine, within=Prefixes(""), nodes=lambda: there, takes=lambda _node: True)
    for now in (others, others[:2], [], others[1:], others):
        there[:] = now
        for name in ("orders", "orders.paid", "orders"):
            expected = home_of([mine, *now], name)
            assert homes.elsewhere(name) == (None if expected == mine else expected)
    assert len({home_of(found, name) for name in ("orders", "orders.paid")}) == 2
