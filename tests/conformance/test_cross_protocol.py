"""A message that one protocol sends and another reads keeps body, properties, correlation id, type and durability."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
from proton import Message, symbol

from harness import amqp, mqtt, stomp

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from harness.broker import BrokerProcess

TEXT, BINARY = "grüße", bytes(range(256))
PROPERTIES = {"colour": "red", "place": "Köln"}
CORRELATION, CONTENT_TYPE = "correlation-1", "text/plain"


@dataclass(slots=True)
class Seen:
    """Holds a message as a reader of any protocol saw it."""

    body: bytes
    properties: dict[str, str] = field(default_factory=dict)
    correlation: str = ""
    content_type: str = ""
    durable: bool | None = None


def dotted(name: str) -> str:
    """The address: MQTT's / is . in the others."""
    return f"topic.{name}.x"


def slashed(name: str) -> str:
    """The same address as MQTT writes it."""
    return dotted(name).replace(".", "/")


# -- readers: subscribe, then yield a function that returns what arrived


def read_amqp(broker: BrokerProcess, name: str) -> Iterator[Callable[[], Seen]]:
    """Read with proton."""
    with amqp.connect(broker) as connection:
        receiver = connection.create_receiver(dotted(name), options=amqp.SourceCapabilities("topic"))

        def read() -> Seen:
            message: Any = receiver.receive(10)
            receiver.accept()
            body = message.body.encode() if isinstance(message.body, str) else bytes(message.body)
            correlation = message.correlation_id
            return Seen(
                body,
                {key: value for key, value in (message.properties or {}).items() if key in PROPERTIES},
                correlation.decode() if isinstance(correlation, bytes) else str(correlation or ""),
                str(message.content_type or ""),
                message.durable,
            )

        yield read


def read_stomp(broker: BrokerProcess, name: str) -> Iterator[Callable[[], Seen]]:
    """Read with stomp.py."""
    with stomp.connect(broker, auto_decode=False) as client:
        client.subscribe(dotted(name))

        def read() -> Seen:
            frame = client.message()
            headers = frame.headers
            body = frame.body if isinstance(frame.body, bytes) else frame.body.encode()
            return Seen(
                body,
                {key: headers[key] for key in PROPERTIES if key in headers},
                headers.get("correlation-id", ""),
                headers.get("content-type", ""),
                headers.get("persistent") == "true",
            )

        yield read


def read_mqtt(broker: BrokerProcess, name: str) -> Iterator[Callable[[], Seen]]:
    """Read with paho; MQTT has no durable flag, quality of service 1 is what stands for it."""
    with mqtt.connect(broker, name) as client:
        client.subscribe(slashed(name), qos=1)

        def read() -> Seen:
            message = client.message()
            found = message.properties
            return Seen(
                message.payload,
                {key: value for key, value in getattr(found, "UserProperty", []) if key in PROPERTIES},
                getattr(found, "CorrelationData", b"").decode(),
                getattr(found, "ContentType", ""),
                message.qos == 1,
            )

        yield read


# -- writers


def write_amqp(broker: BrokerProcess, name: str, body: str | bytes, *, durable: bool) -> None:
    """Write with proton."""
    with amqp.connect(broker) as connection:
        sender = connection.create_sender(dotted(name), options=amqp.TargetCapabilities("topic"))
        sender.send(
            Message(
                body,
                durable=durable,
                correlation_id=CORRELATION,
                content_type=symbol(CONTENT_TYPE),
                properties=dict(PROPERTIES),
            )
        )


def write_stomp(broker: BrokerProcess, name: str, body: str | bytes, *, durable: bool) -> None:
    """Write with stomp.py."""
    with stomp.connect(broker) as client:
        client.send(
            dotted(name),
            body,
            persistent="true" if durable else "false",
            correlation_id=CORRELATION,
            content_type=CONTENT_TYPE,
            **PROPERTIES,
        )


def write_mqtt(broker: BrokerProcess, name: str, body: str | bytes, *, durable: bool) -> None:
    """Write with paho."""
    with mqtt.connect(broker, name + "-writer") as client:
        client.publish(
            slashed(name),
            body,
            1 if durable else 0,
            properties=mqtt.publish_properties(
                UserProperty=list(PROPERTIES.items()),
                CorrelationData=CORRELATION.encode(),
                ContentType=CONTENT_TYPE,
                PayloadFormatIndicator=int(isinstance(body, str)),
            ),
        )


WRITERS = {"amqp": write_amqp, "stomp": write_stomp, "mqtt": write_mqtt}
READERS = {"amqp": read_amqp, "stomp": read_stomp, "mqtt": read_mqtt}


@pytest.mark.parametrize("body", [TEXT, BINARY], ids=["text", "binary"])
@pytest.mark.parametrize("durable", [True, False], ids=["durable", "non-durable"])
@pytest.mark.parametrize("direction", [(writer, reader) for writer in WRITERS for reader in READERS], ids="-to-".join)
def test_a_message_crosses(
    broker: BrokerProcess, name: str, direction: tuple[str, str], durable: bool, body: str | bytes
) -> None:
    writer, reader = direction
    reading = READERS[reader](broker, name)
    read = next(reading)
    WRITERS[writer](broker, name, body, durable=durable)
    seen = read()
    for _ in reading:
        pass
    assert seen.body == (body.encode() if isinstance(body, str) else body)
    assert seen.properties == PROPERTIES
    assert seen.correlation == CORRELATION
    assert seen.content_type == CONTENT_TYPE
    assert seen.durable is durable


@pytest.mark.parametrize("reader", ["stomp", "mqtt"])
def test_structured_amqp_bodies_arrive_readable(broker: BrokerProcess, name: str, reader: str) -> None:
    reading = READERS[reader](broker, name)
    read = next(reading)
    with amqp.connect(broker) as connection:
        sender = connection.create_sender(dotted(name), options=amqp.TargetCapabilities("topic"))
        sender.send(Message({"n": 1, "s": ["a", True]}, durable=True))
    seen = read()
    for _ in reading:
        pass
    assert b'"n"' in seen.body
    assert b'"a"' in seen.body


@pytest.mark.parametrize("writer", WRITERS)
def test_the_first_of_a_group_is_told_in_every_protocol(broker: BrokerProcess, name: str, writer: str) -> None:
    address = f"topic.grouped.{name}"
    with (
        amqp.connect(broker) as connection,
        stomp.connect(broker) as frames,
        mqtt.connect(broker, name) as packets,
    ):
        receiver = connection.create_receiver(address, credit=10, options=amqp.SourceCapabilities("topic"))
        frames.subscribe(address)
        packets.subscribe(address.replace(".", "/"), qos=1)
        for _ in range(2):
            if writer == "amqp":
                sender = connection.create_sender(address, options=amqp.TargetCapabilities("topic"))
                sender.send(Message("x", durable=True, group_id="g", properties={"mine": "kept"}))
                sender.close()
            elif writer == "stomp":
                frames.send(address, "x", JMSXGroupID="g", mine="kept")
            else:
                packets.publish(
                    address.replace(".", "/"),
                    "x",
                    1,
                    properties=mqtt.publish_properties(UserProperty=[("JMSXGroupID", "g"), ("mine", "kept")]),
                )
        seen = [amqp.receive(receiver, 10).properties for _ in range(2)]
        assert [each.get("first") for each in seen] == [True, None]
        assert [each["mine"] for each in seen] == ["kept", "kept"]
        headers = [frames.message().headers for _ in range(2)]
        assert [each.get("first") for each in headers] == ["true", None]
        assert [each["mine"] for each in headers] == ["kept", "kept"]
        users = [dict(packets.message().properties.UserProperty) for _ in range(2)]
        assert [each.get("first") for each in users] == ["true", None]
        assert [each["mine"] for each in users] == ["kept", "kept"]
