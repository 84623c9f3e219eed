"""A node that nobody was told of joins two others under traffic, leaves them for good, and joins as a new one."""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from proton import symbol

from e2e.test_cluster import Traffic
from harness import amqp, stomp
from harness.broker import POLLUX
from harness.cluster import ClusterNode, Nodes
from harness.failover import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)
KEPT = 500


def cluster(node: ClusterNode, *words: str) -> None:
    """Run `pollux cluster`; it must succeed."""
    command = [POLLUX, "cluster", *words, "--json", "--config", str(node.configuration)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def told(node: ClusterNode) -> list[int]:
    """The ports of the brokers that an AMQP client is told of (failover-server-list)."""
    with amqp.connect(node) as connection:
        properties: Any = connection.conn.remote_properties
        return sorted(entry[symbol("port")] for entry in properties[symbol("failover-server-list")])


def test_a_node_joins_leaves_and_joins_again_under_traffic_of_two_others(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, 3)
    others, third = nodes.all[:2], nodes.all[2]
    for node in others:
        text = node.configuration.read_text()
        node.configuration.write_text(text.replace("<connector-ref>n2</connector-ref>", ""))
    try:
        for node in others:
            node.start()
        wait_until(lambda: all(node.links() == 1 for node in others), "two nodes reach each other")
        traffic = Traffic(tmp_path, *others)

        def flows() -> None:
            before = traffic.confirmed()
            wait_until(lambda: traffic.confirmed() > before + 100, "traffic flows")

        def joined() -> bool:
            return all(node.links() == 2 for node in nodes.all)

        flows()
        assert [told(node) for node in others] == [[others[1].port], [others[0].port]]
        traffic.fault("a node joins")
        third.start()
        wait_until(joined, "all three reach each other")
        ports = sorted(node.port for node in nodes.all)
        assert [told(node) for node in nodes.all] == [[one for one in ports if one != node.port] for node in nodes.all]
        flows()
        before = third.cluster["nodeId"]
        with stomp.connect(third) as sender:
            for number in range(KEPT):
                sender.raw.send("kept", str(number), headers={"persistent": "true"})
        assert third.messages() == {"kept": KEPT}
        traffic.fault("it leaves")
        cluster(third, "drain", "--watch", "--timeout", "100")
        third.stop()
        wait_until(lambda: all(node.links() == 1 for node in others), "it is gone")
        cluster(others[0], "remove", before)
        wait_until(
            lambda: [told(node) for node in others] == [[others[1].port], [others[0].port]], "it is named no more"
        )
        flows()
        traffic.fault("it joins as a new one")
        shutil.rmtree(third.directory / "data")
        third.start()
        wait_until(joined, "all three reach each other again")
        assert third.cluster["nodeId"] != before
        assert told(others[0]) == [one for one in ports if one != others[0].port]
        assert third.messages() == {}
        flows()
        with stomp.connect(third) as client:
            client.subscribe("kept")
            assert sorted(int(client.message().body) for _ in range(KEPT)) == list(range(KEPT))
            client.silence()
        traffic.finish(nodes)
    finally:
        for node in nodes.all:
            node.close()
