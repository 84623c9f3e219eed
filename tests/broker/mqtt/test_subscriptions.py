"""SUBSCRIBE and UNSUBSCRIBE: wildcards, options, identifiers, shared subscriptions, no local."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import V311, Ack, Disconnect, Filter, Publish, Unsubscribe
from pollux.wire.mqtt.reasons import ReasonCode
from pollux.wire.mqtt.topics import matches

if TYPE_CHECKING:
    from harness.sessions.mqtt import Broker

FILTERS = ["a/b", "a/+", "a/#", "#", "+/+", "+", "/+", "a//b", "+/+/+", "a.b/c", "*", "$SYS/#", "fe80::1/+"]
TOPICS = ["a/b", "a", "a/b/c", "a//b", "/a", "a.b/c", "$SYS/x", "$SYS", "*", "b", "fe80::1/x", "a/"]


async def test_wildcards_match_as_the_specification_says(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    for number, topic_filter in enumerate(FILTERS, 1):
        await client.subscribe(Filter(topic_filter, 0), identifier=number)
    for topic in TOPICS:
        await client.publish(topic, b"x", 0)
        await broker.settle()
        got = {
            FILTERS[p.subscription_identifiers(packet.properties)[0] - 1]
            for packet in client.taken()
            if isinstance(packet, Publish) and packet.topic == topic
        }
        assert got == {each for each in FILTERS if matches(each, topic)}, topic


async def test_overlapping_subscriptions_each_deliver_with_their_identifier_and_qos(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    await client.subscribe(Filter("a/+", 1), identifier=1)
    await client.subscribe(Filter("a/#", 2), identifier=268_435_455)
    await client.publish("a/b", b"x", 2)
    got = {
        (message.qos, *p.subscription_identifiers(message.properties))
        for message in [await client.message(), await client.message()]
    }
    assert got == {(1, 1), (2, 268_435_455)}


async def test_subscribing_again_changes_the_options_and_loses_nothing(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    await client.subscribe(Filter("t", 1), identifier=1)
    await client.subscribe(Filter("t", 0), identifier=2)
    await client.publish("t", b"x", 1)
    message = await client.message()
    assert (message.qos, message.properties[p.PropertyId.SUBSCRIPTION_IDENTIFIER]) == (0, [2])
    await client.silent()


async def test_unsubscribing(broker: Broker) -> None:
    client, old = broker.client(), broker.client(V311)
    await client.connect("c")
    await client.subscribe("t", "u")
    assert await client.unsubscribe("t", "none", "bad/#/x") == [0, 0x11, 0x8F]
    await client.publish("t", b"x", 1)
    await client.silent()
    assert broker.post.space.queue("c.t") is None
    assert broker.post.space.queue("c.u") is not None
    await old.connect("d")
    await old.subscribe("t")
    assert await old.unsubscribe("t") == []
    # Its UNSUBACK could not say that this was refused.
    old.write(Unsubscribe(9, ["bad/#/x"]))
    assert await old.closed() == []
    assert old.session.ended == ("broker", "# is not the last level")
    await client.leave()
    assert client.session.ended == ("client", "DISCONNECT")


async def test_what_was_begun_may_be_finished_after_unsubscribing(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c", receive_maximum=2)
    await client.subscribe(Filter("one", 1), Filter("two", 2))
    await client.publish("one", b"x", 1)
    await client.publish("two", b"x", 2)
    messages = {m.topic: m for m in [await client.message(acknowledge=False), await client.message(acknowledge=False)]}
    await client.unsubscribe("one", "two")
    client.write(Ack(p.PUBACK, messages["one"].packet_id), Ack(p.PUBREC, messages["two"].packet_id))
    assert (await client.receive(Ack)).kind == p.PUBREL
    client.write(Ack(p.PUBCOMP, messages["two"].packet_id))
    await client.ping()
    await client.subscribe(Filter("three", 1))
    for number in range(4):
        await client.publish("three", b"%d" % number, 1)
        assert (await client.message()).payload == b"%d" % number


async def test_no_local(broker: Broker) -> None:
    client, other = broker.client(), broker.client()
    await client.connect("c")
    await other.connect("other")
    await client.subscribe(Filter("t", 1, no_local=True))
    await client.publish("t", b"mine", 1)
    await other.publish("t", b"theirs", 1)
    assert (await client.message()).payload == b"theirs"
    await client.subscribe(Filter("t", 1))
    await client.publish("t", b"mine", 1)
    assert (await client.message()).payload == b"mine"
    await client.subscribe(Filter("t", 1, no_local=True))
    await client.publish("t", b"mine", 1)
    await client.silent()
    assert broker.post.queue("c.t").message_count == 0


async def test_no_local_on_a_shared_subscription_is_an_error(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    with pytest.raises(AssertionError, match="closed"):
        await client.subscribe(Filter("$share/g/t", 1, no_local=True))
    (goodbye,) = client.taken()
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == ReasonCode.PROTOCOL_ERROR


async def test_shared_subscriptions_share(broker: Broker) -> None:
    clients = [broker.client() for _ in range(3)]
    for number, client in enumerate(clients):
        await client.connect(f"c{number}")
        await client.subscribe(Filter("$share/g/t/+", 1))
    all_of_it = broker.client()
    await all_of_it.connect("all")
    await all_of_it.subscribe(Filter("t/+", 1))
    for number in range(30):
        await all_of_it.publish("t/x", b"%d" % number, 1)
    await broker.settle()
    payloads = []
    for client in clients:
        mine = [packet.payload for packet in client.taken() if isinstance(packet, Publish)]
        assert mine
        assert mine == sorted(mine, key=int)
        payloads += mine
    assert sorted(payloads, key=int) == [b"%d" % number for number in range(30)]
    assert sum(isinstance(packet, Publish) for packet in all_of_it.taken()) == 30
    assert broker.post.queue("g.t.*").consumer_count == 3


async def test_others_get_what_a_shared_subscriber_did_not_acknowledge(broker: Broker) -> None:
    first, second = broker.client(), broker.client()
    await first.connect("first", expiry=100)
    await first.subscribe(Filter("$share/g/t", 1))
    for number in range(4):
        await first.publish("t", b"%d" % number, 1)
    await first.message()
    for _ in range(3):
        await first.message(acknowledge=False)
    await second.connect("second")
    await second.subscribe(Filter("$share/g/t", 1))
    await second.silent()
    first.lose()
    again = [await second.message() for _ in range(3)]
    assert [message.payload for message in again] == [b"1", b"2", b"3"]
    assert all(message.dup for message in again)


async def test_qos_2_of_a_shared_subscription_stays_with_its_client(broker: Broker) -> None:
    first, second = broker.client(), broker.client()
    await first.connect("first", expiry=100)
    await first.subscribe(Filter("$share/g/t", 2))
    await first.publish("t", b"x", 2)
    message = await first.message(acknowledge=False)
    await second.connect("second")
    await second.subscribe(Filter("$share/g/t", 2))
    first.lose()
    await second.silent()
    first = broker.client()
    await first.connect("first", clean=False, expiry=100)
    assert (await first.message()).packet_id == message.packet_id


async def test_a_shared_and_a_private_subscription_never_meet_in_a_queue(broker: Broker) -> None:
    one, other = broker.client(), broker.client()
    await one.connect("g")
    await one.subscribe("t")
    await other.connect("other")
    assert await other.subscribe("$share/g/t") == [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR]
    assert await other.subscribe("$share/h/t") == [2]
    third = broker.client()
    await third.connect("h")
    assert await third.subscribe("t") == [ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR]


async def test_client_ids_with_dots_have_queues_of_their_own(broker: Broker) -> None:
    one, other = broker.client(), broker.client()
    await one.connect("a.b")
    await other.connect("a")
    await one.subscribe("c")
    await other.subscribe("b/c")
    await one.publish("c", b"x", 1)
    assert (await one.message()).payload == b"x"
    await other.silent()
