"""Windows, aliases, sizes, expiry, back pressure in both directions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.sessions.mqtt import Broker, Client, publish
from pollux.errors import LimitError
from pollux.protocols.mqtt import parked
from pollux.protocols.mqtt.delivery import MAX_PARKED, WINDOW_311
from pollux.protocols.mqtt.published import MAX_ALIASED
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.encode import encode
from pollux.wire.mqtt.packets import V5, V311, Ack, Disconnect, Filter, Packet, Publish
from pollux.wire.mqtt.reasons import ReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.message import Message


def published(packets: list[Packet]) -> list[Publish]:
    return [packet for packet in packets if isinstance(packet, Publish)]


async def flowing(broker: Broker, qos: int, **more: Any) -> tuple[Client, Client]:
    consumer, producer = broker.client(), broker.client()
    await consumer.connect("consumer", **more)
    await consumer.subscribe(Filter("t/#", qos))
    await producer.connect("producer")
    return consumer, producer


# -- receive maximum


@pytest.mark.parametrize("qos", [1, 2])
async def test_no_more_in_flight_than_the_client_allows(broker: Broker, qos: int) -> None:
    consumer, producer = await flowing(broker, qos, receive_maximum=3)
    await consumer.subscribe(Filter("t/2", qos))
    for number in range(4):
        await producer.publish(f"t/{number % 2 + 1}", b"%d" % number, qos)
    await broker.settle()
    first = published(consumer.taken())
    assert len(first) == 3
    more: list[Publish] = []
    for number, packet in enumerate(first, 1):
        if qos == 1:
            consumer.write(Ack(p.PUBACK, packet.packet_id))
        else:
            consumer.write(Ack(p.PUBREC, packet.packet_id))
            assert (await consumer.receive(Ack)).kind == p.PUBREL
            await broker.settle()
            more += published(consumer.taken())
            assert len(more) == number - 1, "PUBREC alone makes no room"
            consumer.write(Ack(p.PUBCOMP, packet.packet_id))
        await broker.settle()
        more += published(consumer.taken())
        assert len(more) == number


async def test_qos_0_passes_a_full_window(broker: Broker) -> None:
    consumer, producer = await flowing(broker, 1, receive_maximum=1)
    await consumer.subscribe(Filter("q0", 0))
    await producer.publish("t/1", b"x", 1)
    await producer.publish("t/1", b"x", 1)
    await producer.publish("q0", b"y", 1)
    await broker.settle()
    assert sorted(packet.topic for packet in published(consumer.taken())) == ["q0", "t/1"]


async def test_3_1_1_clients_have_a_window_too(broker: Broker) -> None:
    consumer, producer = broker.client(V311), broker.client()
    await consumer.connect("consumer")
    await consumer.subscribe(Filter("t", 1))
    await producer.connect("producer")
    for number in range(1, WINDOW_311 + 51):
        producer.write(publish("t", b"x", 1, number))
    for _ in range(5):
        await broker.settle()
    packets = published(consumer.taken())
    assert len(packets) == WINDOW_311
    consumer.write(*(Ack(p.PUBACK, packet.packet_id) for packet in packets))
    await broker.settle()
    assert len(published(consumer.taken())) == 50


async def test_a_client_that_exceeds_the_brokers_receive_maximum(broker: Broker) -> None:
    broker.parameters = {"receiveMaximum": "2"}
    client = broker.client()
    await client.connect("c")
    client.write(*(publish("t", b"x", 1, number) for number in range(1, 4)))
    *_, goodbye = await client.closed()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
    client = broker.client()
    await client.connect("c")
    for number in range(1, 7, 2):
        client.write(publish("t", b"x", 2, number), publish("t", b"x", 1, number + 1))
        assert {(await client.receive(Ack)).kind, (await client.receive(Ack)).kind} == {p.PUBACK, p.PUBREC}
        client.write(Ack(p.PUBREL, number))
        assert (await client.receive(Ack)).kind == p.PUBCOMP
    client.write(*(publish("t", b"x", 2, number) for number in range(1, 4)))
    *_, goodbye = await client.closed()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == ReasonCode.RECEIVE_MAXIMUM_EXCEEDED


async def test_acknowledgements_keep_the_order_of_what_they_acknowledge(broker: Broker) -> None:
    broker.security.denied.add(("send", "secret"))
    client = broker.client()
    await client.connect("c")
    client.write(
        publish("a", b"", 1, 1),
        publish("secret", b"", 1, 2),
        publish("b", b"", 1, 3),
        publish("c", b"", 1, 4, retain=True),
    )
    assert [(await client.receive(Ack)).packet_id for _ in range(4)] == [1, 2, 3, 4]


@pytest.mark.parametrize("at_once", [True, False])
async def test_messages_of_one_topic_are_confirmed_each_and_one_that_is_refused_alone(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    consumer, client = await flowing(broker, 1)
    await client.publish("t/1", b"first", 1)
    send, bodies = broker.post.send, [b"1", b"2", b"3", b"4", b"5"]

    def refusing(message: Message) -> None:
        if message.data.endswith(b"3"):
            raise LimitError("not this one")
        send(message)

    if not at_once:
        monkeypatch.setattr(broker.post, "send_alike", lambda _messages: False)
        monkeypatch.setattr(broker.post, "send", refusing)
    client.write(*(publish("t/1", body, 1, number) for number, body in enumerate(bodies, 1)))
    answers = [await client.receive(Ack) for _ in bodies]
    assert [answer.packet_id for answer in answers] == [1, 2, 3, 4, 5]
    refused = [answer.packet_id for answer in answers if answer.reason >= 128]
    assert refused == ([] if at_once else [3])
    taken = [body for body in (b"first", *bodies) if at_once or body != b"3"]
    assert [(await consumer.message()).payload for _ in taken] == taken


async def test_what_may_not_be_sent_is_refused_each_and_what_is_behind_is_taken(broker: Broker) -> None:
    broker.security.denied.add(("send", "secret"))
    client = broker.client()
    await client.connect("c")
    client.write(*(publish("secret", b"", 1, number) for number in (1, 2, 3)), publish("a", b"", 1, 4))
    answers = [await client.receive(Ack) for _ in range(4)]
    assert [(answer.packet_id, answer.reason == ReasonCode.NOT_AUTHORIZED) for answer in answers] == [
        *((number, True) for number in (1, 2, 3)),
        (4, False),
    ]


# -- aliases


async def test_aliases_of_the_client(broker: Broker) -> None:
    consumer, producer = await flowing(broker, 1)
    await producer.publish("t/one", b"1", 1, topic_alias=1)
    await producer.publish("", b"2", 1, topic_alias=1)
    await producer.publish("t/two", b"3", 0, topic_alias=1)
    await producer.publish("", b"4", 2, topic_alias=1)
    got = [await consumer.message() for _ in range(4)]
    assert [(m.topic, m.payload) for m in got] == [("t/one", b"1"), ("t/one", b"2"), ("t/two", b"3"), ("t/two", b"4")]
    assert not any(p.PropertyId.TOPIC_ALIAS in m.properties for m in got)


async def test_what_aliases_stand_for_is_bounded(broker: Broker) -> None:
    producer = broker.client()
    await producer.connect("p")
    topic = "t" * 65_535
    for alias in range(1, MAX_ALIASED // 65_537 + 1):
        producer.write(publish(topic, b"", topic_alias=alias))
    await producer.ping()
    assert producer.session.buffered() > MAX_ALIASED - 65_537
    producer.write(publish(topic, b"", topic_alias=1))
    await producer.ping()
    producer.write(publish(topic, b"", topic_alias=100))
    (farewell,) = await producer.closed()
    assert isinstance(farewell, Disconnect)
    assert farewell.reason == ReasonCode.QUOTA_EXCEEDED


@pytest.mark.parametrize(("alias", "reason"), [(9, ReasonCode.PROTOCOL_ERROR), (65_535, ReasonCode.PROTOCOL_ERROR)])
async def test_an_alias_that_stands_for_nothing(broker: Broker, alias: int, reason: ReasonCode) -> None:
    client = broker.client()
    await client.connect("c")
    client.write(publish("", b"x", 1, 1, topic_alias=alias))
    (goodbye,) = await client.closed()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == reason


async def test_an_alias_beyond_the_maximum(broker: Broker) -> None:
    broker.parameters = {"topicAliasMaximum": "3"}
    client = broker.client()
    await client.connect("c")
    client.write(publish("t", b"x", 1, 1, topic_alias=4))
    (goodbye,) = await client.closed()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == ReasonCode.TOPIC_ALIAS_INVALID


async def test_aliases_to_the_client(broker: Broker) -> None:
    consumer, producer = await flowing(broker, 1, topic_alias_maximum=2)
    for topic in ("t/first", "t/second", "t/third", "t/first", "t/second", "t/third"):
        await producer.publish(topic, topic.encode(), 1)
    known: dict[int, str] = {}
    short = 0
    for expected in ("t/first", "t/second", "t/third") * 2:
        message = await consumer.message()
        alias: Any = message.properties.get(p.PropertyId.TOPIC_ALIAS)
        if message.topic and alias:
            known[alias] = message.topic
        short += not message.topic
        assert (message.topic or known[alias]) == expected == message.payload.decode()
    assert short == 2
    assert sorted(known) == [1, 2]


# -- properties, expiry, sizes


async def test_properties_arrive_as_they_were_sent(broker: Broker) -> None:
    consumer, producer = await flowing(broker, 2)
    found: dict[str, Any] = {
        "payload_format_indicator": 1,
        "content_type": "text/plain",
        "response_topic": "answers/here",
        "correlation_data": b"\x00\xff",
        "user_property": [("a", "1"), ("b", "2"), ("a", "3")],
    }
    await producer.publish("t/x", "grüße".encode(), 1, **found)
    message = await consumer.message()
    assert message.properties == {p.PropertyId[name.upper()]: value for name, value in found.items()}
    old = broker.client(V311)
    await old.connect("old")
    await old.subscribe("t/#")
    await producer.publish("t/x", b"body", 1, **found)
    message = await old.message()
    assert (message.payload, message.properties) == (b"body", {})
    await old.publish("t/x", b"from old", 1)
    assert (await consumer.message()).payload == b"body"
    assert (await consumer.message()).payload == b"from old"


async def test_expiry_is_what_is_left(broker: Broker) -> None:
    consumer, producer = await flowing(broker, 1, expiry=1000)
    consumer.lose()
    await producer.publish("t/short", b"x", 1, message_expiry_interval=5)
    await producer.publish("t/long", b"x", 1, message_expiry_interval=60)
    await producer.publish("t/none", b"x", 1)
    broker.wall += 20_500
    consumer = broker.client()
    await consumer.connect("consumer", clean=False, expiry=1000)
    got = [await consumer.message() for _ in range(2)]
    assert [(m.topic, m.properties.get(p.PropertyId.MESSAGE_EXPIRY_INTERVAL)) for m in got] == [
        ("t/long", 40),
        ("t/none", None),
    ]
    await consumer.silent()


async def test_a_message_larger_than_the_client_takes_is_passed_over(broker: Broker) -> None:
    consumer, producer = await flowing(broker, 1, maximum_packet_size=100, receive_maximum=1)
    await producer.publish("t/x", bytes(200), 1)
    await producer.publish("t/x", b"small", 1)
    message = await consumer.message()
    assert message.payload == b"small"
    await broker.settle()
    assert broker.post.queue("consumer.t.#").message_count == 0
    assert consumer.session.mqtt_sessions.counters.too_large == 1


@pytest.mark.parametrize("size", [90, 91, 92, 93, 94, 95, 96, 97])
async def test_the_maximum_packet_size_is_exact(broker: Broker, size: int) -> None:
    consumer, producer = await flowing(broker, 1, maximum_packet_size=100)
    await producer.publish("t/x", bytes(size), 1)
    expected = encode(Publish("t/x", bytes(size), 1, packet_id=1), V5)
    await broker.settle()
    assert len(published(consumer.taken())) == (len(expected) <= 100)


async def test_special_user_properties(broker: Broker) -> None:
    consumer, producer = await flowing(broker, 1)
    for _ in range(2):
        await producer.publish("t/x", b"once", 1, user_property=[("_AMQ_DUPL_ID", "id-1")])
    assert (await consumer.message()).payload == b"once"
    await consumer.silent()
    await producer.publish("t/x", b"later", 1, user_property=[("_AMQ_SCHED_DELIVERY", str(broker.wall + 50))])
    await consumer.silent()
    broker.wall += 60
    assert (await consumer.message()).payload == b"later"


# -- slow clients


async def test_a_slow_reader_is_not_flooded(broker: Broker) -> None:
    consumer, producer = await flowing(broker, 1)
    consumer.session.pause_writing()
    for number in range(20):
        await producer.publish("t/x", b"%d" % number, 1)
    await consumer.silent()
    consumer.session.resume_writing()
    await broker.settle()
    assert [packet.payload for packet in published(consumer.taken())] == [b"%d" % number for number in range(20)]


async def test_qos_0_for_a_slow_reader_is_bounded_then_dropped_and_counted(broker: Broker) -> None:
    consumer, producer = await flowing(broker, 0)
    consumer.session.pause_writing()
    more = 500
    for _ in range(MAX_PARKED + more):
        producer.write(publish("t/x", b"x", 0))
    for _ in range(10):
        await broker.settle()
    assert published(consumer.taken()) == []
    assert consumer.session.mqtt_sessions.counters.dropped == more
    assert broker.post.queue("consumer.t.#").message_count == MAX_PARKED
    consumer.session.resume_writing()
    await broker.settle()
    assert len(published(consumer.taken())) == MAX_PARKED
    assert broker.post.queue("consumer.t.#").message_count == 0


# -- back pressure on producers


class Gate:
    """Stands in for a full address."""

    def __init__(self, broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = True
        self.waiting: list[Callable[[], None]] = []
        monkeypatch.setattr(broker.post, "writable", lambda _: self.open)
        monkeypatch.setattr(broker.post, "on_writable", lambda _, callback: self.waiting.append(callback))
        monkeypatch.setattr(broker.post, "off_writable", self.forget)

    def forget(self, _: str, callback: Callable[[], None]) -> None:
        self.waiting = [each for each in self.waiting if each != callback]

    def release(self) -> None:
        self.open = True
        waiting, self.waiting = self.waiting, []
        for callback in waiting:
            callback()


@pytest.mark.parametrize("version", [V311, V5])
async def test_nothing_is_confirmed_while_an_address_is_full(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    gate = Gate(broker, monkeypatch)
    client = broker.client(version)
    await client.connect("c")
    await client.subscribe(Filter("t", 1))
    await client.publish("t", b"0", 1)
    held = await client.message(acknowledge=False)
    gate.open = False
    client.write(publish("t", b"1", 1, 11), publish("t", b"2", 2, 12), publish("t", b"3", 1, 13, retain=True))
    client.write(publish("t", b"4", 0))
    await client.silent()
    client.write(Ack(p.PUBACK, held.packet_id))  # acknowledgements still count
    await broker.settle()
    assert broker.post.queue("c.t").message_count == 0
    assert client.transport.reading
    gate.release()
    await broker.settle()
    packets = client.taken()
    assert [packet.payload for packet in published(packets)] == [b"1", b"2", b"3", b"4"]
    acks = [packet for packet in packets if isinstance(packet, Ack)]
    assert [(ack.kind, ack.packet_id) for ack in acks] == [(p.PUBACK, 11), (p.PUBREC, 12), (p.PUBACK, 13)]


async def test_a_client_that_goes_while_an_address_is_full_leaves_nothing(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(broker, monkeypatch)
    client = broker.client(V5)
    await client.connect("c")
    gate.open = False
    client.write(publish("t", b"1", 1, 11))
    await broker.settle()
    assert gate.waiting
    client.session.connection_lost(None)
    assert not gate.waiting


async def test_the_file_of_what_is_parked_counts_and_goes_with_its_client(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(broker, monkeypatch)
    client = broker.client(V5)
    await client.connect("c")
    gate.open = False
    client.write(publish("t", bytes(300_000), 1, 11))
    await broker.settle()
    assert client.session.inbound.describe()["parked"] == 1
    assert client.session.inbound.buffered() > 300_000
    (file,) = (broker.directory / "large").glob("*.msg")
    deleted: list[int] = []
    monkeypatch.setattr(broker.storage.large, "delete", deleted.append)
    client.lose()
    assert [f"{number}.msg" for number in deleted] == [file.name]


async def test_reading_pauses_when_too_much_is_parked(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(broker, monkeypatch)
    client = broker.client(V311)
    await client.connect("c", keep_alive=1)
    gate.open = False
    count = 0
    while client.transport.reading:
        count += 1
        client.write(publish("t", bytes(10_000), 1, count))
        assert count * 10_000 < 2 * parked.MAX_PARKED_BYTES
    client.session.keep_alive.heard -= 100
    client.session.keep_alive.look()
    assert not client.transport.closed, "a client nobody listens to was timed out"
    gate.release()
    await broker.settle()
    assert client.transport.reading
    assert len([packet for packet in client.taken() if isinstance(packet, Ack)]) == count


async def test_a_full_address_may_stay_full(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(broker, monkeypatch)
    client = broker.client()
    await client.connect("c")
    gate.open = False
    client.write(publish("t", b"1", 1, 11))
    waiting = gate.waiting
    client.lose()
    gate.open = True
    for callback in waiting:
        callback()
    await broker.settle()
    assert client.session.inbound.describe()["parked"] == 0
