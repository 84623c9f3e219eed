"""One whole packet's body to its value: every packet type of MQTT 3.1, 3.1.1 and 5. Pure.

Finding packets in a stream, and the fast paths, are :mod:`pollux.wire.mqtt.decoder`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import (
    V5,
    V31,
    V311,
    Ack,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Filter,
    Packet,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
    Will,
)
from pollux.wire.mqtt.primitives import decode_binary, decode_string, decode_uint16
from pollux.wire.mqtt.reasons import ProtocolError, ReasonCode, malformed, violation

if TYPE_CHECKING:
    from collections.abc import Callable

#: How many filters one SUBSCRIBE or UNSUBSCRIBE may carry.
MAX_FILTERS = 1_024

# Reason codes each acknowledgement may carry (sections 3.4.2.1, 3.5.2.1, 3.6.2.1, 3.7.2.1).
_RECEIVED = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASED = frozenset({0x00, 0x92})
_ACK_REASONS = {p.PUBACK: _RECEIVED, p.PUBREC: _RECEIVED, p.PUBREL: _RELEASED, p.PUBCOMP: _RELEASED}
_DISCONNECT_REASONS = frozenset(
    {0x00, 0x04, *range(0x80, 0x84), 0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, 0x90, *range(0x93, 0xA3)}
)
_AUTH_REASONS = frozenset({0x00, 0x18, 0x19})
#: The names that CONNECT gives the protocol, and the levels it has under each (3.1.1, MQTT-3.1.2-1, -2).
_LEVELS = {b"MQTT": (V311, V5), b"MQIsdp": (V31,)}
_DUP = 0x08


def parse_packet(first: int, body: bytes, version: int) -> Packet:
    """Return the packet whose fixed header starts with ``first`` and whose remaining bytes are ``body``.

    ``version`` is what the connection speaks; a CONNECT says it itself. Raises :class:`ProtocolError`.
    """
    kind = first >> 4
    if kind == p.PUBLISH:
        return parse_publish(first, body, version)
    at_qos_1 = kind in (p.PUBREL, p.SUBSCRIBE, p.UNSUBSCRIBE)
    if at_qos_1 and version == V31:
        first &= ~_DUP  # 3.1 has these sent again, and marked so
    if first & 0x0F != (2 if at_qos_1 else 0):
        raise malformed("reserved bits of the fixed header are wrong")  # MQTT-2.1.3-1
    parser = _PARSERS.get(kind)
    if parser is None:
        raise malformed("packet type 0 does not exist")
    return parser(kind, body, version)


def _properties(body: bytes, position: int, packet: int, version: int) -> tuple[p.Properties, int]:
    """Return the property block, which 3.1.1 does not have."""
    if version < V5:
        return {}, position
    return p.decode_properties(body, position, len(body), packet)


def _packet_id(body: bytes) -> int:
    """Return a packet identifier at the start of ``body``; 0 is forbidden (MQTT-2.2.1-3)."""
    identifier, _ = decode_uint16(body, 0, len(body))
    if not identifier:
        raise violation("a packet identifier is 0")
    return identifier


def _at_end(body: bytes, position: int) -> None:
    if position != len(body):
        raise malformed("a packet is longer than its contents")


def _connect(_kind: int, body: bytes, _version: int) -> Connect:
    """Take CONNECT apart (section 3.1). An error after the version is known carries it, for the answer."""
    end = len(body)
    name, position = decode_binary(body, 0, end)
    if position >= end:
        raise malformed("CONNECT is cut off")
    version = body[position]
    position += 1
    if version not in _LEVELS.get(name, ()):
        error = ProtocolError(ReasonCode.UNSUPPORTED_PROTOCOL_VERSION, f"protocol {name[:16]!r} level {version}")
        error.version = V311 if version < V5 else V5
        raise error
    try:
        return _connect_fields(body, position, version)
    except ProtocolError as error:
        error.version = version
        raise


def _connect_fields(body: bytes, position: int, version: int) -> Connect:
    """Take apart what follows the protocol level of CONNECT."""
    end = len(body)
    if position >= end:
        raise malformed("CONNECT is cut off")
    flags = body[position]
    keep_alive, position = decode_uint16(body, position + 1, end)
    if flags & 1:
        raise malformed("the reserved connect flag is set")  # MQTT-3.1.2-3
    has_will, qos = bool(flags & 0x04), flags >> 3 & 3
    if qos == 3 or (not has_will and flags & 0x38):
        raise malformed("the will flags contradict each other")  # MQTT-3.1.2-11 to -15
    if version < V5 and flags & 0xC0 == 0x40:
        raise malformed("a password without a user name")  # 3.1.1, MQTT-3.1.2-22
    found, position = _properties(body, position, p.CONNECT, version)
    if p.PropertyId.AUTHENTICATION_DATA in found and p.PropertyId.AUTHENTICATION_METHOD not in found:
        raise violation("authentication data without a method")  # section 3.1.2.11.10
    client_id, position = decode_string(body, position, end)
    will = None
    if has_will:
        will_properties, position = _properties(body, position, p.WILL, version)
        topic, position = decode_string(body, position, end)
        payload, position = decode_binary(body, position, end)
        will = Will(topic, payload, qos, bool(flags & 0x20), will_properties)
    username, password = None, None
    if flags & 0x80:
        username, position = decode_string(body, position, end)
    if flags & 0x40:
        password, position = decode_binary(body, position, end)
    _at_end(body, position)
    return Connect(client_id, version, bool(flags & 0x02), keep_alive, username, password, will, found)


def _connack(_kind: int, body: bytes, version: int) -> ConnAck:
    """Take CONNACK apart (section 3.2)."""
    if len(body) < 2:
        raise malformed("CONNACK is cut off")
    if body[0] > 1:
        raise malformed("reserved bits of CONNACK are set")
    found, position = _properties(body, 2, p.CONNACK, version)
    _at_end(body, position)
    return ConnAck(bool(body[0]), body[1], found)


def parse_publish(first: int, body: bytes, version: int) -> Publish:
    """Take PUBLISH apart (section 3.3). The topic may be empty when an alias stands for it."""
    qos = first >> 1 & 3
    if qos == 3 or (not qos and first & 8):
        raise malformed("PUBLISH flags are wrong")  # MQTT-3.3.1-2, -4
    end = len(body)
    topic, position = decode_string(body, 0, end)
    packet_id = 0
    if qos:
        packet_id, position = decode_uint16(body, position, end)
        if not packet_id:
            raise violation("a packet identifier is 0")
    found, position = _properties(body, position, p.PUBLISH, version)
    return Publish(topic, body[position:], qos, bool(first & 1), bool(first & 8), packet_id, found)


def _ack(kind: int, body: bytes, version: int) -> Ack:
    """Take an acknowledgement apart (sections 3.4 to 3.7). Reason and properties may be left out."""
    packet_id = _packet_id(body)
    if len(body) == 2:
        return Ack(kind, packet_id)
    if version < V5:
        raise malformed("an acknowledgement is longer than two bytes")
    reason = body[2]
    if reason not in _ACK_REASONS[kind]:
        raise malformed(f"reason code {reason:#04x} may not appear here")
    found: p.Properties = {}
    if len(body) > 3:
        found, position = _properties(body, 3, kind, version)
        _at_end(body, position)
    return Ack(kind, packet_id, reason, found)


def _subscribe(_kind: int, body: bytes, version: int) -> Subscribe:
    """Take SUBSCRIBE apart (section 3.8)."""
    packet_id = _packet_id(body)
    found, position = _properties(body, 2, p.SUBSCRIBE, version)
    end = len(body)
    filters: list[Filter] = []
    while position < end:
        topic_filter, position = decode_string(body, position, end)
        if position >= end:
            raise malformed("a subscription without options")
        options = body[position]
        position += 1
        reserved = 0xC0 if version == V5 else 0xFC
        if options & reserved or options & 3 == 3:
            raise malformed("reserved subscription options are set")  # MQTT-3.8.3-5
        handling = options >> 4 & 3
        if handling == 3:
            raise violation("retain handling 3 does not exist")
        filters.append(Filter(topic_filter, options & 3, bool(options & 4), bool(options & 8), handling))
        if len(filters) > MAX_FILTERS:
            raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, f"more than {MAX_FILTERS} filters in one packet")
    if not filters:
        raise violation("SUBSCRIBE without a filter")  # MQTT-3.8.3-2
    return Subscribe(packet_id, filters, found)


def _suback(_kind: int, body: bytes, version: int) -> SubAck:
    """Take SUBACK apart (section 3.9)."""
    packet_id = _packet_id(body)
    found, position = _properties(body, 2, p.SUBACK, version)
    return SubAck(packet_id, list(body[position:]), found)


def _unsubscribe(_kind: int, body: bytes, version: int) -> Unsubscribe:
    """Take UNSUBSCRIBE apart (section 3.10)."""
    packet_id = _packet_id(body)
    found, position = _properties(body, 2, p.UNSUBSCRIBE, version)
    end = len(body)
    filters: list[str] = []
    while position < end:
        topic_filter, position = decode_string(body, position, end)
        filters.append(topic_filter)
        if len(filters) > MAX_FILTERS:
            raise ProtocolError(ReasonCode.PACKET_TOO_LARGE, f"more than {MAX_FILTERS} filters in one packet")
    if not filters:
        raise violation("UNSUBSCRIBE without a filter")  # MQTT-3.10.3-2
    return Unsubscribe(packet_id, filters, found)


def _unsuback(_kind: int, body: bytes, version: int) -> UnsubAck:
    """Take UNSUBACK apart (section 3.11)."""
    packet_id = _packet_id(body)
    found, position = _properties(body, 2, p.UNSUBACK, version)
    if version < V5:
        _at_end(body, position)
    return UnsubAck(packet_id, list(body[position:]), found)


def _ping(kind: int, body: bytes, _version: int) -> PingReq | PingResp:
    """Take PINGREQ or PINGRESP apart (sections 3.12, 3.13): nothing but a header."""
    _at_end(body, 0)
    return PingReq() if kind == p.PINGREQ else PingResp()


def _disconnect(_kind: int, body: bytes, version: int) -> Disconnect:
    """Take DISCONNECT apart (section 3.14)."""
    if not body:
        return Disconnect()
    if version < V5:
        raise malformed("DISCONNECT with a body")
    if body[0] not in _DISCONNECT_REASONS:
        raise malformed(f"reason code {body[0]:#04x} may not appear in DISCONNECT")
    found: p.Properties = {}
    if len(body) > 1:
        found, position = _properties(body, 1, p.DISCONNECT, version)
        _at_end(body, position)
    return Disconnect(body[0], found)


def _auth(_kind: int, body: bytes, version: int) -> Auth:
    """Take AUTH apart (section 3.15)."""
    if version < V5:
        raise malformed("AUTH does not exist in MQTT 3.1.1")
    if not body:
        return Auth()
    if body[0] not in _AUTH_REASONS:
        raise malformed(f"reason code {body[0]:#04x} may not appear in AUTH")
    found: p.Properties = {}
    if len(body) > 1:
        found, position = _properties(body, 1, p.AUTH, version)
        _at_end(body, position)
    return Auth(body[0], found)


_PARSERS: dict[int, Callable[[int, bytes, int], Packet]] = {
    p.CONNECT: _connect,
    p.CONNACK: _connack,
    p.PUBACK: _ack,
    p.PUBREC: _ack,
    p.PUBREL: _ack,
    p.PUBCOMP: _ack,
    p.SUBSCRIBE: _subscribe,
    p.SUBACK: _suback,
    p.UNSUBSCRIBE: _unsubscribe,
    p.UNSUBACK: _unsuback,
    p.PINGREQ: _ping,
    p.PINGRESP: _ping,
    p.DISCONNECT: _disconnect,
    p.AUTH: _auth,
}
