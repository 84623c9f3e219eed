"""Stored messages decoded, by the codec of each encoding, which is imported when its first message is decoded."""

from __future__ import annotations

from collections.abc import Callable

from pollux.message import Encoding, Message
from pollux.wire.content import Content

Decoder = Callable[[Message], Content]


def _amqp(message: Message) -> Content:
    from pollux.wire.amqp.content import decode_content

    DECODERS[Encoding.AMQP] = decode_content
    return decode_content(message)


def _stomp(message: Message) -> Content:
    from pollux.wire.stomp.content import decode_content

    DECODERS[Encoding.STOMP] = decode_content
    return decode_content(message)


def _mqtt(message: Message) -> Content:
    from pollux.wire.mqtt.content import decode_content

    DECODERS[Encoding.MQTT] = decode_content
    return decode_content(message)


DECODERS: dict[Encoding, Decoder] = {Encoding.AMQP: _amqp, Encoding.STOMP: _stomp, Encoding.MQTT: _mqtt}


def content_of(message: Message) -> Content:
    """Return the decoded view of ``message``, cached on it. Undecodable parts are left out, never raised."""
    cached = message.content
    if isinstance(cached, Content):
        return cached
    content = DECODERS[message.encoding](message)
    message.content = content
    return content
