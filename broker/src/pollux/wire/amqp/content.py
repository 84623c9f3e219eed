"""Between AMQP messages and the neutral :class:`~pollux.wire.content.Content`.

AMQP to neutral: data sections are joined; a string value is text; other values and sequences
become JSON text, so that any protocol can read them. Neutral to AMQP: text becomes an
``amqp-value`` string, anything else a data section, with the ``x-opt-jms-msg-type`` JMS clients
look for. ``Message.data`` of an AMQP message is the complete encoded message, all frames
joined, from the header section on, without delivery annotations.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING
from uuid import UUID

from pollux.wire.amqp import sections
from pollux.wire.amqp.codec import (
    DecodeError,
    Described,
    Symbol,
    Timestamp,
    UInt,
    ULong,
    decode_value,
    encode_binary,
    encode_compound,
    encode_described,
    encode_string,
    encode_symbol,
    encode_value,
)
from pollux.wire.content import Content, PropertyValue

if TYPE_CHECKING:
    from pollux.message import Message

_JMS_BYTES = 3
_JMS_TEXT = 5


def decode_content(message: Message) -> Content:
    """Return the neutral view of an AMQP message. What cannot be decoded is left out, nothing is raised.

    For a large message only its head is looked at: the body is what of it lies in the head.
    """
    content = Content()
    data = bytes(message.data)
    try:
        where = sections.walk(data, partial=True)
    except DecodeError:  # pragma: no cover (partial walks do not raise)
        return content
    if where.properties is not None:
        _decode_properties(content, data, where.properties[1])
    if where.application_properties is not None:
        _decode_application_properties(content, data, where.application_properties[1])
    if where.complete:
        _decode_body(content, data, where.body)
    return content


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, str) else None


def _identifier(value: object) -> str | int | bytes | UUID | None:
    if isinstance(value, str):
        return str(value)
    return value if isinstance(value, int | bytes | UUID) and not isinstance(value, bool) else None


def _decode_properties(content: Content, data: bytes, pos: int) -> None:
    try:
        fields, _ = decode_value(data, pos)
    except DecodeError:
        return
    if not isinstance(fields, list):
        return
    fields += [None] * (13 - len(fields))
    content.message_id = _identifier(fields[0])
    content.subject = _text(fields[3])
    content.reply_to = _text(fields[4])
    content.correlation_id = _identifier(fields[5])
    content.content_type = _text(fields[6])
    content.content_encoding = _text(fields[7])


def _decode_application_properties(content: Content, data: bytes, pos: int) -> None:
    try:
        values, _ = decode_value(data, pos)
    except DecodeError:
        return
    if not isinstance(values, dict):
        return
    properties = content.properties
    for key, value in values.items():
        if isinstance(key, str) and (value is None or isinstance(value, str | int | float | bytes | UUID)):
            properties[str(key)] = _property(value)


def _property(value: object) -> PropertyValue:
    if isinstance(value, bool | float | bytes) or value is None:
        return value
    return int(value) if isinstance(value, int) else str(value)


def _decode_body(content: Content, data: bytes, pos: int) -> None:
    parts: list[bytes] = []
    sequences: list[object] = []
    try:
        for _ in range(sections.MAX_BODY_SECTIONS):
            if pos >= len(data):
                break
            number, pos = sections.read_descriptor(data, pos)
            value, pos = decode_value(data, pos)
            if number == sections.DATA and isinstance(value, bytes):
                parts.append(value)
            elif number == sections.SEQUENCE and isinstance(value, list):
                sequences.extend(value)
            elif number == sections.VALUE:
                _decode_value_body(content, value)
    except DecodeError:
        pass
    if parts:
        content.body = b"".join(parts)
    elif sequences:
        _json_body(content, sequences)


def _decode_value_body(content: Content, value: object) -> None:
    if value is None:
        return
    if isinstance(value, bytes):
        content.body = value
    elif isinstance(value, str):
        content.body = value.encode("utf-8", "replace")
        content.text = True
    else:
        _json_body(content, value)


def _json_body(content: Content, value: object) -> None:
    content.body = json.dumps(_plain(value), ensure_ascii=False, allow_nan=True).encode("utf-8", "replace")
    content.text = True
    if content.content_type is None:
        content.content_type = "application/json"


def _plain(value: object) -> object:
    """Return a decoded AMQP value as JSON can hold it: binary as latin-1 text, maps with text keys."""
    if isinstance(value, dict):
        return {key if isinstance(key, str) else str(_plain(key)): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, Described):
        return _plain(value.value)
    if isinstance(value, bytes):
        return value.decode("latin-1")
    return value if value is None or isinstance(value, str | int | float) else str(value)


def encode_content(message: Message, content: Content) -> bytes:
    """Return the AMQP encoding of a message of another protocol, without the header section.

    The session puts the header, which depends on the delivery, in front. ``message.address``
    becomes ``properties.to``; broker annotations are the session's as well.
    """
    text = content.text
    kind = encode_symbol("x-opt-jms-msg-type") + b"\x51%c" % (_JMS_TEXT if text else _JMS_BYTES)
    parts = [b"\x00Sr" + encode_compound(0xC1, 0xD1, 2, kind)]
    fields: list[object] = [
        _encodable_identifier(content.message_id),
        message.user.encode() if message.user else None,
        message.address,
        content.subject,
        content.reply_to,
        _encodable_identifier(content.correlation_id),
        None if content.content_type is None else Symbol(content.content_type),
        None if content.content_encoding is None else Symbol(content.content_encoding),
        Timestamp(message.expiration) if message.expiration else None,
        Timestamp(message.timestamp) if message.timestamp else None,
        message.group,
        UInt(message.group_sequence) if message.group and 0 <= message.group_sequence < 1 << 32 else None,
    ]
    parts.append(sections.encode_properties(fields))
    if content.properties:
        parts.append(_encode_application_properties(content.properties))
    if text:
        parts.append(b"\x00Sw" + encode_string(content.body.decode("utf-8", "replace")))
    else:
        parts.append(b"\x00Su" + encode_binary(content.body))
    return b"".join(parts)


def _encodable_identifier(value: str | int | bytes | UUID | None) -> object:
    """Message ids are ulong, uuid, binary or string (3.2.11 to 3.2.14)."""
    if isinstance(value, int):
        return ULong(value) if 0 <= value < 1 << 64 else str(value)
    return value


def _encode_application_properties(properties: dict[str, PropertyValue]) -> bytes:
    parts = []
    for key, value in properties.items():
        try:
            encoded = encode_value(value)
        except ValueError:
            encoded = encode_string(str(value))
        parts.append(encode_string(key) + encoded)
    body = b"".join(parts)
    return encode_described(sections.APPLICATION_PROPERTIES, encode_compound(0xC1, 0xD1, 2 * len(parts), body))
