"""Durable subscribers that come to another node of a cluster find their subscription, and what waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from proton import Message, Terminus
from proton.reactor import DurableSubscription, ReceiverOption

from harness import amqp, mqtt, stomp
from harness.cluster import SETTINGS, ClusterNode, Nodes
from harness.failover import wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)
STAYS = SETTINGS.replace("<redistribution-delay>0<", "<redistribution-delay>-1<")
TOPIC = "news.topic"
FIRST, SECOND = [str(number) for number in range(50)], [str(number) for number in range(50, 100)]


class WithoutSource(ReceiverOption):
    """The client asks for a subscription by the link's name alone, as JMS does to end it."""

    def apply(self, receiver: Any) -> None:
        """Called by proton before the link opens."""
        receiver.source.type = Terminus.UNSPECIFIED


def publish(node: ClusterNode, bodies: list[str]) -> None:
    with stomp.connect(node) as client:
        for body in bodies:
            client.send(TOPIC, body, persistent="true")


def numbers(receiver: Any, count: int) -> list[int]:
    """Receive messages; their bodies are views of what is gone with them."""
    found = []
    for _ in range(count):
        message = receiver.receive(amqp.TIMEOUT)
        found.append(int(bytes(message.body)))
        receiver.accept()
    return found


def holders(nodes: Nodes, queue: str) -> list[str]:
    return [node.name for node in nodes.all if queue in {one["name"] for one in node.queues()}]


def test_an_amqp_client_goes_on_at_another_node_and_ends_its_subscription_at_a_third(tmp_path: Path) -> None:
    """By its container id and the link's name; nothing but the client makes anything move. It does not want its own."""
    strict = "<message-load-balancing>STRICT</message-load-balancing>"
    with Nodes(tmp_path, 3, settings=STAYS, connection=strict) as nodes:
        one, two, three = nodes.all
        with amqp.connect(one, container_id="reader") as client:
            link = client.create_receiver(TOPIC, name="news", options=[DurableSubscription(), amqp.no_local()]).link
            link.detach()
        wait_until(lambda: all("node0" in node.routes("reader.news") for node in (two, three)), "it is known")
        publish(three, FIRST)
        wait_until(lambda: one.messages() == {"reader.news": 50}, "it waits at the first")
        with amqp.connect(two, container_id="reader") as client:
            receiver = client.create_receiver(TOPIC, name="news", options=[DurableSubscription(), amqp.no_local()])
            client.create_sender(TOPIC, options=amqp.TargetCapabilities("topic")).send(Message("own"))
            got = numbers(receiver, len(FIRST))
            wait_until(lambda: "node0" not in three.routes("reader.news"), "the first has left")
            publish(three, SECOND)
            got += numbers(receiver, len(SECOND))
            assert sorted(got) == list(range(100))
            receiver.link.detach()
        with amqp.connect(three, container_id="reader") as client:
            client.create_receiver(None, name="news", options=[WithoutSource()]).close()
        wait_until(lambda: holders(nodes, "reader.news") == [], "it is ended at every node")


def test_a_stomp_client_goes_on_at_another_node_and_ends_its_subscription_at_the_first(tmp_path: Path) -> None:
    named, reader = {"durable-subscription-name": "news"}, {"client-id": "reader"}
    with Nodes(tmp_path, 2, settings=STAYS) as nodes:
        one, two = nodes.all
        with stomp.connect(one, headers=reader) as client:
            client.subscribe(TOPIC, **named)
            client.disconnect()
        wait_until(lambda: "node0" in two.routes("reader.news"), "it is known")
        publish(two, FIRST)
        wait_until(lambda: one.messages() == {"reader.news": 50}, "it waits at the first")
        with stomp.connect(two, headers=reader) as client:
            client.subscribe(TOPIC, **named)
            assert sorted(int(client.message().body) for _ in FIRST) == list(range(50))
            wait_until(lambda: "node0" not in two.routes("reader.news"), "the first has left")
            client.disconnect()
        with stomp.connect(one, headers=reader) as client, client.receipt() as receipt:
            client.raw.unsubscribe("none", headers={**named, "receipt": receipt})
        wait_until(lambda: holders(nodes, "reader.news") == [], "it is ended at both")


def test_clients_go_on_at_a_node_that_is_reached_by_way_of_another_which_is_killed(tmp_path: Path) -> None:
    """One of MQTT and one of AMQP: what they left comes by the node between, after that is there again."""
    session: Any = {"clean_start": False, "properties": mqtt.connect_properties(SessionExpiryInterval=3600)}
    with Nodes(tmp_path, 3, settings=STAYS, row=True, connection="<max-hops>2</max-hops>") as nodes:
        one, two, three = nodes.all
        with amqp.connect(one, container_id="reader") as client:
            client.create_receiver(TOPIC, name="news", options=DurableSubscription()).link.detach()
        with mqtt.connect(one, "wanderer", connecting=session) as client:
            client.subscribe(TOPIC.replace(".", "/"), qos=1)
        wait_until(lambda: len(three.cluster["routes"]) == 2, "both are known at the other end")
        publish(three, FIRST)
        wait_until(lambda: [*one.messages().values()] == [50, 50], "they wait at the first")
        two.kill()
        two.start()
        nodes.wait_until_linked()
        wait_until(lambda: all(route["connected"] for route in three.cluster["routes"]), "the way is there again")
        with amqp.connect(three, container_id="reader") as client:
            receiver = client.create_receiver(TOPIC, name="news", options=DurableSubscription())
            assert sorted(numbers(receiver, len(FIRST))) == list(range(50))
        with mqtt.connect(three, "wanderer", connecting=session) as client:
            assert client.connack[0].session_present
            assert sorted(int(client.message().payload) for _ in FIRST) == list(range(50))
            publish(one, SECOND)
            assert sorted(int(client.message().payload) for _ in SECOND) == list(range(50, 100))
