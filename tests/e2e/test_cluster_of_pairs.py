"""Two pairs that share a store each, in one cluster: produced on one, consumed on the other, each live is killed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from harness import stomp
from harness.broker import PASSWORD, USER, BrokerProcess
from harness.cluster import SETTINGS, Pairs, elements
from harness.failover import Group, Member, roaming, wait_until
from harness.loadclient.target import Target
from harness.replication import PEER, Pair, file_manager
from harness.traffic import (
    AmqpConsumer,
    AmqpProducer,
    Consumer,
    Ledger,
    Producer,
    StompConsumer,
    StompProducer,
    now,
)
from pollux.cluster.connection.homes import home_of
from pollux.formats.ledger import Confirmed, Fault, check

if TYPE_CHECKING:
    from pathlib import Path

    from harness.traffic import Worker

pytestmark = pytest.mark.timeout(600)


def worker(kind: Any, name: str, group: Group, place: str, ledger: Ledger, *more: object) -> Any:
    """A client of a pair: it goes on with the other member when one is gone."""
    targets = [Target("127.0.0.1", member.port, USER, PASSWORD) for member in group.members]
    made = roaming(kind)(name, targets[0], place, ledger, *more)
    made.targets = targets
    return made


def live(group: Group) -> Member:
    found = group.live()
    assert found is not None
    return found


def cluster(group: Group) -> Any:
    return live(group).api("/api/v1/cluster")


def waiting(group: Group) -> dict[str, int]:
    member = group.live()
    found: list[dict[str, Any]] = [{"name": "nobody serves", "messages": 1}] if member is None else member.queues()
    return {queue["name"]: queue["messages"] for queue in found if queue["messages"]}


def test_a_failover_of_either_pair_loses_and_doubles_nothing(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "ledger")
    with Pairs(tmp_path) as pairs:
        source, sink = pairs.all
        consumers: list[Consumer] = [
            worker(AmqpConsumer, "amqp-consumer", sink, "load.amqp", ledger),
            worker(StompConsumer, "stomp-consumer", sink, "load.stomp", ledger),
        ]
        for each in consumers:
            each.start()
        wait_until(
            lambda: sum(bool(route["consumers"]) for route in cluster(source)["routes"]) == 2, "consumers are known"
        )
        producers: list[Producer] = [
            worker(AmqpProducer, "amqp", source, "load.amqp", ledger, 1),
            worker(StompProducer, "stomp", source, "load.stomp", ledger, 2),
        ]
        for producer in producers:
            producer.start()

        def confirmed() -> int:
            return sum(type(entry) is Confirmed for entry in list(ledger.entries))

        for group in (source, sink, source):
            before = confirmed()
            wait_until(lambda before=before: confirmed() > before + 100, "traffic flows")  # type: ignore[misc]
            victim = live(group)
            ledger.add(Fault(now(), f"kill -9: {victim.name}"))
            victim.kill()
            successor = group.wait_for_live(but=victim)
            assert successor.name != victim.name
            victim.spawn()
            victim.wait_for("ready")
        for producer in producers:
            producer.stop()

        def drained() -> bool:
            quiet = min(time.monotonic() - consumer.last_activity for consumer in consumers)
            return quiet > 1.0 and not any(waiting(group) for group in pairs.all)

        wait_until(drained, "every queue of either pair is drained")
        (link,) = [one for one in cluster(source)["links"] if one["connected"]]
        assert link["node"] == live(sink).name
        workers: list[Worker] = [*consumers, *producers]
        for one in workers:
            one.stop()
        ledger.close()
        assert not [error for one in workers for error in one.errors]
        verdict = check(ledger.entries)
        assert verdict.confirmed
        assert verdict.lost == (), f"{verdict}: {verdict.lost[:10]}"
        assert verdict.phantom == (), str(verdict)
        assert verdict.duplicated == (), f"{verdict}: {verdict.duplicated[:10]}"
        for group in pairs.all:
            for member in group.members:
                assert "Traceback" not in member.text(), member.log_tail(20_000)


def test_who_takes_over_a_pair_that_is_home_of_duplicate_ids_knows_them(tmp_path: Path) -> None:
    own = '<px:cluster xmlns:px="urn:pollux:1"><px:duplicate-ids>orders</px:duplicate-ids></px:cluster>'
    with Pairs(tmp_path, own=own) as pairs:
        by_id = {bytes.fromhex(cluster(group)["nodeId"]): group for group in pairs.all}
        home = by_id[home_of(by_id, "orders")]
        other = next(group for group in pairs.all if group is not home)

        def linked(one: Group, to: Group) -> bool:
            return live(to).name in [link["node"] for link in cluster(one)["links"] if link["connected"]]

        def wait_until_linked() -> None:
            wait_until(lambda: linked(home, other) and linked(other, home), "both directions are linked")

        def send(group: Group, *ids: str) -> None:
            with stomp.connect(live(group)) as sender:
                for one in ids:
                    sender.send("orders", one, _AMQ_DUPL_ID=one, persistent="true")

        def settled() -> int:
            for group in pairs.all:
                wait_until(lambda group=group: not any(link["waiting"] for link in cluster(group)["links"]), "arrived")  # type: ignore[misc]
            return sum(waiting(group).get("orders", 0) for group in pairs.all)

        wait_until_linked()
        send(other, "1", "2")
        send(home, "2", "3")
        assert settled() == 3
        victim = live(home)
        victim.kill()
        assert home.wait_for_live(but=victim).name != victim.name
        wait_until_linked()
        send(home, "1")
        send(other, "2", "3", "4", "4")
        send(home, "4")
        assert settled() == 4
        assert [cluster(group)["duplicateIds"] for group in pairs.all] == [{"homesAway": {}}] * 2


def test_a_replicated_pair_is_a_node_and_goes_on_after_its_failover(tmp_path: Path) -> None:
    """The pair names nobody but each other: it hears of the third broker from its link, and links back to it."""
    with Pair(tmp_path, file_manager(tmp_path / "locks"), PEER, PEER, settings=SETTINGS) as pair:
        first, second = pair.start()
        third = BrokerProcess(
            tmp_path / "third",
            address_settings=SETTINGS,
            addresses="",
            core=elements([first.port, second.port, 0], 2, user="twins"),
        )
        text = third.configuration.read_text().replace(":0</connector>", f":{third.port}</connector>")
        third.configuration.write_text(text.replace("<name>test</name>", "<name>third</name>"))
        third.start()

        def linked(one: BrokerProcess) -> list[str]:
            return [link["node"] for link in one.api("/api/v1/cluster")["links"] if link["connected"]]

        def known(at: BrokerProcess, node: str, queue: str) -> bool:
            routes = at.api("/api/v1/cluster")["routes"]
            return any(
                one["node"] == node and one["queue"] == queue and one["consumers"] and one["connected"]
                for one in routes
            )

        try:
            wait_until(lambda: linked(third) == ["m0"] and linked(first) == ["third"], "both directions are linked")
            with stomp.connect(third) as receiver:
                receiver.subscribe("there")
                wait_until(lambda: known(first, "third", "there"), "the pair knows of the consumer")
                with stomp.connect(first) as sender:
                    sender.send("there", "before", persistent="true")
                assert receiver.message().body == "before"
                first.kill()
                second.wait_for("live")
                wait_until(lambda: linked(third) == ["m1"] and linked(second) == ["third"], "the other one is linked")
                wait_until(lambda: known(second, "third", "there"), "it knows of the consumer")
                with stomp.connect(second) as both:
                    both.send("there", "after", persistent="true")
                    assert receiver.message().body == "after"
                    both.subscribe("here")
                    wait_until(lambda: known(third, "m1", "here"), "the third one knows of the pair's consumer")
                    receiver.send("here", "back", persistent="true")
                    assert both.message().body == "back"
                    receiver.silence()
            assert not [one for one in (second, third) if "Traceback" in one.log.read_text()]
        finally:
            third.kill()
