"""Publishing and receiving at QoS 0, 1 and 2, both versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pollux.wire.mqtt.packets import V5, V311, Filter

if TYPE_CHECKING:
    from harness.sessions.mqtt import Broker


@pytest.mark.parametrize("version", [V311, V5])
@pytest.mark.parametrize("published", [0, 1, 2])
@pytest.mark.parametrize("granted", [0, 1, 2])
async def test_qos_is_the_lower_of_the_two(broker: Broker, version: int, published: int, granted: int) -> None:
    consumer, producer = broker.client(version), broker.client(version)
    await consumer.connect("consumer")
    assert await consumer.subscribe(Filter("orders/new", granted)) == [granted]
    await producer.connect("producer")
    await producer.publish("orders/new", b"one", published)
    await producer.publish("orders/new", b"two", published)
    for payload in (b"one", b"two"):
        message = await consumer.message()
        assert (message.topic, message.payload, message.qos) == ("orders/new", payload, min(published, granted))
        assert not message.dup
        assert not message.retain
    await broker.settle()
    assert broker.post.queue("consumer.orders.new").message_count == 0
