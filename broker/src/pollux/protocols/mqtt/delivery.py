"""Messages from queues to one MQTT client: packet identifiers, the window, acknowledgements, redelivery.

The hot path is :meth:`Delivery.deliver`: one pass over a batch, one ``join``, one write. States of a QoS 1 delivery:
sent -> (PUBACK) done; of a QoS 2 delivery: sent -> (PUBREC) released -> (PUBCOMP) done (MQTT 5, section 4.3, figure
4.3). ``ClientState`` holds them, so they outlive the connection; for a durable session each step of QoS 2 is in the
journal before the packet that tells of it leaves.

One file, and a long one: all of it spends or gives back one window, within a batch and between connections. What needs
no look at that is elsewhere: how a message is encoded, large ones, QoS 2, what happens at the end.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from pollux.errors import LostBodyError
from pollux.message import Encoding
from pollux.protocols.mqtt.departure import give_back, leave
from pollux.protocols.mqtt.exactly_once import ExactlyOnce
from pollux.protocols.mqtt.large import send_large
from pollux.protocols.mqtt.outlet import THROUGH
from pollux.protocols.mqtt.phases import FLOW, Flow
from pollux.protocols.mqtt.publish_encoder import PublishEncoder
from pollux.protocols.mqtt.subscriptions import may_have
from pollux.transitions import follow
from pollux.wire.mqtt.packets import V5
from pollux.wire.mqtt.primitives import encode_variable
from pollux.wire.mqtt.reasons import violation
from pollux.wire.mqtt.stored import REPLAY

if TYPE_CHECKING:
    from pollux.protocols.base import Transport
    from pollux.protocols.mqtt.outlet import Job, Outlet
    from pollux.protocols.mqtt.sessions import MqttSessions
    from pollux.protocols.mqtt.state import ClientState
    from pollux.protocols.mqtt.subscription import Subscription
    from pollux.routing.reference import MessageReference

logger = logging.getLogger("pollux.mqtt")

SENDING, PAUSED, STOPPED = Flow
#: Unacknowledged deliveries to one client at most, whatever receive maximum it allows.
MAX_WINDOW = 8_192
#: The same for MQTT 3.1.1 clients, which cannot say.
WINDOW_311 = 1_024
#: Messages in one batch, and the bytes a batch aims at.
MAX_BURST = 512
BURST_BYTES = 1024 * 1024
#: QoS 0 messages kept for a client that does not keep up; what comes after them is dropped.
MAX_PARKED = 1_000
MAX_PARKED_BYTES = 1024 * 1024

_DOLLAR = 0x24


class Delivery:
    """The sending side of one connection."""

    __slots__ = (
        "_backlog",
        "_burst",
        "_done",
        "_done_scheduled",
        "_encoder",
        "_exactly_once",
        "_hungry",
        "_loop",
        "_met",
        "_mqtt_sessions",
        "_outlet",
        "_parked",
        "_parked_bytes",
        "_phase",
        "_post",
        "_reading_files",
        "_send",
        "_special",
        "_state",
        "_v5",
        "_wall_ms",
        "_window",
        "dropped",
        "limit",
        "sent",
        "too_large",
    )

    def __init__(
        self,
        mqtt_sessions: MqttSessions,
        state: ClientState,
        transport: Transport,
        outlet: Outlet,
        *,
        receive_maximum: int,
        max_packet: int,
        alias_maximum: int,
    ) -> None:
        """``max_packet`` 0 is no limit; ``receive_maximum`` as the client says (3.1.1: pass :data:`WINDOW_311`)."""
        self._mqtt_sessions = mqtt_sessions
        self._post = mqtt_sessions.post
        self._wall_ms = mqtt_sessions.wall_ms
        self._state = state
        self._loop = transport.loop
        self._outlet = outlet
        self._send = outlet.send
        outlet.on_idle(self._go_on)
        self._v5 = state.version == V5
        self.limit = min(receive_maximum, MAX_WINDOW)
        self._window = self.limit
        self._encoder = PublishEncoder(
            mqtt_sessions.mapping, v5=self._v5, max_packet=max_packet, alias_maximum=alias_maximum
        )
        #: Whether every packet needs the encoder.
        self._special = bool(self._encoder.max_packet or self._encoder.max_aliases)
        self._exactly_once = ExactlyOnce(mqtt_sessions, state, outlet)
        self._burst = MAX_BURST
        self._phase = SENDING
        #: Subscriptions whose queue may have more than the credit it was given.
        self._hungry: dict[Subscription, None] = {}
        #: Identifiers to send again after a reconnect, oldest first.
        self._backlog: deque[int] = deque()
        #: References that are done without a word from the client.
        self._done: list[MessageReference] = []
        #: Keys of those of them that the client has since an earlier connection.
        self._met: list[tuple[int, int]] = []
        self._done_scheduled = False
        #: QoS 0 deliveries kept while the client does not keep up.
        self._parked: deque[tuple[Subscription, MessageReference]] = deque()
        self._parked_bytes = 0
        #: Large QoS 0 messages on their way: nothing else remembers them.
        self._reading_files: dict[MessageReference, None] = {}
        self.sent = 0
        self.dropped = 0
        self.too_large = 0

    # -- the consumer's side

    def credit(self, subscription: Subscription) -> int:
        """Return how many messages ``subscription`` may be handed now."""
        window = MAX_BURST if subscription.qos == 0 else self._window
        waits = self._phase is PAUSED and subscription.qos
        if window <= 0 or waits or self._backlog or self._outlet.phase is not THROUGH:
            self._hungry[subscription] = None
            return 0
        return min(window, self._burst)

    def deliver(self, subscription: Subscription, references: list[MessageReference]) -> None:
        """Send a batch to the client."""
        if len(references) >= self._burst or len(references) >= self._window:
            self._hungry[subscription] = None
            self._schedule()
        if self._phase is PAUSED and subscription.qos == 0:
            self._park(subscription, references)
            return
        state = self._state
        general = self._special or subscription.extra or state.redeliver or state.received
        if general or subscription.restricted:
            self._write([(subscription, reference) for reference in references])
            return
        unacked = state.unacked
        heads = subscription.heads
        hide_dollar = subscription.hide_dollar
        v5 = self._v5
        mqtt = Encoding.MQTT
        parts: list[bytes] = []
        append = parts.append
        packet_id = state.next_packet_id
        last_size = last_first = first = 0
        head = b""
        slow: list[tuple[Subscription, MessageReference]] = []
        used = 0
        for reference in references:
            message = reference.message
            data = message.data
            end = 0
            if message.encoding is mqtt:
                end = 3 + (data[1] << 8 | data[2])
                first = heads[data[0] & 15]
            if (
                not end
                or message.expiration
                or first & 4
                or message.large is not None
                or message.annotations is not None
                or reference.notes is not None
                or (hide_dollar and data[3] == _DOLLAR)
                or not (v5 or data[end] == 0)
            ):
                # To keep the order, what follows goes the same way.
                slow = [(subscription, later) for later in references[references.index(reference) :]]
                break
            if first & 2:
                packet_id = packet_id + 1 if packet_id < 65_535 else 1
                if packet_id in unacked:
                    packet_id = self._free_packet_id(packet_id)
                unacked[packet_id] = reference
                used += 1
                size = len(data) + 1
                if reference.redelivered:
                    first |= 8
                rest = packet_id.to_bytes(2, "big") + (data[end:] if v5 else data[end + 1 :])
            else:
                self._done.append(reference)
                size = len(data) - 1
                rest = data[end:] if v5 else data[end + 1 :]
            if not v5:
                size -= 1
            if size != last_size or first != last_first:
                head = bytes((first,)) + encode_variable(size)
                last_size, last_first = size, first
            append(head)
            append(data[1:end])
            append(rest)
        state.next_packet_id = packet_id
        self._window -= used
        if parts:
            block = b"".join(parts)
            count = len(parts) // 3
            self.sent += count
            self._burst = max(4, min(MAX_BURST, BURST_BYTES * count // len(block)))
            self._send(block)
        if slow:
            self._write(slow)
        if self._done:
            self._schedule()

    def _free_packet_id(self, packet_id: int) -> int:
        """Return the next identifier not in use; the window is far smaller than their number."""
        unacked = self._state.unacked
        while packet_id in unacked:
            packet_id = packet_id + 1 if packet_id < 65_535 else 1
        return packet_id

    def _write(self, deliveries: list[tuple[Subscription, MessageReference]]) -> None:
        """Send a batch in the general case of :meth:`deliver`."""
        now = self._wall_ms()
        parts: list[bytes] = []
        stable: list[bytes | Job] = []
        for subscription, reference in deliveries:
            made = self._make(subscription, reference, now)
            if made is None:
                self._done.append(reference)
                continue
            packet, first, packet_id = made
            self.sent += 1
            large = reference.message.large is not None
            if packet_id:
                self._state.unacked[packet_id] = reference
                self._window -= 1
            elif large:
                self._reading_files[reference] = None
            else:
                self._done.append(reference)
            if first & 4 and self._exactly_once.begin(packet_id, reference):
                stable.append(self._job(subscription, reference, first, packet_id) if large else packet)
            elif not large:
                parts.append(packet)
            else:
                if parts:
                    self._send(b"".join(parts))
                    parts = []
                self._outlet.run(self._job(subscription, reference, first, packet_id))
        if parts:
            self._send(b"".join(parts))
        if stable:
            self._outlet.when_stable(stable)
        if self._done:
            self._schedule()

    def _make(self, subscription: Subscription, reference: MessageReference, now: int) -> tuple[bytes, int, int] | None:
        """Return packet, first byte and identifier of a delivery; None when there is nothing to send and it is done."""
        message = reference.message
        state = self._state
        if state.received and (reference.queue.id, message.id) in state.received:
            self._met.append((reference.queue.id, message.id))
            return None
        if subscription.hide_dollar and message.address.startswith("$"):
            return None
        if 0 < message.expiration <= now:
            self._mqtt_sessions.counters.expired += 1
            return None
        data = self._encoder.stored(message)
        if (
            data[0] & REPLAY
            and subscription.restricted
            and not may_have(subscription, data, self._mqtt_sessions.mapping)
        ):
            return None  # the right is gone since it was put into the queue
        first = subscription.heads[data[0] & 15]
        packet_id = state.redeliver.pop((reference.queue.id, message.id), 0) if state.redeliver else 0
        if packet_id:
            first = first & 0xF9 | 4  # what began as QoS 2 ends as QoS 2
        if first & 6:
            if not packet_id:
                packet_id = self._free_packet_id(state.next_packet_id % 65_535 + 1)
                state.next_packet_id = packet_id
            if reference.redelivered:
                first |= 8
        if message.large is not None:
            return b"", first, packet_id  # made when its file is read
        packet = self._encoder.packet(subscription, reference, (data, first, packet_id), now)
        if packet is None:
            # MQTT-3.1.2-24, -25: as if it had been sent.
            self.too_large += 1
            self._mqtt_sessions.counters.too_large += 1
            return None
        return packet, first, packet_id

    def _job(self, subscription: Subscription, reference: MessageReference, first: int, packet_id: int) -> Job:
        """Return the job that sends a large message."""
        return partial(self._send_large, subscription, reference, first, packet_id)

    async def _send_large(
        self, subscription: Subscription, reference: MessageReference, first: int, packet_id: int, outlet: Outlet
    ) -> None:
        """Send one large message, from its file."""

        def packet(data: bytes, more: int) -> bytes | None:
            return self._encoder.packet(subscription, reference, (data, first, packet_id), self._wall_ms(), more)

        try:
            sent = await send_large(outlet, self._post.storage, reference.message, self._mqtt_sessions.mapping, packet)
        except LostBodyError as error:
            self._take_back(reference, packet_id)
            self._post.set_aside(reference, error)
            return
        if not sent:  # it is a dead letter
            self.too_large += 1
            self._mqtt_sessions.counters.too_large += 1
            self._take_back(reference, packet_id)
            self._post.reject([reference])
        elif not packet_id and self._reading_files.pop(reference, True) is None:
            self._post.acknowledge([reference])

    def _take_back(self, reference: MessageReference, packet_id: int) -> None:
        """Free the identifier of a large message that cannot be sent; nothing of it was."""
        self._reading_files.pop(reference, None)
        if self._state.unacked.pop(packet_id, None) is not None:
            self._window += 1
            self._exactly_once.forget(packet_id)

    # -- a slow client

    def _park(self, subscription: Subscription, references: list[MessageReference]) -> None:
        """Keep some QoS 0 messages for later; the rest is dropped (section 4.3.1 allows it) and counted."""
        dropped = 0
        for reference in references:
            if len(self._parked) < MAX_PARKED and self._parked_bytes < MAX_PARKED_BYTES:
                self._parked.append((subscription, reference))
                self._parked_bytes += reference.message.size
            else:
                self._done.append(reference)
                dropped += 1
        if dropped:
            if not self.dropped:
                logger.warning("client %r does not keep up: QoS 0 messages are dropped", self._state.client_id)
            self.dropped += dropped
            self._mqtt_sessions.counters.dropped += dropped
            self._schedule()

    def pause(self) -> None:
        """Send less: the client's socket is full."""
        self._phase = follow(FLOW, self._phase, PAUSED)
        self._outlet.pause()

    def resume(self) -> None:
        """Go on with what was kept: the client's socket takes bytes again."""
        if self._phase is PAUSED:  # not since before the log-in was over
            self._phase = follow(FLOW, self._phase, SENDING)
        self._outlet.resume()
        while self._parked and self._phase is SENDING:
            batch = [self._parked.popleft() for _ in range(min(len(self._parked), 64))]
            self._parked_bytes -= sum(reference.message.size for _, reference in batch)
            self._write(batch)
        self._send_backlog()
        self._feed_hungry()

    # -- what the client answers

    def acknowledged(self, packet_ids: list[int]) -> None:
        """Handle PUBACKs without an error (the hot path)."""
        unacked = self._state.unacked
        qos2 = self._state.qos2
        references: list[MessageReference] = []
        if self._backlog:
            # Acknowledged before it was sent again: it took no room yet.
            again = set(self._backlog).intersection(packet_ids)
            self._window -= sum(unacked.get(packet_id) is not None for packet_id in again)
        for packet_id in packet_ids:
            if qos2 and packet_id in qos2:
                raise violation("PUBACK for a QoS 2 message")
            reference = unacked.pop(packet_id, None)
            if reference is not None:
                references.append(reference)
        if references:
            self._post.acknowledge(references)
        self._returned(len(references))

    def received(self, packet_id: int, reason: int) -> None:
        """Handle PUBREC. Raises ProtocolError."""
        room = self._exactly_once.received(packet_id, reason, unsent=packet_id in self._backlog)
        if room > 0:
            self._returned(room)
        else:
            self._window += room

    def completed(self, packet_id: int) -> None:
        """Handle PUBCOMP."""
        if self._exactly_once.completed(packet_id):
            self._returned(1)

    def _returned(self, count: int) -> None:
        """Go on with what waits: there is room for ``count`` more."""
        self._window = min(self._window + count, self.limit)
        if self._backlog:
            self._send_backlog()
        if self._hungry:
            self._feed_hungry()

    def _feed_hungry(self) -> None:
        """Let the queues that wait for room go on, in turn, no more of them than there is room for."""
        if self._phase is STOPPED or self._outlet.phase is not THROUGH:
            return
        hungry = self._hungry
        if self._phase is PAUSED:
            # QoS 0 goes on: what does not fit is dropped, not kept in the queue.
            for subscription in [each for each in hungry if each.qos == 0]:
                del hungry[subscription]
                self._post.wake(subscription.queue)
            return
        room = self._window
        for _ in range(len(hungry)):
            if room <= 0:
                return
            subscription = next(iter(hungry))
            del hungry[subscription]
            if subscription.attached:
                queue = subscription.queue
                self._post.wake(queue)
                # One that only pages or has nothing after all takes no room from the others.
                room -= queue.waiting > 0

    # -- the turn's end

    def _schedule(self) -> None:
        if not self._done_scheduled:
            self._done_scheduled = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        """Do what a delivery may not do inside the queue's dispatch: acknowledge, and wake queues."""
        self._done_scheduled = False
        self._acknowledge_done()
        self._feed_hungry()

    def _acknowledge_done(self) -> None:
        if self._done:
            done, self._done = self._done, []
            self._post.acknowledge(done)
        if self._met:
            met, self._met = self._met, []
            self._post.when_stable(partial(self._mqtt_sessions.settle, self._state, met))

    # -- begin and end of a connection

    def start(self) -> None:
        """Send again what an earlier connection left (MQTT-4.4.0-1), then open the subscriptions."""
        state = self._state
        self._window -= self._exactly_once.resume()
        self._backlog.extend(packet_id for packet_id, reference in state.unacked.items() if reference is not None)
        self._send_backlog()
        for subscription in state.subscriptions.values():
            if self._mqtt_sessions.subscriptions.may_go_on(state, subscription):
                self.open(subscription)

    def open(self, subscription: Subscription) -> None:
        """Let a subscription's queue deliver here."""
        subscription.delivery = self
        subscription.origin = self._mqtt_sessions.subscriptions.origin_of(self._state)
        subscription.rights = self._mqtt_sessions.subscriptions.rights_of(self._state, subscription)
        self._post.space.exclude_own(subscription.queue, subscription.origin if subscription.exclude_own else 0)
        if not subscription.attached:
            subscription.attached = True
            self._post.attach(subscription.queue, subscription)
        self._post.wake(subscription.queue)

    def _send_backlog(self) -> None:
        """Send again what an earlier connection left, in order, with its identifiers, as far as the window goes."""
        if not self._backlog:
            return
        state = self._state
        by_queue = {subscription.queue.id: subscription for subscription in state.subscriptions.values()}
        now = self._wall_ms()
        parts: list[bytes] = []
        while self._backlog and self._may_send():
            packet_id = self._backlog.popleft()
            reference = state.unacked.get(packet_id)
            if reference is None:
                continue
            subscription = by_queue.get(reference.queue.id)
            if subscription is None:
                state.unacked[packet_id] = None
                continue
            data = self._encoder.stored(reference.message)
            first = subscription.heads[data[0] & 15]
            # The subscription may have been downgraded meanwhile; what began as QoS 2 ends as QoS 2.
            first = first & 0xF9 | (4 if packet_id in state.qos2 else 2) | 8
            if reference.message.large is not None:
                self._window -= 1
                if parts:
                    self._send(b"".join(parts))
                    parts = []
                self._outlet.run(self._job(subscription, reference, first, packet_id))
                continue
            packet = self._encoder.packet(subscription, reference, (data, first, packet_id), now)
            if packet is None:
                state.unacked[packet_id] = None
                state.qos2.discard(packet_id)
                self._done.append(reference)
                self._schedule()
                continue
            self._window -= 1
            parts.append(packet)
            if len(parts) >= MAX_BURST:
                break
        if parts:
            self._send(b"".join(parts))
        if self._backlog and self._may_send():
            self._loop.call_soon(self._go_on)

    def _may_send(self) -> bool:
        return self._window > 0 and self._phase is SENDING and self._outlet.phase is THROUGH

    def _go_on(self) -> None:
        if self._phase is not STOPPED:
            self._send_backlog()
            self._feed_hungry()

    def stop(self) -> None:
        """Give back what is not a durable session's own: the connection is gone."""
        if self._phase is STOPPED:
            return
        self._phase = follow(FLOW, self._phase, STOPPED)
        self._outlet.stop()
        state = self._state
        self._done += [reference for _, reference in self._parked]
        self._parked.clear()
        self._acknowledge_done()
        self._exactly_once.stop()
        if self._reading_files:
            self._post.release(list(self._reading_files), failed=False)
            self._reading_files.clear()
        for subscription in state.subscriptions.values():
            subscription.delivery = None
        kept = give_back(self._post, state)
        leaving = deque(each for each in state.subscriptions.values() if each.attached and each.queue not in kept)
        self._post.share.work(leave(self._post, leaving))
        self._hungry.clear()

    def describe(self) -> dict[str, object]:
        """Return the window and the counters, by name, for management."""
        return {
            "window": self._window,
            "unacknowledged": len(self._state.unacked),
            "awaiting_pubcomp": len(self._state.released),
            "to_resend": len(self._backlog),
            "parked": len(self._parked),
            "paused": self._phase is PAUSED,
            "sent": self.sent,
            "dropped_qos0": self.dropped,
            "too_large": self.too_large,
        }
