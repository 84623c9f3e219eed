"""MQTT beside the other protocols: messages from MQTT clients to theirs, and back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.sessions.office import Receiver
from pollux.message import Encoding, Message
from pollux.routing.spec import QueueSpec
from pollux.wire.content import Content
from pollux.wire.decoders import content_of
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.content import encode_content
from pollux.wire.mqtt.packets import Filter

if TYPE_CHECKING:
    from harness.sessions.mqtt import Broker


async def test_an_mqtt_message_as_others_see_it(broker: Broker) -> None:
    queue = broker.post.create_queue(QueueSpec("mine", "orders.new"))
    receiver = Receiver()
    broker.post.attach(queue, receiver)
    client = broker.client()
    await client.connect("c")
    await client.publish(
        "orders/new",
        b"body",
        1,
        payload_format_indicator=1,
        content_type="text/plain",
        response_topic="answers/here",
        correlation_data=b"corr-1",
        user_property=[("colour", "red")],
    )
    await broker.settle()
    (reference,) = receiver.got
    message = reference.message
    assert (message.address, message.durable, message.user) == ("orders.new", True, None)
    content = content_of(message)
    assert content == Content(
        b"body", True, {"colour": "red"}, None, "corr-1", "text/plain", None, "answers.here", None
    )


async def test_binary_correlation_data_stays_bytes_and_bad_text_is_not_text() -> None:
    data = encode_content(Content(b"\xff", True, {}, None, b"\x00\x01"), "t", 1)
    content = content_of(Message(Encoding.MQTT, "t", data))
    assert (content.body, content.text, content.correlation_id) == (b"\xff", False, b"\x00\x01")


@pytest.mark.parametrize("data", [b"", b"\x32", b"\x32\0\x05a", b"\x32\0\x01a\xff\xff", b"\x32\0\x01a\x05\x26"])
async def test_damaged_data_is_left_out(data: bytes) -> None:
    assert isinstance(content_of(Message(Encoding.MQTT, "t", data)), Content)


async def test_foreign_messages(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    contents = {
        b"1": Content(
            b"text",
            True,
            {"s": "x", "i": 7, "f": 1.5, "t": True, "b": b"\x01", "n": None},
            "id-1",
            "corr",
            "text/plain",
            None,
            "answers.here",
            "subject",
        ),
        b"2": Content(b"\x00\xff"),
    }
    from pollux.wire import decoders

    monkeypatch.setitem(decoders.DECODERS, Encoding.AMQP, lambda message: contents[message.data])
    client = broker.client()
    await client.connect("c")
    await client.subscribe(Filter("orders/#", 2))
    broker.post.send(Message(Encoding.AMQP, "orders.new", b"1"))
    message = await client.message()
    assert (message.topic, message.payload, message.qos) == ("orders/new", b"text", 1)
    found: Any = message.properties
    assert found[p.PropertyId.PAYLOAD_FORMAT_INDICATOR] == 1
    assert found[p.PropertyId.CONTENT_TYPE] == "text/plain"
    assert found[p.PropertyId.CORRELATION_DATA] == b"corr"
    assert found[p.PropertyId.RESPONSE_TOPIC] == "answers/here"
    assert found[p.PropertyId.USER_PROPERTY] == [
        ("s", "x"),
        ("i", "7"),
        ("f", "1.5"),
        ("t", "true"),
        ("b", "01"),
        ("JMSType", "subject"),
    ]
    broker.post.send(Message(Encoding.AMQP, "orders.v1/2.x", b"2", durable=False))
    message = await client.message()
    assert (message.topic, message.payload, message.qos, message.properties) == (
        "orders/v1.2/x",
        b"\x00\xff",
        0,
        {},
    )


async def test_stomp_and_back(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    await client.subscribe(Filter("orders/new", 1))
    data = b"destination:orders.new\ncontent-type:text/plain\ncorrelation-id:77\ncolour:red\n\nhello"
    broker.foreign("orders.new", data, Encoding.STOMP)
    message = await client.message()
    assert message.payload == b"hello"
    assert message.properties[p.PropertyId.CONTENT_TYPE] == "text/plain"
    assert message.properties[p.PropertyId.CORRELATION_DATA] == b"77"
    assert ("colour", "red") in message.properties[p.PropertyId.USER_PROPERTY]  # type: ignore[operator]


async def test_a_moved_message_says_where_it_is_and_why(broker: Broker) -> None:
    client = broker.client()
    await client.connect("c")
    await client.subscribe(Filter("dead", 1))
    data = encode_content(Content(b"body"), "orders/new", 1)
    message = Message(Encoding.MQTT, "dead", data)
    message.annotations = {"_AMQ_ORIG_ADDRESS": "orders.new"}
    broker.post.send(message)
    got = await client.message()
    assert (got.topic, got.payload) == ("dead", b"body")
    assert got.properties[p.PropertyId.USER_PROPERTY] == [("_AMQ_ORIG_ADDRESS", "orders.new")]
