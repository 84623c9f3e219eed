"""MQTT clients that a connection router sends elsewhere, or refuses: in the words of their version (section 4.13)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.routers import FixedRouter
from pollux.protocols.redirects import Elsewhere, Refused
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import V5, V31, V311, ConnAck, Connect
from pollux.wire.mqtt.reasons import ReasonCode

if TYPE_CHECKING:
    from harness.sessions.mqtt import Broker

ELSEWHERE = Elsewhere("fe80::1", 1883, tls=False)


@pytest.mark.parametrize(
    ("version", "answer", "reason", "reference"),
    [
        (V5, ELSEWHERE, ReasonCode.USE_ANOTHER_SERVER, "[fe80::1]:1883"),
        (V5, Elsewhere("b", 1, tls=False), ReasonCode.USE_ANOTHER_SERVER, "b:1"),
        (V5, Refused("later", later=True), ReasonCode.SERVER_UNAVAILABLE, None),
        (V5, Refused("never", later=False), ReasonCode.USE_ANOTHER_SERVER, None),
        (V311, ELSEWHERE, 3, None),
        (V31, Refused("never", later=False), 3, None),
    ],
)
async def test_the_client_is_told(
    broker: Broker, version: int, answer: Elsewhere | Refused, reason: int, reference: str | None
) -> None:
    router = FixedRouter(answer)
    broker.router = router
    client = broker.client(version)
    client.write(Connect("pump", version=version))
    (said,) = await client.closed()
    assert isinstance(said, ConnAck)
    assert said.reason == reason
    assert said.properties.get(p.PropertyId.SERVER_REFERENCE) == reference
    assert [(one.protocol, one.client_id) for one in router.asked] == [("MQTT", "pump")]


async def test_a_client_that_does_not_stay_steals_no_client_id(broker: Broker) -> None:
    first = broker.client()
    await first.connect("same")
    broker.router = FixedRouter(ELSEWHERE)
    second = broker.client()
    second.write(Connect("same"))
    await second.closed()
    await first.ping()


async def test_a_client_waits_until_enough_brokers_are_ready(broker: Broker) -> None:
    router = FixedRouter(None, patience=True)
    broker.router = router
    client = broker.client()
    client.write(Connect("pump"))
    await broker.settle()
    assert router.asked == []
    router.enough.set()
    assert (await client.receive(ConnAck)).reason == 0
