"""The MQTT sessions of one broker, by client id: begun, taken over, ended, and back after a restart.

Beside them, what all connections share: wills, subscriptions and retained messages. One per post office, made by
:func:`start` before the first connection, so that what was stored goes on without one: session expiry, delayed wills.
Everything here is in the loop's thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.engine.memory import MQTT_SESSION, PACKET, RETAINED
from pollux.errors import NotPermittedError, PolluxError
from pollux.protocols.mqtt.neighbours import moving
from pollux.protocols.mqtt.retained import RetainedMessages
from pollux.protocols.mqtt.retained_store import RETAINED_KIND, RetainedStore
from pollux.protocols.mqtt.shared_subscriptions import SHARED_KIND
from pollux.protocols.mqtt.state import (
    LONGEST_TIMER,
    NEVER,
    QOS2_IN_KIND,
    QOS2_OUT_KIND,
    RELEASED,
    SESSION_KIND,
    ClientState,
    Ending,
    PendingWill,
    SessionRecord,
    decode_out,
    decode_session,
    encode_session,
    packet_key,
    split_packet_key,
)
from pollux.protocols.mqtt.subscriptions import Subscriptions
from pollux.protocols.mqtt.wills import Wills
from pollux.wire.mqtt.topics import TopicMapping, split_shared

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from pollux.protocols.mqtt.neighbours import MovingSession, Neighbours
    from pollux.protocols.mqtt.state import Connection
    from pollux.protocols.services import Services

logger = logging.getLogger("pollux.mqtt")


class Counters(Struct):
    """Counts of MQTT messages that were not delivered, by reason, and of connections taken over."""

    dropped: int = 0
    expired: int = 0
    too_large: int = 0
    takeovers: int = 0


def start(services: Services, loop: asyncio.AbstractEventLoop) -> MqttSessions:
    """Make the sessions of this broker, fill them from what was stored, and return them: once in the broker's life."""
    mqtt_sessions = MqttSessions(services, loop)
    mqtt_sessions.restore()
    return mqtt_sessions


class MqttSessions:
    """The sessions by client id, and what they share. See :func:`start`."""

    def __init__(self, services: Services, loop: asyncio.AbstractEventLoop) -> None:
        wildcards = services.configuration.wildcard_addresses
        self.mapping = TopicMapping(wildcards.delimiter, wildcards.any_words, wildcards.single_word)
        self.post = services.post
        self.wall_ms: Callable[[], int] = services.wall_ms
        self._loop = loop
        self._storage = services.post.storage
        self.sessions: dict[str, ClientState] = {}
        limits = services.configuration.limits
        store = RetainedStore(self.put, services.post.memory.user(RETAINED))
        store.limit = limits.max_retained_messages
        store.byte_limit = limits.max_retained_size
        self.retained = RetainedMessages(store, self.post, self.mapping, loop, wall_ms=self.wall_ms)
        self.wills = Wills(
            self.post, self.mapping, self.retained, loop, wall_ms=self.wall_ms, published=self._has_no_will
        )
        self.subscriptions = Subscriptions(
            self.post,
            self.mapping,
            services.security,
            loop,
            put=self.put,
            sessions=self.sessions,
            save=self.save,
        )
        self.counters = Counters()
        self._known: set[asyncio.Task[None]] = set()
        #: The other nodes of a cluster; None: there is none.
        self.neighbours: Neighbours | None = None
        #: Client id -> done when the end of its session is over.
        self._endings: dict[str, asyncio.Future[None]] = {}

    def put(self, kind: str, key: str, value: bytes | None) -> None:
        """Make a record durable (None deletes it); ``post.when_stable`` tells when."""
        self._storage.put(kind, key, value)

    def account(self, state: ClientState, *, already: bool = True) -> None:
        """Count what ``state`` holds beside its queues for its user; raises LimitError unless ``already``.

        Called when that has changed by much.
        """
        will = 0 if state.will is None else len(state.will.data)
        size = MQTT_SESSION + len(state.client_id) + will + PACKET * len(state.inbound)
        self._count(state, size, already=already)

    def _count(self, state: ClientState, size: int, *, already: bool = True) -> None:
        more = size - state.counted
        user = self.post.memory.user(state.user or "")
        if more > 0:
            user.take(more, already=already)
        elif more < 0:
            user.give(-more)
        state.counted = size

    def record_out(self, state: ClientState, packet_id: int, value: bytes | None) -> None:
        """Keep where a QoS 2 delivery of a durable session is; None: it is done."""
        if value is not None:
            state.recorded.add(packet_id)
        elif packet_id in state.recorded:
            state.recorded.discard(packet_id)
        else:
            return
        self.put(QOS2_OUT_KIND, packet_key(state.client_id, packet_id), value)

    def settle(self, state: ClientState, keys: list[tuple[int, int]], error: Exception | None) -> None:
        """End what waited until the acknowledgements of messages that the client had already are durable."""
        for key in keys if error is None else ():
            packet_id = state.received.pop(key, 0)
            if packet_id in state.completed:
                state.completed.discard(packet_id)
                state.unacked.pop(packet_id, None)
                self.record_out(state, packet_id, None)

    # -- after a restart

    def restore(self) -> None:
        """Take in what was stored. A record that cannot be read is logged and left alone."""
        now = self.wall_ms()
        packets: list[tuple[str, str, bytes]] = []
        recovered = list(self.post.recovered.items())
        for (kind, key), value in recovered:
            if kind == SHARED_KIND:
                self.subscriptions.shared.restore(key, value)
        for (kind, key), value in recovered:
            if kind == SESSION_KIND:
                try:
                    record = decode_session(value)
                except ValueError:
                    logger.exception("the stored MQTT session of client %r cannot be read", key)
                    continue
                self._restore_session(key, record, now)
            elif kind == RETAINED_KIND:
                self.retained.store.restore(key, value, now)
            elif kind in (QOS2_IN_KIND, QOS2_OUT_KIND):
                packets.append((kind, key, value))
        for kind, key, value in packets:
            self._restore_packet(kind, key, value)
        self._end_received()
        shared = self.subscriptions.shared
        for name, missing in shared.deserted():
            if missing:
                logger.error(
                    "the sessions of the subscribers to shared subscription %r are missing; its messages are kept for "
                    "whoever subscribes to it next",
                    name,
                )
                continue
            # Its subscribers' sessions did not outlive the broker.
            self.subscriptions.delete_queue(name)
            shared.forget(name)
        self.retained.restored()

    def _restore_session(self, client_id: str, record: SessionRecord, now: int) -> None:
        # One that was connected when the broker died has been away since now.
        state = self._session_of(client_id, record, record.disconnected_at or now)
        if record.will is not None:
            state.will = PendingWill(record.will.data, record.will.delay, record.will.expiry, record.user, 0)
            self.wills.publish_later(state)
        self.account(state)
        self._expire_later(state)

    def _session_of(self, client_id: str, record: SessionRecord, disconnected_at: int) -> ClientState:
        """Make a session of its record, with its subscriptions."""
        state = ClientState(client_id, record.user, record.version)
        state.expiry_interval = record.expiry_interval
        state.disconnected_at = disconnected_at
        state.gone_at = self._loop.time() - max(0, self.wall_ms() - disconnected_at) / 1000
        self.sessions[client_id] = state
        for entry in record.subscriptions:
            share, proper = split_shared(entry.topic_filter)
            if share is not None:
                self.subscriptions.shared.expect(self.mapping.queue_name(share, proper))
            try:
                self.subscriptions.make_again(state, entry)
            except PolluxError:
                logger.exception("subscription %r of MQTT client %r cannot be restored", entry.topic_filter, client_id)
        return state

    def _restore_packet(self, kind: str, key: str, value: bytes) -> None:
        try:
            client_id, packet_id = split_packet_key(key)
            queue_id, message_id, phase = decode_out(value) if kind == QOS2_OUT_KIND else (0, 0, 0)
        except ValueError:
            logger.exception("the stored MQTT packet identifier %r cannot be read", key)
            return
        state = self.sessions.get(client_id)
        if state is None:
            self.put(kind, key, None)
        elif kind == QOS2_IN_KIND:
            state.inbound[packet_id] = value
            state.restored.add(packet_id)
        else:
            state.unacked[packet_id] = None
            state.recorded.add(packet_id)
            if phase == RELEASED:
                state.released[packet_id] = None
                state.received[queue_id, message_id] = packet_id
            else:
                state.redeliver[queue_id, message_id] = packet_id

    def _end_received(self) -> None:
        """Acknowledge what clients have and a crash left in its queue; PUBREL goes out when that is durable.

        What is in pages is acknowledged when its turn comes.
        """
        wanted: dict[int, set[int]] = {}
        for state in self.sessions.values():
            for queue_id, message_id in state.received:
                wanted.setdefault(queue_id, set()).add(message_id)
        if not wanted:
            return
        paged = set()
        for queue in self.post.space.queues:
            if queue.id in wanted:
                self.post.take_out(queue, wanted[queue.id])
                if self.post.pages.unread(queue):
                    paged.add(queue.id)
        for state in self.sessions.values():
            state.received = {key: packet_id for key, packet_id in state.received.items() if key[0] in paged}

    # -- to and from other nodes

    def when_known(self, function: Callable[[], None]) -> None:
        """Call a function once the other nodes know this one's subscriptions, or cannot be waited for any more."""
        if self.neighbours is None:
            function()
            return
        task = self._loop.create_task(self.neighbours.known())
        self._known.add(task)
        task.add_done_callback(self._known.discard)
        task.add_done_callback(lambda _: function())

    def give(self, client_id: str, user: str | None, came: int = 0, *, clean: bool = False) -> MovingSession | None:
        """End the connection that a client has here, as it has come to another node; return its session, if it has one.

        It stays until :meth:`given`. ``came``: when it came there, wall milliseconds, 0: now; who came here later
        stays. ``clean``: the session is to end, its will is due then. Raises NotPermittedError: it is another user's.
        """
        state = self.sessions.get(client_id)
        if state is None or (came and state.connection is not None and state.connected_at > came):
            return None
        if state.user != user:
            raise NotPermittedError("this client id belongs to another user")
        since = 0 if state.connection is not None else state.disconnected_at
        if self.vacate(client_id, clean_start=False) is not None or client_id not in self.sessions:
            return None
        if not clean:
            self.wills.cancel(state)
        found = moving(state)
        found.since = since
        return found

    def given(self, client_id: str) -> None:
        """Give up a session that another node has on its disk, unless its client is back: its queues go there too."""
        state = self.sessions.get(client_id)
        neighbours = self.neighbours
        if state is None or neighbours is None or state.connection is not None or client_id in self._endings:
            return
        self._cancel_expiry(state)
        self.wills.cancel(state)
        # What it did not acknowledge comes again there; what it did receive waits for its last word alone.
        back = [reference for reference in state.unacked.values() if reference is not None]
        if back:
            self.post.release(back, failed=False)
        state.unacked.clear()
        for subscription in list(state.subscriptions.values()):
            self.subscriptions.give_up(state, subscription)
        self._forget_records(state)

    def _adopt(self, client_id: str, found: MovingSession) -> None:
        """Make a session of another node's one of this node; nothing of it is durable before :meth:`save` is."""
        state = self._session_of(client_id, found.record, self.wall_ms())
        for packet_id, duplicate_id in found.inbound.items():
            state.inbound[packet_id] = duplicate_id
            state.restored.add(packet_id)
            self.put(QOS2_IN_KIND, packet_key(client_id, packet_id), duplicate_id)
        for packet_id in found.released:
            state.unacked[packet_id] = None
            state.released[packet_id] = None
        self.account(state)

    def taken(self, client_id: str) -> None:
        """Tell the other nodes that a client's session is on the disk here."""
        if self.neighbours is not None:
            self.neighbours.taken(client_id)

    # -- sessions

    def vacate(self, client_id: str, *, clean_start: bool) -> asyncio.Future[None] | None:
        """Make room for a connection: end the one that has this client id now, and with ``clean_start`` its session.

        What has to be waited for before :meth:`connect`, because it is not over in this turn; None for nothing.
        """
        old = self.sessions.get(client_id)
        if old is not None and old.connection is not None:
            self.counters.takeovers += 1
            old.connection.taken_over()
            old = self.sessions.get(client_id)
        if old is not None and clean_start and client_id not in self._endings:
            self.end(old)
        return self._endings.get(client_id)

    def connect(
        self,
        connection: Connection,
        client_id: str,
        *,
        clean_start: bool,
        version: int,
        moved: MovingSession | None = None,
    ) -> tuple[ClientState, bool]:
        """Return the state for a client that connects, and whether it was there before (section 3.2.2.1.1).

        A connection that has the client id now is taken over (MQTT-3.1.4-3); see :meth:`vacate`, which has to have
        nothing left to wait for. ``moved``: what another node had of it, which counts where there is nothing here.
        """
        ending = self.vacate(client_id, clean_start=clean_start)
        if ending is not None:
            raise RuntimeError(f"the session of {client_id!r} has not ended yet")
        if moved is not None and client_id not in self.sessions:
            self._adopt(client_id, moved)
        old = self.sessions.get(client_id)
        if old is None:
            state = self.sessions[client_id] = ClientState(client_id, connection.user, version)
        else:
            state = old
            state.version = version
            self._cancel_expiry(state)
            self.wills.cancel(state)
        state.user = connection.user
        state.connection = connection
        state.connected_at = self.wall_ms()
        state.disconnected_at = 0
        return state, old is not None

    def save(self, state: ClientState) -> None:
        """Store a durable session's record."""
        for subscription in state.subscriptions.values():
            if subscription.share is not None:
                self.subscriptions.shared.outlives(state, subscription.queue.name)
        self.put(SESSION_KIND, state.client_id, encode_session(state))

    def disconnected(self, state: ClientState, ending: Ending) -> None:
        """Go on without the connection of ``state``, which is gone."""
        state.connection = None
        state.disconnected_at, state.gone_at = self.wall_ms(), self._loop.time()
        if ending is Ending.LEFT:
            state.will = None
        self.account(state)
        if state.durable:
            self.save(state)
            if ending is Ending.STOPPED:
                return
            self.wills.publish_later(state)
            self._expire_later(state)
        else:
            self.end(state)

    def end(self, state: ClientState) -> None:
        """End a session: its will is due (MQTT-3.1.2-8), its subscriptions and records go."""
        self._cancel_expiry(state)
        published = self.wills.publish(state)
        references = [reference for reference in state.unacked.values() if reference is not None]
        if references:
            # Those of shared subscriptions began at QoS 2 and go to nobody else (MQTT-4.8.2-5).
            self.post.acknowledge(references)
        state.unacked.clear()
        self._endings[state.client_id] = ending = self._loop.create_future()
        if published and state.durable:
            self.post.when_stable(lambda _: self.post.share.work(self._ending(state, ending)))
        else:
            self.post.share.work(self._ending(state, ending))

    def _ending(self, state: ClientState, ended: asyncio.Future[None]) -> Iterator[None]:
        """End its subscriptions, which may be thousands, bit by bit; its record goes last, so that none outlives it."""
        for topic_filter in list(state.subscriptions):
            self.subscriptions.unsubscribe(state, topic_filter)
            yield
        self._forget_records(state)
        del self._endings[state.client_id]
        ended.set_result(None)

    def _forget_records(self, state: ClientState) -> None:
        """Forget a session and all that is stored of it."""
        self.put(SESSION_KIND, state.client_id, None)
        for packet_id in state.inbound:
            self.put(QOS2_IN_KIND, packet_key(state.client_id, packet_id), None)
        for packet_id in state.recorded:
            self.put(QOS2_OUT_KIND, packet_key(state.client_id, packet_id), None)
        state.recorded.clear()
        state.inbound.clear()
        self._count(state, 0)
        if self.sessions.get(state.client_id) is state:
            del self.sessions[state.client_id]

    # -- from and to other nodes

    def adopt(self, client_id: str, record: SessionRecord) -> ClientState:
        """Have a session that was another node's; its client is away."""
        self._restore_session(client_id, record, self.wall_ms())
        return self.sessions[client_id]

    def give_away(self, state: ClientState) -> None:
        """Forget a session that another node has now: nobody is told that it ends here."""
        self._cancel_expiry(state)
        self.wills.cancel(state)
        state.unacked.clear()
        for subscription in list(state.subscriptions.values()):
            name = subscription.queue.name
            if subscription.share is None or self.subscriptions.shared.leave(state, name):
                self.subscriptions.delete_empty(name)
        state.subscriptions.clear()
        self.put(SESSION_KIND, state.client_id, None)
        for packet_id in state.inbound:
            self.put(QOS2_IN_KIND, packet_key(state.client_id, packet_id), None)
        for packet_id in state.recorded:
            self.put(QOS2_OUT_KIND, packet_key(state.client_id, packet_id), None)
        self._count(state, 0)
        del self.sessions[state.client_id]

    def _expire_later(self, state: ClientState) -> None:
        """End the session when its expiry interval has passed without a connection (section 3.1.2.11.2)."""
        if state.expiry_interval >= NEVER:
            return
        left = state.gone_at + state.expiry_interval - self._loop.time()
        state.expiry_timer = self._loop.call_later(min(max(left, 0.0), LONGEST_TIMER), self._expired, state)

    def _expired(self, state: ClientState) -> None:
        state.expiry_timer = None
        if state.connection is not None or self.sessions.get(state.client_id) is not state:
            return
        if state.client_id in self._endings:
            return
        if state.gone_at + state.expiry_interval > self._loop.time():
            self._expire_later(state)
            return
        self.end(state)

    def _cancel_expiry(self, state: ClientState) -> None:
        if state.expiry_timer is not None:
            state.expiry_timer.cancel()
            state.expiry_timer = None

    def _has_no_will(self, state: ClientState) -> None:
        gone = self.sessions.get(state.client_id) is not state or state.client_id in self._endings
        if state.durable and not gone and state.connection is None:
            self.account(state)
            self.save(state)

    def describe(self) -> dict[str, object]:
        """Return the counters, by name, for management and metrics."""
        return {
            "sessions": len(self.sessions),
            "connected": sum(state.connection is not None for state in self.sessions.values()),
            "subscriptions": sum(len(state.subscriptions) for state in self.sessions.values()),
            "shared_subscriptions": len(self.subscriptions.shared),
            "retained": self.retained.store.count,
            "retained_bytes": self.retained.store.bytes,
            "dropped_qos0": self.counters.dropped,
            "expired": self.counters.expired,
            "too_large": self.counters.too_large,
            "wills_published": self.wills.count,
            "takeovers": self.counters.takeovers,
        }
