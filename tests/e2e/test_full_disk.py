"""A disk that fills up under a running broker: producers stop, consumers go on, and all goes on when there is room.

The disk is a small tmpfs of the test's own (harness.disk). What was confirmed before, during and after is reconciled
in a ledger, across a kill -9 in the end.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest
from proton import Delivery, Message

from harness import amqp, mqtt, stomp
from harness.broker import BrokerProcess
from harness.clients import Clients
from harness.disk import SmallDisk
from harness.traffic import SETTINGS, StompConsumer, StompProducer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SIZE = 96 << 20
PATIENCE = 100.0
FAIL = '<address-setting match="strict.#"><disk-full-policy>FAIL</disk-full-policy></address-setting>'
CORE = """
<journal-file-size>2M</journal-file-size><journal-min-files>2</journal-min-files>
<disk-scan-period>100</disk-scan-period><max-disk-usage>{limit}</max-disk-usage>
"""
#: There from the start: making an address has to be written too, and an MQTT refusal waits for what was before it.
STRICT = """
<address name="strict.amqp"><anycast><queue name="strict.amqp"/></anycast></address>
<address name="strict.stomp"><anycast><queue name="strict.stomp"/></anycast></address>
<address name="strict.mqtt"><multicast/></address>
"""
REFUSED, ROOM = "new messages are refused", "there is room on the disk again"


def until(condition: Callable[[], bool], what: str, broker: BrokerProcess) -> None:
    """Wait for a condition."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert broker.running, broker.log_tail()
        assert time.monotonic() < deadline, f"{what}\n{broker.log_tail()}"
        time.sleep(0.05)


class Traffic(Clients):
    """Producers and consumers of all three protocols on queues of their own, and one queue that nobody reads yet."""

    def __init__(self, broker: BrokerProcess, directory: Path) -> None:
        super().__init__(broker, directory, "full")
        self.producers.append(StompProducer("stock", self.target, "stock", self.ledger, 4))
        for worker in self.workers:
            worker.start()

    def progress(self, count: int = 100) -> None:
        """Wait until every producer had so many more confirmed."""
        goals = {producer.name: self.confirmed(producer.name) + count for producer in self.producers}
        until(
            lambda: all(self.confirmed(name) >= goal for name, goal in goals.items()),
            f"producers do not get on: {goals}",
            self.broker,
        )

    def stand_still(self) -> None:
        """Wait until nothing is confirmed any more; what was on its way when the disk became full may still be."""
        seen = [-1]

        def same() -> bool:
            seen.append(sum(self.confirmed(producer.name) for producer in self.producers))
            time.sleep(0.5)
            return len(seen) > 4 and len(set(seen[-4:])) == 1

        until(same, "producers go on", self.broker)

    def drain_stock(self) -> None:
        """Consume what nobody has read so far, to the last message."""
        self.consumers.append(StompConsumer("stock-consumer", self.target, "stock", self.ledger))
        self.consumers[-1].start()
        until(lambda: "stock" not in self.left(), "consumers do not get on", self.broker)

    def finish(self) -> None:
        """Stop the producers, kill and restart the broker, drain everything, and reconcile."""
        for producer in self.producers:
            producer.stop()
        self.fault("kill -9")
        self.broker.kill()
        self.broker.start()
        until(lambda: not self.left(), "not drained", self.broker)
        self.reconcile()


@contextmanager
def running(directory: Path, limit: int) -> Iterator[tuple[BrokerProcess, SmallDisk, Traffic]]:
    """A broker on a small disk, with traffic."""
    broker = BrokerProcess(directory, address_settings=SETTINGS + FAIL, addresses=STRICT, core=CORE.format(limit=limit))
    with SmallDisk(directory / "data", SIZE) as disk:
        broker.program[:0] = disk.enter(directory)
        broker.start()
        traffic = Traffic(broker, directory)
        try:
            traffic.progress()
            yield broker, disk, traffic
            assert broker.running, broker.log_tail()
        finally:
            traffic.abandon()
            disk.free()  # a broker that was stopped before it could write waits for room
            broker.close()
    broker.check_log()


def says(broker: BrokerProcess, text: str) -> int:
    """How often the log has a text."""
    return broker.log.read_text(errors="replace").count(text)


def full(broker: BrokerProcess) -> bool:
    """Whether it says that it takes no new messages."""
    return bool(broker.api("/api/v1/status")["store"]["full"])


def fill_up(broker: BrokerProcess, disk: SmallDisk) -> None:
    """Take what consumers freed, until the broker has noticed."""

    def filled() -> bool:
        disk.fill()
        return full(broker)

    until(filled, "the full disk was not noticed", broker)


def stock_up(broker: BrokerProcess, queue: str, count: int) -> None:
    """Put durable messages into a queue."""
    with stomp.connect(broker) as client:
        for number in range(count):
            client.send(queue, str(number), persistent="true")


def acknowledge(broker: BrokerProcess, queue: str, count: int) -> list[str]:
    """Acknowledge so many messages of a queue, with receipts; hold all others. The acknowledged bodies."""
    with stomp.connect(broker) as client:
        client.subscribe(queue, ack="client-individual")
        bodies = []
        for _ in range(count):
            message = client.message(PATIENCE)
            with client.receipt() as receipt:
                client.acknowledge(message, receipt=receipt)
            bodies.append(message.body)
    return bodies


def rest(broker: BrokerProcess, queue: str, count: int) -> list[str]:
    """The bodies of all messages of a queue, which are so many."""
    with stomp.connect(broker) as client:
        client.subscribe(queue)
        bodies = [client.message(PATIENCE).body for _ in range(count)]
        client.silence()
    return bodies


def each_protocol_refuses(broker: BrokerProcess, why: str) -> None:
    """Where the policy is FAIL, every producer is told, in its protocol's words, and why; nobody hangs."""
    with amqp.connect(broker) as connection:
        sender = connection.create_sender("strict.amqp")
        delivery = sender.link.send(Message(body="x", durable=True))
        connection.wait(lambda: delivery.remote_state, timeout=PATIENCE)
        assert delivery.remote_state == Delivery.REJECTED
        assert delivery.remote.condition.name == "amqp:resource-limit-exceeded"
        assert delivery.remote.condition.description.startswith("the disk is full")
        assert f"({why})" in delivery.remote.condition.description
    with stomp.connect(broker) as client:
        client.raw.send("strict.stomp", "x", persistent="true", receipt="r")
        assert "disk is full" in client.frames.errors.get(timeout=PATIENCE).headers["message"]
        client.wait_until_closed()
    with mqtt.connect(broker, "strict") as publisher:
        assert publisher.publish("strict/mqtt", b"x").getName() == "Quota exceeded"


@pytest.mark.timeout(400)
def test_a_full_disk_stops_producers_and_nobody_else(tmp_path: Path) -> None:
    with running(tmp_path, -1) as (broker, disk, traffic):
        stock_up(broker, "half", 40)
        disk.fill()
        until(lambda: says(broker, REFUSED) > 0, "the full disk was not noticed", broker)
        traffic.stand_still()
        fill_up(broker, disk)
        each_protocol_refuses(broker, "a write found no room")
        assert traffic.left().get("stock")
        traffic.drain_stock()
        fill_up(broker, disk)
        acknowledged = acknowledge(broker, "half", 20)
        traffic.fault("kill -9 on the full disk")
        broker.kill()
        disk.free()
        broker.start()
        left = rest(broker, "half", 20)
        assert sorted((*acknowledged, *left), key=int) == [str(number) for number in range(40)]
        traffic.progress()
        fill_up(broker, disk)
        disk.free()
        until(lambda: not full(broker), "the room was not noticed", broker)
        traffic.progress()
        traffic.finish()


@pytest.mark.timeout(400)
def test_max_disk_usage_stops_producers_before_the_disk_is_full(tmp_path: Path) -> None:
    with running(tmp_path, 60) as (broker, disk, traffic):
        disk.fill(0.65)
        until(lambda: says(broker, "max-disk-usage is 60") > 0, "the limit was not noticed", broker)
        traffic.stand_still()
        assert disk.used < 0.9
        each_protocol_refuses(broker, "max-disk-usage")
        traffic.drain_stock()
        disk.free()
        until(lambda: says(broker, ROOM) > 0, "the room was not noticed", broker)
        traffic.progress()
        traffic.finish()
