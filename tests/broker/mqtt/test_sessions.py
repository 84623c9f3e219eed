"""Sessions: what outlives a connection, what outlives the broker, redelivery, exactly once, expiry."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.sessions.mqtt import Broker, Client, publish
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import V5, V311, Ack, Disconnect, Filter, Publish
from pollux.wire.mqtt.reasons import ReasonCode

if TYPE_CHECKING:
    from typing import Any

    from pollux.protocols.mqtt.state import ClientState


async def durable(broker: Broker, client_id: str = "c", version: int = V5, **more: Any) -> Client:
    client = broker.client(version)
    await client.connect(client_id, clean=False, expiry=1000 if version == V5 else None, **more)
    return client


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("restart", [False, True])
async def test_a_session_gets_what_came_meanwhile(broker: Broker, version: int, restart: bool) -> None:
    client, producer = await durable(broker, version=version), broker.client()
    assert client.connack is not None
    assert not client.connack.session_present
    await client.subscribe(Filter("t/1", 1), Filter("t/2", 2))
    client.lose()
    await producer.connect("p")
    for number in range(5):
        await producer.publish("t/1", b"%d" % number, 1)
        await producer.publish("t/2", b"%d" % number, 2)
    await producer.publish("t/1", b"qos0", 0)
    if restart:
        await broker.stable()
        await broker.restart()
    client = await durable(broker, version=version)
    assert client.connack is not None
    assert client.connack.session_present
    messages = [await client.message() for _ in range(10 if restart else 11)]
    if not restart:  # QoS 0 is kept as well, as long as the broker runs
        (unkept,) = [message for message in messages if message.qos == 0]
        assert unkept.payload == b"qos0"
        messages.remove(unkept)
    for topic, qos in (("t/1", 1), ("t/2", 2)):
        mine = [message for message in messages if message.topic == topic]
        assert [message.payload for message in mine] == [b"%d" % number for number in range(5)]
        assert all(message.qos == qos for message in mine)
    await broker.settle()
    assert broker.post.queue("c.t.1").message_count == 0
    assert broker.post.queue("c.t.2").message_count == 0


async def test_clean_start_forgets(broker: Broker) -> None:
    client = await durable(broker)
    await client.subscribe("t")
    client.lose()
    client = broker.client()
    assert not (await client.connect("c", clean=True)).session_present
    assert broker.post.space.queue("c.t") is None
    await client.publish("t", b"x", 0)
    await client.silent()


async def test_a_transient_session_leaves_nothing(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c", clean=False)
    await client.subscribe("t", "$share/g/t")
    client.lose()
    assert broker.post.space.queue("c.t") is None
    assert broker.post.space.queue("g.t") is None
    await broker.stable()
    await broker.restart()
    assert not any(kind.startswith("mqtt") for kind, _ in broker.post.recovered)


@pytest.mark.parametrize("qos", [1, 2])
async def test_redelivery_in_order_with_the_same_identifiers(broker: Broker, qos: int) -> None:
    client = await durable(broker)
    await client.subscribe(Filter("t", qos))
    for number in range(4):
        await client.publish("t", b"%d" % number, qos)
    first = [await client.message(acknowledge=False) for _ in range(4)]
    assert not any(message.dup for message in first)
    client.lose()
    client = await durable(broker)
    again = [await client.message(acknowledge=False) for _ in range(4)]
    assert [(m.packet_id, m.payload) for m in again] == [(m.packet_id, m.payload) for m in first]
    assert all(message.dup for message in again)
    await client.publish("t", b"new", qos)
    new = await client.message()
    assert new.packet_id not in {message.packet_id for message in first}
    assert not new.dup


async def test_redelivery_respects_the_new_receive_maximum(broker: Broker) -> None:
    client = await durable(broker)
    await client.subscribe(Filter("t", 1))
    for number in range(5):
        await client.publish("t", b"%d" % number, 1)
    for _ in range(5):
        await client.message(acknowledge=False)
    client.lose()
    client = await durable(broker, receive_maximum=2)
    for number in range(5):
        await broker.settle()
        packet = await client.receive(Publish)
        assert packet.payload == b"%d" % number
        if number == 0:
            second = await client.receive(Publish)
            await client.silent()
            client.write(Ack(p.PUBACK, packet.packet_id), Ack(p.PUBACK, second.packet_id))
        if number == 0:
            packets = [await client.receive(Publish), await client.receive(Publish)]
            assert [each.payload for each in packets] == [b"2", b"3"]
            client.write(*(Ack(p.PUBACK, each.packet_id) for each in packets))
            assert (await client.message()).payload == b"4"
            break
    await client.silent()


@pytest.mark.parametrize("restart", [False, True])
async def test_a_released_message_is_not_sent_again(broker: Broker, restart: bool) -> None:
    client = await durable(broker)
    await client.subscribe(Filter("t", 2))
    await client.publish("t", b"once", 2)
    message = await client.message(acknowledge=False)
    client.write(Ack(p.PUBREC, message.packet_id))
    assert (await client.receive(Ack)).kind == p.PUBREL
    client.lose()
    if restart:
        await broker.stable()
        await broker.restart()
    client = await durable(broker)
    release = await client.receive()
    assert release == Ack(p.PUBREL, message.packet_id)
    client.write(Ack(p.PUBCOMP, message.packet_id))
    await client.silent()
    client.lose()
    client = await durable(broker)
    await client.silent()


async def test_qos_2_goes_out_again_with_its_identifier_after_a_restart(broker: Broker) -> None:
    client = await durable(broker)
    await client.subscribe(Filter("t", 2))
    for number in range(3):
        await client.publish("t", b"%d" % number, 2)
    first = [await client.message(acknowledge=False) for _ in range(3)]
    client.lose()
    await broker.stable()
    await broker.restart()
    client = await durable(broker)
    again = [await client.message() for _ in range(3)]
    assert [(m.packet_id, m.payload, m.dup) for m in again] == [(m.packet_id, m.payload, True) for m in first]


@pytest.mark.parametrize("restart", [False, True])
async def test_qos_2_comes_in_once(broker: Broker, restart: bool) -> None:
    """The client loses its connection after PUBLISH, and after PUBREC, and sends again."""
    consumer = await durable(broker, "consumer")
    await consumer.subscribe(Filter("t", 1))
    client = await durable(broker)
    client.write(publish("t", b"once", 2, 7))
    assert (await client.receive(Ack)).kind == p.PUBREC
    client.lose()
    if restart:
        await broker.stable()
        consumer.lose()
        await broker.restart()
        consumer = await durable(broker, "consumer")
    client = await durable(broker)
    client.write(publish("t", b"once", 2, 7, dup=True))
    assert await client.receive(Ack) == Ack(p.PUBREC, 7)
    client.write(Ack(p.PUBREL, 7))
    assert await client.receive(Ack) == Ack(p.PUBCOMP, 7)
    # The identifier is free: the next message with it is a new one.
    client.write(publish("t", b"twice", 2, 7))
    assert await client.receive(Ack) == Ack(p.PUBREC, 7)
    assert [(await consumer.message()).payload for _ in range(2)] == [b"once", b"twice"]
    await consumer.silent()


async def test_qos_2_sent_again_while_it_is_being_stored(broker: Broker) -> None:
    """The connection breaks before PUBREC, the client is back at once."""
    consumer = await durable(broker, "consumer")
    await consumer.subscribe(Filter("t", 1))
    client = await durable(broker)
    packet = publish("t", b"once", 2, 7)
    client.write(packet, packet)
    client.lose()
    again = await durable(broker)
    again.write(publish("t", b"once", 2, 7, dup=True))
    assert await again.receive(Ack) == Ack(p.PUBREC, 7)
    assert (await consumer.message()).payload == b"once"
    await consumer.silent()


async def test_an_unknown_release_is_answered(broker: Broker) -> None:
    for version, reason in ((V5, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND), (V311, 0)):
        client = broker.client(version)
        await client.connect("c")
        client.write(Ack(p.PUBREL, 99))
        assert await client.receive(Ack) == Ack(p.PUBCOMP, 99, reason)


async def test_acknowledgements_of_the_wrong_kind(broker: Broker) -> None:
    for qos, kind in ((1, p.PUBREC), (2, p.PUBACK)):
        client = broker.client()
        await client.connect(f"c{qos}")
        await client.subscribe(Filter("t", qos))
        await client.publish("t", b"x", qos)
        message = await client.message(acknowledge=False)
        client.write(Ack(kind, message.packet_id))
        (goodbye,) = await client.closed()
        assert isinstance(goodbye, Disconnect)
        assert goodbye.reason == ReasonCode.PROTOCOL_ERROR


async def test_a_refused_qos_2_message_is_done(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c", receive_maximum=1)
    await client.subscribe(Filter("t", 2))
    await client.publish("t", b"1", 2)
    await client.publish("t", b"2", 2)
    message = await client.message(acknowledge=False)
    client.write(Ack(p.PUBREC, message.packet_id, ReasonCode.QUOTA_EXCEEDED))
    message = await client.message(acknowledge=False)
    assert message.payload == b"2"
    await broker.settle()
    assert broker.post.queue("c.t").message_count == 1
    # Nor is there a PUBREL for one that refuses what it has, or what nobody sent.
    client.write(Ack(p.PUBREC, message.packet_id))
    assert await client.receive(Ack) == Ack(p.PUBREL, message.packet_id)
    client.write(Ack(p.PUBREC, message.packet_id, ReasonCode.QUOTA_EXCEEDED))
    client.write(Ack(p.PUBREC, 999, ReasonCode.QUOTA_EXCEEDED))
    await client.silent()
    await client.publish("t", b"3", 2)
    assert (await client.message(acknowledge=False)).payload == b"3", "its identifier is free"


async def test_the_longest_topic_is_subscribed_to_stored_and_found_again(broker: Broker) -> None:
    topic = "ü/" + "t" * 65_531 + "."
    client = await durable(broker)
    await client.subscribe(Filter(topic, 1))
    client.lose()
    producer = broker.client()
    await producer.connect("p")
    await producer.publish(topic, b"x", 1)
    await broker.restart()
    client = await durable(broker)
    message = await client.message()
    assert (message.topic, message.payload) == (topic, b"x")
    # As an address it would be longer than a record of the journal can say.
    assert await client.unsubscribe(topic) == [0]
    await client.subscribe(Filter("#", 1))
    producer = broker.client()
    await producer.connect("p")
    producer.write(publish(":" * 65_535, b"", 1, 7))
    assert (await producer.receive(Ack)).reason >= 0x80
    await producer.publish("t", b"y", 1)
    assert (await client.message()).payload == b"y"


async def lost(broker: Broker) -> tuple[Client, ClientState]:
    """Return a client whose connection broke off, and its session, which expires ten seconds later."""
    client = broker.client()
    await client.connect("c", expiry=10)
    await client.subscribe("t")
    client.lose()
    return client, client.session.mqtt_sessions.sessions["c"]


async def test_a_session_expires(broker: Broker) -> None:
    client, state = await lost(broker)
    assert state.expiry_timer is not None
    state.gone_at -= 9
    client.session.mqtt_sessions._expired(state)
    assert "c" in client.session.mqtt_sessions.sessions
    state.gone_at -= 1
    client.session.mqtt_sessions._expired(state)
    assert client.session.mqtt_sessions.sessions == {}
    assert broker.post.space.queue("c.t") is None


async def test_a_clock_that_is_set_ends_no_session(broker: Broker) -> None:
    """Breaks when the wall's clock says how long a client is away: set forward, its messages go with its session."""
    client, state = await lost(broker)
    broker.wall += 3_600_000
    client.session.mqtt_sessions._expired(state)
    assert "c" in client.session.mqtt_sessions.sessions
    broker.wall -= 7_200_000
    state.gone_at -= 10
    client.session.mqtt_sessions._expired(state)
    assert client.session.mqtt_sessions.sessions == {}


async def test_a_session_expires_over_a_restart(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c", expiry=10)
    await client.subscribe("t")
    client.lose()
    await broker.stable()
    broker.wall += 20_000
    await broker.restart()
    other = broker.client()
    await other.connect("other")
    await broker.settle()
    assert "c" not in other.session.mqtt_sessions.sessions
    assert broker.post.space.queue("c.t") is None


async def test_a_session_comes_back_before_it_expires(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c", expiry=10)
    client.lose()
    client = broker.client()
    assert (await client.connect("c", clean=False, expiry=10)).session_present
    assert client.session.mqtt_sessions.sessions["c"].expiry_timer is None


async def test_disconnect_may_shorten_the_expiry_but_not_invent_one(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c", expiry=100)
    await client.subscribe("t")
    client.write(Disconnect(0, {p.PropertyId.SESSION_EXPIRY_INTERVAL: 0}))
    await client.closed()
    assert client.session.mqtt_sessions.sessions == {}
    client = broker.client()
    await client.connect("c")
    client.write(Disconnect(0, {p.PropertyId.SESSION_EXPIRY_INTERVAL: 10}))
    (goodbye,) = await client.closed()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == ReasonCode.PROTOCOL_ERROR


async def test_subscriptions_keep_their_options_over_a_restart(broker: Broker) -> None:
    client = await durable(broker)
    await client.subscribe(Filter("own/#", 1, no_local=True, retain_as_published=True), identifier=42)
    client.lose()
    await broker.stable()
    await broker.restart()
    client, other = await durable(broker), broker.client()
    await other.connect("other")
    await client.publish("own/a", b"mine", 1)
    await other.publish("own/a", b"theirs", 1, retain=True)
    message = await client.message()
    assert message.payload == b"theirs"
    assert message.retain
    assert message.properties[p.PropertyId.SUBSCRIPTION_IDENTIFIER] == [42]
    await client.silent()


async def test_shared_subscriptions_survive_a_restart_and_orphans_do_not(broker: Broker) -> None:
    client = await durable(broker)
    await client.subscribe("$share/g/t")
    client.lose()
    orphan = broker.client()
    await orphan.connect("transient")
    await orphan.subscribe("$share/h/t")
    await orphan.publish("t", b"x", 1)
    await broker.stable()
    await broker.restart()
    client = await durable(broker)
    assert (await client.message()).payload == b"x"
    assert broker.post.space.queue("h.t") is None


async def test_nothing_is_left_of_a_session_that_ended(broker: Broker) -> None:
    client = await durable(broker)
    await client.subscribe(Filter("t", 2))
    await client.publish("t", b"x", 2)
    await client.message(acknowledge=False)
    client.write(publish("t", b"y", 2, 99))
    await client.receive(Ack)
    client.write(Disconnect(0, {p.PropertyId.SESSION_EXPIRY_INTERVAL: 0}))
    await client.closed()
    await broker.stable()
    await broker.restart()
    assert [kind for kind, _ in broker.post.recovered if kind.startswith("mqtt")] == []
    assert broker.post.space.queue("c.t") is None


async def test_a_broken_record_is_left_alone(broker: Broker) -> None:
    broker.post.storage.put("mqtt-session", "broken", b"\xc1")
    broker.post.storage.put("mqtt-qos2-out", "broken\x001", b"short")
    await broker.stable()
    await broker.restart()
    client = broker.client()
    await client.connect("c")
    await client.ping()


async def test_an_administrator_deletes_a_subscriptions_queue(broker: Broker) -> None:
    client = await durable(broker)
    await client.subscribe("t")
    broker.post.delete_queue("c.t")
    (goodbye,) = await client.closed()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == ReasonCode.ADMINISTRATIVE_ACTION
    client = await durable(broker)
    assert await client.subscribe("t") == [2]


async def test_a_session_that_stops_being_durable_ends_with_a_crash(broker: Broker) -> None:
    client = await durable(broker)
    await client.subscribe("t")
    client.lose()
    client = broker.client()
    assert (await client.connect("c", clean=False)).session_present
    await broker.stable()
    await broker.restart()
    other = broker.client()
    await other.connect("other")
    await broker.settle()
    assert "c" not in other.session.mqtt_sessions.sessions
    assert broker.post.space.queue("c.t") is None


async def test_what_is_stored_goes_on_without_any_client(broker: Broker) -> None:
    client = await durable(broker)
    await client.subscribe("t")
    client.lose()
    await broker.stable()
    broker.wall += 2_000_000
    await broker.restart()
    assert broker.post.space.queue("c.t") is not None
    mqtt_sessions = broker.mqtt_sessions()
    await broker.settle()
    assert mqtt_sessions.sessions == {}
    assert broker.post.space.queue("c.t") is None
