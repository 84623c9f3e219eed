"""One MQTT connection: CONNECT to DISCONNECT (MQTT 3.1, 3.1.1 and 5).

The session turns decoded packets into calls on its two halves, :mod:`~pollux.protocols.mqtt.inbound` (what the client
publishes) and :mod:`~pollux.protocols.mqtt.delivery` (what it is sent), and on the broker-wide
:mod:`~pollux.protocols.mqtt.sessions`. Its phases are in :mod:`~pollux.protocols.mqtt.phases`.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pollux.protocols.base import Session
from pollux.protocols.mqtt.backpressure import LOG_IN, PIECES, Reading
from pollux.protocols.mqtt.connect import Connecting
from pollux.protocols.mqtt.keep_alive import KeepAlive
from pollux.protocols.mqtt.large import LargeInbound
from pollux.protocols.mqtt.limits import longest_remaining, max_packet_size
from pollux.protocols.mqtt.outlet import Outlet
from pollux.protocols.mqtt.phases import ESTABLISHED, SESSION, Phase
from pollux.protocols.mqtt.state import NEVER, Ending
from pollux.protocols.mqtt.subscribe import Subscribing
from pollux.protocols.mqtt.subscriptions import MAX_SUBSCRIPTIONS
from pollux.transitions import follow
from pollux.wire.mqtt import properties as p
from pollux.wire.mqtt.decoder import Decoder, Event, PublishEnd, PublishStart, PublishTuple
from pollux.wire.mqtt.encode import PINGRESP, encode
from pollux.wire.mqtt.packets import (
    V5,
    VERSIONS,
    Ack,
    Auth,
    ConnAck,
    Connect,
    Disconnect,
    PingReq,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from pollux.wire.mqtt.reasons import ProtocolError, ReasonCode, violation
from pollux.wire.mqtt.stored import scan_properties

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.engine.security import Identity
    from pollux.protocols.base import Transport
    from pollux.protocols.mqtt.delivery import Delivery
    from pollux.protocols.mqtt.inbound import Inbound
    from pollux.protocols.mqtt.sessions import MqttSessions
    from pollux.protocols.mqtt.state import ClientState
    from pollux.protocols.services import Services

logger = logging.getLogger("pollux.mqtt")

NEW, CONNECTING, OPEN, BUSY, CLOSED = Phase

#: Packets kept while the log-in runs (reading is paused; this is what was read before).
_MAX_WAITING = 10_000


class MqttSession(Session):
    """One connection of an MQTT client."""

    protocol = "MQTT"

    def __init__(self, transport: Transport, services: Services, mqtt_sessions: MqttSessions) -> None:
        self.transport = transport
        self.services = services
        self.settings = services.acceptor
        self.mqtt_sessions = mqtt_sessions
        self.max_packet = max_packet_size(self.settings, services.configuration.limits.max_message_size)
        self.user: str | None = None
        self.client_id: str | None = None
        self.identity: Identity | None = None
        self.version = 0
        self.state: ClientState | None = None
        self.inbound: Inbound
        self.delivery: Delivery
        self._subscribing: Subscribing
        self.problem_info = True
        self.outlet = Outlet(transport, self.mqtt_sessions.post)
        self.reading = Reading(transport)
        self.keep_alive = KeepAlive(transport.loop, self.reading, self._silent)
        self._decoder = Decoder(longest_remaining(self.max_packet), max(self.settings.mqtt_min_large_message_size, 0))
        self._large: LargeInbound | None = None
        self.phase = NEW
        #: Packets that came before the log-in was complete, or behind one that is being handled.
        self._waiting: list[Event] = []
        self._connecting: Connecting | None = None
        self._ending = Ending.LOST
        self._client_maximum = 0
        self._connect_expiry = 0

    # -- the connection's side

    def data_received(self, data: bytes) -> None:
        """Take in bytes from the client; never raises."""
        self.keep_alive.heard = self.transport.loop.time()
        try:
            self._events(self._decoder.feed(data))
        except Exception as error:
            self._failed(error)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  (why does not matter to MQTT)
        """Go on without the connection: the will is due, the session stays as long as it may."""
        self._leave()

    def pause_writing(self) -> None:
        if self.phase in ESTABLISHED:
            self.delivery.pause()

    def resume_writing(self) -> None:
        if self.phase in ESTABLISHED:
            self.delivery.resume()

    def buffered(self) -> int:
        return self._decoder.buffered + (self.inbound.buffered() if self.phase in ESTABLISHED else 0)

    def shutdown(self, reason: str) -> None:
        """Send DISCONNECT: the broker stops (it says where else to go), or an administrator closes this client."""
        if self.phase is NEW or self.phase is CONNECTING:
            self._refuse(ReasonCode.SERVER_UNAVAILABLE, reason)
            return
        code = ReasonCode.SERVER_SHUTTING_DOWN
        found: p.Properties = {}
        if "admin" in reason.lower():
            code = ReasonCode.ADMINISTRATIVE_ACTION
        else:
            self._ending = Ending.STOPPED
            servers = self.services.failover_servers("MQTT", self.transport.peer.tls)
            if servers:
                code = ReasonCode.USE_ANOTHER_SERVER
                # Section 4.11: host and port, separated by spaces.
                found[p.PropertyId.SERVER_REFERENCE] = " ".join(_reference(host, port) for host, port, _ in servers)
        self.disconnect(code, reason, found)

    def taken_over(self) -> None:
        """Close: another connection came with the same client id (MQTT-3.1.4-3)."""
        if self.phase not in ESTABLISHED:
            self._refuse(ReasonCode.SERVER_BUSY, "another connection uses this client id")
            return
        self.disconnect(ReasonCode.SESSION_TAKEN_OVER, "another connection uses this client id")

    def queue_deleted(self, topic_filter: str) -> None:
        """Close: an administrator deleted the queue of a subscription, and the client must learn that it is gone."""
        logger.warning("the queue of subscription %r of MQTT client %r was deleted", topic_filter, self.client_id)
        self.disconnect(ReasonCode.ADMINISTRATIVE_ACTION, "the queue of a subscription was deleted")

    # -- packets

    def _events(self, events: list[Event]) -> None:
        if self.phase is not OPEN:
            self._not_open(events)
            return
        acks: list[int] = []
        packets: list[PublishTuple] = []
        for index, event in enumerate(events):
            kind = type(event)
            if kind is int:
                acks.append(event)  # type: ignore[arg-type]  # the test above
            elif kind is tuple:
                packets.append(event)  # type: ignore[arg-type]
            else:
                self._flush(acks, packets)
                acks, packets = [], []
                self._packet(event)
                if self.phase is not OPEN:
                    self._not_open(events[index + 1 :])
                    break
        if self.phase in ESTABLISHED:
            self._flush(acks, packets)
            self.inbound.end_turn()

    def _in_pieces(self, steps: Iterator[None]) -> None:
        """Handle one packet bit by bit, as others have to have their turn; what the client sent after it waits."""
        self.phase = follow(SESSION, self.phase, BUSY)
        self.mqtt_sessions.post.share.work(self._piecewise(steps))
        if self.phase is BUSY:
            self.reading.pause(PIECES)

    def _piecewise(self, steps: Iterator[None]) -> Iterator[None]:
        while self.phase is BUSY:
            try:
                next(steps)
            except StopIteration:
                break
            except Exception as error:
                self._failed(error)
            yield
        if self.phase is BUSY:
            self.phase = follow(SESSION, self.phase, OPEN)
            self.reading.resume(PIECES)
            self._take_waiting()

    def _take_waiting(self) -> None:
        """Handle what came before there was time for it; never raises."""
        waiting, self._waiting = self._waiting, []
        if waiting:
            try:
                self._events(waiting)
            except Exception as error:
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        """End the connection because of ``error``, which is the client's fault or, logged, a defect."""
        if not isinstance(error, ProtocolError):
            logger.error("MQTT session of client %r failed", self.client_id, exc_info=error)
            error = ProtocolError(ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, "internal error")
        self.fail(error)

    def _flush(self, acks: list[int], packets: list[PublishTuple]) -> None:
        """Hand on a run of PUBACKs and one of PUBLISHes."""
        if acks:
            self.delivery.acknowledged(acks)
        if packets:
            try:
                self.inbound.publish(packets)
            except ProtocolError:
                self.inbound.end_turn()  # what came before the violation is confirmed
                raise

    def _not_open(self, events: list[Event]) -> None:
        """Look at CONNECT alone (and at AUTH, while logging in); the rest waits."""
        if self.phase is CLOSED or not events:
            return
        if self.phase is BUSY:
            self._waiting += events
            return
        if self.phase is NEW:
            first = events[0]
            if isinstance(first, ProtocolError):
                raise first
            if not isinstance(first, Connect):
                raise violation("the first packet is not CONNECT")
            events = events[1:]
            self.phase = follow(SESSION, self.phase, CONNECTING)
            self.version = first.version
            self.reading.pause(LOG_IN)
            self._connecting = Connecting(self, first)
            self._connecting.start()
        while events and isinstance(events[0], Auth) and self._connecting is not None and self.phase is CONNECTING:
            self._connecting.auth(events[0])
            events = events[1:]
        if not events:
            return
        if self.phase is OPEN:
            self._events(events)
            return
        self._waiting += events
        if len(self._waiting) > _MAX_WAITING:
            raise ProtocolError(ReasonCode.QUOTA_EXCEEDED, "too many packets before the log-in is complete")

    def _packet(self, event: Event) -> None:
        """Handle one packet off the hot path."""
        if isinstance(event, ProtocolError):
            raise event
        if isinstance(event, PingReq):
            self.send(PINGRESP)
        elif isinstance(event, Ack):
            self._ack(event)
        elif isinstance(event, Subscribe):
            self._in_pieces(self._subscribing.subscribe(event))
        elif isinstance(event, Unsubscribe):
            self._in_pieces(self._subscribing.unsubscribe(event))
        elif isinstance(event, Disconnect):
            self._disconnected(event)
        elif isinstance(event, Auth):
            if self._connecting is None:
                raise violation("AUTH without an authentication method")
            self._connecting.auth(event)
        elif isinstance(event, bytes):
            if self._large is not None:
                self._large.write(event)
        elif isinstance(event, PublishStart):
            scanned = scan_properties(event.properties)
            self._large = LargeInbound(event, scanned.block, self.mqtt_sessions.post.storage, self.reading)
        elif isinstance(event, PublishEnd):
            self._large_complete()
        else:
            raise violation("a packet that may not come here")

    def _large_complete(self) -> None:
        """Hand on a large PUBLISH whose last part is here."""
        large, self._large = self._large, None
        if large is not None:
            packet, error = large.finish()
            self.inbound.publish_large(packet, error)

    def _ack(self, packet: Ack) -> None:
        if packet.kind == p.PUBACK:
            # An error in it changes nothing: the client has dealt with the message (section 4.3.2).
            self.delivery.acknowledged([packet.packet_id])
        elif packet.kind == p.PUBREC:
            self.delivery.received(packet.packet_id, packet.reason)
        elif packet.kind == p.PUBREL:
            self.inbound.release(packet.packet_id)
        else:
            self.delivery.completed(packet.packet_id)

    # -- begin

    def open(self, connect: Connect, answer: ConnAck, parts: tuple[ClientState, Inbound, Delivery]) -> None:
        """Answer, go on where the session was, and take what waited: the log-in has let the client in."""
        self.state, self.inbound, self.delivery = parts
        if self.identity is None:
            raise RuntimeError("a session before the log-in")
        self._subscribing = Subscribing(
            self.mqtt_sessions,
            self.services.security,
            self.state,
            self.delivery,
            self.identity,
            answer=self._answer,
            limit=min(MAX_SUBSCRIPTIONS, self.services.configuration.limits.max_consumers_per_connection),
            problem_info=self.problem_info,
        )
        self.phase = follow(SESSION, self.phase, OPEN)
        self._client_maximum = p.integer(connect.properties, p.PropertyId.MAXIMUM_PACKET_SIZE, 0)
        self._connect_expiry = self.state.expiry_interval
        self.send_packet(answer)
        self.keep_alive.start()
        self.delivery.start()
        self.reading.resume(LOG_IN)
        if self._connecting is not None and not self._connecting.enhanced:
            self._connecting = None  # CONNECT with its password need not be kept
        self._take_waiting()

    def authenticated_again(self, identity: Identity) -> None:
        """Check the rights of ``identity`` from now on; it is of the same user."""
        self.identity = identity
        self.inbound.set_identity(identity)
        self._subscribing.identity = identity

    # -- sending

    def send(self, data: bytes) -> None:
        """Send whole packets to the client."""
        self.outlet.send(data)

    def _answer(self, packet: SubAck | UnsubAck) -> bool:
        """Send an answer; False when the client has gone meanwhile."""
        if self.phase not in ESTABLISHED:
            return False
        self.send_packet(packet)
        return True

    def send_packet(self, packet: SubAck | UnsubAck | ConnAck | Disconnect | Auth) -> None:
        """Send a packet off the hot path, without its texts when it is too large for the client (MQTT-3.1.2-24)."""
        data = encode(packet, self.version)
        if self._client_maximum and len(data) > self._client_maximum:
            packet.properties.pop(p.PropertyId.REASON_STRING, None)
            packet.properties.pop(p.PropertyId.USER_PROPERTY, None)
            data = encode(packet, self.version)
            if len(data) > self._client_maximum:
                return
        self.send(data)

    # -- end

    def fail(self, error: ProtocolError) -> None:
        """Say that the client broke the protocol, in its words, and close (section 4.13)."""
        if self.phase is CLOSED:
            return
        self.ends("broker", error.text)
        if self.phase in ESTABLISHED:
            logger.info("MQTT client %r is disconnected: %s", self.client_id, error.text)
            self.disconnect(error.reason, error.text)
            return
        version = self.version or error.version
        self.version = version
        if version == V5 or error.reason is ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
            self._refuse(error.reason, error.text)
            return
        self._close()  # 3.1.1: a broken CONNECT gets no answer (section 3.1.4)

    def _refuse(self, reason: ReasonCode, text: str, more: p.Properties | None = None) -> None:
        """Send CONNACK with an error, then close."""
        if self.phase is CLOSED:
            return
        self.ends("broker", text)
        if self.version:
            found: p.Properties = {}
            if self.version == V5:
                found = {**(more or {}), **({p.PropertyId.REASON_STRING: text[:500]} if text else {})}
            self.send(encode(ConnAck(reason=reason, properties=found), self.version))
        self._close()

    def refuse(self, reason: ReasonCode, text: str, more: p.Properties | None = None) -> None:
        """Send CONNACK with an error (and ``more``, to a client of MQTT 5), then close and log it."""
        logger.info("MQTT connection from %s is refused: %s", self.transport.peer.address, text)
        self._refuse(reason, text, more)

    def disconnect(self, reason: ReasonCode, text: str, found: p.Properties | None = None) -> None:
        """Send DISCONNECT (MQTT 5 only) with a reason, then close."""
        if self.phase is CLOSED:
            return
        if self.phase not in ESTABLISHED:
            self._refuse(reason, text)
            return
        self.ends("broker", text)
        if self.version == V5:
            properties: p.Properties = dict(found or {})
            if text:
                properties[p.PropertyId.REASON_STRING] = text[:500]
            self.send_packet(Disconnect(reason, properties))
        self._close()

    def _disconnected(self, packet: Disconnect) -> None:
        """Handle DISCONNECT: the client leaves (section 3.14)."""
        state = self._here()
        expiry = packet.properties.get(p.PropertyId.SESSION_EXPIRY_INTERVAL)
        if isinstance(expiry, int):
            if expiry and not self._connect_expiry:
                raise violation("a session expiry interval that CONNECT did not have")  # MQTT-3.14.2-2
            state.expiry_interval = min(expiry, NEVER)
        if packet.reason != ReasonCode.DISCONNECT_WITH_WILL:
            self._ending = Ending.LEFT
        self.ends("client", f"DISCONNECT with reason {packet.reason:#04x}" if packet.reason else "DISCONNECT")
        self.inbound.end_turn()
        self._close()

    def _close(self) -> None:
        self._leave()
        self.transport.close()

    def _leave(self) -> None:
        """Give back what the connection held; once."""
        if self.phase is CLOSED:
            return
        self.phase = follow(SESSION, self.phase, CLOSED)
        self._waiting.clear()
        self._decoder.close()
        self.keep_alive.stop()
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None  # with the will and the password of CONNECT, as long as nobody looks for cycles
        if self._large is not None:
            self._large.abort()
            self._large = None
        self.outlet.stop()
        if self.identity is not None:
            self.services.security.connection_closed(self.identity, self.transport.peer)
        state = self.state
        if state is None:
            return
        self.delivery.stop()
        self.inbound.stop()
        if state.connection is self:
            self.mqtt_sessions.disconnected(state, self._ending)

    def _silent(self) -> None:
        text = "nothing was heard for one and a half times the keep alive"
        self.disconnect(ReasonCode.KEEP_ALIVE_TIMEOUT, text)

    def _here(self) -> ClientState:
        if self.state is None:
            raise violation("a packet before CONNECT")
        return self.state

    def describe(self) -> dict[str, object]:
        """Return the client, its session and its counters, by name, for management."""
        state = self.state
        if state is None or self.phase not in ESTABLISHED:
            return {"state": self.phase.value}
        return {
            "state": "open",
            "version": VERSIONS[self.version],
            "client_id": self.client_id,
            "session_expiry": state.expiry_interval,
            "keep_alive_limit": self.keep_alive.silence,
            "will": state.will is not None,
            "subscriptions": {
                topic_filter: {
                    "queue": subscription.queue.name,
                    "qos": subscription.qos,
                    "shared": subscription.share is not None,
                    "identifier": subscription.identifier,
                }
                for topic_filter, subscription in state.subscriptions.items()
            },
            "inbound": self.inbound.describe(),
            "outbound": self.delivery.describe(),
        }


def _reference(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
