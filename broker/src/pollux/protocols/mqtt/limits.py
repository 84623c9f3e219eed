"""Bounds of packets from MQTT clients, by an acceptor's parameters. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.wire.mqtt.primitives import MAX_VARIABLE_INTEGER, encode_variable

if TYPE_CHECKING:
    from pollux.config.acceptors import AcceptorSettings

_DEFAULT_MAX_PACKET = MAX_VARIABLE_INTEGER


def max_packet_size(settings: AcceptorSettings, max_message_size: int) -> int:
    """Return the largest packet taken: ``maximumPacketSize``, else ``maxFrameSize``, else the default.

    None is larger than ``max_message_size`` of ``<px:limits>`` (-1: no limit).
    """
    largest = _DEFAULT_MAX_PACKET if max_message_size <= 0 else min(_DEFAULT_MAX_PACKET, max_message_size)
    for value in (settings.maximum_packet_size, settings.max_frame_size):
        if value > 0:
            return min(value, largest)
    return largest


def longest_remaining(max_packet: int) -> int:
    """Return the largest remaining length of a packet of ``max_packet`` bytes in all (MQTT 5, section 3.2.2.3.6)."""
    if max_packet >= _DEFAULT_MAX_PACKET:
        return MAX_VARIABLE_INTEGER
    return max(
        left for left in range(max_packet - 5, max_packet - 1) if 1 + len(encode_variable(left)) + left <= max_packet
    )
