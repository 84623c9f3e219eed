"""Read what selectors compare: properties and headers of messages, by name.

Headers have the names of JMS and of Artemis. Everything that is not a known header is a property of
the message or one the broker added (``Message.annotations``). Absent is None, which selectors treat
as unknown; so is what is only known at delivery (JMSRedelivered, JMSXDeliveryCount). Only what lies in
the decoded content costs decoding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pollux.message import Message
from pollux.wire.content import Content, PropertyValue
from pollux.wire.decoders import content_of

if TYPE_CHECKING:
    from uuid import UUID

Getter = Callable[[Message], PropertyValue]


def _text(value: str | int | bytes | UUID | None) -> str | None:
    """Message and correlation ids as JMS shows them: text."""
    if value is None or isinstance(value, str):
        return value
    return value.hex() if isinstance(value, bytes) else str(value)


def _durable(message: Message) -> str:
    return "DURABLE" if message.durable else "NON_DURABLE"


def _delivery_mode(message: Message) -> str:
    return "PERSISTENT" if message.durable else "NON_PERSISTENT"


def _message_id(message: Message) -> str | None:
    return _text(content_of(message).message_id)


def _group_sequence(message: Message) -> int | None:
    return message.group_sequence if message.group is not None else None


def _scheduled(message: Message) -> int | None:
    return message.deliver_at or None


#: Headers that are fields of the message: no decoding.
FIELDS: dict[str, Getter] = {
    "JMSPriority": lambda message: message.priority,
    "JMSDeliveryMode": _delivery_mode,
    "JMSTimestamp": lambda message: message.timestamp,
    "JMSExpiration": lambda message: message.expiration,
    "JMSDestination": lambda message: message.address,
    "JMSXGroupID": lambda message: message.group,
    "JMSXGroupSeq": _group_sequence,
    "JMSXUserID": lambda message: message.user,
    "AMQPriority": lambda message: message.priority,
    "AMQDurable": _durable,
    "AMQTimestamp": lambda message: message.timestamp,
    "AMQExpiration": lambda message: message.expiration,
    "AMQSize": lambda message: message.size if message.large is None else message.large.size,
    "AMQAddress": lambda message: message.address,
    "AMQGroupID": lambda message: message.group,
    "_AMQ_GROUP_ID": lambda message: message.group,
    "_AMQ_SCHED_DELIVERY": _scheduled,
    "_AMQ_LARGE_SIZE": lambda message: message.large.size if message.large is not None else None,
}

#: Headers that are in the content.
HEADERS: dict[str, Getter] = {
    "JMSMessageID": _message_id,
    "JMSCorrelationID": lambda message: _text(content_of(message).correlation_id),
    "JMSType": lambda message: content_of(message).subject,
    "JMSReplyTo": lambda message: content_of(message).reply_to,
    # Artemis calls the message id the user id.
    "AMQUserID": _message_id,
}


def property_getter(name: str) -> Getter:
    """A function that reads the property ``name`` of a message."""

    def read(message: Message) -> PropertyValue:
        annotations = message.annotations
        if annotations is not None and name in annotations:
            return annotations[name]
        content = message.content
        if content.__class__ is not Content:
            content = content_of(message)
        return content.properties.get(name)

    return read


def getter(name: str) -> Getter:
    """A function that reads the header or property ``name`` of a message."""
    return FIELDS.get(name) or HEADERS.get(name) or property_getter(name)
