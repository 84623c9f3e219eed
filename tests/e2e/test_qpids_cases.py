"""Cases of Qpid's own suite on one cluster: everything is prepared on the first primary, which is then killed.

Each test is named in its docstring after the original. What needs more than one failover, a pause or another cluster is
in test_active_passive.py; what needs no process at all in tests/broker/ha.
"""

from __future__ import annotations

import asyncio
import socket
import urllib.error
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from proton import Message, ProtonException

from harness import amqp, stomp
from harness.broker import PASSWORD, USER
from harness.failover import wait_until
from harness.passive import Cluster
from pollux.cli import qpid_ha
from pollux.client import Message as OurMessage
from pollux.client import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.passive import Broker

pytestmark = pytest.mark.timeout(300)

#: Three of the message's own for each queue that is replicated as a whole, or not.
TEXTS = ["one", "two", "three"]


class After(NamedTuple):
    """The cluster after the failover. ``before``: the queues that the killed primary had, with their messages."""

    primary: Broker
    before: dict[str, int]
    refused: str
    killed: str
    turned_away: list[bytes]
    sent_away: list[str]
    #: Of the promotion.
    report: dict[str, Any]


@pytest.fixture(scope="module")
def after(tmp_path_factory: pytest.TempPathFactory) -> Iterator[After]:
    with ExitStack() as stack:
        cluster = stack.enter_context(Cluster(tmp_path_factory.mktemp("cases"), 2))
        for broker in cluster.brokers:
            text = broker.configuration.read_text()
            attempts = "<max-delivery-attempts>"
            broker.configuration.write_text(
                text.replace(attempts, f"<dead-letter-address>DLA</dead-letter-address>{attempts}")
            )
        first, second = cluster.start()
        levels(first)
        refused = bad_level(first)
        joining_late(first, second)
        deleted_by_themselves(first)
        expiring(first)
        rejected(first)
        transactions(first, stack)
        turned_away = [said_to_client(second, head) for head in (MQTT_5, MQTT_311, STOMP)]
        sent_away = [told_by_amqp(second, password) for password in (PASSWORD, "guessed")]
        sent_away.append(asyncio.run(went_to(second)))
        before = {one["name"]: one["messages"] for one in first.queues()}
        first.kill()
        # The connection on which it is asked ends when the waiting port does: it is asked again.
        assert qpid_ha.run(["promote", *where(second), "--cluster-manager", "--timeout", "60"]) == 0
        second.wait_for_status("active")
        # Asked for again it says the same.
        yield After(second, before, refused, first.address, turned_away, sent_away, second.promote())


def where(broker: Broker) -> list[str]:
    """The options of Qpid's tool that name a broker."""
    return ["-b", broker.address, "--config", str(broker.configuration)]


def create(broker: Broker, name: str, **more: object) -> None:
    queue = {"name": name, "address": name, "routingType": "ANYCAST", "durable": True, **more}
    broker.api("/api/v1/queues", method="POST", body=queue)


def send(broker: Broker, address: str, texts: list[str] = TEXTS, **more: Any) -> None:
    with amqp.connect(broker) as connection:
        sender = connection.create_sender(address)
        for text in texts:
            sender.send(Message(text, durable=True, **more))


def counts(broker: Broker) -> dict[str, int]:
    return {one["name"]: one["messages"] for one in broker.queues()}


def bodies(broker: Broker, queue: str) -> list[str]:
    with amqp.connect(broker) as connection:
        found = amqp.drain(connection.create_receiver(queue, credit=100))
        return [body if isinstance(body, str) else bytes(body).decode() for body in amqp.bodies(found)]


# -- what is prepared

#: How clients begin.
MQTT_5 = b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x02id"
MQTT_311 = b"\x10\x0e\x00\x04MQTT\x04\x02\x00\x3c\x00\x02id"
STOMP = b"CONNECT\naccept-version:1.2\nhost:a\n\n\0"


def said_to_client(broker: Broker, head: bytes) -> bytes:
    """Read all that a client hears that begins like this, until it is dropped."""
    with socket.create_connection(("127.0.0.1", broker.port), 30) as client:
        client.sendall(head)
        return b"".join(iter(lambda: client.recv(4096), b""))


def told_by_amqp(broker: Broker, password: str) -> str:
    """Return what a client of AMQP is told that logs in."""
    try:
        with amqp.connect(broker, password=password):
            return "let in"
    except ProtonException as error:
        return str(error)


async def went_to(broker: Broker) -> str:
    """Where our own client is served that goes to this broker first."""
    async with await connect(f"tcp://127.0.0.1:{broker.port}", user=USER, password=PASSWORD) as client:
        session = await client.session()
        producer = await session.producer("sent.away")
        await producer.send(OurMessage(b"by the primary"))
        return str(client.endpoint)


def levels(broker: Broker) -> None:
    for level in ("none", "configuration", "all"):
        create(broker, f"level.{level}", replicate=level)
        send(broker, f"level.{level}")
        create(broker, f"news.{level}", address="news", routingType="MULTICAST", replicate=level)
    broker.command("queue", "create", "tool", "--replicate", "none", "--config", str(broker.configuration))
    create(broker, "default")
    send(broker, "default")


def bad_level(broker: Broker) -> str:
    try:
        create(broker, "bad", replicate="some")
    except urllib.error.HTTPError as error:
        return error.read().decode()
    return ""


def joining_late(primary: Broker, backup: Broker) -> None:
    """The backup is away, with queues that are deleted meanwhile, or begun anew, and joins while messages come."""
    for name in ("surplus", "again", "sync"):
        create(primary, name)
    send(primary, "surplus")
    send(primary, "again", ["old"])
    send(primary, "sync", [f"early {number}" for number in range(10)])
    backup.stop()
    for name in ("surplus", "again"):
        primary.api(f"/api/v1/queues/{name}", method="DELETE")
    create(primary, "again")
    send(primary, "again", ["new"])
    send(primary, "sync", [f"meanwhile {number}" for number in range(10)])
    backup.spawn()
    send(primary, "sync", [f"late {number}" for number in range(10)])
    backup.wait_for_status("ready")


def deleted_by_themselves(broker: Broker) -> None:
    create(broker, "auto.used", autoDelete=True)
    create(broker, "auto.unused", autoDelete=True)
    with amqp.connect(broker) as connection:
        connection.create_receiver("auto.used")
    wait_until(lambda: "auto.used" not in counts(broker), "a queue that was used is gone")


def expiring(broker: Broker) -> None:
    create(broker, "expiring")
    send(broker, "expiring", [f"short {number}" for number in range(20)], ttl=0.001)
    send(broker, "expiring")


def rejected(broker: Broker) -> None:
    create(broker, "rejected")
    create(broker, "DLA")
    send(broker, "rejected", ["poison", "good"])
    with amqp.connect(broker) as connection:
        receiver = connection.create_receiver("rejected", credit=1)
        assert receiver.receive(timeout=30).body == "poison"
        receiver.reject()
    wait_until(lambda: counts(broker).get("DLA"), "the rejected one is with the dead letters")


def transactions(broker: Broker, stack: ExitStack) -> None:
    """One that is committed, one that is aborted, and one that is open when the primary dies."""
    for name in ("tx.to", "tx.back", "tx.open"):
        create(broker, name)
    client = stack.enter_context(stomp.connect(broker))
    client.raw.begin("done")
    for text in TEXTS:
        client.raw.send("tx.to", text, headers={"persistent": "true", "transaction": "done"})
    with client.receipt() as receipt:
        client.raw.commit("done", headers={"receipt": receipt})
    client.raw.begin("undone")
    client.raw.send("tx.back", "never", headers={"persistent": "true", "transaction": "undone"})
    with client.receipt() as receipt:
        client.raw.abort("undone", headers={"receipt": receipt})
    client.raw.begin("open")
    client.send("tx.open", "never", persistent="true", transaction="open")


# -- what is found


def test_only_what_is_replicated_is_there(after: After) -> None:
    """By the queue's own level, else by the cluster's (test_replicate_default, test_qpid_config_replication)."""
    found = counts(after.primary)
    assert after.before["level.none"] == after.before["level.configuration"] == len(TEXTS)
    assert "level.none" not in found
    assert "tool" not in found
    assert (found["level.configuration"], found["level.all"], found["default"]) == (0, 3, 3)


def test_the_promotion_says_what_it_kept_and_dropped(after: After) -> None:
    dropped = {one["queue"]: (one["level"], one["messages"]) for one in after.report["dropped"]}
    assert dropped == {
        "level.configuration": ("configuration", len(TEXTS)),
        "level.none": ("none", len(TEXTS)),
        "news.none": ("none", 0),
        "tool": ("none", 0),
    }
    replicated = {name: count for name, count in after.before.items() if name not in dropped and name != "expiring"}
    assert after.report["kept"]["messages"] >= sum(replicated.values())
    assert after.report["kept"]["queues"] >= len(replicated)


def test_a_binding_of_level_none_is_gone(after: After) -> None:
    """Here a queue's address is its binding (test_replicate_binding)."""
    send(after.primary, "news", ["flash"])
    found = counts(after.primary)
    assert "news.none" not in found
    assert (found["news.configuration"], found["news.all"]) == (1, 1)


def test_a_level_that_is_none_is_refused(after: After) -> None:
    """Qpid's test_invalid_replication."""
    assert "qpid.replicate is 'some': use none, configuration, all" in after.refused
    assert "bad" not in after.before


def test_a_backup_that_joins_in_the_middle_has_everything(after: After) -> None:
    """Qpid's test_sync."""
    wanted = [f"{when} {number}" for when in ("early", "meanwhile", "late") for number in range(10)]
    assert bodies(after.primary, "sync") == wanted


def test_what_changed_while_a_backup_was_away_is_not_as_it_was(after: After) -> None:
    """Surplus queues are removed, and one of the same name is another one.

    test_delete_missing_response, test_missed_recreate, test_catchup_store.
    """
    assert "surplus" not in counts(after.primary)
    assert bodies(after.primary, "again") == ["new"]


def test_a_queue_is_deleted_after_the_failover(after: After) -> None:
    """Nothing is left of it (test_delete_qpid_4285)."""
    create(after.primary, "late")
    send(after.primary, "late")
    for name in ("late", "news.all"):
        after.primary.api(f"/api/v1/queues/{name}", method="DELETE")
    assert not {"late", "news.all"} & counts(after.primary).keys()


def test_queues_that_delete_themselves(after: After) -> None:
    """A used one is gone on both, an unused one waits for its first consumer.

    test_auto_delete_failover, test_auto_delete_close.
    """
    found = counts(after.primary)
    assert "auto.used" not in found
    assert "auto.unused" in found


def test_what_expired_is_not_there_again(after: After) -> None:
    """Qpid's test_expired."""
    assert bodies(after.primary, "expiring") == TEXTS


def test_what_was_rejected_is_where_it_was_put(after: After) -> None:
    """The queue's other place is replicated as the queue is (test_reject, test_alternate_exchange)."""
    assert bodies(after.primary, "rejected") == ["good"]
    assert "poison" in bodies(after.primary, "DLA")


def test_counters_are_right_after_the_failover(after: After) -> None:
    """And fall to zero when everything is consumed (test_resource_limit_bug)."""
    create(after.primary, "counted", ringSize=2)
    send(after.primary, "counted")
    assert counts(after.primary)["counted"] == 2
    assert bodies(after.primary, "counted") == TEXTS[1:]
    assert counts(after.primary)["counted"] == 0


def test_a_backup_sends_clients_to_the_primary(after: After) -> None:
    """In their protocols' words, and drops them (test_failover_python: backup rejects clients)."""
    mqtt_5, mqtt_311, stomp_error = after.turned_away
    assert mqtt_5[3] == 0x9C, "use another server"
    assert after.killed.encode() in mqtt_5
    assert mqtt_311 == b"\x20\x02\x00\x03", "server unavailable"
    assert stomp_error.startswith(b"ERROR\nmessage:this broker waits\n")
    assert f"the primary is {after.killed}".encode() in stomp_error
    told, refused, went_to = after.sent_away
    assert "amqp:connection:redirect" in told
    assert after.killed in told
    assert "redirect" not in refused, "who does not log in is told nothing"
    assert went_to == after.killed
    assert bodies(after.primary, "sent.away") == ["by the primary"]


def test_qpids_command_lines_are_answered_as_its_tool_does(after: After, capsys: pytest.CaptureFixture[str]) -> None:
    """By the address of clients, in Qpid's words, and with distinct codes on request (test_broker_info)."""
    broker = after.primary

    def said(command: str, *words: str) -> tuple[int, str]:
        return qpid_ha.run([command, *where(broker), *words]), capsys.readouterr().out

    assert said("ping") == (0, "")
    assert said("status") == (0, "active\n")
    assert said("status", "--is-primary") == (0, "active\n")
    assert said("status", "--expect=ready") == (1, "active\n")
    code, lines = said("status", "--all")
    assert (code, f"{broker.address} active\n" in lines, "ConnectionError: no answer" in lines) == (0, True, True)
    code, lines = said("query")
    assert (code, lines.splitlines()[0], len(lines.splitlines())) == (0, f"{'Status:':<20} active", 5)
    assert said("promote", "--cluster-manager") == (0, ""), "it is primary"
    code, lines = said("promote", "--cluster-manager", "--fenced", "10.0.0.1:1")
    assert (code, lines.startswith("Refused: 10.0.0.1:1: none of the others in ha-brokers-url")) == (1, True)
    assert qpid_ha.run(["promote", *where(broker), "--pollux-exit-codes"]) == 4
    gone = ["-b", "127.0.0.1:1", "--config", str(broker.configuration), "--pollux-exit-codes"]
    assert qpid_ha.run(["ping", *gone]) == 3
    assert "ConnectionError: 127.0.0.1:1: Connection refused" in capsys.readouterr().out


def test_transactions_are_whole_or_not_there(after: After) -> None:
    """Qpid's test_tx_simple_commit, test_tx_simple_rollback, test_tx_simple_failure."""
    found = counts(after.primary)
    assert (found["tx.to"], found["tx.back"], found["tx.open"]) == (3, 0, 0)
    assert bodies(after.primary, "tx.to") == TEXTS
