"""The broker notes on messages as they come in who sent them (populate-validated-user) and when.

Each protocol sends a message that claims to be from somebody else; every protocol's consumer must see the truth.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest
from proton import Message, symbol

from harness import amqp, mqtt, stomp
from harness.broker import ADDRESS_SETTINGS, USER, BrokerProcess
from harness.mqtt import publish_properties

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SETTINGS = """
<address-setting match="news.#">
  <default-address-routing-type>MULTICAST</default-address-routing-type>
  <default-queue-routing-type>MULTICAST</default-queue-routing-type>
</address-setting>
<address-setting match="news.timed"><enable-ingress-timestamp>true</enable-ingress-timestamp></address-setting>
"""
FORGED = "mallory"


@pytest.fixture(scope="module")
def noting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerProcess]:
    """A broker that notes the users."""
    process = BrokerProcess(
        tmp_path_factory.mktemp("noting"),
        address_settings=ADDRESS_SETTINGS + SETTINGS,
        core="<populate-validated-user>true</populate-validated-user>",
    )
    try:
        yield process.start()
    finally:
        process.close()


def send_amqp(broker: BrokerProcess, address: str) -> None:
    with amqp.connect(broker) as connection:
        forged = {symbol("x-opt-VALIDATED-USER"): FORGED, symbol("x-opt-ingress-time"): 1, symbol("x-opt-mine"): "m"}
        connection.create_sender(address).send(
            Message(body="amqp", durable=True, annotations=forged, properties={"JMSXUserID": FORGED})
        )


def send_stomp(broker: BrokerProcess, address: str) -> None:
    with stomp.connect(broker) as client:
        client.send(address, "stomp", persistent="true", JMSXUserID=FORGED, **{"ingress-timestamp": "1"})


def send_mqtt(broker: BrokerProcess, address: str) -> None:
    with mqtt.connect(broker) as client:
        claims = [("JMSXUserID", FORGED), ("ingress-timestamp", "1"), ("mine", "m")]
        client.publish(address.replace(".", "/"), b"mqtt", properties=publish_properties(UserProperty=claims))


class Reader:
    """Subscribers of all three protocols; each gives (users, times) of its next message."""

    def __init__(self, broker: BrokerProcess, address: str, stack: ExitStack) -> None:
        self.stomp = stack.enter_context(stomp.connect(broker))
        self.stomp.subscribe(address)
        self.mqtt = stack.enter_context(mqtt.connect(broker))
        self.mqtt.subscribe(address.replace(".", "/"), qos=1)
        self.amqp: Any = stack.enter_context(amqp.connect(broker)).create_receiver(address)

    def from_stomp(self) -> tuple[list[str], list[int]]:
        headers = self.stomp.message().headers
        return (
            [headers[name] for name in headers if name == "JMSXUserID"],
            [int(headers[name]) for name in headers if name == "ingress-timestamp"],
        )

    def from_mqtt(self) -> tuple[list[str], list[int]]:
        pairs = getattr(self.mqtt.message().properties, "UserProperty", [])
        return (
            [value for name, value in pairs if name == "JMSXUserID"],
            [int(value) for name, value in pairs if name == "ingress-timestamp"],
        )

    def from_amqp(self) -> tuple[list[str], list[int]]:
        message = amqp.receive(self.amqp, 30)
        self.amqp.accept()
        found = message.annotations or {}
        return (
            [str(found[key]) for key in found if key == "x-opt-VALIDATED-USER"],
            [int(found[key]) for key in found if key == "x-opt-ingress-time"],
        )


@pytest.mark.parametrize("send", [send_amqp, send_stomp, send_mqtt])
def test_consumers_learn_who_sent_a_message_and_when(
    noting: BrokerProcess, send: Callable[[BrokerProcess, str], None]
) -> None:
    with ExitStack() as stack:
        reader = Reader(noting, "news.timed", stack)
        before = int(time.time() * 1000)
        send(noting, "news.timed")
        for users, times in (reader.from_stomp(), reader.from_mqtt(), reader.from_amqp()):
            assert users == [USER]
            (when,) = times
            assert before <= when <= int(time.time() * 1000)


def test_addresses_that_do_not_ask_get_no_time(noting: BrokerProcess) -> None:
    with ExitStack() as stack:
        reader = Reader(noting, "news.plain", stack)
        with stomp.connect(noting) as client:
            client.send("news.plain", "x")
        assert [reader.from_stomp(), reader.from_mqtt(), reader.from_amqp()] == [([USER], [])] * 3


def test_selectors_see_the_user_and_the_note_survives_a_kill(tmp_path: Path) -> None:
    broker = BrokerProcess(
        tmp_path,
        address_settings=ADDRESS_SETTINGS,
        core="<populate-validated-user>true</populate-validated-user>",
    ).start()
    try:
        send_mqtt_to_queue(broker)
        send_stomp(broker, "kept")
        broker.kill()
        broker.start()
        with stomp.connect(broker) as client:
            client.subscribe("kept", identifier="none", selector=f"JMSXUserID = '{FORGED}'")
            client.subscribe("kept", identifier="all", selector=f"JMSXUserID = '{USER}'")
            frames = [client.message(), client.message()]
        assert sorted(frame.body for frame in frames) == ["mqtt", "stomp"]
        assert {(frame.headers["subscription"], frame.headers["JMSXUserID"]) for frame in frames} == {("all", USER)}
    finally:
        broker.close()


def send_mqtt_to_queue(broker: BrokerProcess) -> None:
    """A queue first: a message for nobody is not kept."""
    broker.api("/api/v1/queues", method="POST", body={"name": "kept", "address": "kept", "routingType": "ANYCAST"})
    send_mqtt(broker, "kept")


def test_nothing_is_noted_where_nobody_asked(tmp_path: Path) -> None:
    """A client's own word on itself stays what it is."""
    broker = BrokerProcess(tmp_path, address_settings=ADDRESS_SETTINGS + SETTINGS).start()
    try:
        with ExitStack() as stack:
            reader = Reader(broker, "news.plain", stack)
            send_stomp(broker, "news.plain")
            assert reader.from_stomp() == ([FORGED], [1])
            assert reader.from_amqp() == ([], [])
    finally:
        broker.close()
