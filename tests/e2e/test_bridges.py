"""Bridges between real brokers: from one broker to a pair in another place, through kill -9 of either and failovers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from harness import traffic
from harness.broker import PASSWORD, USER, BrokerProcess
from harness.failover import BACKUP, PRIMARY, Group, wait_until
from harness.loadclient.target import Target

if TYPE_CHECKING:
    from pathlib import Path

SECRET = "<cluster-user>brokers</cluster-user><cluster-password>castor and pollux</cluster-password>"
QUEUES = """<address name="fail.queue"><anycast><queue name="fail.queue"/></anycast></address>
<address name="fail.topic"><multicast><queue name="bridged"/></multicast></address>"""
KINDS: dict[str, tuple[Any, Any, str]] = {
    "amqp": (traffic.AmqpProducer, traffic.AmqpConsumer, "fail.queue"),
    "stomp": (traffic.StompProducer, traffic.StompConsumer, "fail.queue"),
    "mqtt": (traffic.MqttProducer, traffic.MqttConsumer, "fail/topic"),
}


def source_of(directory: Path, group: Group) -> BrokerProcess:
    """A broker with a bridge for a queue and one for a topic, to whichever member of the group serves."""
    connectors = "".join(
        f'<connector name="{member.name}">tcp://127.0.0.1:{member.port}</connector>' for member in group.members
    )
    there = "".join(f"<connector-ref>{member.name}</connector-ref>" for member in group.members)
    bridges = "".join(
        f"<bridge name='{queue}'><queue-name>{queue}</queue-name><retry-interval>50</retry-interval>"
        f"<static-connectors>{there}</static-connectors></bridge>"
        for queue in ("fail.queue", "bridged")
    )
    return BrokerProcess(
        directory,
        address_settings=traffic.SETTINGS,
        addresses=QUEUES,
        core=f"<connectors>{connectors}</connectors>{SECRET}<bridges>{bridges}</bridges>"
        "<journal-file-size>1M</journal-file-size>",
    )


def test_a_bridge_to_a_pair_loses_and_doubles_nothing_whoever_is_killed(tmp_path: Path) -> None:
    # Who comes back waits for the next failover: a failback would be through before anybody saw it "ready".
    backup = BACKUP.format("<allow-failback>false</allow-failback>")
    with Group(tmp_path, PRIMARY.format(""), backup, core=SECRET) as group:
        source = source_of(tmp_path / "source", group)
        try:
            first, second = group.members
            first.start()
            second.spawn()
            second.wait_for("ready")
            source.start()
            group.ledger = traffic.Ledger(tmp_path / "ledger")
            begin(group, source)
            start_producers(group)
            group.fault("kill -9 of the live broker there")
            first.kill()
            second.wait_for("live")
            group.wait_for_confirms(100)
            group.fault("kill -9 of the broker where the bridges begin")
            source.kill()
            source.start()
            group.wait_for_confirms(100)
            first.spawn()
            first.wait_for("ready")
            group.fault("kill -9 of the live broker there, again")
            second.kill()
            first.wait_for("live")
            group.wait_for_confirms(100)
            stop_producers(group)
            wait_until(lambda: not waiting(source), "nothing waits here any more")
            group.finish()
            assert source.command("bridge", "list", "--config", str(source.configuration)).count("fail.queue") >= 1
            assert "Traceback" not in source.log.read_text(), source.log_tail(20_000)
        finally:
            source.close()


FEDERATION = """<connectors><connector name="there">tcp://127.0.0.1:{port}</connector></connectors>{secret}
<federations><federation name="f"><upstream name="up"><retry-interval>50</retry-interval>
<static-connectors><connector-ref>there</connector-ref></static-connectors><policy ref="q"/><policy ref="a"/></upstream>
<queue-policy name="q"><include queue-match="#" address-match="fail.queue"/></queue-policy>
<address-policy name="a"><include address-match="fail.topic"/></address-policy></federation></federations>"""


def test_federation_loses_and_doubles_nothing_whoever_is_killed(tmp_path: Path) -> None:
    there = BrokerProcess(
        tmp_path / "there",
        address_settings=traffic.SETTINGS,
        addresses='<address name="fail.queue"><anycast><queue name="fail.queue"/></anycast></address>',
        core=SECRET,
    )
    with Group(tmp_path, PRIMARY.format(""), core=FEDERATION.format(port=there.port, secret=SECRET)) as group:
        (here,) = group.members
        try:
            there.start()
            here.start()
            group.ledger = traffic.Ledger(tmp_path / "ledger")
            begin(group, there)
            wait_until(lambda: fetched(here) == (1, 1), "both are fetched")
            copies = "federation.f/up.fail.topic."
            wait_until(lambda: any(queue["name"].startswith(copies) for queue in there.queues()), "copies are made")
            start_producers(group)
            for victim, name in ((there, "that is fetched from"), (here, "that fetches")) * 2:
                group.fault(f"kill -9 of the broker {name}")
                victim.kill()
                victim.start()
                group.wait_for_confirms(100)
            stop_producers(group)
            wait_until(lambda: not sum(queue["messages"] for queue in there.queues()), "nothing waits there any more")
            shown = here.command("bridge", "upstreams", "--config", str(here.configuration))
            assert "f/up" in shown
            assert "fail.topic" in there.command("bridge", "fetched", "--config", str(there.configuration))
            assert here.name in there.command("bridge", "fetched", "--json", "--config", str(there.configuration))
            group.finish()
            assert "Traceback" not in there.log.read_text(), there.log_tail(20_000)
        finally:
            there.close()


def test_a_downstream_loses_and_doubles_nothing_whoever_is_killed(tmp_path: Path) -> None:
    with Group(tmp_path, PRIMARY.format(""), core=SECRET) as group:
        (here,) = group.members
        federation = FEDERATION.format(port=here.port, secret=SECRET).replace("upstream", "downstream")
        there = BrokerProcess(
            tmp_path / "there",
            address_settings=traffic.SETTINGS,
            addresses='<address name="fail.queue"><anycast><queue name="fail.queue"/></anycast></address>',
            core=federation,
        )
        try:
            here.start()
            there.start()
            group.ledger = traffic.Ledger(tmp_path / "ledger")
            begin(group, there)
            copies = "federation.f/up.fail.topic."
            wait_until(lambda: any(queue["name"].startswith(copies) for queue in there.queues()), "copies are made")
            start_producers(group)
            for victim, name in ((there, "that asks"), (here, "that fetches")):
                group.fault(f"kill -9 of the broker {name}")
                victim.kill()
                victim.start()
                group.wait_for_confirms(100)
            stop_producers(group)
            wait_until(lambda: not sum(queue["messages"] for queue in there.queues()), "nothing waits there any more")
            assert "f/up" in there.command("bridge", "downstreams", "--config", str(there.configuration))
            group.finish()
            assert "Traceback" not in there.log.read_text(), there.log_tail(20_000)
        finally:
            there.close()


def fetched(here: BrokerProcess) -> tuple[int, int]:
    """How many queues and addresses are fetched."""
    (shown,) = here.api("/api/v1/bridges")["upstreams"]
    return len(shown["queues"]), len(shown["addresses"])


def begin(group: Group, source: BrokerProcess) -> None:
    """Make a consumer of each protocol at the group, which begins at once, and a producer of each at the source."""
    here = Target("127.0.0.1", source.port, USER, PASSWORD)
    for number, (name, (producer, consumer, place)) in enumerate(KINDS.items()):
        eater = group.add_worker(consumer, f"{name}-consumer", place)
        if name == "mqtt":
            eater.open().close()  # the subscription exists from now on
        eater.start()
        group.workers.append(producer(name, here, place, group.ledger, number))


def start_producers(group: Group) -> None:
    for worker in group.workers:
        if isinstance(worker, traffic.Producer):
            worker.start()
    group.wait_for_confirms(100)


def stop_producers(group: Group) -> None:
    for worker in group.workers:
        if isinstance(worker, traffic.Producer):
            worker.stop()


def waiting(source: BrokerProcess) -> int:
    """How many messages of the bridges did not arrive."""
    shown = source.api("/api/v1/bridges")["bridges"]
    return sum(bridge["waiting"] + bridge["onTheWay"] for bridge in shown)


def test_a_bridge_with_another_password_is_told_so(tmp_path: Path) -> None:
    there = BrokerProcess(tmp_path / "there", core=SECRET)
    bridge = (
        f"<connectors><connector name='there'>tcp://127.0.0.1:{there.port}</connector></connectors>"
        "<bridges><bridge name='b'><queue-name>DLA</queue-name><retry-interval>50</retry-interval><user>brokers</user>"
        "<password>another</password><static-connectors><connector-ref>there</connector-ref></static-connectors>"
        "</bridge></bridges>"
    )
    here = BrokerProcess(tmp_path / "here", core=bridge)
    try:
        there.start()
        here.start()
        wait_until(
            lambda: "password is another one" in str(here.api("/api/v1/bridges")["bridges"][0]["reason"]), "refused"
        )
    finally:
        here.close()
        there.close()
