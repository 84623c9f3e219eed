"""Real brokers that find each other by multicast on the loopback interface; no connector names another one."""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import pytest

from harness import stomp
from harness.broker import PASSWORD, USER, BrokerProcess, free_udp_port
from harness.cluster import Pairs
from harness.failover import wait_until
from harness.replication import PEER, Pair, file_manager
from pollux.client import Message, connect

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)
GROUP = (
    "<{kind}-groups><{kind}-group name='g'><local-bind-address>127.0.0.1</local-bind-address>"
    "<group-address>239.255.7.8</group-address><group-port>{port}</group-port>{more}</{kind}-group></{kind}-groups>"
)


def discovering(member: BrokerProcess, number: int, port: int, kind: str = "c") -> None:
    """Replace its static connectors by a group; of its connectors only its own is left."""
    text = member.configuration.read_text()
    text = re.sub(r"<static-connectors>.*</static-connectors>", "<discovery-group-ref discovery-group-name='g'/>", text)
    text = re.sub(rf'<connector name="{kind}(?!{number}")\d">[^<]*</connector>', "", text)
    announced = f"<broadcast-period>200</broadcast-period><connector-ref>{kind}{number}</connector-ref>"
    groups = GROUP.format(kind="broadcast", port=port, more=announced) + GROUP.format(
        kind="discovery", port=port, more="<initial-wait-timeout>1000</initial-wait-timeout>"
    )
    text = text.replace("<cluster-connections>", f"{groups}<cluster-connections>")
    assert text.count("<connector name=") == 1
    member.configuration.write_text(text)


async def exchanged(url: str) -> int:
    """Send a message to whoever announces itself, and take it back; the port of who has it."""
    async with await connect(url) as connection:
        session = await connection.session()
        await (await session.producer("found")).send(Message(b"text"))
        delivery = await (await session.consumer("found")).receive(timeout=60)
        assert delivery is not None
        delivery.accept()
        assert connection.endpoint is not None
        return connection.endpoint.port


def test_a_pair_finds_each_other_and_again_after_a_failover(tmp_path: Path) -> None:
    port = free_udp_port()
    with Pair(tmp_path, file_manager(tmp_path / "locks"), PEER, PEER) as pair:
        for number, member in enumerate(pair.replicas):
            discovering(member, number, port)
        first, second = pair.start()
        second.logged("member discovered")
        url = f"udp://239.255.7.8:{port}?localBindAddress=127.0.0.1&user={USER}&password={PASSWORD}"
        assert asyncio.run(exchanged(url)) == first.port
        pair.start_traffic(pause=0.02)
        pair.wait_for_confirms(30)
        pair.fault("kill -9 of the first")
        first.kill()
        second.wait_for("live")
        pair.wait_for_confirms(30)
        assert asyncio.run(exchanged(f"{url}&initialConnectAttempts=-1&retryInterval=100")) == second.port
        first.spawn()
        pair.wait_for_sync(first)
        first.logged("member discovered")
        pair.wait_for_confirms(30)
        pair.finish()


def test_pairs_that_share_a_store_find_each_other_and_who_took_over(tmp_path: Path) -> None:
    """Each member announces itself when it serves; nobody is named by a connector of another one."""
    port = free_udp_port()
    pairs = Pairs(tmp_path)
    members = [member for group in pairs.all for member in group.members]
    for number, member in enumerate(members):
        discovering(member, number, port, "n")
    with pairs:
        first, second, third, _ = members

        def linked(*names: str) -> bool:
            found = third.api("/api/v1/cluster")["links"]
            return sorted(link["node"] for link in found if link["connected"]) == sorted(names)

        wait_until(lambda: linked(first.name), "the live of the other pair is found")
        first.kill()
        second.wait_for("live")
        wait_until(lambda: linked(second.name), "who took over is found")
        with stomp.connect(third) as receiver, stomp.connect(second) as sender:
            receiver.subscribe("orders")
            wait_until(lambda: second.api("/api/v1/cluster")["routes"], "the consumer is known")
            sender.send("orders", "found", persistent="true")
            assert receiver.message().body == "found"


ROUTER = """<connection-routers><connection-router name="r"><key-type>USER_NAME</key-type>
<policy name="FIRST_ELEMENT"/><pool><check-period>50</check-period>
<discovery-group-ref discovery-group-name="g"/></pool></connection-router></connection-routers>"""
SECRET = "<cluster-password>castor and pollux</cluster-password>"


def test_a_broker_without_a_cluster_is_found_by_clients_and_by_a_router(tmp_path: Path) -> None:
    """Neither has a cluster connection: the one announces itself, the other one sends its clients there."""
    port = free_udp_port()
    announced = "<broadcast-period>200</broadcast-period><connector-ref>me</connector-ref>"
    alone = BrokerProcess(tmp_path / "alone", core=SECRET + GROUP.format(kind="broadcast", port=port, more=announced))
    text = alone.configuration.read_text()
    own = f"<connectors><connector name='me'>tcp://127.0.0.1:{alone.port}</connector></connectors>{SECRET}"
    alone.configuration.write_text(text.replace(SECRET, own))
    group = GROUP.format(kind="discovery", port=port, more="")
    front = BrokerProcess(tmp_path / "front", core=f"{SECRET}{group}{ROUTER}", acceptors={"all": "?router=r"})
    try:
        alone.start()
        front.start()

        def ready(number: int) -> bool:
            return bool(front.api("/api/v1/cluster/routers/r")["ready"] == number)

        url = f"udp://239.255.7.8:{port}?localBindAddress=127.0.0.1&user={USER}&password={PASSWORD}"
        assert asyncio.run(exchanged(url)) == alone.port
        wait_until(lambda: ready(1), "the router's pool has it")
        assert asyncio.run(exchanged(f"tcp://127.0.0.1:{front.port}?user={USER}&password={PASSWORD}")) == alone.port
        alone.stop()
        wait_until(lambda: front.api("/api/v1/cluster/routers/r")["targets"] == [], "it has said that it is gone")
    finally:
        for broker in (alone, front):
            broker.close()
