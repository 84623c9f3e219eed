"""A subscriber over MQTT, without a broker."""

from __future__ import annotations

import pytest

from pollux.client import traffic_mqtt
from pollux.client.traffic_mqtt import MqttSubscriber
from pollux.client.url import parse_url
from pollux.wire.mqtt.packets import ConnAck


class Stream:
    """A connection to a broker that knows the session; `fails` says which of the subscriptions is not answered."""

    asked = 0
    fails = 0

    def __init__(self, *_: object, **__: object) -> None:
        self.on_packet = None

    async def open(self, _: object) -> ConnAck:
        return ConnAck(session_present=type(self).asked > 0)

    async def ask(self, _: bytes) -> None:
        Stream.asked += 1
        if Stream.asked == Stream.fails:
            raise TimeoutError


async def test_a_session_is_believed_only_after_it_has_subscribed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when a session whose connection was lost before the SUBACK is taken for subscribed: it gets nothing."""
    monkeypatch.setattr(traffic_mqtt, "MqttStream", Stream)
    Stream.asked, Stream.fails = 0, 1
    target = parse_url("tcp://castor:1883")
    subscriber = MqttSubscriber(target, "orders", lambda *_: None, prefetch=10)
    with pytest.raises(TimeoutError):
        await subscriber._open(target.endpoints[0])
    await subscriber._open(target.endpoints[0])
    assert Stream.asked == 2
    await subscriber._open(target.endpoints[0])
    assert Stream.asked == 2, "it is subscribed: the session keeps that"
