"""Properties of MQTT 5 (section 2.2.2): one table of what exists, its type and the packets it may appear in.

Decoded properties are a plain ``dict`` from identifier to value. User properties (which may repeat) are
a list of pairs, subscription identifiers a list of integers; everything else appears at most once.
"""

from __future__ import annotations

from enum import IntEnum

from pollux.wire.mqtt.primitives import (
    decode_binary,
    decode_string,
    decode_variable,
    encode_binary,
    encode_string,
    encode_variable,
)
from pollux.wire.mqtt.reasons import ProtocolError, ReasonCode, malformed, violation

#: How many properties one packet may carry; user properties are the only ones a peer can repeat freely.
MAX_PROPERTIES = 1_024

PropertyData = int | str | bytes | list[int] | list[tuple[str, str]]
Properties = dict[int, PropertyData]


class PropertyId(IntEnum):
    """Property identifiers (MQTT 5, table 2-4)."""

    PAYLOAD_FORMAT_INDICATOR = 1
    MESSAGE_EXPIRY_INTERVAL = 2
    CONTENT_TYPE = 3
    RESPONSE_TOPIC = 8
    CORRELATION_DATA = 9
    SUBSCRIPTION_IDENTIFIER = 11
    SESSION_EXPIRY_INTERVAL = 17
    ASSIGNED_CLIENT_IDENTIFIER = 18
    SERVER_KEEP_ALIVE = 19
    AUTHENTICATION_METHOD = 21
    AUTHENTICATION_DATA = 22
    REQUEST_PROBLEM_INFORMATION = 23
    WILL_DELAY_INTERVAL = 24
    REQUEST_RESPONSE_INFORMATION = 25
    RESPONSE_INFORMATION = 26
    SERVER_REFERENCE = 28
    REASON_STRING = 31
    RECEIVE_MAXIMUM = 33
    TOPIC_ALIAS_MAXIMUM = 34
    TOPIC_ALIAS = 35
    MAXIMUM_QOS = 36
    RETAIN_AVAILABLE = 37
    USER_PROPERTY = 38
    MAXIMUM_PACKET_SIZE = 39
    WILDCARD_SUBSCRIPTION_AVAILABLE = 40
    SUBSCRIPTION_IDENTIFIER_AVAILABLE = 41
    SHARED_SUBSCRIPTION_AVAILABLE = 42


BYTE, UINT16, UINT32, VARIABLE, STRING, BINARY, PAIR = range(7)

# Packet types (section 2.1.2); the will's properties are counted as a type of their own.
CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBSCRIBE = range(1, 9)
SUBACK, UNSUBSCRIBE, UNSUBACK, PINGREQ, PINGRESP, DISCONNECT, AUTH = range(9, 16)
WILL = 0

_ALL_ACKS = (CONNACK, PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK, DISCONNECT, AUTH)
_EVERY = (CONNECT, WILL, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, *_ALL_ACKS)

#: Identifier -> (type, packets it may appear in): MQTT 5, table 2-4.
TABLE: dict[int, tuple[int, frozenset[int]]] = {
    identifier: (kind, frozenset(packets))
    for identifier, kind, packets in (
        (PropertyId.PAYLOAD_FORMAT_INDICATOR, BYTE, (PUBLISH, WILL)),
        (PropertyId.MESSAGE_EXPIRY_INTERVAL, UINT32, (PUBLISH, WILL)),
        (PropertyId.CONTENT_TYPE, STRING, (PUBLISH, WILL)),
        (PropertyId.RESPONSE_TOPIC, STRING, (PUBLISH, WILL)),
        (PropertyId.CORRELATION_DATA, BINARY, (PUBLISH, WILL)),
        (PropertyId.SUBSCRIPTION_IDENTIFIER, VARIABLE, (PUBLISH, SUBSCRIBE)),
        (PropertyId.SESSION_EXPIRY_INTERVAL, UINT32, (CONNECT, CONNACK, DISCONNECT)),
        (PropertyId.ASSIGNED_CLIENT_IDENTIFIER, STRING, (CONNACK,)),
        (PropertyId.SERVER_KEEP_ALIVE, UINT16, (CONNACK,)),
        (PropertyId.AUTHENTICATION_METHOD, STRING, (CONNECT, CONNACK, AUTH)),
        (PropertyId.AUTHENTICATION_DATA, BINARY, (CONNECT, CONNACK, AUTH)),
        (PropertyId.REQUEST_PROBLEM_INFORMATION, BYTE, (CONNECT,)),
        (PropertyId.WILL_DELAY_INTERVAL, UINT32, (WILL,)),
        (PropertyId.REQUEST_RESPONSE_INFORMATION, BYTE, (CONNECT,)),
        (PropertyId.RESPONSE_INFORMATION, STRING, (CONNACK,)),
        (PropertyId.SERVER_REFERENCE, STRING, (CONNACK, DISCONNECT)),
        (PropertyId.REASON_STRING, STRING, _ALL_ACKS),
        (PropertyId.RECEIVE_MAXIMUM, UINT16, (CONNECT, CONNACK)),
        (PropertyId.TOPIC_ALIAS_MAXIMUM, UINT16, (CONNECT, CONNACK)),
        (PropertyId.TOPIC_ALIAS, UINT16, (PUBLISH,)),
        (PropertyId.MAXIMUM_QOS, BYTE, (CONNACK,)),
        (PropertyId.RETAIN_AVAILABLE, BYTE, (CONNACK,)),
        (PropertyId.USER_PROPERTY, PAIR, _EVERY),
        (PropertyId.MAXIMUM_PACKET_SIZE, UINT32, (CONNECT, CONNACK)),
        (PropertyId.WILDCARD_SUBSCRIPTION_AVAILABLE, BYTE, (CONNACK,)),
        (PropertyId.SUBSCRIPTION_IDENTIFIER_AVAILABLE, BYTE, (CONNACK,)),
        (PropertyId.SHARED_SUBSCRIPTION_AVAILABLE, BYTE, (CONNACK,)),
    )
}

#: Properties that may not be zero (sections 3.1.2.11.3, 3.1.2.11.4, 3.3.2.3.4, 3.3.2.3.8).
_NOT_ZERO = {
    int(PropertyId.RECEIVE_MAXIMUM): ReasonCode.PROTOCOL_ERROR,
    int(PropertyId.MAXIMUM_PACKET_SIZE): ReasonCode.PROTOCOL_ERROR,
    int(PropertyId.SUBSCRIPTION_IDENTIFIER): ReasonCode.PROTOCOL_ERROR,
    int(PropertyId.TOPIC_ALIAS): ReasonCode.TOPIC_ALIAS_INVALID,
}


def decode_properties(data: bytes, position: int, end: int, packet: int) -> tuple[Properties, int]:
    """Return the property block at ``position`` of a packet of type ``packet`` and the offset after it.

    An unknown identifier, a property in the wrong packet or a cut-off value is malformed (section 2.2.2.2);
    a repeated or impossible value is a protocol error.
    """
    length, position = decode_variable(data, position, end)
    stop = position + length
    if stop > end:
        raise malformed("the properties reach beyond their packet")
    found: Properties = {}
    count = 0
    while position < stop:
        identifier, position = decode_variable(data, position, stop)
        entry = TABLE.get(identifier)
        if entry is None or packet not in entry[1]:
            raise malformed(f"property {identifier} may not appear in this packet")
        count += 1
        if count > MAX_PROPERTIES:
            raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, f"more than {MAX_PROPERTIES} properties")
        position = _decode_property(data, (position, stop), identifier, packet, found)
    return found, position


def _decode_property(data: bytes, span: tuple[int, int], identifier: int, packet: int, found: Properties) -> int:
    """Add the property whose value is within ``span`` to ``found``; the offset after it."""
    position, stop = span
    kind = TABLE[identifier][0]
    if kind == PAIR:
        name, position = decode_string(data, position, stop)
        text, position = decode_string(data, position, stop)
        pairs = found.setdefault(identifier, [])
        pairs.append((name, text))  # type: ignore[union-attr, arg-type]  # PAIR identifiers hold a list of pairs
        return position
    value: int | str | bytes
    if kind == STRING:
        value, position = decode_string(data, position, stop)
    elif kind == BINARY:
        value, position = decode_binary(data, position, stop)
    elif kind == VARIABLE:
        value, position = decode_variable(data, position, stop)
    else:
        width = 1 if kind == BYTE else 2 if kind == UINT16 else 4
        if position + width > stop:
            raise malformed("a property is cut off")
        value = int.from_bytes(data[position : position + width], "big")
        position += width
        if kind == BYTE and value > 1:
            raise violation(f"property {identifier} is neither 0 nor 1")
    if value == 0:
        reason = _NOT_ZERO.get(identifier)
        if reason is not None:
            raise ProtocolError(reason, f"property {identifier} is 0")
    if kind == VARIABLE and packet == PUBLISH:
        identifiers = found.setdefault(identifier, [])
        identifiers.append(value)  # type: ignore[union-attr, arg-type]  # a PUBLISH may carry several identifiers
        return position
    if identifier in found:
        raise violation(f"property {identifier} appears twice")
    found[identifier] = [value] if kind == VARIABLE and isinstance(value, int) else value
    return position


def encode_properties(properties: Properties) -> bytes:
    """Return the property block with its length. Raises ValueError when a value does not fit its type."""
    if not properties:
        return b"\0"
    parts: list[bytes] = []
    for identifier, value in properties.items():
        kind = TABLE[identifier][0]
        prefix = bytes((identifier,))
        if isinstance(value, list):
            for item in value:
                parts.append(prefix)
                if isinstance(item, tuple):
                    parts.append(encode_string(item[0]))
                    parts.append(encode_string(item[1]))
                else:
                    parts.append(encode_variable(item))
            continue
        parts.append(prefix)
        if isinstance(value, str):
            parts.append(encode_string(value))
        elif isinstance(value, bytes):
            parts.append(encode_binary(value))
        elif kind == VARIABLE:
            parts.append(encode_variable(value))
        else:
            width = 1 if kind == BYTE else 2 if kind == UINT16 else 4
            try:
                parts.append(value.to_bytes(width, "big"))
            except OverflowError:
                raise ValueError(f"property {identifier} does not fit") from None
    block = b"".join(parts)
    return encode_variable(len(block)) + block


def integer(properties: Properties, identifier: int, default: int) -> int:
    """Return an integer property or ``default``."""
    value = properties.get(identifier)
    return value if isinstance(value, int) else default


def text(properties: Properties, identifier: int) -> str | None:
    """Return a string property, None when absent."""
    value = properties.get(identifier)
    return value if isinstance(value, str) else None


def binary(properties: Properties, identifier: int) -> bytes | None:
    """Return a binary property, None when absent."""
    value = properties.get(identifier)
    return value if isinstance(value, bytes) else None


def user_properties(properties: Properties) -> list[tuple[str, str]]:
    """Return the user properties in the order they were sent."""
    value = properties.get(PropertyId.USER_PROPERTY)
    return [pair for pair in value if isinstance(pair, tuple)] if isinstance(value, list) else []


def subscription_identifiers(properties: Properties) -> list[int]:
    """Return the subscription identifiers in the order they were sent."""
    value = properties.get(PropertyId.SUBSCRIPTION_IDENTIFIER)
    return [item for item in value if isinstance(item, int)] if isinstance(value, list) else []
