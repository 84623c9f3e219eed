"""QoS 2 deliveries to one MQTT client, from PUBREC to PUBCOMP (MQTT 5, section 4.3.3).

The client has a message as soon as it says so in PUBREC. For a durable session that is recorded first, then the message
is acknowledged, then PUBREL leaves: whatever a crash leaves, it is sent again or it is known that it must not be.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from pollux.protocols.mqtt.outlet import STOPPED
from pollux.protocols.mqtt.state import RELEASED, SENT, encode_out
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.encode import encode_ack, encode_acks
from pollux.wire.mqtt.reasons import ReasonCode, violation

if TYPE_CHECKING:
    from pollux.protocols.mqtt.outlet import Outlet
    from pollux.protocols.mqtt.sessions import MqttSessions
    from pollux.protocols.mqtt.state import ClientState
    from pollux.routing.reference import MessageReference


class ExactlyOnce:
    """Takes the QoS 2 deliveries of one connection through their states, which ``state`` holds."""

    __slots__ = ("_mqtt_sessions", "_outlet", "_post", "_releasing", "_state")

    def __init__(self, mqtt_sessions: MqttSessions, state: ClientState, outlet: Outlet) -> None:
        self._mqtt_sessions = mqtt_sessions
        self._post = mqtt_sessions.post
        self._state = state
        self._outlet = outlet
        #: What the client received while the record of that is on its way to the disk.
        self._releasing: deque[tuple[int, MessageReference | None]] = deque()

    def begin(self, packet_id: int, reference: MessageReference) -> bool:
        """Note a delivery; True when its PUBLISH must wait until that is durable."""
        state = self._state
        state.qos2.add(packet_id)
        if not state.durable:
            return False
        value = encode_out(reference.queue.id, reference.message.id, SENT)
        self._mqtt_sessions.record_out(state, packet_id, value)
        return True

    def resume(self) -> int:
        """Send PUBREL again for what an earlier connection left; return how many wait for PUBCOMP."""
        released = self._state.released
        if released:
            # The acknowledgements of their messages may be on their way to the disk.
            self._outlet.when_stable([encode_acks(p.PUBREL, list(released))])
        return len(released)

    def received(self, packet_id: int, reason: int, *, unsent: bool) -> int:
        """Handle PUBREC: the client owns the message now, or refuses it (sections 3.5, 4.3.3).

        ``unsent``: it was not sent again on this connection, and takes its room in the window only now. Return how many
        more the client can be sent, -1 to 1. Raises ProtocolError.
        """
        state = self._state
        refused = reason >= 0x80  # which no PUBREL follows (MQTT-4.3.3-4)
        if packet_id in state.released:  # a PUBREC again: the PUBREL again
            if refused:
                return self.completed(packet_id)
            self._outlet.when_stable([encode_acks(p.PUBREL, (packet_id,))])
            return 0
        if packet_id not in state.unacked:
            if refused:
                return 0
            self._outlet.send(encode_ack(p.PUBREL, packet_id, state.version, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
            return 0
        reference = state.unacked[packet_id]
        if reference is not None and packet_id not in state.qos2:
            raise violation("PUBREC for a QoS 1 message")
        state.qos2.discard(packet_id)
        if refused:
            if reference is not None:
                self._post.acknowledge([reference])
            del state.unacked[packet_id]
            self._mqtt_sessions.record_out(state, packet_id, None)
            return 1 - unsent
        key = (0, 0) if reference is None else (reference.queue.id, reference.message.id)
        if reference is None:
            # Of a message that is gone, or that was delivered before the broker's restart.
            key = next((each for each, known in state.redeliver.items() if known == packet_id), key)
            if state.redeliver.pop(key, 0):
                state.received[key] = packet_id
        state.unacked[packet_id] = None
        state.released[packet_id] = None
        if state.durable:
            self._mqtt_sessions.record_out(state, packet_id, encode_out(*key, RELEASED))
            self._releasing.append((packet_id, reference))
            self._post.when_stable(self._recorded)
        else:
            if reference is not None:
                self._post.acknowledge([reference])
            self._outlet.when_stable([encode_acks(p.PUBREL, (packet_id,))])
        return -unsent

    def _recorded(self, error: Exception | None) -> None:
        """Acknowledge what the client has, then (durably) tell it: the record of that is durable."""
        packet_id, reference = self._releasing.popleft()
        if error is not None:
            return
        if reference is not None:
            self._post.acknowledge([reference])
        if self._outlet.phase is not STOPPED:
            self._outlet.when_stable([encode_acks(p.PUBREL, (packet_id,))])

    def completed(self, packet_id: int) -> int:
        """Handle PUBCOMP: the identifier is free again. Return how many more the client can be sent, 0 or 1."""
        state = self._state
        if packet_id not in state.released:
            return 0  # late or unknown: nothing is left to end
        del state.released[packet_id]
        if packet_id in state.received.values():
            # Without its record, a crash before the message is acknowledged would send it again.
            state.completed.add(packet_id)
        else:
            state.unacked.pop(packet_id, None)
            self._mqtt_sessions.record_out(state, packet_id, None)
        return 1

    def forget(self, packet_id: int) -> None:
        """Take back a delivery that cannot be sent after all."""
        if packet_id in self._state.qos2:
            self._state.qos2.discard(packet_id)
            self._mqtt_sessions.record_out(self._state, packet_id, None)

    def stop(self) -> None:
        """Acknowledge what the client has: the connection is gone."""
        for place, (packet_id, reference) in enumerate(self._releasing):
            # Detaching would give it back to its queue. Should the broker die just now, the client keeps an
            # identifier that is never released; the message is neither lost nor sent again.
            if reference is not None:
                self._post.acknowledge([reference])
                self._releasing[place] = (packet_id, None)
