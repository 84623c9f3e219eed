"""Packets to bytes: every packet type of MQTT 3.1, 3.1.1 and 5, and the batch form of acknowledgements. Pure."""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING

from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.packets import (
    V5,
    V31,
    Ack,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    Packet,
    PingReq,
    PingResp,
    Publish,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from pollux.wire.mqtt.primitives import encode_binary, encode_string, encode_variable
from pollux.wire.mqtt.reasons import CONNACK_311

if TYPE_CHECKING:
    from collections.abc import Iterable

PINGRESP = b"\xd0\x00"
_SWAP = sys.byteorder == "little"


def frame(first: int, body: bytes) -> bytes:
    """Return ``body`` behind its fixed header."""
    return bytes((first,)) + encode_variable(len(body)) + body


def encode_acks(kind: int, packet_ids: Iterable[int]) -> bytes:
    """Many successful PUBACKs (or PUBRECs, PUBRELs, PUBCOMPs) in one buffer: four bytes each, both versions."""
    head = (kind << 4 | (2 if kind == p.PUBREL else 0)) << 24 | 2 << 16
    return encode_words([head | packet_id for packet_id in packet_ids])


def encode_words(packets: list[int]) -> bytes:
    """Four-byte packets, each as one big-endian number (``0x4002`` and the identifier is a PUBACK)."""
    words = array("I", packets)
    if _SWAP:
        words.byteswap()
    return words.tobytes()


def encode_ack(kind: int, packet_id: int, version: int, reason: int = 0, found: p.Properties | None = None) -> bytes:
    """Return one acknowledgement with a reason; 3.1.1 has no place for one."""
    first = kind << 4 | (2 if kind == p.PUBREL else 0)
    body = packet_id.to_bytes(2, "big")
    if version < V5 or (not reason and not found):
        return bytes((first, 2)) + body
    body += bytes((reason,))
    return frame(first, body + p.encode_properties(found) if found else body)


def encode(packet: Packet, version: int) -> bytes:
    """Any packet. Raises ValueError when a field does not fit its type."""
    v5 = version == V5
    if isinstance(packet, Publish):
        return _publish(packet, v5)
    if isinstance(packet, Ack):
        return encode_ack(packet.kind, packet.packet_id, version, packet.reason, packet.properties)
    if isinstance(packet, PingReq):
        return b"\xc0\x00"
    if isinstance(packet, PingResp):
        return PINGRESP
    if isinstance(packet, Connect):
        return _connect(packet)
    if isinstance(packet, ConnAck):
        present = packet.session_present and version != V31  # whose clients do not know it
        head = bytes((present, packet.reason if v5 else CONNACK_311.get(packet.reason, 3)))
        return frame(0x20, head + p.encode_properties(packet.properties) if v5 else head)
    if isinstance(packet, (Disconnect, Auth)):
        return _reasoned(0xE0 if isinstance(packet, Disconnect) else 0xF0, packet.reason, packet.properties, v5)
    return _listed(packet, v5)


def _reasoned(first: int, reason: int, found: p.Properties, v5: bool) -> bytes:
    """Return DISCONNECT or AUTH: a reason and properties, both left out when they say nothing."""
    if not v5 or (not reason and not found):
        return bytes((first, 0))
    body = bytes((reason,))
    return frame(first, body + p.encode_properties(found) if found else body)


def _publish(packet: Publish, v5: bool) -> bytes:
    parts = [encode_string(packet.topic)]
    if packet.qos:
        parts.append(packet.packet_id.to_bytes(2, "big"))
    if v5:
        parts.append(p.encode_properties(packet.properties))
    parts.append(packet.payload)
    return frame(0x30 | packet.dup << 3 | packet.qos << 1 | packet.retain, b"".join(parts))


def _connect(packet: Connect) -> bytes:
    v5 = packet.version == V5
    will = packet.will
    flags = packet.clean_start << 1 | (packet.username is not None) << 7 | (packet.password is not None) << 6
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
    name = b"\0\x06MQIsdp" if packet.version == V31 else b"\0\x04MQTT"
    parts = [name, bytes((packet.version, flags)), packet.keep_alive.to_bytes(2, "big")]
    if v5:
        parts.append(p.encode_properties(packet.properties))
    parts.append(encode_string(packet.client_id))
    if will is not None:
        if v5:
            parts.append(p.encode_properties(will.properties))
        parts += (encode_string(will.topic), encode_binary(will.payload))
    if packet.username is not None:
        parts.append(encode_string(packet.username))
    if packet.password is not None:
        parts.append(encode_binary(packet.password))
    return frame(0x10, b"".join(parts))


def _listed(packet: Subscribe | SubAck | Unsubscribe | UnsubAck, v5: bool) -> bytes:
    """Return one of the four packets that are an identifier, properties and a list."""
    parts = [packet.packet_id.to_bytes(2, "big")]
    if v5:
        parts.append(p.encode_properties(packet.properties))
    if isinstance(packet, Subscribe):
        for entry in packet.filters:
            options = entry.qos
            if v5:
                options |= entry.no_local << 2 | entry.retain_as_published << 3 | entry.retain_handling << 4
            parts += (encode_string(entry.topic_filter), bytes((options,)))
        return frame(0x82, b"".join(parts))
    if isinstance(packet, Unsubscribe):
        parts += [encode_string(topic_filter) for topic_filter in packet.filters]
        return frame(0xA2, b"".join(parts))
    if isinstance(packet, SubAck):
        # 3.1.1 knows one failure code (section 3.9.3).
        parts.append(bytes(reason if v5 or reason < 0x80 else 0x80 for reason in packet.reasons))
        return frame(0x90, b"".join(parts))
    if v5:
        parts.append(bytes(packet.reasons))
    return frame(0xB0, b"".join(parts))
