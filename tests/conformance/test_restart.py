"""Messages outlive the broker: kill -9, start, and look."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from proton import Message
from proton.reactor import DurableSubscription, Selector
from proton.utils import BlockingConnection

from harness import amqp, mqtt, stomp
from harness.broker import PASSWORD, USER, BrokerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker of the test's own, which it may kill."""
    process = BrokerProcess(tmp_path).start()
    yield process
    process.close()


def restart(broker: BrokerProcess) -> None:
    """kill -9 and start."""
    broker.kill()
    broker.start()


def test_durable_messages_survive_and_others_do_not(mortal: BrokerProcess) -> None:
    with amqp.connect(mortal) as connection:
        sender = connection.create_sender("q")
        for number in range(100):
            sender.send(Message(number, durable=number % 2 == 0, properties={"n": number}))
    restart(mortal)
    with amqp.connect(mortal) as connection:
        receiver = connection.create_receiver("q", credit=100, options=Selector("n >= 50"))
        assert amqp.bodies(amqp.drain(receiver)) == list(range(50, 100, 2))
        again = amqp.drain(connection.create_receiver("q", name="rest", credit=100))
    assert amqp.bodies(again) == list(range(0, 50, 2))
    assert all(not message.first_acquirer or message.delivery_count for message in again)


def test_what_was_acknowledged_does_not_come_back(mortal: BrokerProcess) -> None:
    with amqp.connect(mortal) as connection:
        sender = connection.create_sender("q")
        for number in range(10):
            sender.send(Message(number, durable=True))
        receiver = connection.create_receiver("q")
        for _ in range(5):
            receiver.receive()
            receiver.accept()
    with amqp.connect(mortal) as connection:  # the acknowledgements above have no answer; this send has one
        connection.create_sender("other").send(Message("x", durable=True))
    restart(mortal)
    with amqp.connect(mortal) as connection:
        assert amqp.bodies(amqp.drain(connection.create_receiver("q", credit=10))) == [5, 6, 7, 8, 9]


@pytest.mark.parametrize("version", [mqtt.V311, mqtt.V5], ids=["3.1.1", "5"])
def test_mqtt_sessions_and_retained_messages(mortal: BrokerProcess, version: mqtt.Version) -> None:
    options: dict[str, Any]
    if version == mqtt.V311:
        options = {"clean_session": False}
    else:
        expiry = mqtt.connect_properties(SessionExpiryInterval=1000)
        options = {"connecting": {"clean_start": False, "properties": expiry}}
    with mqtt.connect(mortal, "client", version, **options) as client:
        client.subscribe("a/+", qos=2)
    with mqtt.connect(mortal, "producer", version) as producer:
        producer.publish("a/b", b"while away")
        producer.publish("a/b", b"exactly once", 2)
        producer.publish("kept/r", b"retained", retain=True)
    restart(mortal)
    with mqtt.connect(mortal, "producer", version) as producer:
        producer.publish("a/c", b"after the restart")
    with mqtt.connect(mortal, "client", version, **options) as client:
        assert client.connack[0].session_present is True
        found = [client.message() for _ in range(3)]
        # paho shows a message of quality of service 2 when its four packets are through, so behind others.
        sent = {(b"while away", 1), (b"exactly once", 2), (b"after the restart", 1)}
        assert {(message.payload, message.qos) for message in found} == sent
        client.subscribe("kept/#", qos=1)
        message = client.message()
        assert (message.payload, message.retain) == (b"retained", True)


def test_durable_subscriptions_of_amqp_and_stomp(mortal: BrokerProcess) -> None:
    options = [DurableSubscription(), amqp.SourceCapabilities("topic")]

    def subscribe() -> tuple[Any, Any]:
        connection: Any = BlockingConnection(
            f"amqp://127.0.0.1:{mortal.port}",
            timeout=10,
            user=USER,
            password=PASSWORD,
            allow_insecure_mechs=True,
            container_id="reader",
        )
        return connection, connection.create_receiver("news", name="news", credit=10, options=options)

    durable = {"subscription_type": "MULTICAST", "durable_subscription_name": "news"}
    connection, receiver = subscribe()
    receiver.detach()
    connection.close()
    with stomp.connect(mortal, headers={"client-id": "stomp-reader"}) as client:
        client.subscribe("news", **durable)
    restart(mortal)
    with stomp.connect(mortal) as client:
        client.send("news", "hello", destination_type="MULTICAST", persistent="true")
    connection, receiver = subscribe()
    message = receiver.receive()  # kept: its body may be a view of its memory
    body = message.body
    assert (body if isinstance(body, str) else bytes(body).decode()) == "hello"
    receiver.accept()
    connection.close()
    with stomp.connect(mortal, headers={"client-id": "stomp-reader"}) as client:
        client.subscribe("news", **durable)
        assert client.message().body == "hello"


def test_duplicate_ids_are_remembered(mortal: BrokerProcess) -> None:
    def send(body: str) -> None:
        with amqp.connect(mortal) as connection:
            message = Message(body, durable=True, properties={"_AMQ_DUPL_ID": "only-once"})
            connection.create_sender("q").send(message)

    send("first")
    restart(mortal)
    send("again")
    with amqp.connect(mortal) as connection:
        assert amqp.bodies(amqp.drain(connection.create_receiver("q", credit=10))) == ["first"]


def test_a_scheduled_message_waits_on(mortal: BrokerProcess) -> None:
    started = time.monotonic()
    with amqp.connect(mortal) as connection:
        message = Message("later", durable=True, annotations={amqp.DELIVERY_DELAY: 4000})
        connection.create_sender("q").send(message)
    restart(mortal)
    with amqp.connect(mortal) as connection:
        receiver = connection.create_receiver("q")
        assert receiver.receive(10).body == "later"
        assert time.monotonic() - started >= 3.95
        receiver.accept()


def test_large_messages(mortal: BrokerProcess) -> None:
    body = bytes(range(256)) * 8000
    with amqp.connect(mortal) as connection:
        connection.create_sender("q").send(Message(body, durable=True))
    restart(mortal)
    with amqp.connect(mortal) as connection:
        receiver = connection.create_receiver("q")
        assert receiver.receive().body == body
        receiver.accept()


def test_an_uncommitted_transaction_is_as_if_it_never_was(mortal: BrokerProcess) -> None:
    with stomp.connect(mortal) as client:
        client.raw.begin("t")
        client.raw.send("q", "uncommitted", transaction="t", headers={"persistent": "true"})
        client.send("q", "confirmed", persistent="true")
        mortal.kill()
        client.wait_until_closed()
    mortal.start()
    with stomp.connect(mortal) as client:
        client.subscribe("q")
        assert client.message().body == "confirmed"
        client.silence()


def test_a_clean_stop_and_start(mortal: BrokerProcess) -> None:
    with stomp.connect(mortal) as client:
        client.send("q", "x", persistent="true")
    assert mortal.stop() == 0
    mortal.start()
    with stomp.connect(mortal) as client:
        client.subscribe("q")
        assert client.message().body == "x"
