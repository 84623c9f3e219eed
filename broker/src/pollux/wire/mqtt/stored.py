"""The form of an MQTT message in ``Message.data``, in the journal and in large-message files. Pure.

The stored form is a MQTT 5 PUBLISH packet without its remaining length and its packet identifier::

    offset  size  what
    0       1     flags: 0x30 | QoS << 1 | RETAIN. Bit 3 (DUP on the wire) is set when the broker itself made this
                  copy from a retained message for a new subscription (delivered with RETAIN = 1 whatever the
                  subscription's retain-as-published option)
    1       2     length of the topic, big endian
    3       n     topic, UTF-8, as the producer sent it (an alias is resolved first)
    3+n     1-4   length of the properties, a variable byte integer (0 for a MQTT 3.1.1 producer)
    ...           properties as the producer sent them, without message expiry interval and topic alias
    ...           payload, to the end

A delivery is then one ``bytes.join`` of: flags and length, the topic, the packet identifier, the rest. The message
expiry interval is ``Message.expiration`` and is put back with the remaining time; topic aliases and subscription
identifiers belong to a connection or a subscription and are added when delivering. ``Message.address`` is the topic as
an address (:mod:`pollux.wire.mqtt.topics`). QoS 0 is a non-durable message, QoS 1 and 2 are durable. The form has no
version: the journal record that holds it says ``Encoding.MQTT``. A large message's file holds all of it;
``Message.data`` then holds flags, topic and properties only, with none of the payload behind them.
"""

from __future__ import annotations

from msgspec import Struct

from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.primitives import decode_variable, encode_variable
from pollux.wire.mqtt.reasons import violation

REPLAY = 0x08
RETAIN = 0x01

#: User properties with a meaning for the broker (Artemis's names); a cheap test before decoding them all.
_MARKS = (b"_AMQ_", b"JMSXGroup")

_MAX_TOPIC_ALIAS = 65_535


class Scanned(Struct):
    """The properties of a PUBLISH that mean something to the broker, and the block to store.

    ``expiry`` is seconds, None when absent; ``alias`` 0 when absent; ``special`` the user properties that concern
    the broker; ``text`` the payload format indicator.
    """

    block: bytes
    expiry: int | None
    alias: int
    special: dict[str, str] | None
    text: bool


def block_end(rest: bytes, position: int = 0) -> int:
    """Return the offset after the property block that starts at ``position``."""
    length = rest[position]
    if length < 0x80:
        return position + 1 + length
    length, position = decode_variable(rest, position, len(rest))
    return position + length


def scan_properties(block: bytes) -> Scanned:
    """Check the properties of a client's PUBLISH (the whole block, with its length) and take out what is not stored."""
    found, _ = p.decode_properties(block, 0, len(block), p.PUBLISH)
    if p.PropertyId.SUBSCRIPTION_IDENTIFIER in found:
        raise violation("a client may not send a subscription identifier")  # MQTT-3.3.4-6
    response = p.text(found, p.PropertyId.RESPONSE_TOPIC)
    if response is not None and (not response or "+" in response or "#" in response):
        raise violation("a response topic that is no topic name")  # MQTT-3.3.2-14, MQTT-4.7.3-1
    expiry = found.pop(p.PropertyId.MESSAGE_EXPIRY_INTERVAL, None)
    alias = found.pop(p.PropertyId.TOPIC_ALIAS, 0)
    special = None
    if any(mark in block for mark in _MARKS):
        special = {name: text for name, text in p.user_properties(found) if name.startswith(("_AMQ_", "JMSXGroup"))}
    return Scanned(
        block if expiry is None and not alias else p.encode_properties(found),
        expiry if isinstance(expiry, int) else None,
        alias if isinstance(alias, int) else 0,
        special or None,
        found.get(p.PropertyId.PAYLOAD_FORMAT_INDICATOR) == 1,
    )


def encode_stored(topic: str, payload: bytes, qos: int, retain: bool, found: p.Properties) -> bytes:
    """Return the stored form of a message the broker makes itself (a will, a foreign message)."""
    raw = topic.encode("utf-8", "surrogatepass")[:_MAX_TOPIC_ALIAS]
    head = bytes((0x30 | qos << 1 | retain, len(raw) >> 8, len(raw) & 0xFF))
    return b"".join((head, raw, p.encode_properties(found), payload))


def topic_end(data: bytes) -> int:
    """Return the offset after the topic."""
    return 3 + (data[1] << 8 | data[2])


def as_replay(data: bytes) -> bytes:
    """Return the copy of a retained message that goes to a new subscription."""
    return bytes((data[0] | REPLAY | RETAIN,)) + data[1:]


def without_user_property(data: bytes, end: int, name: str) -> bytes:
    """Stored ``data``, whose topic ends at ``end``, without the user properties called ``name``."""
    stop = block_end(data, end)
    if name.encode() not in data[end:stop]:
        return data
    found, _ = p.decode_properties(data, end, stop, p.PUBLISH)
    pairs = [pair for pair in p.user_properties(found) if pair[0] != name]
    if pairs:
        found[p.PropertyId.USER_PROPERTY] = pairs
    else:
        found.pop(p.PropertyId.USER_PROPERTY, None)
    return data[:end] + p.encode_properties(found) + data[stop:]


def with_properties(data: bytes, end: int, extra: bytes) -> tuple[bytes, bytes]:
    """``(property block with extra in front, payload)`` of stored ``data`` whose topic ends at ``end``."""
    size, start = data[end], end + 1
    if size >= 0x80:
        size, start = decode_variable(data, end, len(data))
    stop = start + size
    return encode_variable(size + len(extra)) + extra + data[start:stop], data[stop:]
