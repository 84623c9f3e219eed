"""Tells a client that comes to a broker which waits where to go, in its protocol's own words. Pure.

MQTT 5 has a server reference, and older ones a return code; STOMP has a frame for errors. AMQP's redirection comes
after a log-in (:mod:`pollux.ha.active_passive.amqp_away`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pollux.wire.mqtt.encode import encode
from pollux.wire.mqtt.packets import V5, ConnAck
from pollux.wire.mqtt.properties import PropertyId
from pollux.wire.mqtt.reasons import ReasonCode
from pollux.wire.sniff import Protocol, SniffError, sniff

if TYPE_CHECKING:
    from pollux.wire.mqtt.properties import Properties

#: A CONNECT's bytes before the protocol level, at most: type, length, and the longer one of the two names.
_LEVEL_WITHIN: Final = 1 + 4 + 2 + 6


def protocol_of(head: bytes) -> Protocol | None:
    """Return what a connection begins with; None: more of it is needed. Raises SniffError."""
    protocol = sniff(head)
    if protocol is Protocol.MQTT and _level(head) is None:
        return None
    return protocol


def farewell(head: bytes, primary: str) -> bytes:
    """Return the last bytes that the client gets. ``primary``: where clients are served; empty: not known."""
    try:
        protocol = protocol_of(head)
    except SniffError:
        return b""
    if protocol is Protocol.MQTT:
        version = _level(head) or V5
        if version < V5 or not primary:
            return encode(ConnAck(reason=ReasonCode.SERVER_UNAVAILABLE), min(version, V5))
        there: Properties = {PropertyId.SERVER_REFERENCE: primary}
        return encode(ConnAck(reason=ReasonCode.USE_ANOTHER_SERVER, properties=there), V5)
    if protocol is Protocol.STOMP:
        text = f"the primary is {primary}" if primary else "the primary is not known"
        return f"ERROR\nmessage:this broker waits\ncontent-type:text/plain\n\n{text}\0".encode()
    return b""


def _level(head: bytes) -> int | None:
    """Return the protocol level of a CONNECT's beginning; None: it is not there yet."""
    at = 1
    while at < len(head) and head[at] >= 0x80:
        at += 1
    name = int.from_bytes(head[at + 1 : at + 3], "big")
    position = at + 3 + min(name, _LEVEL_WITHIN)
    return head[position] if position < len(head) else None
