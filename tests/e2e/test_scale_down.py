"""Scale-down of real brokers: drained and stopped under kill -9 of either side; nothing lost, nothing twice."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from harness import mqtt, stomp
from harness.broker import POLLUX, BrokerProcess
from harness.cluster import PASSWORD, SETTINGS, ClusterNode, Nodes
from harness.databases import DATABASES, postgresql
from harness.failover import Group, wait_until
from harness.ports import free_port
from harness.replication import BACKUP, PRIMARY, Pair, file_manager
from pollux.process.exits import EXIT_FAILED, EXIT_OK, EXIT_UNDRAINED, EXIT_USAGE

if TYPE_CHECKING:
    from pathlib import Path

    from harness.failover import Member
    from harness.postgresql import Server

__all__ = ["postgresql"]

MESSAGES = 6000
#: Milliseconds.
LATER = 3_600_000


def scale_down(node: ClusterNode, inside: str = "") -> None:
    """Have a node that does not run yet hand over what it has when it is stopped."""
    policy = f"<ha-policy><live-only><scale-down>{inside}</scale-down></live-only></ha-policy>"
    text = node.configuration.read_text()
    node.configuration.write_text(text.replace("<cluster-connections>", f"{policy}<cluster-connections>", 1))


def drain(node: BrokerProcess, *words: str) -> tuple[int, Any]:
    """Run `pollux cluster drain`; return its exit status and what it says."""
    command = [POLLUX, "cluster", "drain", *words, "--json", "--config", str(node.configuration)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, json.loads(done.stdout) if done.stdout else done.stderr


def held(node: BrokerProcess) -> list[tuple[str, int]]:
    """The queues with messages, with how many."""
    return [(one["name"], one["messages"]) for one in node.queues() if one["messages"]]


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


def test_a_subscription_misses_nothing_while_its_node_is_drained(tmp_path: Path) -> None:
    """Messages sent elsewhere come to it while its client is there, while that is away, and when the node is gone."""
    with Nodes(tmp_path, 2) as nodes:
        one, two = nodes.all
        one.close()
        scale_down(one)
        one.start()
        nodes.wait_until_linked()
        options: Any = {
            "connecting": {"clean_start": True, "properties": mqtt.connect_properties(SessionExpiryInterval=3600)}
        }
        with mqtt.connect(two) as sender:

            def send(*texts: str) -> None:
                for text in texts:
                    sender.publish("news/today", text)

            with mqtt.connect(one, "away", **options) as client, mqtt.connect(one) as passing:
                client.subscribe("news/+", qos=1)
                passing.subscribe("news/+", qos=1)
                wait_until(lambda: len(two.cluster["routes"]) == 2, "both subscriptions are known there")
                assert drain(one)[0] == EXIT_OK
                send("1", "2")
                for each in (client, passing):
                    assert [each.message().payload for _ in range(2)] == [b"1", b"2"]
            # Nobody has it at the other node: it is told of this one's still.
            send("3", "4")
            assert drain(one, "--watch", "--timeout", "60")[1]["state"] == "ready"
            assert one.stop() == EXIT_OK, one.log_tail()
            send("5")
            options["connecting"]["clean_start"] = False
            with mqtt.connect(two, "away", **options) as client:
                assert client.connack[0].session_present
                assert [client.message().payload for _ in range(3)] == [b"3", b"4", b"5"]
                client.silence()


def test_an_empty_subscription_is_known_elsewhere_before_its_node_is_gone(tmp_path: Path) -> None:
    login = {"client-id": "reports"}
    with Nodes(tmp_path, 2) as nodes:
        one, two = nodes.all
        with stomp.connect(one, headers=login) as client:
            client.subscribe("news", subscription_type="MULTICAST", durable_subscription_name="daily")
        code, found = drain(one, "--watch", "--timeout", "60")
        assert (code, found["state"]) == (EXIT_OK, "drained"), found
        assert "reports.daily" in {queue["name"] for queue in two.queues()}
        assert one.stop() == EXIT_OK, one.log_tail()
        with stomp.connect(two, headers=login) as client:
            client.send("news", "1", persistent="true", destination_type="MULTICAST")
            client.subscribe("news", subscription_type="MULTICAST", durable_subscription_name="daily")
            assert client.message().body == "1"


def test_a_subscription_that_the_other_node_refuses_is_named(tmp_path: Path) -> None:
    """Breaks when a drain waits for it, and says that it goes on."""
    with Nodes(tmp_path, 2) as nodes:
        one, two = nodes.all
        with stomp.connect(two) as client:
            client.send("reports.daily", "a queue of that name, and of another kind", persistent="true")
        with stomp.connect(one, headers={"client-id": "reports"}) as client:
            client.subscribe("news", subscription_type="MULTICAST", durable_subscription_name="daily")
        code, found = drain(one, "--watch", "--timeout", "5")
        assert (code, found["state"]) == (EXIT_UNDRAINED, "waiting"), found
        assert "reports.daily" in found["reason"], found


@pytest.mark.parametrize("kind", DATABASES)
def test_a_live_on_a_database_is_killed_on_the_way_and_hands_over_the_rest_when_it_stops(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Its right to the store is proven until the last message went, and the next life finds nothing in it."""
    url, login = f"jdbc:sqlite:{tmp_path}/store.db", ""
    if kind != "sqlite":
        server: Server = request.getfixturevalue("postgresql")
        url, login = server.jdbc(server.create("scaled_down")), "<jdbc-user>pollux</jdbc-user>"
    count = 2000
    with Nodes(tmp_path, 2) as nodes:
        one, two = nodes.all
        one.close()
        scale_down(one)
        store = DATABASE.format(url=url, login=login)
        text = one.configuration.read_text()
        one.configuration.write_text(text.replace("<ha-policy>", f"{store}<ha-policy>", 1))
        one.start()
        nodes.wait_until_linked()
        options: Any = {
            "connecting": {"clean_start": True, "properties": mqtt.connect_properties(SessionExpiryInterval=3600)}
        }
        with mqtt.connect(one, "away", **options) as client:
            client.subscribe("news/+", qos=2)
        with mqtt.connect(one) as client:
            client.publish("news/today", "1", qos=2)
        backlog(one, count)
        with stomp.connect(one) as sender:
            sender.send("big", "x" * 400_000, persistent="true")
        assert drain(one)[0] == EXIT_OK
        wait_until(lambda: moved(one) > 100, "messages are handed over")
        one.kill()
        one.start()  # it goes on by itself
        assert one.stop() == EXIT_OK, one.log_tail()
        assert sorted(map(int, bodies(two, "orders", count + 1))) == list(range(count + 1))
        assert bodies(two, "big", 1) == ["x" * 400_000]
        options["connecting"]["clean_start"] = False
        with mqtt.connect(two, "away", **options) as client:
            assert client.connack[0].session_present
            assert client.message().payload == b"1"
            client.silence()
        one.start()
        assert drain(one, "--status")[1]["state"] == "off"
        assert one.messages() == {}
        for node in nodes.all:
            assert "Traceback" not in node.log.read_text(), node.log_tail(20_000)


@pytest.mark.parametrize("policy", ["", "<ha-policy><shared-store><primary/></shared-store></ha-policy>"])
def test_a_drain_that_was_begun_is_finished_by_a_stop_and_one_that_was_cancelled_is_not(
    policy: str, tmp_path: Path
) -> None:
    """Whatever broker.xml says of stops: what nobody asked to go stays."""
    with Nodes(tmp_path, 2) as nodes:
        one, two = nodes.all
        one.close()
        text = one.configuration.read_text()
        one.configuration.write_text(text.replace("<cluster-connections>", f"{policy}<cluster-connections>", 1))
        one.start()
        nodes.wait_until_linked()
        options: Any = {
            "connecting": {"clean_start": True, "properties": mqtt.connect_properties(SessionExpiryInterval=3600)}
        }
        with mqtt.connect(one, "away", **options) as client:
            client.subscribe("news", qos=1)
        with mqtt.connect(one) as client:
            client.publish("news", "1", qos=1)
        assert drain(one)[0] == EXIT_OK
        assert drain(one, "--watch", "--timeout", "60")[1]["state"] == "ready"
        assert drain(one, "--cancel")[0] == EXIT_OK
        assert one.stop() == EXIT_OK, one.log_tail()
        one.start()
        nodes.wait_until_linked()
        assert (one.messages(), two.messages()) == ({"away.news": 1}, {})
        assert drain(one)[0] == EXIT_OK
        assert one.stop() == EXIT_OK, one.log_tail()
        assert two.messages() == {"away.news": 1}
        one.start()
        assert one.messages() == {}


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


def backlog(node: Member | ClusterNode, count: int) -> None:
    with stomp.connect(node) as sender:
        for number in range(count):
            sender.raw.send("orders", str(number), headers={"persistent": "true"})
        sender.send("orders", str(count), persistent="true")


#: An empty database beside the brokers.
DATABASE = """<store><database-store><jdbc-connection-url>{url}</jdbc-connection-url>{login}
  <message-table-name>MESSAGES</message-table-name><bindings-table-name>BINDINGS</bindings-table-name>
  <large-message-table-name>LARGE_MESSAGES</large-message-table-name>
  <page-store-table-name>PAGE_STORE</page-store-table-name></database-store></store>"""


@pytest.mark.parametrize("place", ["files", "a database"])
def test_a_backup_hands_over_instead_of_serving_and_its_live_comes_back_empty(place: str, tmp_path: Path) -> None:
    port = free_port()
    third = ClusterNode(tmp_path / "third", [port, free_port()], 0)
    core = (
        f'<connectors><connector name="me">tcp://127.0.0.1:{free_port()}</connector>'
        f'<connector name="third">tcp://127.0.0.1:{port}</connector></connectors><cluster-user>nodes</cluster-user>'
        f"<cluster-password>{PASSWORD}</cluster-password><cluster-connections><cluster-connection name='c'>"
        "<connector-ref>me</connector-ref><retry-interval>50</retry-interval>"
        "<static-connectors><connector-ref>third</connector-ref></static-connectors></cluster-connection>"
        "</cluster-connections>"
    )
    core += DATABASE.format(url=f"jdbc:sqlite:{tmp_path}/store.db", login="") if place != "files" else ""
    backup_role = "<backup><scale-down/><restart-backup>true</restart-backup></backup>"
    with Group(tmp_path, "<primary/>", backup_role, core=core, settings=SETTINGS) as group:
        primary, backup = group.members
        primary.start()
        primary.wait_for("live")
        backup.spawn()
        backup.wait_for("ready")
        backlog(primary, 2000)
        primary.kill()
        # Nobody is there to take anything: it holds the store for a while, gives up, and loses nothing.
        assert backup.wait_until_ended() == EXIT_UNDRAINED
        third.start()
        try:
            backup.spawn()
            wait_until(lambda: third.messages().get("orders") == 2001, "everything is handed over")
            wait_until(lambda: "scale-down instead of serving: done" in backup.text(), "it has ended")
            primary.start()
            primary.wait_for("live")
            backup.wait_for("ready")  # it waits again
            with stomp.connect(primary) as client:
                client.subscribe("orders")
                client.silence()
            assert sorted(map(int, bodies(third, "orders", 2001))) == list(range(2001))
            for node in (backup, third):
                assert "Traceback" not in node.log.read_text(), node.log_tail(20_000)
        finally:
            third.close()


def test_a_drained_live_hands_over_the_rest_when_nobody_copies_it(tmp_path: Path) -> None:
    """As scale_in.yml stops a pair. While a backup follows, that one would serve: the stop leaves everything to it."""
    port = free_port()
    third = ClusterNode(tmp_path / "third", [port, free_port()], 0)
    third.configuration.write_text(
        third.configuration.read_text().replace("<cluster-user>nodes<", "<cluster-user>twins<")
    )
    expiry: Any = {
        "connecting": {"clean_start": True, "properties": mqtt.connect_properties(SessionExpiryInterval=3600)}
    }
    with Pair(tmp_path, file_manager(tmp_path / "locks"), PRIMARY, BACKUP) as pair:
        for member in pair.replicas:
            text = member.configuration.read_text()
            named = f'<connectors><connector name="third">tcp://127.0.0.1:{port}</connector><connector '
            text = text.replace("<connectors><connector ", named, 1)
            text = text.replace("</static-connectors>", "<connector-ref>third</connector-ref></static-connectors>", 1)
            member.configuration.write_text(text)
        live, backup = pair.start()
        third.start()
        try:
            with mqtt.connect(live, "away", **expiry) as client:
                client.subscribe("news", qos=1)
            with mqtt.connect(live) as client:
                client.publish("news", "1", qos=1)
            wait_until(lambda: drain(live)[0] == EXIT_OK, "the drain is begun")
            assert live.stop() == EXIT_OK, live.log_tail()
            backup.wait_for("live")
            assert (held(backup), third.messages()) == ([("away.news", 1)], {}), "it is the node's, as before"
            assert backup.stop() == EXIT_OK, backup.log_tail()
            assert third.messages() == {"away.news": 1}
            backup.start()
            backup.wait_for("live")
            assert held(backup) == []
        finally:
            third.close()


def test_a_replicated_backup_hands_over_what_it_copied(tmp_path: Path) -> None:
    port = free_port()
    third = ClusterNode(tmp_path / "third", [port, free_port()], 0)
    text = third.configuration.read_text().replace("<cluster-user>nodes<", "<cluster-user>twins<")
    third.configuration.write_text(text)
    names = "<connectors><connector-ref>third</connector-ref></connectors>"
    backup_role = f"<backup>{{manager}}{{own}}<scale-down>{names}</scale-down></backup>"
    with Pair(tmp_path, file_manager(tmp_path / "locks"), PRIMARY, backup_role) as pair:
        for member in pair.replicas:
            more = f'<connectors><connector name="third">tcp://127.0.0.1:{port}</connector><connector '
            text = member.configuration.read_text().replace("<connectors><connector ", more, 1)
            member.configuration.write_text(text)
        primary, backup = pair.start()
        third.start()
        try:
            backlog(primary, 2000)
            primary.kill()
            assert backup.wait_until_ended() == EXIT_OK, backup.log_tail()
            assert sorted(map(int, bodies(third, "orders", 2001))) == list(range(2001))
            for node in (backup, third):
                assert "Traceback" not in node.log.read_text(), node.log_tail(20_000)
        finally:
            third.close()
