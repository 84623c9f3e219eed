"""Messages from one MQTT client to the broker: publishing, confirmation, QoS 2, back pressure.

States of a QoS 1 message: received -> stored -> (PUBACK) done; of a QoS 2 message: received -> stored -> (PUBREC) ->
(PUBREL) -> (PUBCOMP) done (MQTT 5, section 4.3, method B of figure 4.3: the message goes on at once, the packet
identifier is kept until PUBREL). No answer leaves before what it confirms is durable.

**Exactly once across a crash** (durable sessions): the identifier's record, holding a duplicate id, is durable before
the message is sent with that duplicate id. A client that sends again after a restart is either known and its message
a duplicate to the address's id cache, or the message never got in and is taken now.

**Back pressure**: while an address takes no messages, PUBLISHes are parked and nothing is confirmed; acknowledgements
of deliveries are still read. Beyond a limit reading pauses (:mod:`pollux.protocols.mqtt.parked`). What was parked goes
on in order.

A packet's order, confirmation and record are decided here, in one pass over what a read brought.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING

from pollux.engine.memory import PACKET
from pollux.engine.security import Permission
from pollux.errors import DiskFullError, LimitError, PolluxError
from pollux.message import Encoding, Message
from pollux.protocols.mqtt.known_topics import KnownTopics
from pollux.protocols.mqtt.large import LARGE, LargeRest
from pollux.protocols.mqtt.parked import Parked
from pollux.protocols.mqtt.phases import INTAKE, Intake
from pollux.protocols.mqtt.published import FLAGS, TopicAliases, published
from pollux.protocols.mqtt.refusal import RefusedError, reason_of
from pollux.protocols.mqtt.state import QOS2_IN_KIND, packet_key
from pollux.transitions import follow
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.encode import encode_ack, encode_words
from pollux.wire.mqtt.packets import V5
from pollux.wire.mqtt.reasons import ProtocolError, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.engine.security import Identity, Security
    from pollux.protocols.base import Transport
    from pollux.protocols.mqtt.backpressure import Reading
    from pollux.protocols.mqtt.sessions import MqttSessions
    from pollux.protocols.mqtt.state import ClientState
    from pollux.wire.mqtt.decoder import PublishTuple

logger = logging.getLogger("pollux.mqtt")

TAKING, PARKING, STOPPED = Intake.TAKING, Intake.PARKING, Intake.STOPPED
_PUBACK = 0x4002_0000
_PUBREC = 0x5002_0000
_PUBCOMP = 0x7002_0000


class Inbound:
    """The receiving side of one connection."""

    __slots__ = (
        "_again",
        "_aliases",
        "_answers",
        "_awaiting",
        "_close_unauthorized",
        "_identity",
        "_in_flight",
        "_mqtt_sessions",
        "_packets",
        "_parked",
        "_phase",
        "_post",
        "_problem_info",
        "_reading",
        "_receive_maximum",
        "_second",
        "_security",
        "_send",
        "_state",
        "_topics",
        "_transport",
        "_unfinished",
        "_user",
        "_v5",
        "dropped",
        "received",
        "refused",
        "violate",
    )

    def __init__(
        self,
        mqtt_sessions: MqttSessions,
        state: ClientState,
        transport: Transport,
        reading: Reading,
        *,
        send: Callable[[bytes], None],
        violate: Callable[[ProtocolError], None],
        security: Security,
        identity: Identity,
        receive_maximum: int,
        alias_maximum: int,
        problem_info: bool,
        close_unauthorized: bool,
        populate_user: bool,
    ) -> None:
        """``violate`` ends the connection; ``receive_maximum`` is what CONNACK told a MQTT 5 client (else 65,535).

        ``populate_user``: messages note who sent them (populate-validated-user).
        """
        self._mqtt_sessions = mqtt_sessions
        self._post = mqtt_sessions.post
        self._state = state
        self._transport = transport
        self._send = send
        self.violate = violate
        self._security = security
        self._identity = identity
        #: A re-authentication is by the same user.
        self._user = identity.user if populate_user else None
        self._v5 = state.version == V5
        self._receive_maximum = receive_maximum
        self._problem_info = problem_info
        self._close_unauthorized = close_unauthorized
        self._phase = TAKING
        self._topics = KnownTopics(mqtt_sessions.mapping.address)
        self._aliases = TopicAliases(alias_maximum)
        #: Answers of this turn, in order: words of four bytes, or whole packets.
        self._answers: list[int | bytes] = []
        #: Whether there are packets among them, and how many do not end a message (PUBREC).
        self._packets = False
        self._unfinished = 0
        #: Answers waiting for ``when_stable``: packets, and how many messages they end.
        self._awaiting: deque[tuple[bytes, int]] = deque()
        #: QoS 1 and 2 messages received and not finished (section 3.1.2.11.3).
        self._in_flight = 0
        self._parked = Parked(self._post, reading, self._writable)
        self._reading = reading
        #: QoS 2 messages whose record is on its way to the disk.
        self._second: deque[PublishTuple] = deque()
        #: Repetitions of those.
        self._again: deque[PublishTuple] = deque()
        self.received = 0
        self.refused = 0
        self.dropped = 0

    # -- PUBLISH

    def publish(self, packets: list[PublishTuple]) -> None:
        """Take the PUBLISHes of one wake-up, in order. :meth:`end_turn` confirms. Raises ProtocolError."""
        self.received += len(packets)
        if self._phase is not TAKING:
            self._parked.add(packets)
            return
        now = self._mqtt_sessions.wall_ms()
        start = 0
        while start < len(packets):
            end = _end_of_run(packets, start)
            if end > start:
                if not self._publish_run(packets, start, end, now):
                    break
                start = end
                continue
            if not self._publish_special(packets[start], now):
                self._parked.add(packets[start + 1 :])
                return
            start += 1
        if self._v5 and self._in_flight > self._receive_maximum:
            raise ProtocolError(
                ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
                f"more than {self._receive_maximum} messages without an acknowledgement",
            )

    def _publish_run(self, packets: list[PublishTuple], start: int, end: int, now: int) -> bool:
        """Take PUBLISHes of one topic and QoS that have nothing special. False: it and what is behind was parked."""
        topic, acknowledged = packets[start][1], packets[start][2] != 0
        address, together = "", end - start > 1
        while start < end:
            try:
                address = self._topics[topic]
                self._security.check(self._identity, Permission.send, address)
                if not self._post.writable(address):
                    self._wait_for(address, packets[start:])
                    return False
                if together:
                    together = False
                    if self._post.send_alike([self._plain(packet, address, now) for packet in packets[start:end]]):
                        if acknowledged:
                            self._answers += [_PUBACK | packet[2] for packet in packets[start:end]]
                            self._in_flight += end - start
                        return True
                while start < end:
                    self._post.send(self._plain(packets[start], address, now))
                    if acknowledged:
                        self._answers.append(_PUBACK | packets[start][2])
                        self._in_flight += 1
                    start += 1
            except PolluxError as error:
                if isinstance(error, DiskFullError) and not self._post.writable(address):
                    self._wait_for(address, packets[start:])
                    return False
                self._in_flight += acknowledged
                self._refuse(packets[start], error)
                start += 1
        return True

    def _plain(self, packet: PublishTuple, address: str, now: int) -> Message:
        first, topic, packet_id, rest = packet
        return Message(
            Encoding.MQTT,
            address,
            FLAGS[first] + topic + rest,
            durable=packet_id != 0,
            timestamp=now,
            origin=self._transport.peer.connection_id,
            user=self._user,
        )

    def publish_large(self, packet: PublishTuple, error: PolluxError | None) -> None:
        """Take a PUBLISH whose payload is in a file, or could not be written there. Raises ProtocolError."""
        self.received += 1
        if error is not None:
            if packet[2]:
                self._in_flight += 1
            self._refuse(packet, error)
        elif self._phase is not TAKING:
            self._parked.add((packet,))
        else:
            self._publish_special(packet, self._mqtt_sessions.wall_ms())

    def _publish_special(self, packet: PublishTuple, now: int) -> bool:
        """Take a PUBLISH off the fast path. False: it had to be parked."""
        first, topic, packet_id, rest = packet
        if packet_id:
            self._in_flight += 1
            if self._v5 and self._in_flight > self._receive_maximum:
                raise ProtocolError(
                    ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
                    f"more than {self._receive_maximum} messages without an acknowledgement",
                )
        state = self._state
        if first & 4 and packet_id in state.inbound and packet_id not in state.restored:
            # Received before (section 4.3.3); its PUBREC may have been lost.
            self._in_flight -= 1
            if packet_id in state.storing:
                self._again.append(packet)
                self._post.when_stable(self._asked_again)
            else:
                self._answer_received(packet_id)
            return True
        if self._v5:
            topic = self._aliases.topic_of(topic, rest)
        packet = (first, topic, packet_id, rest)
        try:
            address = self._topics[topic]
            self._security.check(self._identity, Permission.send, address)
            if not self._post.writable(address):
                self._in_flight -= packet_id != 0
                self._wait_for(address, [packet])
                return False
            if first & 5:
                # Before anything of it is kept.
                self._post.open(address, None, self._identity.user)
            if first & 4 and state.durable:
                self._record(packet)
            else:
                self._send_special(packet, address, now, self._duplicate_id(packet_id) if first & 4 else None)
        except PolluxError as error:
            if isinstance(error, DiskFullError) and not self._post.writable(self._topics.get(topic, "")):
                self._in_flight -= packet_id != 0
                self._wait_for(self._topics.get(topic, ""), [packet])
                return False
            if isinstance(error, ProtocolError) and error.reason is not ReasonCode.TOPIC_NAME_INVALID:
                raise
            self._refuse(packet, error)
        return True

    def _send_special(self, packet: PublishTuple, address: str, now: int, duplicate_id: bytes | None) -> None:
        """Send a message whose properties, QoS or retain flag want more than the fast path does."""
        first, topic, packet_id, rest = packet
        if first & LARGE and first & 1:
            raise RefusedError(ReasonCode.QUOTA_EXCEEDED, "too large to be retained")
        origin = self._transport.peer.connection_id
        message = published(first, topic, rest, address, now=now, origin=origin, user=self._user)
        if duplicate_id is not None and self._state.durable:
            message.duplicate_id = duplicate_id
        if first & 1:
            try:
                self._mqtt_sessions.retained.retain(topic[2:].decode("utf-8"), message.data, message.expiration)
            except LimitError as error:
                raise RefusedError(ReasonCode.QUOTA_EXCEEDED, str(error)) from error
        self._post.send(message)
        if first & 2:
            self._answers.append(_PUBACK | packet_id)
        elif first & 4:
            if not self._state.durable:
                self._state.inbound[packet_id] = b""
            self._answer_received(packet_id)

    # -- QoS 2

    def _duplicate_id(self, packet_id: int) -> bytes:
        """Return the duplicate id for the message of this identifier; a restored one keeps what it had."""
        state = self._state
        known = state.inbound.get(packet_id)
        if known:
            return known
        return self._post.storage.next_id().to_bytes(8, "big") + b"mqtt" + packet_id.to_bytes(4, "big")

    def _record(self, packet: PublishTuple) -> None:
        """First the identifier's record, then (when it is durable) the message."""
        packet_id = packet[2]
        state = self._state
        duplicate_id = self._duplicate_id(packet_id)
        if packet_id not in state.restored:
            state.inbound[packet_id] = duplicate_id
            self._mqtt_sessions.put(QOS2_IN_KIND, packet_key(state.client_id, packet_id), duplicate_id)
        state.restored.discard(packet_id)
        state.storing.add(packet_id)
        self._second.append(packet)
        self._post.when_stable(self._recorded)

    def _recorded(self, error: Exception | None) -> None:
        """Send a message whose record is durable, even if its connection is gone: the record says it was sent."""
        packet = self._second.popleft()
        _, topic, packet_id, _ = packet
        self._state.storing.discard(packet_id)
        if error is not None:
            return  # the broker stops
        address = self._topics[topic]
        try:
            self._send_special(packet, address, self._mqtt_sessions.wall_ms(), self._state.inbound.get(packet_id))
        except PolluxError as refusal:
            self._forget(packet_id)
            if isinstance(refusal, DiskFullError) and not self._post.writable(address):
                self._in_flight -= 1
                if self._phase is not STOPPED:
                    self._wait_for(address, [packet])
            elif self._phase is not STOPPED:
                try:
                    self._refuse(packet, refusal)
                except ProtocolError as violation_:
                    self.violate(violation_)
        self.end_turn()

    def _asked_again(self, error: Exception | None) -> None:
        """Answer a repeated PUBLISH whose first one was just being stored."""
        packet = self._again.popleft()
        if error is not None or self._phase is STOPPED:
            return
        if packet[2] in self._state.inbound:
            self._answer_received(packet[2])
        else:
            try:
                self._publish_special(packet, self._mqtt_sessions.wall_ms())
            except ProtocolError as violation_:
                self.violate(violation_)
        self.end_turn()

    def _answer_received(self, packet_id: int) -> None:
        state = self._state
        if len(state.inbound) * PACKET > state.counted:
            try:
                self._mqtt_sessions.account(state, already=False)
            except LimitError as error:
                raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, str(error)) from error
        self._answers.append(_PUBREC | packet_id)
        self._unfinished += 1

    def _forget(self, packet_id: int) -> None:
        state = self._state
        if state.inbound.pop(packet_id, None):
            self._mqtt_sessions.put(QOS2_IN_KIND, packet_key(state.client_id, packet_id), None)

    def release(self, packet_id: int) -> None:
        """Handle PUBREL (section 4.3.3): the identifier may be used for a new message once this is durable."""
        state = self._state
        known = state.inbound.pop(packet_id, None)
        state.restored.discard(packet_id)
        if known is None:
            reason = ReasonCode.PACKET_IDENTIFIER_NOT_FOUND if self._v5 else ReasonCode.SUCCESS
            self._answer(encode_ack(p.PUBCOMP, packet_id, state.version, reason), finishes=False)
            return
        if known:
            self._mqtt_sessions.put(QOS2_IN_KIND, packet_key(state.client_id, packet_id), None)
        self._answers.append(_PUBCOMP | packet_id)

    # -- refusal

    def _refuse(self, packet: PublishTuple, error: Exception) -> None:
        """Tell a MQTT 5 client; a 3.1.1 client can only be disconnected, or told that all is well (section 3.3.5)."""
        first, _, packet_id, _ = packet
        if isinstance(error, ProtocolError) and error.reason is not ReasonCode.TOPIC_NAME_INVALID:
            raise error
        self.refused += 1
        rest = packet[3]
        if isinstance(rest, LargeRest) and hasattr(rest, "large"):
            self._post.storage.large.delete(rest.large.id)
        reason = reason_of(error)
        unauthorized = reason is ReasonCode.NOT_AUTHORIZED
        if not self._v5:
            if unauthorized and not self._close_unauthorized:
                if first & 4:
                    self._state.inbound[packet_id] = b""
                    self._answer_received(packet_id)
                elif packet_id:
                    self._answers.append(_PUBACK | packet_id)
                return
            raise ProtocolError(reason, str(error))
        if not packet_id:
            self.dropped += 1
            if reason is ReasonCode.TOPIC_NAME_INVALID:
                raise ProtocolError(reason, str(error))
            return
        text: p.Properties = {p.PropertyId.REASON_STRING: str(error)[:200]} if self._problem_info else {}
        kind = p.PUBREC if first & 4 else p.PUBACK
        self._answer(encode_ack(kind, packet_id, V5, reason, text), finishes=True)

    # -- answers

    def end_turn(self) -> None:
        """Confirm what this turn stored, when it is durable: one callback for all of it."""
        answers = self._answers
        if not answers:
            return
        self._answers = []
        finished = len(answers) - self._unfinished
        self._unfinished = 0
        if self._packets:
            self._packets = False
            block = b"".join([answer.to_bytes(4, "big") if isinstance(answer, int) else answer for answer in answers])
        else:
            block = encode_words(answers)  # type: ignore[arg-type]  # _packets says that all of them are words
        self._awaiting.append((block, finished))
        self._post.when_stable(self._confirm)

    def _answer(self, packet: bytes, *, finishes: bool) -> None:
        """Answer with more than four bytes. ``finishes``: the client may send one more message for it."""
        self._answers.append(packet)
        self._packets = True
        self._unfinished += not finishes

    def _confirm(self, error: Exception | None) -> None:
        packets, finished = self._awaiting.popleft()
        self._in_flight -= finished
        if error is None and self._phase is not STOPPED:
            self._send(packets)

    # -- back pressure

    def _wait_for(self, address: str, packets: list[PublishTuple]) -> None:
        """Keep ``packets`` until ``address`` takes messages."""
        if self._phase is TAKING:
            self._phase = follow(INTAKE, TAKING, PARKING)
        self._parked.add(packets)
        self._parked.wait_for(address)

    def _writable(self) -> None:
        """Go on with what is parked."""
        if self._phase is not PARKING:
            return
        self._phase = follow(INTAKE, PARKING, TAKING)
        packets = self._parked.take()
        self.received -= len(packets)
        try:
            self.publish(packets)
        except ProtocolError as error:
            self.violate(error)
            return
        self.end_turn()
        self._parked.went_on()

    def buffered(self) -> int:
        """Return the bytes of what waits until its address takes messages again, and of the topics of aliases."""
        return self._parked.size + self._aliases.size

    def set_identity(self, identity: Identity) -> None:
        """Check the rights of ``identity`` from now on: the client has authenticated itself again."""
        self._identity = identity

    def stop(self) -> None:
        """Drop what is parked, as the connection is gone: what was not confirmed the client sends again."""
        self._phase = follow(INTAKE, self._phase, STOPPED)
        self._parked.drop()

    def describe(self) -> dict[str, object]:
        """Return the counters, by name, for management."""
        return {
            "received": self.received,
            "refused": self.refused,
            "in_flight": self._in_flight,
            "parked": len(self._parked),
            "parked_bytes": self._parked.size,
            "reading_paused": self._reading.paused,
            "awaiting_pubrel": len(self._state.inbound),
        }


def _end_of_run(packets: list[PublishTuple], start: int) -> int:
    """Return where those end, from ``start`` on, that are of one topic and QoS 0 or 1 and have nothing special."""
    _, topic, acknowledged, _ = packets[start]
    for index in range(start, len(packets)):
        first, another, packet_id, rest = packets[index]
        # QoS 2, retained, large, with properties, or by topic alias.
        if first & 0x105 or rest[0] or len(topic) == 2 or another != topic or (not packet_id) != (not acknowledged):
            return index
    return len(packets)
