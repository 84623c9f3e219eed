"""Bridges and federation of members of an active-passive cluster: whoever is promoted has them, and nobody else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from proton import Message

from harness import amqp
from harness.broker import BrokerProcess
from harness.failover import wait_until
from harness.passive import CLUSTER_PASSWORD, Broker, Cluster

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(300)

SECRET = f"<cluster-user>twins</cluster-user><cluster-password>{CLUSTER_PASSWORD}</cluster-password>"
QUEUES = "".join(
    f'<address name="{name}"><anycast><queue name="{name}"/></anycast></address>' for name in ("bridged", "fetched")
)
#: What each member has in its broker.xml: a bridge to the other site, and a federation that fetches from there.
LINKS = """<connectors><connector name="there">tcp://127.0.0.1:{port}</connector></connectors>
<bridges><bridge name="b"><queue-name>bridged</queue-name><retry-interval>50</retry-interval>
<static-connectors><connector-ref>there</connector-ref></static-connectors></bridge></bridges>
<federations><federation name="f">
<upstream name="there"><retry-interval>50</retry-interval>
<static-connectors><connector-ref>there</connector-ref></static-connectors><policy ref="queues"/></upstream>
<queue-policy name="queues"><include queue-match="fetched" address-match="#"/></queue-policy>
</federation></federations>"""


def federated(broker: Broker, port: int) -> None:
    """Have the links in its broker.xml."""
    text = broker.configuration.read_text()
    assert "<acceptors>" in text
    text = text.replace("<acceptors>", f"{LINKS.format(port=port)}<acceptors>", 1)
    broker.configuration.write_text(text.replace("</addresses>", f"{QUEUES}</addresses>", 1))


def send(broker: BrokerProcess, queue: str, text: str) -> None:
    with amqp.connect(broker) as connection:
        connection.create_sender(queue).send(Message(text, durable=True))


def received(broker: BrokerProcess, queue: str) -> Any:
    with amqp.connect(broker) as connection:
        receiver = connection.create_receiver(queue)
        found = receiver.receive(timeout=30).body
        receiver.accept()
        return found


def links_of(broker: BrokerProcess) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = broker.api("/api/v1/bridges")
    return found


def test_links_begin_with_the_promotion_and_not_before(tmp_path: Path) -> None:
    """Qpid's are lost in a failover, or are made anew by the script that promotes."""
    with Cluster(tmp_path, 2) as cluster:
        there = BrokerProcess(tmp_path / "there", addresses=QUEUES, core=SECRET)
        try:
            there.start()
            first, second = cluster.brokers
            for broker in cluster.brokers:
                federated(broker, there.port)
                broker.spawn()
                broker.wait_for_status("joining")
            assert "broker connected" not in there.log_tail(1_000_000)
            first.promote()
            second.wait_for_status("ready")
            first.wait_for_status("active")
            send(first, "bridged", "by the first")
            assert received(there, "bridged") == "by the first"
            nodes = [one["nodeId"] for one in links_of(there)["incoming"]]
            assert len(nodes) == 1
            # The bridge and the federation of the primary: its backup has neither.
            assert there.log_tail(1_000_000).count("broker connected") == 2
            there.stop()
            send(first, "bridged", "sent while the other site is away")
            first.kill()
            there.start()
            second.promote()
            second.wait_for_status("active")
            assert received(there, "bridged") == "sent while the other site is away"
            assert [one["nodeId"] for one in links_of(there)["incoming"]] == nodes, "it is the same node to others"
            send(there, "fetched", "for whoever is primary")
            assert received(second, "fetched") == "for whoever is primary"
            wait_until(lambda: links_of(second)["upstreams"][0]["connected"], "the federation is there")
        finally:
            there.close()
