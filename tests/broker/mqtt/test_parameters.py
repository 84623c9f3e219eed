"""Parameters of an acceptor, and ``<px:limits>``, that hold for MQTT clients act on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from msgspec.structs import replace

from harness.sessions.mqtt import publish
from pollux.config.model import Limits
from pollux.protocols.mqtt.limits import longest_remaining
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import V5, V311, Disconnect
from pollux.wire.mqtt.primitives import encode_variable
from pollux.wire.mqtt.reasons import ReasonCode

if TYPE_CHECKING:
    from harness.sessions.mqtt import Broker


def limited(broker: Broker, **limits: int) -> None:
    broker.configuration = replace(broker.configuration, limits=Limits(**limits))


@pytest.mark.parametrize(
    ("parameters", "max_message_size", "largest"),
    [
        ({"maximumPacketSize": "2000"}, -1, 2000),
        ({"maxFrameSize": "3000"}, -1, 3000),
        ({"maxFrameSize": "3000", "maximumPacketSize": "2000"}, -1, 2000),
        ({}, 1500, 1500),
        ({"maximumPacketSize": "2000"}, 1500, 1500),
        ({"maximumPacketSize": "2000"}, 4000, 2000),
    ],
)
async def test_the_largest_packet_a_client_may_send(
    broker: Broker, parameters: dict[str, str], max_message_size: int, largest: int
) -> None:
    """MQTT 5 clients are told; one byte more ends the connection, and nothing of it was taken."""
    broker.parameters = parameters
    limited(broker, max_message_size=max_message_size)
    client = broker.client()
    answer = await client.connect("c")
    assert answer.properties[p.PropertyId.MAXIMUM_PACKET_SIZE] == largest
    await client.subscribe("t")
    fits = largest - 9  # first byte, two of length, three of topic, two of identifier, no properties
    await client.publish("t", b"x" * fits)
    assert len((await client.message()).payload) == fits
    client.write(publish("t", b"x" * (fits + 1), 1, 77))
    goodbye = (await client.closed())[-1]
    assert isinstance(goodbye, Disconnect)
    assert goodbye.reason == ReasonCode.PACKET_TOO_LARGE
    old = broker.client(V311)
    await old.connect("old")
    old.write(publish("t", b"x" * (fits + 20), 1, 77))
    assert await old.closed() == []


async def test_how_many_subscriptions_a_client_may_have(broker: Broker) -> None:
    limited(broker, max_consumers_per_connection=2)
    client = broker.client()
    await client.connect("c")
    assert await client.subscribe("a", "b", "c") == [2, 2, ReasonCode.QUOTA_EXCEEDED]
    assert await client.subscribe("a") == [2], "again is not one more"
    await client.unsubscribe("b")
    assert await client.subscribe("c") == [2]


@pytest.mark.parametrize(("size", "files"), [("2000", 1), ("-1", 0)])
async def test_the_size_from_which_a_message_goes_through_a_file(broker: Broker, size: str, files: int) -> None:
    broker.parameters = {"mqttMinLargeMessageSize": size}
    subscriber, client = broker.client(), broker.client()
    await subscriber.connect("s", clean=False, expiry=100)
    await subscriber.subscribe("t")
    subscriber.lose()
    await client.connect("c")
    await client.publish("t", b"x" * 1000)
    assert not list((broker.directory / "large").glob("*.msg"))
    await client.publish("t", b"x" * 200_000)
    assert len(list((broker.directory / "large").glob("*.msg"))) == files


@pytest.mark.parametrize(("interval", "expected"), [("30", 30), ("-1", 0xFFFFFFFF), ("0", 0)])
async def test_sessions_of_mqtt_3_1_1_clients_expire_as_the_acceptor_says(
    broker: Broker, interval: str, expected: int
) -> None:
    broker.parameters = {"defaultMqttSessionExpiryInterval": interval}
    old, new = broker.client(V311), broker.client(V5)
    await old.connect("old", clean=False)
    await new.connect("new", clean=False, expiry=7)
    assert old.session.state is not None
    assert new.session.state is not None
    assert (old.session.state.expiry_interval, new.session.state.expiry_interval) == (expected, 7)
    mqtt_sessions = old.session.mqtt_sessions
    old.lose()
    assert ("old" in mqtt_sessions.sessions) is (expected > 0)


@pytest.mark.parametrize("total", [512, 129, 130, 131, 16_386, 16_387, 16_388, 2_097_155, 2_097_156, 2_097_157])
def test_a_packets_size_counts_its_fixed_header(total: int) -> None:
    left = longest_remaining(total)
    assert 1 + len(encode_variable(left)) + left <= total < 1 + len(encode_variable(left + 1)) + left + 1
