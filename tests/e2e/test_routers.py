"""Connection routers of two real brokers: each serves its own user and sends the other one's clients to the other."""

from __future__ import annotations

import asyncio
import contextlib
import urllib.request
from base64 import b64encode
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import pytest
from stomp.exception import ConnectFailedException

from harness import mqtt, stomp
from harness.broker import PASSWORD, USER
from harness.cluster import ClusterNode, Nodes
from harness.failover import wait_until
from pollux.client import ConnectionLostError, connect
from pollux.client.traffic import publisher
from pollux.client.url import Wire, parse_url

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: user0 is served by node0, user1 by node1; others wherever fewer are.
ROUTERS = """<connection-routers><connection-router name="by-user">
<key-type>USER_NAME</key-type><key-filter>^user.$</key-filter><local-target-filter>user{number}</local-target-filter>
<policy name="FIRST_ELEMENT"/>
<pool><check-period>50</check-period><quorum-timeout>300</quorum-timeout><cluster-connection>c</cluster-connection></pool>
</connection-router></connection-routers>"""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    users = {"user0": (PASSWORD, "amq"), "user1": (PASSWORD, "amq"), "alice": (PASSWORD, "amq")}
    acceptors = {"all": "?router=by-user"}
    with Nodes(tmp_path_factory.mktemp("routers"), 2, core=ROUTERS, users=users, acceptors=acceptors) as found:
        wait_until(lambda: all(router(node)["ready"] == 1 for node in found.all), "each router has its target")
        yield found


def router(node: ClusterNode) -> Any:
    """Return the router as the API shows it."""
    return node.api("/api/v1/cluster/routers/by-user")


def metrics(node: ClusterNode) -> str:
    """The broker's metrics as text."""
    words = b64encode(f"{USER}:{PASSWORD}".encode()).decode()
    address = f"http://127.0.0.1:{node.management_port}/metrics"
    request = urllib.request.Request(address, headers={"Authorization": f"Basic {words}"})
    with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310  (of this host)
        text: str = answer.read().decode()
        return text


def url(node: ClusterNode, user: str, **more: object) -> str:
    parameters = "".join(f"&{name}={value}" for name, value in more.items())
    return f"tcp://127.0.0.1:{node.port}?user={user}&password={quote(PASSWORD)}{parameters}"


@pytest.mark.parametrize("user", ["user0", "user1"])
async def test_our_client_ends_where_its_user_is_served(nodes: Nodes, user: str) -> None:
    there = nodes.all[int(user[-1])]
    for node in nodes.all:
        async with await connect(url(node, user)) as connection:
            assert connection.endpoint is not None
            assert connection.endpoint.port == there.port
            assert {one.port for one in connection.endpoints} == {one.port for one in nodes.all}, (
                "it is told of all nodes"
            )
            session = await connection.session()
            await (await session.producer(f"of.{user}")).send(b"x")
    assert there.messages()[f"of.{user}"] == 2


@pytest.mark.parametrize("wire", [Wire.MQTT, Wire.STOMP])
async def test_and_so_does_its_traffic_over_other_protocols(nodes: Nodes, wire: Wire) -> None:
    one, two = nodes.all
    confirmed: list[str] = []
    sender = publisher(wire, parse_url(url(one, "user1")), "traffic", lambda name, _: confirmed.append(name))
    before = router(one)["redirected"]
    await sender.start()
    await sender.send("m", b"x")
    await sender.drain()
    users = [connection["user"] for connection in two.api("/api/v1/connections")["items"]]
    await sender.close()
    assert confirmed == ["m"]
    assert "user1" in users
    assert router(one)["redirected"] == before + 1


def test_clients_that_know_no_redirection_are_told_in_words(nodes: Nodes) -> None:
    one, two = nodes.all
    frames = stomp.Frames()
    raw = stomp.VERSIONS["1.2"]([("127.0.0.1", one.port)], reconnect_attempts_max=1)
    raw.set_listener("", frames)
    with contextlib.suppress(ConnectFailedException):  # raised or not, by how fast it reads
        raw.connect("user1", PASSWORD, wait=True)
    error = frames.errors.get(timeout=stomp.TIMEOUT)
    assert error.headers["redirect-port"] == str(two.port)
    assert f"served at 127.0.0.1:{two.port}" in error.headers["message"]
    client = mqtt.Client("c", mqtt.V5)
    client.raw.username_pw_set("user1", PASSWORD)
    _, reason, found = client.connect(one.port)
    client.raw.loop_stop()
    assert (reason.value, found.ServerReference) == (0x9C, f"127.0.0.1:{two.port}")


def test_the_command_line_and_the_metrics_show_them(nodes: Nodes) -> None:
    one, two = nodes.all
    config = ("--config", str(one.configuration))
    two.api("/api/v1/queues", method="POST", body={"name": "there", "address": "there", "routingType": "ANYCAST"})
    wait_until(lambda: one.routes("there"), "its queue is known")
    assert "1 of 1 stand" in one.command("cluster", "status", *config)
    assert "node1" in one.command("cluster", "links", *config)
    assert "there" in one.command("cluster", "routes", "there", *config)
    assert "USER_NAME" in one.command("cluster", "routers", *config)
    assert "node1" in one.command("cluster", "routers", "by-user", *config)
    assert str(two.port) in one.command("cluster", "routers", "by-user", "--key", "user1", *config)
    assert 'pollux_router_targets_ready{router="by-user"} 1.0' in metrics(one)
    missing = one.command("cluster", "routers", "nowhere", *config, check=False)
    assert not missing


async def test_a_broker_that_is_gone_serves_nobody_and_is_found_when_it_is_back(nodes: Nodes) -> None:
    one, two = nodes.all
    await asyncio.to_thread(two.kill)
    await asyncio.to_thread(wait_until, lambda: router(one)["ready"] == 0, "the target is gone")
    with pytest.raises(ConnectionLostError, match="no broker that is ready for this client"):
        await connect(url(one, "user1"))
    async with await connect(url(one, "user0")) as connection:
        assert connection.endpoint is not None
    waiting = asyncio.create_task(connect(url(one, "user1", initialConnectAttempts=-1, retryInterval=50)))
    await asyncio.to_thread(two.start)
    async with asyncio.timeout(60), await waiting as connection:
        assert connection.endpoint is not None
        assert connection.endpoint.port == two.port


def test_a_node_that_only_others_have_named_gets_clients(tmp_path: Path) -> None:
    with_all = Nodes(tmp_path, 3, core=ROUTERS, acceptors={"all": "?router=by-user"})
    one = with_all.all[0]
    text = one.configuration.read_text()
    one.configuration.write_text(text.replace("<connector-ref>n2</connector-ref>", ""))
    with with_all as nodes:
        wait_until(lambda: router(one)["ready"] == 2, "both others are ready")
        found = {target["node"]: target["ready"] for target in router(one)["targets"]}
        assert found == {node.name: True for node in nodes.all[1:]}
