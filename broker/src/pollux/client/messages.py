"""Messages as users of the client see them, and their AMQP encoding. Pure."""

from __future__ import annotations

from typing import Protocol

from msgspec import Struct, field

from pollux.client.errors import StaleDeliveryError
from pollux.wire.amqp.codec import (
    DecodeError,
    Symbol,
    decode_value,
    encode_binary,
    encode_described,
    encode_fields,
    encode_map,
    encode_string,
)
from pollux.wire.amqp.sections import (
    APPLICATION_PROPERTIES,
    DATA,
    HEADER,
    MESSAGE_ANNOTATIONS,
    PROPERTIES,
    SEQUENCE,
    VALUE,
    encode_header,
    read_descriptor,
)

DUPLICATE_ID = "_AMQ_DUPL_ID"
PropertyValue = str | int | float | bool | bytes | None


class Message(Struct):
    """A message. `body` is bytes (a data section) or text (a value section)."""

    body: bytes | str = b""
    id: str | None = None
    properties: dict[str, PropertyValue] = field(default_factory=dict)
    durable: bool = True
    priority: int = 4
    #: Milliseconds; None for ever.
    ttl: int | None = None
    subject: str | None = None
    correlation_id: str | None = None
    reply_to: str | None = None
    content_type: str | None = None
    group_id: str | None = None
    #: Two messages with the same one are stored once (per address, within the broker's id-cache-size). The client
    #: makes one up where none is given; give your own to repeat a send after your program restarted.
    duplicate_id: str | None = None

    def encode(self, duplicate_id: str | None) -> bytes:
        """Return the bare message with its header; `duplicate_id` when the message has none of its own."""
        properties: list[object] = [
            self.id,
            None,
            None,
            self.subject,
            self.reply_to,
            self.correlation_id,
            Symbol(self.content_type) if self.content_type is not None else None,
            *(None, None, None),
            self.group_id,
        ]
        application: dict[object, object] = dict[object, object](self.properties.items())
        if (self.duplicate_id or duplicate_id) is not None:
            application[DUPLICATE_ID] = self.duplicate_id or duplicate_id
        if isinstance(self.body, str):
            body = encode_described(VALUE, encode_string(self.body))
        else:
            body = encode_described(DATA, encode_binary(self.body))
        return b"".join(
            (
                encode_header(self.durable, self.priority, self.ttl, False, 0),
                encode_described(PROPERTIES, encode_fields(properties)),
                encode_described(APPLICATION_PROPERTIES, encode_map(application)) if application else b"",
                body,
            )
        )


class Settling(Protocol):
    """The consumer of a delivery, as the delivery knows it."""

    def settle(self, delivery: Delivery, outcome: int) -> None:
        """Tell the broker the `outcome`, the code of its descriptor."""


class Delivery(Message):
    """A received message, to be settled with one of its methods."""

    #: Somebody may have received it before.
    redelivered: bool = False
    #: Failed deliveries before this one.
    delivery_count: int = 0
    annotations: dict[str, object] = field(default_factory=dict)
    #: A body that is neither bytes nor text (a map, a list, a number); `body` is empty then.
    value: object = None
    number: int = 0
    generation: int = 0
    settled: bool = False
    consumer: Settling | None = None

    def accept(self) -> None:
        """Consumed: the broker forgets it. In a transacted session once the transaction is committed."""
        self._settle(0x24)

    def release(self) -> None:
        """Give it back to the queue; this does not count as a failed delivery."""
        self._settle(0x26)

    def fail(self) -> None:
        """Give it back to the queue as a failed delivery; after max-delivery-attempts it is a dead letter."""
        self._settle(0x27)

    def reject(self) -> None:
        """Refuse it for good, as it cannot be handled: it is a dead letter at once."""
        self._settle(0x25)

    def _settle(self, outcome: int) -> None:
        if self.consumer is None or self.settled:
            raise StaleDeliveryError("the message was settled already")
        self.consumer.settle(self, outcome)
        self.settled = True


def decode(data: bytes) -> Delivery:
    """Return the message in `data`. Raises DecodeError."""
    delivery = Delivery()
    position = 0
    pieces: list[bytes] = []
    while position < len(data):
        section, position = read_descriptor(data, position)
        value, position = decode_value(data, position)
        if section == DATA and isinstance(value, bytes):
            pieces.append(value)
        elif section == HEADER and isinstance(value, list):
            _read_header(delivery, value)
        elif section == PROPERTIES and isinstance(value, list):
            _read_properties(delivery, value)
        elif section == APPLICATION_PROPERTIES and isinstance(value, dict):
            delivery.properties = value
            duplicate = value.get(DUPLICATE_ID)
            delivery.duplicate_id = duplicate if isinstance(duplicate, str) else None
        elif section == MESSAGE_ANNOTATIONS and isinstance(value, dict):
            delivery.annotations = {str(key): item for key, item in value.items()}
        elif section == VALUE and isinstance(value, str | bytes):
            delivery.body = value
        elif section in (VALUE, SEQUENCE):
            delivery.value = value
        elif not HEADER <= section <= 0x78:
            raise DecodeError(f"{section:#x} is not a message section")
    if pieces:
        delivery.body = b"".join(pieces)
    return delivery


def _read_header(delivery: Delivery, fields: list[object]) -> None:
    durable, priority, ttl, first, count = (fields + [None] * 5)[:5]
    delivery.durable = durable is True
    delivery.priority = priority if isinstance(priority, int) else 4
    delivery.ttl = ttl if isinstance(ttl, int) else None
    delivery.delivery_count = count if isinstance(count, int) else 0
    # Null says nothing here: brokers hand a first delivery on as its producer made it, without the field.
    delivery.redelivered = delivery.delivery_count > 0 or first is False


def _read_properties(delivery: Delivery, fields: list[object]) -> None:
    fields = fields + [None] * (11 - len(fields))
    delivery.id = str(fields[0]) if fields[0] is not None else None
    delivery.subject = _text(fields[3])
    delivery.reply_to = _text(fields[4])
    delivery.correlation_id = _text(fields[5])
    delivery.content_type = _text(fields[6])
    delivery.group_id = _text(fields[10])


def _text(value: object) -> str | None:
    return None if value is None else str(value)
