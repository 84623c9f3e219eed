"""Clusters of real brokers on one host: produced on one node, consumed on another, and kill -9 of either meanwhile."""

from __future__ import annotations

import random
import re
import socket
import time
from typing import TYPE_CHECKING

import pytest
from proton import Message

from harness import amqp, stomp
from harness.broker import free_udp_port
from harness.clients import Clients
from harness.cluster import ClusterNode, Nodes
from harness.failover import wait_until
from harness.tls import make_certificates
from pollux.cluster.connection.homes import home_of

if TYPE_CHECKING:
    from pathlib import Path

KILLS = 4


class Traffic(Clients):
    """A producer of each protocol at one node, a consumer of each at another, and their ledger."""

    def __init__(self, directory: Path, source: ClusterNode, sink: ClusterNode) -> None:
        super().__init__(source, directory, "load", sink=sink)
        for one in self.consumers:
            one.start()
        wait_until(lambda: self._known(source, sink), "the producers' node knows of the consumers")
        for worker in self.producers:
            worker.start()

    @staticmethod
    def _known(source: ClusterNode, sink: ClusterNode) -> bool:
        routes = [route for route in source.cluster["routes"] if route["node"] == sink.name]
        return bool(sum(route["consumers"] for route in routes) == 3)

    def finish(self, nodes: Nodes) -> None:
        """Stop, drain, and judge: nothing lost, invented or given twice."""
        for producer in self.producers:
            producer.stop()

        def drained() -> bool:
            quiet = min(time.monotonic() - consumer.last_activity for consumer in self.consumers)
            return quiet > 1.0 and not any(node.messages() for node in nodes.all)

        wait_until(drained, "every queue of every node is drained")
        assert self.reconcile().confirmed
        for node in nodes.all:
            assert "Traceback" not in node.log.read_text(), node.log_tail(20_000)


@pytest.mark.parametrize("victim", ["producers' node", "consumers' node", "either"])
def test_kill_9_during_traffic_loses_and_doubles_nothing(tmp_path: Path, victim: str) -> None:
    choice = random.Random(victim)  # noqa: S311  (a test's reproducible choice)
    with Nodes(tmp_path, 3 if victim == "either" else 2) as nodes:
        source, sink = nodes.all[:2]
        traffic = Traffic(tmp_path, source, sink)
        for kill in range(KILLS):
            before = traffic.confirmed()
            wait_until(lambda before=before: traffic.confirmed() > before + 100, "traffic flows")  # type: ignore[misc]
            node = {"producers' node": source, "consumers' node": sink}.get(victim) or choice.choice(nodes.all)
            traffic.fault(f"kill -9 number {kill + 1}: {node.name}")
            node.kill()
            node.start()
        traffic.finish(nodes)


def test_each_way_of_spreading(tmp_path: Path) -> None:
    """OFF keeps everything here, STRICT takes turns, ON_DEMAND goes where somebody takes it."""
    found = {}
    for way in ("OFF", "STRICT", "ON_DEMAND"):
        setting = f"<message-load-balancing>{way}</message-load-balancing>"
        with Nodes(tmp_path / way, 2, connection=setting) as nodes:
            one, two = nodes.all
            with stomp.connect(two) as receiver, stomp.connect(one) as sender:
                receiver.subscribe("orders")
                wait_until(lambda one=one: one.routes("orders").get("node1", {}).get("consumers"), "known")  # type: ignore[misc]
                for number in range(4):
                    sender.send("orders", str(number))
                found[way] = [receiver.message().body for _ in range({"OFF": 0, "STRICT": 2}.get(way, 4))]
                receiver.silence()
                assert one.messages() == ({} if way == "ON_DEMAND" else {"orders": 4 - len(found[way])})
    assert found == {"OFF": [], "STRICT": ["0", "2"], "ON_DEMAND": ["0", "1", "2", "3"]} or found["STRICT"] == [
        "1",
        "3",
    ]


def test_each_message_of_an_anonymous_relay_goes_where_its_address_is_taken(tmp_path: Path) -> None:
    """An AMQP sender without a target: each message says its own address, a queue there or here, or a topic."""
    with Nodes(tmp_path, 2) as nodes:
        one, two = nodes.all
        with amqp.connect(one) as here, amqp.connect(two) as there:
            topic = amqp.SourceCapabilities("topic")
            receivers = {
                "near": here.create_receiver("near"),
                "far": there.create_receiver("far"),
                "news": there.create_receiver("news", options=topic),
            }
            wait_until(
                lambda: {each["address"] for each in one.cluster["routes"] if each["consumers"]} == {"far", "news"},
                "who takes them is known",
            )
            sender = here.create_sender(None)
            for number in range(9):
                name = list(receivers)[number % 3]
                sender.send(Message(f"{name} {number}", address=name))
            for at, (name, receiver) in enumerate(receivers.items()):
                found = []
                for _ in range(3):
                    found.append(str(receiver.receive(amqp.TIMEOUT).body))
                    receiver.accept()
                assert found == [f"{name} {number}" for number in range(at, 9, 3)]


def test_a_backlog_moves_to_who_takes_it_also_by_filter(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes:
        one, two = nodes.all
        with stomp.connect(one) as sender, stomp.connect(two) as receiver:
            for number in range(10):
                sender.send("orders", str(number), colour="red" if number % 2 else "blue")
            assert one.messages() == {"orders": 10}
            receiver.subscribe("orders", selector="colour = 'red'")
            assert [receiver.message().body for _ in range(5)] == ["1", "3", "5", "7", "9"]
            receiver.silence()
            wait_until(lambda: one.messages() == {"orders": 5}, "the others stay")
            assert one.cluster["moved"] == {"orders": 5}
            receiver.subscribe("orders", identifier="2")
            assert [receiver.message().body for _ in range(5)] == ["0", "2", "4", "6", "8"]


def test_an_id_sent_at_two_nodes_is_one_message_also_when_its_home_was_killed(tmp_path: Path) -> None:
    """The home has its ids on disk: who goes on with its store, a restart or the other one of a pair, knows them."""
    core = '<px:cluster xmlns:px="urn:pollux:1"><px:duplicate-ids>orders</px:duplicate-ids></px:cluster>'
    with Nodes(tmp_path, 2, core=core) as nodes:
        by_id = {bytes.fromhex(node.cluster["nodeId"]): node for node in nodes.all}
        home = by_id[home_of(by_id, "orders")]
        other = next(node for node in nodes.all if node is not home)

        def send(node: ClusterNode, *ids: str) -> None:
            with stomp.connect(node) as sender:
                for one in ids:
                    sender.send("orders", one, _AMQ_DUPL_ID=one, persistent="true")

        def settled() -> int:
            for node in nodes.all:
                wait_until(lambda node=node: not any(link["waiting"] for link in node.cluster["links"]), "all arrived")  # type: ignore[misc]
            return sum(node.messages().get("orders", 0) for node in nodes.all)

        send(other, "1", "2")
        send(home, "1", "2")
        assert settled() == 2
        home.kill()
        home.start()
        nodes.wait_until_linked()
        send(home, "1")
        send(other, "2", "3", "3")
        send(home, "3")
        assert settled() == 3
        assert [node.cluster["duplicateIds"] for node in nodes.all] == [{"homesAway": {}}] * 2


def test_what_waits_for_a_node_outlives_restarts_of_both(tmp_path: Path) -> None:
    with Nodes(tmp_path, 2) as nodes:
        one, two = nodes.all
        with stomp.connect(two) as receiver:
            receiver.subscribe("other")
        two.api(
            "/api/v1/queues", method="POST", body={"name": "kept", "address": "news.all", "routingType": "MULTICAST"}
        )
        wait_until(lambda: one.routes("kept"), "known")
        two.kill()
        wait_until(lambda: not one.links(), "it is gone")
        with stomp.connect(one) as sender:
            sender.send("news.all", "first", persistent="true", **{"destination-type": "MULTICAST"})
        one.kill()
        one.start()
        with stomp.connect(one) as sender:
            sender.send("news.all", "second", persistent="true", **{"destination-type": "MULTICAST"})
        assert sum(one.messages().values()) == 2
        two.start()
        with stomp.connect(two) as receiver:
            receiver.subscribe("news.all::kept")
            assert [receiver.message().body for _ in range(2)] == ["first", "second"]
        wait_until(lambda: not one.messages() and not two.messages(), "nothing waits any more")


def test_nodes_discover_each_other_and_talk_by_tls_alone(tmp_path: Path) -> None:
    """Neither names the other one; the ports for nodes take nobody without a certificate of the authority."""
    certificates = tmp_path / "tls"
    make_certificates(certificates)
    stores = f"sslEnabled=true;keyStorePath={certificates}/broker.pem;trustStorePath={certificates}/ca.pem"
    group = f"<group-address>239.255.7.7</group-address><group-port>{free_udp_port()}</group-port>"
    local = "<local-bind-address>127.0.0.1</local-bind-address>"
    nodes = Nodes(tmp_path, 2)
    for number, node in enumerate(nodes.all):
        text = node.configuration.read_text()
        text = re.sub(
            r"<static-connectors>.*</static-connectors>", "<discovery-group-ref discovery-group-name='g'/>", text
        )
        text = text.replace("?protocols=CORE<", f"?protocols=CORE;needClientAuth=true;{stores}<")
        for port in nodes.ports:
            text = text.replace(f"{port}</connector>", f"{port}?{stores}</connector>")
        text = text.replace(
            "<cluster-connections>",
            f"<broadcast-groups><broadcast-group name='g'>{local}{group}<broadcast-period>200</broadcast-period>"
            f"<connector-ref>n{number}</connector-ref></broadcast-group></broadcast-groups>"
            f"<discovery-groups><discovery-group name='g'>{local}{group}</discovery-group></discovery-groups>"
            "<cluster-connections>",
        )
        node.configuration.write_text(text)
    with nodes:
        one, two = nodes.all
        with stomp.connect(two) as receiver, stomp.connect(one) as sender:
            receiver.subscribe("orders")
            wait_until(lambda: one.routes("orders").get("node1", {}).get("consumers"), "known")
            sender.send("orders", "by TLS")
            assert receiver.message().body == "by TLS"
        assert {member["node"] for member in one.cluster["members"]} == {"node0", "node1"}
        with socket.create_connection(("127.0.0.1", nodes.ports[0]), timeout=30) as plain:
            plain.sendall(b"PXCR" + bytes(4))
            assert not plain.recv(100).startswith(b"PX"), "nobody is answered without TLS"
        why = two.command("cluster", "why", "orders", "--config", str(two.configuration))
        assert why.strip() == "it is empty"
        shown = one.command("cluster", "links", "--json", "--config", str(one.configuration))
        assert '"connected": true' in shown
