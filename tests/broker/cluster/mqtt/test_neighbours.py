"""MQTT clients of a cluster of nodes in one process: whichever they connect to, they find what they left at another."""

from __future__ import annotations

import asyncio
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from broker.cluster.connection.conftest import nodes, until
from harness.sessions.broker import FakeSecurity, Transport
from harness.sessions.mqtt import Client, publish
from pollux.cluster.mqtt.connections import EveryConnection
from pollux.cluster.mqtt.service import MqttNeighbours
from pollux.config.acceptors import AcceptorSettings
from pollux.engine.peer import Peer
from pollux.protocols import mqtt
from pollux.protocols.services import Services
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import V5, Ack, Disconnect, Filter
from pollux.wire.mqtt.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from broker.cluster.connection.conftest import Node
    from pollux.protocols.mqtt.sessions import MqttSessions

    Make = Callable[..., Awaitable[list[Node]]]

__all__ = ["nodes"]
pytestmark = pytest.mark.asyncio


class Served:
    """A node as its MQTT clients see it."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.loop = asyncio.get_running_loop()
        self.connections = 0
        services = Services(
            node.office.configuration,
            node.post,
            cast("Any", FakeSecurity()),
            node.office.wall_ms,
            lambda *_: [],
            AcceptorSettings(),
        )
        self._services = services
        self.sessions = mqtt.start(services, self.loop)
        clusters = node.connections.all
        self.neighbours = MqttNeighbours(EveryConnection(clusters), self.sessions)
        for cluster in clusters:
            cluster.reached = partial(self.neighbours.reached, cluster.settings.name)
        self.neighbours.start()

    def services(self) -> Services:
        return self._services

    def mqtt_sessions(self) -> MqttSessions:
        return self.sessions

    def transport(self, **peer: Any) -> Transport:
        self.connections += 1
        return Transport(self.loop, Peer(self.connections, "127.0.0.1", 40_000 + self.connections, **peer))

    def client(self, version: int = V5) -> Client:
        return Client(cast("Any", self), version)

    async def settle(self) -> None:
        for _ in range(3):
            await self.node.office.stable()
            await asyncio.sleep(0.01)

    def queues(self) -> set[str]:
        return {queue.name for queue in self.node.post.space.queues if not queue.spec.internal}

    async def again(self) -> Served:
        """Stop and start it."""
        self.neighbours.stop()
        await self.node.reopen()
        return Served(self.node)


async def mesh(make: Make, count: int = 2, balancing: str = "ON_DEMAND") -> list[Served]:
    """Nodes that all reach each other."""
    served = [Served(node) for node in await make(count, balancing)]
    await joined(*served)
    return served


async def joined(*served: Served) -> None:
    for one in served:
        for other in served:
            if one is not other and all(link.node != other.node.id for link in one.node.cluster.peers.links):
                link = one.node.reach(other.node)
                await until(lambda link=link: link.connected)  # type: ignore[misc]
    await until(
        lambda: all(
            len(one.neighbours._reached()) == len(served) - 1 == len(one.node.cluster.incoming) for one in served
        )
    )


async def bodies(client: Client, count: int) -> list[bytes]:
    return [(await client.message()).payload for _ in range(count)]


@pytest.mark.parametrize("balancing", ["ON_DEMAND", "OFF", "STRICT"])
async def test_a_client_finds_its_session_and_its_messages_at_another_node(nodes: Make, balancing: str) -> None:
    one, two = await mesh(nodes, balancing=balancing)
    first = one.client()
    assert not (await first.connect("c", clean=False, expiry=1000)).session_present
    await first.subscribe("t/+", "u")
    await first.leave()
    sender = two.client()
    await sender.connect("sender")
    for number in range(5):
        await sender.publish("t/x", str(number).encode())
    await sender.publish("u", b"u")
    again = two.client()
    assert (await again.connect("c", clean=False, expiry=1000)).session_present
    assert sorted(await bodies(again, 6)) == [b"0", b"1", b"2", b"3", b"4", b"u"]
    await until(lambda: "c" not in one.sessions.sessions)
    await until(lambda: one.queues() == set())
    other = one.client()
    await other.connect("other")
    await other.publish("t/y", b"later")
    assert await bodies(again, 1) == [b"later"]
    await again.silent()
    assert two.queues() == {"c.t.*", "c.u"}


async def test_a_session_moves_with_what_it_holds_where_a_subscription_does_not_want_its_own(nodes: Make) -> None:
    """Breaks when queues of subscriptions with No Local are left behind, or what is moved back is not its own."""
    one, two = await mesh(nodes)
    first = one.client()
    await first.connect("c", clean=False, expiry=1000)
    await first.subscribe(Filter("t", 1, no_local=True))
    await first.leave()
    sender = one.client()
    await sender.connect("sender")
    await sender.publish("t", b"waits")
    again = two.client()
    assert (await again.connect("c", clean=False, expiry=1000)).session_present
    assert await bodies(again, 1) == [b"waits"]
    await until(lambda: one.queues() == set())
    await again.publish("t", b"own")
    await sender.publish("t", b"of another")
    assert await bodies(again, 1) == [b"of another"]
    await again.silent()


async def meeting(make: Make) -> list[Served]:
    """Three nodes: the first has the second near by one cluster connection, and the third far by another."""
    one, two, three = served = [Served(node) for node in await make(3, "OFF", connections=("near", "far"))]
    for other, number in ((two, 0), (three, 1)):
        for links in (one.node.reach(other.node, number), other.node.reach(one.node, number)):
            await until(lambda links=links: links.connected)  # type: ignore[misc]
    await until(lambda: [len(each.neighbours._reached()) for each in served] == [2, 1, 1])
    await until(lambda: all(len(cluster.incoming) == 1 for cluster in one.node.connections.all))
    return served


@pytest.mark.parametrize("place", ["near", "far"])
async def test_a_client_finds_its_session_by_any_cluster_connection(nodes: Make, place: str) -> None:
    """Breaks when only the nodes of the first one are asked, or when what the session holds does not follow."""
    one, two, three = await meeting(nodes)
    home = two if place == "near" else three
    first = home.client()
    await first.connect("c", clean=False, expiry=1000)
    await first.subscribe(f"{place}/t")
    await first.leave()
    sender = home.client()
    await sender.connect("sender")
    await sender.publish(f"{place}/t", b"1", retain=True)
    again = one.client()
    assert (await again.connect("c", clean=False, expiry=1000)).session_present
    assert await bodies(again, 1) == [b"1"]
    await until(lambda: "c" not in home.sessions.sessions)
    await until(lambda: home.queues() == set())
    await sender.publish(f"{place}/t", b"2")
    assert await bodies(again, 1) == [b"2"]
    late = one.client()
    await late.connect("late")
    await late.subscribe(f"{place}/t")
    assert await bodies(late, 1) == [b"1"], "what is retained came by the same way"


async def test_a_node_that_is_reached_by_two_cluster_connections_gives_a_session_once(nodes: Make) -> None:
    one, two = [Served(node) for node in await nodes(2, connections=("near", "far"))]
    for number in (0, 1):
        for link in (one.node.reach(two.node, number), two.node.reach(one.node, number)):
            await until(lambda link=link: link.connected)  # type: ignore[misc]
    await until(lambda: all(len(each.neighbours._reached()) == 2 for each in (one, two)))
    first = one.client()
    await first.connect("c", clean=False, expiry=1000)
    await first.subscribe("near/t", "far/t")
    await first.leave()
    sender = one.client()
    await sender.connect("sender")
    for topic in ("near/t", "far/t"):
        await sender.publish(topic, topic.encode())
    again = two.client()
    assert (await again.connect("c", clean=False, expiry=1000)).session_present
    assert sorted(await bodies(again, 2)) == [b"far/t", b"near/t"]
    await until(lambda: one.queues() == set())
    await again.silent()
    again.lose()
    back = one.client()
    assert (await back.connect("c", clean=False, expiry=1000)).session_present
    await until(lambda: "c" not in two.sessions.sessions)


async def test_who_asks_by_ever_new_names_is_remembered_no_longer_than_it_asks(nodes: Make) -> None:
    """Breaks when each name that a node has ever told takes memory for ever."""
    one, _ = await mesh(nodes, 2)
    (asked,) = one.neighbours._answering.values()
    nothing: Any = SimpleNamespace(
        peer=asked._conversation.peer,
        accept=lambda *_, **__: None,
        grant=lambda *_: None,
        credit=lambda _: 0,
        room=lambda: 1000,
    )
    for number in range(5):
        end = one.neighbours._open(nothing, 1, {"connection": f"name {number}"})
        assert end is not None
        end.closed("gone", "")
    assert len(one.neighbours._answering) <= 2


async def test_a_client_that_connects_elsewhere_takes_its_place_from_itself(nodes: Make) -> None:
    one, two, three = await mesh(nodes, 3)
    for home in (one, two, three):
        first = home.client()
        await first.connect("same")
        elsewhere = next(each for each in (one, two, three) if each is not home)
        second = elsewhere.client()
        await second.connect("same")
        (goodbye,) = await first.closed()
        assert isinstance(goodbye, Disconnect)
        assert goodbye.reason == ReasonCode.SESSION_TAKEN_OVER
        await second.leave()


async def test_what_is_retained_is_retained_everywhere_and_what_is_cleared_is_cleared(nodes: Make) -> None:
    one, two, three = [Served(node) for node in await nodes(3)]
    await joined(one, two)
    sender = one.client()
    await sender.connect("s")
    for number in range(3):
        await sender.publish(f"r/{number}", str(number).encode(), retain=True)
    await until(lambda: two.sessions.retained.store.count == 3)
    receiver = two.client()
    await receiver.connect("r")
    await receiver.subscribe("r/#")
    assert sorted(await bodies(receiver, 3)) == [b"0", b"1", b"2"]
    await receiver.publish("r/1", b"", retain=True)
    await receiver.publish("r/2", b"newer", retain=True)
    await until(lambda: one.sessions.retained.store.count == 2)
    await joined(one, two, three)
    await until(lambda: three.sessions.retained.store.count == 2)
    late = three.client()
    await late.connect("l")
    await late.subscribe("r/#")
    assert sorted(await bodies(late, 2)) == [b"0", b"newer"]


async def test_a_node_that_was_away_hears_what_was_cleared_and_brings_nothing_back(nodes: Make) -> None:
    one, two = await mesh(nodes)
    sender = one.client()
    await sender.connect("s")
    await sender.publish("r", b"old", retain=True)
    await until(lambda: two.sessions.retained.store.count == 1)
    two.neighbours.stop()
    await two.node.close()
    await sender.publish("r", b"", retain=True)
    await two.node.open()
    two = Served(two.node)
    assert two.sessions.retained.store.count == 1
    await joined(one, two)
    await until(lambda: two.sessions.retained.store.count == 0)
    assert one.sessions.retained.store.count == 0


async def test_exactly_once_goes_on_at_the_other_node(nodes: Make) -> None:
    one, two = await mesh(nodes)
    receiver = one.client()
    await receiver.connect("r")
    await receiver.subscribe("t")
    first = one.client()
    await first.connect("c", clean=False, expiry=1000)
    first.write(publish("t", b"once", 2, 7))
    assert (await first.receive(Ack)).kind == p.PUBREC
    assert await bodies(receiver, 1) == [b"once"]
    first.lose()
    second = two.client()
    assert (await second.connect("c", clean=False, expiry=1000)).session_present
    second.write(publish("t", b"once", 2, 7, dup=True))
    assert (await second.receive(Ack)).kind == p.PUBREC
    second.write(Ack(p.PUBREL, 7))
    assert (await second.receive(Ack)).kind == p.PUBCOMP
    await receiver.silent()


async def test_the_last_member_of_a_shared_subscription_leaves_its_messages_to_the_others(nodes: Make) -> None:
    one, two = await mesh(nodes)
    here, there, sender = one.client(), two.client(), one.client()
    await here.connect("here", receive_maximum=1)
    await here.subscribe("$share/g/t")
    await there.connect("there")
    await there.subscribe("$share/g/t")
    await sender.connect("s")
    for number in range(20):
        await sender.publish("t", str(number).encode())
    got = [await here.receive()]  # not acknowledged: others wait behind it
    await here.leave()
    found = await bodies(there, 20)
    assert sorted(map(int, found)) == list(range(20))
    assert got
    await until(lambda: one.queues() == set())


async def test_a_session_outlives_restarts_and_what_is_on_its_way_does_too(nodes: Make) -> None:
    one, two = await mesh(nodes)
    first = one.client()
    await first.connect("c", clean=False, expiry=1000)
    await first.subscribe("t")
    for number in range(3):
        await first.publish("t", str(number).encode(), 1)
    first.lose()
    one = await one.again()
    await joined(one, two)
    again = two.client()
    assert (await again.connect("c", clean=False, expiry=1000)).session_present
    assert sorted(await bodies(again, 3)) == [b"0", b"1", b"2"]


async def test_queues_that_leave_go_on_after_a_restart(nodes: Make) -> None:
    one, two = await mesh(nodes)
    first = one.client()
    await first.connect("c", clean=False, expiry=1000)
    await first.subscribe("t")
    await first.leave()
    await first.broker.settle()
    sender = one.client()
    await sender.connect("s")
    await sender.publish("t", b"waits")
    # It gave the session up, and is killed before it could send what the queue holds.
    session = one.sessions.give("c", first.session.user)
    assert session is not None
    one.node.cluster.moving.review = lambda queues: None  # type: ignore[method-assign]  # noqa: ARG005  (its name)
    one.sessions.given("c")
    await one.settle()
    one = await one.again()
    assert one.queues() == {"c.t"}
    assert one.sessions.sessions == {}
    await joined(one, two)
    second = two.client()
    await second.connect("c", clean=False, expiry=1000)
    await second.subscribe("t")
    assert await bodies(second, 1) == [b"waits"]
    await until(lambda: one.queues() == set())


async def test_nodes_that_meet_again_leave_a_client_to_whom_it_came_last(nodes: Make) -> None:
    """Cut off from each other, both had the client: messages that wait at the older one go to the newer one."""
    one, two = [Served(node) for node in await nodes(2)]
    older, newer = one.client(), two.client()
    await older.connect("c", clean=False, expiry=1000)
    await older.subscribe("t", "left")
    sender = one.client()
    await sender.connect("s")
    older.write(Disconnect())
    await older.closed()
    await sender.publish("t", b"waits")
    await sender.publish("left", b"nobody's")
    older = one.client()
    one.node.office.now -= 60_000  # it came a minute before the other one
    await older.connect("c", clean=False, expiry=1000)
    assert not (await newer.connect("c", clean=False, expiry=1000)).session_present
    await newer.subscribe("t")
    await joined(one, two)
    assert any(isinstance(said, Disconnect) for said in await older.closed())
    assert await bodies(newer, 1) == [b"waits"]
    await newer.ping()
    await until(lambda: one.queues() == {"c.left"})
    assert one.sessions.sessions.keys() == {"s"}


async def test_what_no_node_subscribes_to_any_more_goes_after_a_while(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await mesh(nodes)
    first = one.client()
    await first.connect("c", clean=False, expiry=1000)
    await first.subscribe("t")
    await first.leave()
    sender = one.client()
    await sender.connect("s")
    await sender.publish("t", b"x")
    assert one.sessions.give("c", first.session.user) is not None
    one.sessions.given("c")
    one.neighbours._end_deserted()
    one.neighbours._end_deserted()
    assert one.queues() == {"c.t"}
    monkeypatch.setattr("pollux.cluster.mqtt.service._ALONE", 0.0)
    one.neighbours._end_deserted()
    assert one.queues() == set()
    assert two.queues() == set()


async def test_a_queue_that_left_stays_while_something_may_be_on_its_way_to_it(
    nodes: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = await mesh(nodes)
    first = one.client()
    await first.connect("c", clean=False, expiry=1000)
    await first.subscribe("t")
    await first.leave()
    # A message for that queue is not sent yet.
    monkeypatch.setattr(two.neighbours, "waiting", lambda _node: 1)
    second = two.client()
    await second.connect("c", clean=False, expiry=1000)
    await until(lambda: "c" not in one.sessions.sessions)
    await one.neighbours._end_empty()
    assert one.queues() == {"c.t"}
    monkeypatch.undo()
    one.node.connectors[two.node.id].allowed.clear()
    one.node.connectors[two.node.id].links[-1].cut()
    await one.neighbours._end_empty()
    assert one.queues() == {"c.t"}, "not every node is there"
    one.node.connectors[two.node.id].allowed.set()
    await until(one.node.cluster.complete)
    await one.neighbours._end_empty()
    assert one.queues() == set()
