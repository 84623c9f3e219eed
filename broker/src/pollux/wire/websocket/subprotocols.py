"""Which sub-protocol of those a WebSocket client offers is spoken, and which protocol that is. Pure.

AMQP: the binding of AMQP to WebSocket, 2.1 (``amqp``); MQTT: MQTT 5, section 6 (``mqtt``), and the name that clients of
3.1 had before it; STOMP: what its JavaScript clients say, a name for each version.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pollux.wire.sniff import Protocol
from pollux.wire.websocket.handshake import HandshakeError

if TYPE_CHECKING:
    from collections.abc import Callable

SUBPROTOCOLS: Final = {
    "amqp": Protocol.AMQP,
    "mqtt": Protocol.MQTT,
    "mqttv3.1": Protocol.MQTT,
    "v12.stomp": Protocol.STOMP,
    "v11.stomp": Protocol.STOMP,
    "v10.stomp": Protocol.STOMP,
}


def choose(offered: tuple[str, ...], speaks: Callable[[Protocol], bool]) -> tuple[str | None, Protocol | None]:
    """Return the first name that is spoken here, and its protocol; Nones when the client offers none at all.

    Then its first bytes say it, as without WebSocket. Raises HandshakeError when it offers only others.
    """
    for name in offered:
        protocol = SUBPROTOCOLS.get(name)
        if protocol is not None and speaks(protocol):
            return name, protocol
    if not offered:
        return None, None
    spoken = ", ".join(name for name, protocol in SUBPROTOCOLS.items() if speaks(protocol))
    raise HandshakeError("400 Bad Request", f"none of the sub-protocols offered is spoken here: {spoken or 'none'}")
