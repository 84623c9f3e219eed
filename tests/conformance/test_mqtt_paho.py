"""MQTT 3.1.1 and 5 with paho-mqtt."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

from harness.mqtt import (
    TIMEOUT,
    V5,
    V31,
    V311,
    Client,
    connect,
    connect_properties,
    properties,
    publish_properties,
    subscribe_properties,
)

if TYPE_CHECKING:
    from harness.broker import BrokerProcess
    from harness.mqtt import Version

from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.subscribeoptions import SubscribeOptions

every_version = pytest.mark.parametrize("version", [V31, V311, V5], ids=["3.1", "3.1.1", "5"])
both_versions = pytest.mark.parametrize("version", [V311, V5], ids=["3.1.1", "5"])
every_qos = pytest.mark.parametrize("qos", [0, 1, 2])
FOREVER = 0xFFFFFFFF


def lasting(expiry: int = FOREVER) -> dict[str, Any]:
    """Options of an MQTT 5 connection whose session outlives it."""
    return {"connecting": {"clean_start": False, "properties": connect_properties(SessionExpiryInterval=expiry)}}


@every_version
@every_qos
def test_every_quality_of_service(broker: BrokerProcess, name: str, version: Version, qos: int) -> None:
    with connect(broker, name, version) as client:
        client.subscribe(f"{name}/t", qos=2)
        client.publish(f"{name}/t", b"x", qos)
        message = client.message()
        assert (message.topic, message.payload, message.qos, message.retain) == (f"{name}/t", b"x", qos, False)
        client.silence()


@both_versions
def test_delivery_uses_the_lower_quality(broker: BrokerProcess, name: str, version: Version) -> None:
    with connect(broker, name, version) as client:
        client.subscribe(f"{name}/t", qos=0)
        client.publish(f"{name}/t", b"x", 2)
        assert client.message().qos == 0


@both_versions
@pytest.mark.parametrize(
    ("topic_filter", "hits"),
    [("{}/+/c", ["{}/a/c", "{}/b/c"]), ("{}/#", ["{}", "{}/a/c", "{}/b/c", "{}/a/d/e"]), ("{}/a/+/e", ["{}/a/d/e"])],
)
def test_wildcards(broker: BrokerProcess, name: str, version: Version, topic_filter: str, hits: list[str]) -> None:
    with connect(broker, name, version) as client:
        client.subscribe(topic_filter.format(name), qos=1)
        for topic in ("{}", "{}/a/c", "{}/b/c", "{}/a/d/e"):
            client.publish(topic.format(name), topic)
        assert [client.message().topic for _ in hits] == [hit.format(name) for hit in hits]
        client.silence()


@both_versions
def test_retained_messages(broker: BrokerProcess, name: str, version: Version) -> None:
    with connect(broker, name, version) as client:
        client.publish(f"{name}/t", b"old", 1, retain=True)
        client.publish(f"{name}/t", b"new", 1, retain=True)
        client.subscribe(f"{name}/#", qos=1)
        message = client.message()
        assert (message.payload, message.retain) == (b"new", True)
        client.publish(f"{name}/t", b"live", 1, retain=True)
        assert client.message().retain is False
        client.publish(f"{name}/t", b"", 1, retain=True)
    with connect(broker, name, version) as client:
        client.subscribe(f"{name}/#", qos=1)
        client.silence()


@both_versions
def test_a_will_when_the_client_is_gone(broker: BrokerProcess, name: str, version: Version) -> None:
    with connect(broker, name + "w", version) as watcher:
        watcher.subscribe(f"{name}/will", qos=1)
        with connect(broker, name, version, will={"topic": f"{name}/will", "payload": b"gone", "qos": 1}) as client:
            client.drop()
            assert watcher.message().payload == b"gone"
        with connect(broker, name, version, will={"topic": f"{name}/will", "payload": b"gone", "qos": 1}):
            pass  # leaves with DISCONNECT
        watcher.silence()


def test_a_will_is_delayed(broker: BrokerProcess, name: str) -> None:
    will = {
        "topic": f"{name}/will",
        "payload": b"gone",
        "qos": 1,
        "properties": properties(PacketTypes.WILLMESSAGE, WillDelayInterval=2),
    }
    with connect(broker, name + "w") as watcher:
        watcher.subscribe(f"{name}/will", qos=1)
        with connect(broker, name, will=will, **lasting(60)) as client:
            client.drop()
            watcher.silence()
            assert watcher.message().payload == b"gone"
        with connect(broker, name, will=will, **lasting(60)) as client:
            client.drop()
        with connect(broker, name, **lasting(0)):
            time.sleep(2.5)  # it came back in time: no will
        watcher.silence()


def test_a_session_of_3_1_1_survives_its_connection(broker: BrokerProcess, name: str) -> None:
    with connect(broker, name, V311, clean_session=False) as client:
        assert client.connack[0].session_present is False
        client.subscribe(f"{name}/t", qos=1)
    with connect(broker, name + "p", V311) as producer:
        producer.publish(f"{name}/t", b"1")
        producer.publish(f"{name}/t", b"2")
    with connect(broker, name, V311, clean_session=False) as client:
        assert client.connack[0].session_present is True
        assert [client.message().payload for _ in range(2)] == [b"1", b"2"]
    with connect(broker, name, V311, clean_session=True) as client:
        assert client.connack[0].session_present is False
    with connect(broker, name + "p", V311) as producer:
        producer.publish(f"{name}/t", b"3")
    with connect(broker, name, V311, clean_session=False) as client:
        client.silence()


def test_a_session_of_5_expires(broker: BrokerProcess, name: str) -> None:
    with connect(broker, name, **lasting(3)) as client:
        client.subscribe(f"{name}/t", qos=1)
    with connect(broker, name, **lasting(3)) as client:
        assert client.connack[0].session_present is True
    time.sleep(4.5)  # the session's own time has to pass
    with connect(broker, name, **lasting(0)) as client:
        assert client.connack[0].session_present is False


def test_unacknowledged_messages_are_sent_again(broker: BrokerProcess, name: str) -> None:
    with connect(broker, name, manual_ack=True, **lasting()) as client:
        client.subscribe(f"{name}/t", qos=1)
        client.publish(f"{name}/t", b"x", 1)
        assert client.message().dup is False
        client.drop()
    with connect(broker, name, **lasting(0)) as client:
        message = client.message()
        assert message.payload == b"x"
        assert message.dup is True


@both_versions
def test_a_second_connection_takes_the_session_over(broker: BrokerProcess, name: str, version: Version) -> None:
    with connect(broker, name, version, reconnect_on_failure=False) as first:
        with connect(broker, name, version):
            assert first.disconnected.wait(TIMEOUT)
        if version == V5:
            assert first.disconnect_reason.getName() == "Session taken over"


def test_shared_subscriptions(broker: BrokerProcess, name: str) -> None:
    with connect(broker, name + "1") as one, connect(broker, name + "2") as other, connect(broker, name) as producer:
        for client in (one, other):
            client.subscribe(f"$share/group/{name}/t", qos=1)
        for number in range(20):
            producer.publish(f"{name}/t", str(number))
        deadline = time.monotonic() + TIMEOUT
        while one.messages.qsize() + other.messages.qsize() < 20 and time.monotonic() < deadline:
            time.sleep(0.01)
        a, b = ([client.message().payload for _ in range(client.messages.qsize())] for client in (one, other))
        assert sorted(int(payload) for payload in [*a, *b]) == list(range(20))
        assert a
        assert b


def test_subscription_identifiers(broker: BrokerProcess, name: str) -> None:
    with connect(broker, name) as client:
        client.subscribe(f"{name}/a", qos=1, properties=subscribe_properties(SubscriptionIdentifier=7))
        client.subscribe(f"{name}/b", qos=1, properties=subscribe_properties(SubscriptionIdentifier=268435455))
        client.publish(f"{name}/a", b"x")
        assert client.message().properties.SubscriptionIdentifier == [7]
        client.publish(f"{name}/b", b"x")
        assert client.message().properties.SubscriptionIdentifier == [268435455]


def test_topic_aliases_from_the_client(broker: BrokerProcess, name: str) -> None:
    with connect(broker, name) as client:
        assert client.connack[2].TopicAliasMaximum > 0
        client.subscribe(f"{name}/t", qos=1)
        client.publish(f"{name}/t", b"1", properties=publish_properties(TopicAlias=1))
        client.publish("", b"2", properties=publish_properties(TopicAlias=1))
        assert [(client.message().topic) for _ in range(2)] == [f"{name}/t"] * 2


def test_topic_aliases_from_the_broker(broker: BrokerProcess, name: str) -> None:
    options: dict[str, Any] = {"connecting": {"properties": connect_properties(TopicAliasMaximum=1)}}
    with connect(broker, name, **options) as client, connect(broker, name + "p") as producer:
        client.subscribe(f"{name}/#", qos=1)
        for topic in ("a", "a", "b"):
            producer.publish(f"{name}/{topic}", b"x")
        found = [client.message() for _ in range(3)]
    # paho shows the packet as it came: the topic once, then nothing but its alias; the second topic has no alias left.
    assert [message.topic for message in found] == [f"{name}/a", "", f"{name}/b"]
    assert [getattr(message.properties, "TopicAlias", None) for message in found] == [1, 1, None]


def test_message_expiry(broker: BrokerProcess, name: str) -> None:
    with connect(broker, name, **lasting()) as client:
        client.subscribe(f"{name}/t", qos=1)
    with connect(broker, name + "p") as producer:
        producer.publish(f"{name}/t", b"short", properties=publish_properties(MessageExpiryInterval=1))
        producer.publish(f"{name}/t", b"long", properties=publish_properties(MessageExpiryInterval=100))
    time.sleep(1.5)  # the message's own time to live has to pass
    with connect(broker, name, **lasting(0)) as client:
        message = client.message()
        assert message.payload == b"long"
        assert message.properties.MessageExpiryInterval < 100
        client.silence()


def test_properties_arrive(broker: BrokerProcess, name: str) -> None:
    with connect(broker, name) as client:
        client.subscribe(f"{name}/t", qos=1)
        pairs = [("a", "1"), ("a", "2"), ("ä", "€")]
        client.publish(
            f"{name}/t",
            b"x",
            properties=publish_properties(
                UserProperty=pairs,
                ContentType="text/plain",
                ResponseTopic="answers",
                CorrelationData=b"\0\1",
                PayloadFormatIndicator=1,
            ),
        )
        found = client.message().properties
        assert found.UserProperty == pairs
        assert (found.ContentType, found.ResponseTopic) == ("text/plain", "answers")
        assert (found.CorrelationData, found.PayloadFormatIndicator) == (b"\0\1", 1)


def test_receive_maximum_of_the_client(broker: BrokerProcess, name: str) -> None:
    options: dict[str, Any] = {"connecting": {"properties": connect_properties(ReceiveMaximum=3)}}
    with connect(broker, name, manual_ack=True, **options) as client, connect(broker, name + "p") as producer:
        client.subscribe(f"{name}/t", qos=1)
        for number in range(6):
            producer.publish(f"{name}/t", str(number))
        first = [client.message() for _ in range(3)]
        client.silence()
        for message in first:
            client.acknowledge(message)
        assert [client.message().payload for _ in range(3)] == [b"3", b"4", b"5"]


def test_subscription_options(broker: BrokerProcess, name: str) -> None:
    with connect(broker, name) as client, connect(broker, name + "o") as other:
        other.publish(f"{name}/t", b"kept", retain=True)
        quiet = SubscribeOptions(qos=1, noLocal=True, retainAsPublished=True, retainHandling=2)
        client.subscribe((f"{name}/t", quiet))
        client.publish(f"{name}/t", b"mine")
        client.silence()  # neither its own message nor, with retain handling 2, the retained one
        other.publish(f"{name}/t", b"yours", retain=True)
        message = client.message()
        assert (message.payload, message.retain) == (b"yours", True)
        other.publish(f"{name}/t", b"", retain=True)


def test_reason_codes(broker: BrokerProcess, name: str) -> None:
    with connect(broker, name) as client:
        # A server may say that nobody subscribed, or only that it took the message (MQTT 5, 3.4.2.1).
        assert client.publish(f"{name}/nobody", b"x").getName() in {"No matching subscribers", "Success"}
        assert [reason.getName() for reason in client.subscribe(f"{name}/t", qos=1)] == ["Granted QoS 1"]
        assert [reason.getName() for reason in client.unsubscribe(f"{name}/t")] == ["Success"]
        assert [reason.getName() for reason in client.unsubscribe(f"{name}/t")] == ["No subscription found"]
    with connect(broker, name, user="bob", password="bob's password") as client:
        assert [reason.getName() for reason in client.subscribe(f"{name}/t", qos=1)] == ["Not authorized"]
        assert client.publish(f"{name}/t", b"x").getName() == "Not authorized"


@both_versions
def test_a_wrong_password_is_refused(broker: BrokerProcess, name: str, version: Version) -> None:
    client = Client(name, version)
    client.raw.username_pw_set("alice", "wrong")
    _, reason, _ = client.connect(broker.port)
    client.close()
    assert reason.is_failure
    assert reason.getName() in {"Bad user name or password", "Not authorized"}


def test_the_server_assigns_what_the_client_left_out(broker: BrokerProcess) -> None:
    with connect(broker) as client:
        assert client.connack[2].AssignedClientIdentifier
    with connect(broker, connecting={"keepalive": 0}) as client:
        # A client that wants no keep alive is given the server's, or none: never a bad value.
        assert getattr(client.connack[2], "ServerKeepAlive", 1) > 0


def test_the_server_keeps_its_own_keep_alive(broker: BrokerProcess) -> None:
    with connect(broker, connecting={"keepalive": 60_000}) as client:
        assert client.connack[2].ServerKeepAlive == 60


def test_keep_alive_is_answered(broker: BrokerProcess, name: str) -> None:
    """Nothing but PINGREQ for longer than the broker bears silence, in both versions; each one is answered.

    The test asks paho to ping, and more often than it would. By itself paho looks at its clock once a second, so its
    PINGREQ leaves up to a second late; half of a short keep alive, which is all that the broker may grant on top
    (MQTT 5, 3.1.2.10), is then used up by any machine that lets paho's thread wait, and the broker is right to close.
    """
    keep_alive, between = 6, 2.5
    asked = {"keepalive": keep_alive}
    with (
        connect(broker, name + "3", V311, connecting=asked, reconnect_on_failure=False) as old,
        connect(broker, name + "5", V5, connecting=asked, reconnect_on_failure=False) as new,
    ):
        started = time.monotonic()
        while time.monotonic() - started < 1.5 * keep_alive + 1:
            time.sleep(between)
            for client in (old, new):
                client.ping()
        for client in (old, new):
            client.subscribe(f"{name}/{client.version}", qos=1)
            client.publish(f"{name}/{client.version}", b"still here")
            assert client.message().payload == b"still here"
            assert not client.disconnected.is_set()


@both_versions
def test_a_client_that_falls_silent_is_gone(broker: BrokerProcess, name: str, version: Version) -> None:
    keep_alive = 2
    will = {"topic": f"{name}/will", "payload": b"gone", "qos": 1}
    with connect(broker, name + "w", version) as watcher:
        watcher.subscribe(f"{name}/will", qos=1)
        started = time.monotonic()
        with connect(broker, name, version, will=will, connecting={"keepalive": keep_alive}) as client:
            client.raw.loop_stop()  # the connection stands and nobody pings
            assert watcher.message().payload == b"gone"
            assert time.monotonic() - started >= 1.5 * keep_alive


@both_versions
@pytest.mark.parametrize("size", [200_000, 3_000_000])
def test_a_large_payload(broker: BrokerProcess, name: str, version: Version, size: int) -> None:
    payload = bytes(range(256)) * (size // 256)
    with connect(broker, name, version) as client:
        client.subscribe(f"{name}/t", qos=1)
        client.publish(f"{name}/t", payload)
        assert client.message().payload == payload
