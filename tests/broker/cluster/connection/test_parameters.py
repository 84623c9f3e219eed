"""Each parameter of a cluster connection does at a link what it says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from msgspec.structs import replace

from broker.cluster.connection.conftest import until
from broker.cluster.connection.known import count, distance, quiet, wanted
from broker.cluster.connection.nodes import take
from broker.engine.conftest import message
from pollux.cluster.connection import service
from pollux.cluster.connection.outgoing import OutgoingLink
from pollux.cluster.connection.service import Cluster
from pollux.cluster.connector import ClusterConnector, UnreachableError
from pollux.config.acceptors import Connector, Endpoint
from pollux.config.clusters import StaticConnectors
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from broker.cluster.connection.nodes import Make
    from pollux.cluster.link import CoreHub

pytestmark = pytest.mark.asyncio


class Partly:
    """Connects as ``wires`` do, but to hosts that are ``down``: these are found out when ``gate`` opens."""

    def __init__(self, wires: Any) -> None:
        self._wires = wires
        self.down: set[str] = set()
        self.gate = asyncio.Event()
        self.failed = 0

    async def connect(self, endpoint: Endpoint, limit: float) -> Any:
        if endpoint.host in self.down:
            await self.gate.wait()
            self.failed += 1
            raise UnreachableError("nobody listens")
        return await self._wires.connect(endpoint, limit)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long links wait before they are tried again, instead of which they are tried a moment later."""
    found: list[float] = []

    async def pause(_link: OutgoingLink, seconds: float) -> None:
        found.append(seconds)
        await asyncio.sleep(0.001)

    monkeypatch.setattr(OutgoingLink, "_pause", pause)
    return found


async def test_retry_interval_grows_by_its_multiplier_up_to_the_maximum_and_begins_anew(
    nodes: Make, pauses: list[float]
) -> None:
    one, two = await nodes(retry_interval_multiplier=2.0)  # of 1 ms, at most 5 ms
    connector = one.connector_to(two)
    connector.failing = True
    link = one.reach(two)
    await until(lambda: len(pauses) >= 5)
    assert pauses[:5] == pytest.approx([0.001, 0.002, 0.004, 0.005, 0.005])
    connector.failing = False
    await until(lambda: link.connected)
    connector.failing = True
    del pauses[:]
    connector.links[-1].cut()
    await until(lambda: len(pauses) >= 3)
    assert pauses[:3] == pytest.approx([0.001, 0.002, 0.004])


async def test_a_second_connector_to_a_node_that_is_reached_is_left_alone_for_the_check_period(
    nodes: Make, pauses: list[float]
) -> None:
    one, two = await nodes(check_period=7000, connection_ttl=60_000)
    first = one.reach(two)
    await until(lambda: first.connected)
    second = one.reach(two)
    await until(lambda: pauses)
    assert second.second
    assert set(pauses) == {7.0}


async def test_an_attempt_takes_call_timeout_at_most(nodes: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = await nodes(call_timeout=2500)
    connector = one.connector_to(two)
    connect, limits = connector.connect, []

    async def recorded(endpoint: object, limit: float) -> Any:
        limits.append(limit)
        return await connect(endpoint, limit)

    monkeypatch.setattr(connector, "connect", recorded)
    link = one.reach(two)
    await until(lambda: link.connected)
    assert limits == [2.5]


@pytest.mark.parametrize("attempts", [0, 3])
async def test_a_new_peer_is_told_of_all_nodes_as_often_as_notification_attempts(
    nodes: Make, monkeypatch: pytest.MonkeyPatch, attempts: int
) -> None:
    told: list[tuple[Cluster, bytes]] = []
    monkeypatch.setattr(Cluster, "_tell_again", lambda cluster, node: told.append((cluster, node)))
    one, two = await nodes(notification_attempts=attempts, notification_interval=1)
    link = one.reach(two)
    await until(lambda: link.connected)
    planned: asyncio.Future[None] = one.cluster.loop.create_future()
    one.cluster.loop.call_later(0.01 * (attempts + 1), planned.set_result, None)  # behind all of them
    await planned
    assert told == [(one.cluster, two.id)] * attempts


async def test_the_client_id_is_shown_at_the_other_end(nodes: Make) -> None:
    one, two = await nodes(client_id="links of the first")
    one.reach(two)
    await until(lambda: two.cluster.incoming)
    (shown,) = two.connections.describe()["incoming"]
    assert shown["clientId"] == "links of the first"


async def test_no_more_than_the_confirmation_window_is_unconfirmed(nodes: Make) -> None:
    """The message that goes beyond it goes, as in the reference."""
    one, two = await nodes(confirmation_window_size=3000)
    two.office.queue("orders")
    receiver = take(two)
    link = one.reach(two)
    await until(lambda: wanted(one, two))
    connector = one.connector_to(two)
    connector.links[-1].ends[1].cut = True  # what it says is not heard any more
    for number in range(10):
        one.post.send(message(b"%d" % number + b"x" * 1000))
        await one.office.stable()
        await receiver.wait(min(number + 1, 3))
    assert link.in_flight == 3
    connector.links[-1].cut()
    await receiver.wait(10)
    await quiet([one, two])
    assert [int(body[:1]) for body in receiver.bodies] == list(range(10))


@pytest.mark.parametrize("attempts", [0, 1, 3])
async def test_a_link_that_broke_is_tried_as_often_as_reconnect_attempts(
    nodes: Make, caplog: pytest.LogCaptureFixture, attempts: int
) -> None:
    """Breaks when the end of the connection counts as one of them."""
    one, two = await nodes(reconnect_attempts=attempts)
    partly = Partly(one.cluster.connector)
    one.cluster.connector = partly  # type: ignore[assignment]  # it makes links of its own
    link = one.reach(two)
    await until(lambda: link.connected)
    partly.down.add("host")
    partly.gate.set()
    one.connector_to(two).links[-1].cut()
    await until(lambda: "taken for gone" in caplog.text)
    assert partly.failed == attempts


@pytest.mark.parametrize(
    ("places", "direct"),
    [
        pytest.param(True, False, id="it says where it is reached"),
        pytest.param(True, True, id="only the connectors that are named are connected to"),
        pytest.param(False, False, id="it does not say where it is reached"),
    ],
)
async def test_a_node_that_comes_after_initial_connect_attempts_is_linked_to(
    nodes: Make, caplog: pytest.LogCaptureFixture, places: bool, direct: bool
) -> None:
    """Breaks when a node that was never reached is tried no more although it connects to this one, as the log says."""
    only = StaticConnectors((), allow_direct_connections_only=direct)
    one, two = await nodes(places=places, initial_connect_attempts=2, static_connectors=only)
    connector = one.connector_to(two)
    connector.failing = True
    link = one.reach(two)
    await until(lambda: "taken for gone" in caplog.text)
    connector.failing = False
    two.reach(one)
    await until(lambda: link.connected)


async def test_initial_connect_attempts_used_up_after_a_start_route_anew_what_waits(
    nodes: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Breaks when only a node that was reached since the start is taken for gone, and what waits for it stays."""
    one, two = await nodes(places=True, initial_connect_attempts=2)
    await one.close()
    (connection,) = one.office.configuration.cluster_connections
    one.office.configuration = replace(
        one.office.configuration,
        connectors=(Connector("two", (Endpoint("tcp", "host", two.number),)),),
        cluster_connections=(replace(connection, static_connectors=StaticConnectors(("two",))),),
    )
    await one.open()
    two.office.queue("orders")
    await until(lambda: distance(one, two))
    connector = one.connector_to(two)
    connector.failing = True
    connector.links[-1].ends[0].cut = True
    one.post.send(message(b"goes here instead"))
    await one.office.stable()
    await one.reopen()
    await until(lambda: "taken for gone" in caplog.text)
    await until(lambda: one.post.space.queue("orders") is not None and count(one) == 1)


async def test_a_node_whose_other_broker_serves_is_not_taken_for_gone(
    nodes: Make, caplog: pytest.LogCaptureFixture
) -> None:
    """Breaks when what is for a pair goes to others or is a dead letter as the broker that is down was tried in vain.

    After a failover, where each of the two has a connector of its own and reconnect-attempts is not negative.
    """
    one, two = await nodes(reconnect_attempts=2, check_period=1)
    two.post.create_queue(QueueSpec("sub", "news", routing_type=RoutingType.MULTICAST))
    receiver = take(two, "sub")
    partly = Partly(one.cluster.connector)
    one.cluster.connector = partly  # type: ignore[assignment]  # it makes links of its own
    first = one.reach(two)
    await until(lambda: wanted(one, two, "sub"))
    other = OutgoingLink(one.cluster, "backup", (Endpoint("tcp", "standby", two.number),))
    one.cluster.peers.add(other)
    await until(lambda: other.second)
    partly.down.add("host")
    one.connector_to(two).links[-1].cut()
    first.close("its broker is gone")
    await until(lambda: other.connected)
    partly.gate.set()
    await until(lambda: partly.failed == 2)
    assert two.id in one.cluster.spreading.outlets
    assert "taken for gone" not in caplog.text
    await until(lambda: wanted(one, two, "sub"))
    one.post.send(message(b"x", "news", routing_type=RoutingType.MULTICAST))
    await receiver.wait(1)


async def test_each_connection_has_its_own_ttl(nodes: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when the first cluster connection's connection-ttl counts for all."""
    made: list[float | None] = []

    def connector(hub: CoreHub, silence: float | None = None) -> ClusterConnector:
        made.append(silence)
        return ClusterConnector(hub, silence)

    monkeypatch.setattr(service, "ClusterConnector", connector)
    await nodes(1, connections=("a", "b"), connection_ttl=40_000)
    assert made == [40.0, 40.0]
