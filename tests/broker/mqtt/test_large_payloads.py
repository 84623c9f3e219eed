"""Large payloads of MQTT clients: both ways, over restarts and reconnects, and whose file is gone or changed."""

from __future__ import annotations

import os

import pytest

from harness.sessions.mqtt import Broker, publish
from pollux.errors import DiskFullError
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.encode import encode
from pollux.wire.mqtt.packets import V5, V311, Ack, Filter, PingReq, PingResp, Publish
from pollux.wire.mqtt.reasons import ReasonCode

from .test_flow import flowing

LARGE = 300_000


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [V311, V5])
async def test_large_payloads(broker: Broker, qos: int, version: int) -> None:
    consumer, producer = broker.client(version), broker.client(version)
    await consumer.connect("consumer")
    await consumer.subscribe(Filter("t/#", 2))
    await producer.connect("producer")
    payload = bytes(range(256)) * (LARGE // 256)
    await producer.publish("t/small", b"before", qos)
    await producer.publish("t/large", payload, qos)
    await producer.publish("t/small", b"after", qos)
    for expected in (b"before", payload, b"after"):
        message = await consumer.message()
        assert message.payload == expected
        assert message.qos == qos
    await broker.settle()
    assert broker.post.queue("consumer.t.#").message_count == 0


async def test_a_large_payload_survives_a_restart_and_keeps_its_properties(broker: Broker) -> None:
    consumer, producer = await flowing(broker, 1, expiry=1000)
    consumer.lose()
    await producer.publish("t/large", bytes(LARGE), 1, content_type="image/png", message_expiry_interval=600)
    await broker.stable()
    await broker.restart()
    consumer = broker.client()
    await consumer.connect("consumer", clean=False, expiry=1000)
    message = await consumer.message()
    assert message.payload == bytes(LARGE)
    assert message.properties == {p.PropertyId.CONTENT_TYPE: "image/png", p.PropertyId.MESSAGE_EXPIRY_INTERVAL: 600}


async def test_a_large_payload_is_sent_again_after_a_reconnect(broker: Broker) -> None:
    consumer, producer = await flowing(broker, 1, expiry=1000)
    await producer.publish("t/large", bytes(LARGE), 1)
    first = await consumer.message(acknowledge=False)
    consumer.lose()
    consumer = broker.client()
    await consumer.connect("consumer", clean=False, expiry=1000)
    again = await consumer.message()
    assert (again.packet_id, again.dup, len(again.payload)) == (first.packet_id, True, LARGE)


async def test_nothing_comes_between_the_parts_of_a_large_payload(broker: Broker) -> None:
    consumer, producer = await flowing(broker, 1)
    consumer.session.pause_writing()
    await producer.publish("t/large", bytes(LARGE), 1)
    consumer.session.resume_writing()
    consumer.session.outlet.pause()
    await broker.settle()
    consumer.write(PingReq())
    consumer.session.outlet.resume()
    assert len((await consumer.message()).payload) == LARGE
    await consumer.receive(PingResp)


async def test_a_large_payload_that_stops_half_way_leaves_no_file(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    data = encode(Publish("t", bytes(LARGE), 1, packet_id=1), V5)
    client.raw(data[: LARGE // 2])
    client.lose()
    await broker.stable()
    await broker.restart()
    assert list((broker.directory / "large").glob("*.msg")) == []


async def test_a_large_payload_without_permission(broker: Broker) -> None:
    broker.security.denied.add(("send", "secret"))
    client = broker.client()
    await client.connect("c")
    client.write(Publish("secret", bytes(LARGE), 1, packet_id=1))
    assert (await client.receive(Ack)).reason == ReasonCode.NOT_AUTHORIZED
    await broker.settle()


async def test_large_retained_messages_up_to_a_bound(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    await client.publish("t", bytes(LARGE), 1, retain=True)
    client.write(publish("t", bytes(2_000_000), 1, 99, retain=True))
    assert (await client.receive(Ack)).reason == ReasonCode.QUOTA_EXCEEDED
    await client.subscribe(Filter("t", 1))
    assert len((await client.message()).payload) == LARGE


async def test_a_large_payload_without_room(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise DiskFullError("no room")

    client = broker.client()
    await client.connect("c")
    monkeypatch.setattr(broker.storage.large, "create", full)
    client.write(publish("t", bytes(LARGE), 1, 1), publish("t", bytes(LARGE), 2, 2))
    acks = [await client.receive(Ack), await client.receive(Ack)]
    assert [(ack.packet_id, ack.reason) for ack in acks] == [
        (1, ReasonCode.QUOTA_EXCEEDED),
        (2, ReasonCode.QUOTA_EXCEEDED),
    ]
    await client.publish("t", b"small", 1)


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_large_payload_without_its_file_is_set_aside_and_the_consumer_goes_on(broker: Broker, qos: int) -> None:
    consumer, producer = await flowing(broker, qos, expiry=1000)
    consumer.lose()
    await producer.publish("t/large", bytes(LARGE), max(qos, 1))
    await producer.publish("t/small", b"behind it", max(qos, 1))
    await broker.stable()
    (path,) = (broker.directory / "large").glob("*.msg")
    os.truncate(path, 1000)
    consumer = broker.client()
    await consumer.connect("consumer", clean=False, expiry=1000)
    assert (await consumer.message()).payload == b"behind it"
    await broker.settle()
    assert broker.post.queue("consumer.t.#").message_count == 0
    assert [one.file for one in broker.storage.damage] == [path]


@pytest.mark.parametrize(("qos", "size"), [(0, 110_000), (1, 110_000), (1, LARGE), (2, 110_000), (2, LARGE)])
async def test_a_large_payload_that_was_changed_breaks_off_once_at_most(broker: Broker, qos: int, size: int) -> None:
    """One that fits in a read is not begun. The end of another is never sent, and it is not sent again."""
    consumer, producer = await flowing(broker, qos, expiry=1000)
    consumer.lose()
    await producer.publish("t/large", bytes(size), max(qos, 1))
    await producer.publish("t/small", b"behind it", max(qos, 1))
    await broker.stable()
    (path,) = (broker.directory / "large").glob("*.msg")
    with path.open("r+b") as stream:
        stream.seek(50_000)
        stream.write(b"y")
    consumer = broker.client()
    await consumer.connect("consumer", clean=False, expiry=1000)
    if size == LARGE:
        assert not [packet for packet in await consumer.closed() if isinstance(packet, Publish)]
        consumer.lose()
        consumer = broker.client()
        await consumer.connect("consumer", clean=False, expiry=1000)
    assert (await consumer.message()).payload == b"behind it"
    await broker.settle()
    assert broker.post.queue("consumer.t.#").message_count == 0
    assert [(one.file, one.kind) for one in broker.storage.damage] == [(path, "lost-body")]
