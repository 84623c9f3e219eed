"""Retroactive addresses of a real broker: who comes late, with each protocol, before and after a kill -9."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import amqp, mqtt, stomp
from harness.broker import ADDRESS_SETTINGS, BrokerProcess

if TYPE_CHECKING:
    from pathlib import Path

KINDS = ("amqp", "stomp", "mqtt")
SETTING = '<address-setting match="prices.#"><retroactive-message-count>3</retroactive-message-count></address-setting>'


def late(broker: BrokerProcess, name: str) -> dict[str, list[str]]:
    """Return what subscribers get that come when all was sent."""
    found: dict[str, list[str]] = {}
    with amqp.connect(broker) as connection:
        receiver = connection.create_receiver("prices.eur", credit=10, options=amqp.SourceCapabilities("topic"))
        messages = [receiver.receive(timeout=30) for _ in range(3)]
        found["amqp"] = [bytes(each.body).decode() for each in messages]
    with stomp.connect(broker) as client:
        client.subscribe("prices.eur", **{"subscription-type": "MULTICAST"})
        found["stomp"] = [client.message().body for _ in range(3)]
    with mqtt.connect(broker, name) as listener:
        listener.subscribe("prices/+", qos=1)
        found["mqtt"] = [listener.message().payload.decode() for _ in range(3)]
    return found


def test_who_comes_late_gets_the_last_messages(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path, address_settings=ADDRESS_SETTINGS + SETTING)
    try:
        broker.start()
        with mqtt.connect(broker, "sender") as sender:
            for number in range(5):
                sender.publish("prices/eur", f"{number}")
        expected = {kind: ["2", "3", "4"] for kind in KINDS}
        assert late(broker, "one") == expected
        broker.kill()
        broker.start()
        assert late(broker, "two") == expected
        with mqtt.connect(broker, "sender") as sender:
            sender.publish("prices/eur", "5")
        assert late(broker, "three") == {kind: ["3", "4", "5"] for kind in KINDS}
        assert "Traceback" not in broker.log.read_text()
    finally:
        broker.close()
