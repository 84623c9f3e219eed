"""Scale-down of real brokers: drained and stopped under kill -9 of either side; nothing lost, nothing twice."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING, Any

from harness import mqtt, stomp
from harness.broker import POLLUX
from harness.cluster import ClusterNode, Nodes
from harness.failover import wait_until
from pollux.process.exits import EXIT_FAILED, EXIT_OK, EXIT_UNDRAINED, EXIT_USAGE

if TYPE_CHECKING:
    from pathlib import Path

MESSAGES = 6000
#: Milliseconds.
LATER = 3_600_000


def scale_down(node: ClusterNode, inside: str = "") -> None:
    """Have a node that does not run yet hand over what it has when it is stopped."""
    policy = f"<ha-policy><live-only><scale-down>{inside}</scale-down></live-only></ha-policy>"
    text = node.configuration.read_text()
    node.configuration.write_text(text.replace("<cluster-connections>", f"{policy}<cluster-connections>", 1))


def drain(node: ClusterNode, *words: str) -> tuple[int, Any]:
    """Run `pollux cluster drain`; return its exit status and what it says."""
    command = [POLLUX, "cluster", "drain", *words, "--json", "--config", str(node.configuration)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def moved(node: ClusterNode) -> int:
    """How many messages it has handed over in this life."""
    found: int = node.api("/api/v1/cluster/drain")["moved"]
    return found


def bodies(node: ClusterNode, queue: str, count: int) -> list[str]:
    """Take so many messages out of a queue; there must be no other."""
    with stomp.connect(node) as client:
        client.subscribe(queue)
        found = [client.message().body for _ in range(count)]
        client.silence()
    return found


def test_killed_on_both_sides_on_the_way_everything_arrives_once(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes:
        one, two = nodes.all
        one.close()
        scale_down(one)
        one.start()
        nodes.wait_until_linked()
        options: Any = {
            "connecting": {"clean_start": True, "properties": mqtt.connect_properties(SessionExpiryInterval=3600)}
        }
        with mqtt.connect(one, "away", **options) as client:
            client.subscribe("news/+", qos=2)
        with mqtt.connect(one) as client:
            for number in range(20):
                client.publish("news/today", str(number), qos=2)
            client.publish("kept", "retained", retain=True)
        with stomp.connect(one) as sender:
            for number in range(MESSAGES):
                sender.raw.send("orders", str(number), headers={"persistent": "true"})
            sender.send("later", "scheduled", persistent="true", AMQ_SCHEDULED_DELAY=str(LATER))
            sender.send("big", "x" * 400_000, persistent="true")
        assert one.messages()["orders"] == MESSAGES
        code, found = drain(one)
        assert (code, found["targets"]) == (EXIT_OK, ["node1"])
        wait_until(lambda: moved(one) > 100, "messages are handed over")
        one.kill()
        one.start()  # it goes on by itself
        wait_until(lambda: moved(one) > 100 or not one.messages().get("orders"), "messages are handed over again")
        two.kill()
        two.start()
        code, found = drain(one, "--watch", "--timeout", "100")
        # The session and its messages go when the broker stops.
        assert (code, found["state"]) == (EXIT_OK, "ready"), found
        assert [queue["name"] for queue in found["queues"]] == ["away.news.*"]
        assert one.stop() == EXIT_OK, one.log_tail()
        assert sorted(map(int, bodies(two, "orders", MESSAGES))) == list(range(MESSAGES))
        assert bodies(two, "big", 1) == ["x" * 400_000]
        (later,) = [queue for queue in two.queues() if queue["name"] == "later"]
        assert (later["messages"], later["scheduled"]) == (1, 1)
        options["connecting"]["clean_start"] = False
        with mqtt.connect(two, "away", **options) as client:
            assert client.connack[0].session_present
            assert [int(client.message().payload) for _ in range(20)] == list(range(20))
            client.silence()
        with mqtt.connect(two) as client:
            client.subscribe("kept", qos=1)
            assert client.message().payload == b"retained"
        # It comes back as an ordinary, empty one.
        one.start()
        assert drain(one, "--status")[1]["state"] == "off"
        assert one.messages() == {}
        for node in nodes.all:
            assert "Traceback" not in node.log.read_text(), node.log_tail(20_000)


def test_a_stop_with_nowhere_to_go_says_so_and_loses_nothing(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes:
        one, two = nodes.all
        one.close()
        scale_down(one, "<group-name>blue</group-name>")
        one.start()
        nodes.wait_until_linked()
        assert one.stop() == EXIT_OK  # it has nothing
        one.start()
        nodes.wait_until_linked()
        with stomp.connect(one) as sender:
            sender.send("orders", "1", persistent="true")
        code, text = drain(one)
        assert code == EXIT_FAILED
        assert "node1: it has no group-name, not 'blue'" in text
        assert drain(one, "--cancel")[0] == EXIT_FAILED
        assert drain(one, "--cancel", "--watch")[0] == EXIT_USAGE
        assert drain(one, "--status")[1]["state"] == "off"
        started = time.monotonic()
        assert one.stop() == EXIT_UNDRAINED
        assert time.monotonic() - started >= 10
        assert "not everything went" in one.log_tail()
        one.start()
        assert one.messages() == {"orders": 1}
        assert two.messages() == {}
