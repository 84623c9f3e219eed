"""`pollux cluster remove` on real brokers: of a node that was killed, and that comes back with its old data."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import stomp
from harness.cluster import Nodes
from harness.failover import wait_until

if TYPE_CHECKING:
    from harness.cluster import ClusterNode

POLLUX = str(Path(sys.executable).with_name("pollux"))


def remove(node: ClusterNode, which: str) -> tuple[int, Any]:
    """Run it; return its exit status and what it says."""
    command = [POLLUX, "cluster", "remove", which, "--json", "--config", str(node.configuration)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def known(node: ClusterNode, queue: str) -> bool:
    """Whether a consumer of a queue at another node is known."""
    return any(route["consumers"] for route in node.routes(queue).values())


def test_a_node_that_was_killed_is_removed_and_refused_when_it_is_back(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes:
        one, two = nodes.all
        with stomp.connect(two) as client:
            client.subscribe("orders")
            wait_until(lambda: known(one, "orders"), "its consumer is known")
            status, said = remove(one, "node1")
            assert (status, "is reached by" in said) == (1, True)
            two.kill()
        wait_until(lambda: one.links() == 0, "it is gone")
        with stomp.connect(one) as client:
            for number in range(10):
                client.send("orders", str(number))
        status, said = remove(one, "node1")
        assert status == 0
        assert said["nodeId"]
        wait_until(lambda: one.messages() == {"orders": 10}, "nothing waits for it any more")
        two.start()
        wait_until(
            lambda: any("was removed from the cluster" in link["reason"] for link in two.cluster["links"]),
            "it is refused",
        )
        assert one.links() == 0
        one.stop()
        one.start()
        wait_until(
            lambda: any("was removed from the cluster" in link["reason"] for link in one.cluster["links"]),
            "it is known over a restart",
        )
