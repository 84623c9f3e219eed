"""MQTT clients that go from node to node of a cluster of real brokers, some of which are killed meanwhile."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

from harness import mqtt
from harness.cluster import Nodes
from harness.failover import wait_until

if TYPE_CHECKING:
    from pathlib import Path

    from harness.cluster import ClusterNode

ROUNDS = 8


def durable(node: ClusterNode, client_id: str = "wanderer") -> Any:
    """A client whose session outlives its connection."""
    properties = mqtt.connect_properties(SessionExpiryInterval=3600)
    return mqtt.connect(node, client_id, connecting={"clean_start": False, "properties": properties})


def test_a_client_that_wanders_gets_every_message_while_nodes_are_killed(tmp_path: Path) -> None:
    choice = random.Random(7)  # noqa: S311  (a test's reproducible choice)
    with Nodes(tmp_path, 3) as nodes:
        got: set[str] = set()
        sent = 0
        with durable(nodes.all[0]) as client:
            client.subscribe("t/#", qos=1)
        for number in range(ROUNDS):
            source = nodes.all[number % 3]
            with mqtt.connect(source, f"sender{number}") as sender:
                for _ in range(20):
                    sender.publish("t/x", str(sent), qos=1)
                    sent += 1
            if number in (2, 5):
                victim = choice.choice(nodes.all)
                victim.kill()
                victim.start()
                nodes.wait_until_linked()
            node = choice.choice(nodes.all)
            with durable(node) as client:
                assert client.connack[0].session_present, f"round {number}: nothing of the client at {node.name}"
                while len(got) < sent:
                    got.add(client.message().payload.decode())
        assert got == {str(number) for number in range(sent)}
        wait_until(lambda: sum(len(_own(node)) for node in nodes.all) == 1, "one queue is left, at the last node")
        for node in nodes.all:
            assert "Traceback" not in node.log.read_text(), node.log_tail(20_000)


def _own(node: ClusterNode) -> list[Any]:
    return [queue for queue in node.queues() if queue["name"].startswith("wanderer.")]


def test_retained_messages_and_client_ids_are_the_clusters(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes:
        one, two = nodes.all
        with mqtt.connect(one, "a") as here, mqtt.connect(two, "b") as there:
            here.publish("state", "on", qos=1, retain=True)
            there.subscribe("state", qos=1)
            found = there.message()
            assert (found.payload, found.retain) == (b"on", True)
            here.raw.loop_stop()  # or it would take its place back, for ever
            with mqtt.connect(two, "a") as thief:
                wait_until(lambda: not _connected(one, "a"), "the older connection is closed")
                thief.publish("state", "", qos=1, retain=True)
        two.kill()
        two.start()
        nodes.wait_until_linked()
        for node in nodes.all:
            with mqtt.connect(node, "c") as client:
                client.subscribe("state", qos=1)
                client.silence()


def _connected(node: ClusterNode, client_id: str) -> bool:
    return any(each["clientId"] == client_id for each in node.api("/api/v1/connections")["items"])
