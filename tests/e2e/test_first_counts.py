"""persist-delivery-count-before-delivery in a real broker: what a kill -9 interrupts was counted."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest
from proton import Message

from harness import amqp, mqtt, stomp
from harness.broker import PASSWORD, USER, BrokerProcess
from pollux.client import connect

if TYPE_CHECKING:
    from pathlib import Path

COUNTED = "<persist-delivery-count-before-delivery>true</persist-delivery-count-before-delivery>"


async def deliveries(broker: BrokerProcess, crashes: int) -> list[int]:
    """Take a message, and have the broker killed before it is acknowledged; how often it was delivered each time."""
    counts = []
    url = f"tcp://127.0.0.1:{broker.port}?reconnectAttempts=-1"
    async with await connect(url, user=USER, password=PASSWORD) as client:
        session = await client.session()
        await (await session.producer("work")).send("job")
        consumer = await session.consumer("work")
        for crash in range(crashes + 1):
            delivery = await consumer.receive(timeout=60)
            assert delivery is not None
            counts.append(delivery.delivery_count)
            if crash < crashes:
                broker.kill()
                await asyncio.to_thread(broker.start)
    return counts


@pytest.mark.parametrize(("core", "counts"), [(COUNTED, [0, 1, 2]), ("", [0, 1, 1])], ids=["counted", "redelivered"])
def test_a_delivery_that_a_crash_interrupts_counts(tmp_path: Path, core: str, counts: list[int]) -> None:
    broker = BrokerProcess(tmp_path, core=core)
    try:
        broker.start()
        assert asyncio.run(deliveries(broker, 2)) == counts
    finally:
        broker.close()


def test_clients_of_every_protocol_get_what_is_counted_first(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, core=COUNTED)
    try:
        broker.start()
        with stomp.connect(broker) as client:
            client.subscribe("work")
            for number in range(100):
                client.send("work", f"{number}")
            assert [client.message().body for _ in range(100)] == [f"{number}" for number in range(100)]
        with amqp.connect(broker) as connection:
            sender = connection.create_sender("work")
            for number in range(100):
                sender.send(Message(number, durable=True))
            receiver = connection.create_receiver("work", credit=100)
            for number in range(100):
                assert receiver.receive(timeout=30).body == number
                receiver.accept()
            bodies = [bytes([number]) * 3_000_000 for number in range(5)]
            for body in bodies:
                sender.send(Message(body, durable=True))
            for body in bodies:  # each is more than a connection's buffers hold
                assert bytes(receiver.receive(timeout=30).body) == body
                receiver.accept()
        with mqtt.connect(broker, "first") as listener, mqtt.connect(broker, "second") as publisher:
            listener.subscribe("work/mqtt", qos=2)
            for number in range(100):
                publisher.publish("work/mqtt", f"{number}", 1)
            assert [listener.message().payload for _ in range(100)] == [f"{number}".encode() for number in range(100)]
        assert "Traceback" not in broker.log.read_text()
    finally:
        broker.close()
