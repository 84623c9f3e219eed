"""Between the stored form of an MQTT message and the protocol-neutral view (:mod:`pollux.wire.content`). Pure.

Content type, correlation data, response topic, payload format indicator and user properties have a counterpart in
every protocol; the retain flag, the topic as sent and subscription identifiers have none and stay in the stored form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.wire.content import Content
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.primitives import MAX_FIELD, decode_variable
from pollux.wire.mqtt.reasons import ProtocolError
from pollux.wire.mqtt.stored import encode_stored, topic_end
from pollux.wire.mqtt.topics import TopicMapping

if TYPE_CHECKING:
    from uuid import UUID

    from pollux.message import Message
    from pollux.wire.content import PropertyValue

_DEFAULT_MAPPING = TopicMapping()


def decode_content(message: Message, mapping: TopicMapping = _DEFAULT_MAPPING) -> Content:
    """Return the neutral view of an MQTT message; what cannot be decoded is left out."""
    data = message.data
    content = Content()
    try:
        end = topic_end(data)
        size, start = decode_variable(data, end, len(data))
        content.body = data[start + size :]
        found, _ = p.decode_properties(data, end, len(data), p.PUBLISH)
    except (ProtocolError, IndexError):
        return content
    content.text = found.get(p.PropertyId.PAYLOAD_FORMAT_INDICATOR) == 1 and _is_text(content.body)
    content.content_type = p.text(found, p.PropertyId.CONTENT_TYPE)
    correlation = p.binary(found, p.PropertyId.CORRELATION_DATA)
    if correlation is not None:
        content.correlation_id = _text_if_text(correlation)
    response = p.text(found, p.PropertyId.RESPONSE_TOPIC)
    if response is not None:
        content.reply_to = mapping.address(response)
    content.properties = dict(p.user_properties(found))
    return content


def encode_content(content: Content, topic: str, qos: int, mapping: TopicMapping = _DEFAULT_MAPPING) -> bytes:
    """Return the stored form of a foreign message: what a delivery to an MQTT client is made from."""
    found: p.Properties = {}
    if content.text:
        found[p.PropertyId.PAYLOAD_FORMAT_INDICATOR] = 1
    if content.content_type:
        found[p.PropertyId.CONTENT_TYPE] = _cut(content.content_type)
    if content.reply_to:
        found[p.PropertyId.RESPONSE_TOPIC] = _cut(mapping.topic(content.reply_to))
    if content.correlation_id is not None:
        found[p.PropertyId.CORRELATION_DATA] = _as_bytes(content.correlation_id)[:MAX_FIELD]
    pairs = property_pairs(content.properties)
    if content.subject and "JMSType" not in content.properties:
        pairs.append(("JMSType", _cut(content.subject)))
    if pairs:
        found[p.PropertyId.USER_PROPERTY] = pairs
    return encode_stored(topic, content.body, qos, False, found)


def property_pairs(properties: dict[str, PropertyValue]) -> list[tuple[str, str]]:
    """Application properties as MQTT user properties: every value as text, absent values left out."""
    return [(_cut(name), _cut(_as_text(value))) for name, value in properties.items() if value is not None][
        : p.MAX_PROPERTIES - 8
    ]


def _as_text(value: str | float | bytes) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, bytes):
        return value.hex()
    return repr(value)


def _as_bytes(value: str | int | bytes | UUID) -> bytes:
    if isinstance(value, bytes):
        return value
    return str(value).encode("utf-8", "replace")


def _is_text(body: bytes) -> bool:
    """Return whether it is text: the producer's word is no proof, and other protocols' encoders rely on it."""
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _text_if_text(value: bytes) -> str | bytes:
    """Correlation data is opaque in MQTT and usually text elsewhere: printable UTF-8 is handed on as text."""
    try:
        text = value.decode("utf-8")
    except UnicodeDecodeError:
        return value
    return text if text.isprintable() else value


def _cut(text: str) -> str:
    """Return ``text`` as an MQTT string can hold it: no U+0000, no surrogates, at most 65,535 bytes."""
    if text.isascii() and "\0" not in text and len(text) <= MAX_FIELD:
        return text
    raw = text.replace("\0", "").encode("utf-8", "replace")[:MAX_FIELD]
    return raw.decode("utf-8", "ignore")
