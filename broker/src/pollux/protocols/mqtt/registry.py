"""What all MQTT connections of one broker share: sessions by client id, wills, retained messages, shared subscriptions.

One per post office, made by the first connection (or by :func:`start`, which the server calls so that what was stored
goes on without one: session expiry, delayed wills). Everything here is in the loop's thread.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.engine.memory import MQTT_SESSION, PACKET, RETAINED
from pollux.engine.reading_rights import rights_of
from pollux.engine.security import Identity, Permission
from pollux.errors import InvalidRequestError, NoSuchQueueError, PolluxError, SendError, StoreError
from pollux.message import Encoding, Message, RoutingType
from pollux.protocols.mqtt.retained import RETAINED_KIND, Retained, RetainedStore
from pollux.protocols.mqtt.state import (
    NEVER,
    QOS2_IN_KIND,
    QOS2_OUT_KIND,
    RELEASED,
    SESSION_KIND,
    ClientState,
    PendingWill,
    SessionRecord,
    decode_out,
    decode_session,
    encode_session,
    packet_key,
    split_packet_key,
)
from pollux.protocols.mqtt.subscription import Subscription
from pollux.routing.spec import QueueSpec
from pollux.wire.mqtt.stored import as_replay, block_end, topic_end
from pollux.wire.mqtt.topics import TopicMapping, split_shared

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from pollux.engine.reading_rights import ReadingRights
    from pollux.protocols.mqtt.session import MqttSession
    from pollux.protocols.services import Services
    from pollux.routing.queue import Queue

logger = logging.getLogger("pollux.mqtt")

SHARED_KIND = "mqtt-shared"
#: Its values: whether a session that outlives the broker is subscribed.
_PASSING, _LASTING = b"\x01", b"\x02"
#: Subscriptions of one client.
MAX_SUBSCRIPTIONS = 10_000
#: Seconds between two looks for retained messages that expired.
_SWEEP = 60.0
#: Days a timer is set ahead at most; it is set again when it fires early.
_LONGEST_TIMER = 86_400.0 * 20


class Counters(Struct):
    """What happened to MQTT messages that were not delivered."""

    dropped: int = 0
    expired: int = 0
    too_large: int = 0
    wills: int = 0
    takeovers: int = 0


def start(services: Services, loop: asyncio.AbstractEventLoop) -> MqttSessions:
    """The registry of this broker; made, and filled from what was stored, on the first call."""
    mqtt_sessions: MqttSessions | None = services.post.shared.get("MQTT")
    if mqtt_sessions is None:
        mqtt_sessions = services.post.shared["MQTT"] = MqttSessions(services, loop)
        mqtt_sessions.restore()
    return mqtt_sessions


class MqttSessions:
    """See the module docstring."""

    def __init__(self, services: Services, loop: asyncio.AbstractEventLoop) -> None:
        wildcards = services.configuration.wildcard_addresses
        self.mapping = TopicMapping(wildcards.delimiter, wildcards.any_words, wildcards.single_word)
        self.post = services.post
        self._security = services.security
        self.wall_ms: Callable[[], int] = services.wall_ms
        self._loop = loop
        self._storage = services.post.storage
        self.sessions: dict[str, ClientState] = {}
        limits = services.configuration.limits
        self.retained = RetainedStore(self.put, services.post.memory.user(RETAINED))
        self.retained.limit = limits.max_retained_messages
        self.retained.byte_limit = limits.max_retained_size
        self.counters = Counters()
        #: Queue name -> clients subscribed to it; those with a durable session among them, of queues that have such.
        self._shared: dict[str, set[str]] = {}
        self._lasting: dict[str, set[str]] = {}
        #: Client id -> done when the end of its session is over.
        self._endings: dict[str, asyncio.Future[None]] = {}
        self._sweeping: asyncio.TimerHandle | None = None

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
        """The acknowledgements of messages that the client had already are durable: end what waited for that."""
        for key in keys if error is None else ():
            packet_id = state.received.pop(key, 0)
            if packet_id in state.completed:
                state.completed.discard(packet_id)
                state.unacked.pop(packet_id, None)
                self.record_out(state, packet_id, None)

    def count_dropped(self, count: int) -> None:
        """QoS 0 messages a slow client missed."""
        self.counters.dropped += count

    def count_expired(self, count: int) -> None:
        """Messages that expired between their queue and the client."""
        self.counters.expired += count

    def count_too_large(self, count: int) -> None:
        """Messages larger than their client's maximum packet size."""
        self.counters.too_large += count

    # -- after a restart

    def restore(self) -> None:
        """Take in what was stored. A record that cannot be read is logged and left alone."""
        now = self.wall_ms()
        packets: list[tuple[str, str, bytes]] = []
        recovered = list(self.post.recovered.items())
        for (kind, key), value in recovered:
            if kind == SHARED_KIND:
                self._shared[key] = set()
                if value == _LASTING:
                    self._lasting[key] = set()
        for (kind, key), value in recovered:
            if kind == SESSION_KIND:
                try:
                    record = decode_session(value)
                except ValueError:
                    logger.exception("the stored MQTT session of client %r cannot be read", key)
                    continue
                self._restore_session(key, record, now)
            elif kind == RETAINED_KIND:
                self.retained.restore(key, value, now)
            elif kind in (QOS2_IN_KIND, QOS2_OUT_KIND):
                packets.append((kind, key, value))
        for kind, key, value in packets:
            self._restore_packet(kind, key, value)
        self._end_received()
        for name in [name for name, members in self._shared.items() if not members]:
            if name in self._lasting:
                logger.error(
                    "the sessions of the subscribers to shared subscription %r are missing; its messages are kept for "
                    "whoever subscribes to it next",
                    name,
                )
                continue
            # Its subscribers' sessions did not outlive the broker.
            del self._shared[name]
            self._delete_queue(name)
            self.put(SHARED_KIND, name, None)
        if self.retained.count:
            self._sweep_later()

    def _restore_session(self, client_id: str, record: SessionRecord, now: int) -> None:
        state = ClientState(client_id, record.user, record.version)
        state.expiry_interval = record.expiry_interval
        # One that was connected when the broker died has been away since now.
        state.disconnected_at = record.disconnected_at or now
        self.sessions[client_id] = state
        for entry in record.subscriptions:
            share, proper = split_shared(entry.topic_filter)
            if share is not None:
                self._shared.setdefault(self.mapping.queue_name(share, proper), set())
            try:
                self._subscribe(
                    state,
                    entry.topic_filter,
                    entry.qos,
                    exclude_own=entry.no_local,
                    retain_as_published=entry.retain_as_published,
                    identifier=entry.identifier,
                )
            except PolluxError:
                logger.exception("subscription %r of MQTT client %r cannot be restored", entry.topic_filter, client_id)
        if record.will is not None:
            state.will = PendingWill(record.will.data, record.will.delay, record.will.expiry, record.user, 0)
            self._will_later(state)
        self.account(state)
        self._expire_later(state)

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
        self, session: MqttSession, client_id: str, *, clean_start: bool, version: int
    ) -> tuple[ClientState, bool]:
        """The state for a client that connects, and whether it was there before (section 3.2.2.1.1).

        A connection that has the client id now is taken over (MQTT-3.1.4-3); see :meth:`vacate`, which has to have
        nothing left to wait for.
        """
        ending = self.vacate(client_id, clean_start=clean_start)
        if ending is not None:
            raise RuntimeError(f"the session of {client_id!r} has not ended yet")
        old = self.sessions.get(client_id)
        if old is None:
            state = self.sessions[client_id] = ClientState(client_id, session.user, version)
        else:
            state = old
            state.version = version
            self._cancel_expiry(state)
            self._cancel_will(state)
        state.user = session.user
        state.connection = session
        state.disconnected_at = 0
        return state, old is not None

    def save(self, state: ClientState) -> None:
        """Store a durable session's record."""
        for subscription in state.subscriptions.values():
            if subscription.share is not None:
                self._outlives(state, subscription.queue.name)
        self.put(SESSION_KIND, state.client_id, encode_session(state))

    def disconnected(self, state: ClientState, *, publish_will: bool, stopping: bool = False) -> None:
        """The connection of ``state`` is gone. ``stopping``: the broker's doing, durable wills wait for its restart."""
        state.connection = None
        state.disconnected_at = self.wall_ms()
        if not publish_will:
            state.will = None
        self.account(state)
        if state.durable:
            self.save(state)
            if stopping:
                return
            self._will_later(state)
            self._expire_later(state)
        else:
            self.end(state)

    def end(self, state: ClientState) -> None:
        """The session ends: its will is due (MQTT-3.1.2-8), its subscriptions and records go."""
        self._cancel_expiry(state)
        will = state.will
        if will is not None:
            self._publish_will(state)
        references = [reference for reference in state.unacked.values() if reference is not None]
        if references:
            # Those of shared subscriptions began at QoS 2 and go to nobody else (MQTT-4.8.2-5).
            self.post.acknowledge(references)
        state.unacked.clear()
        self._endings[state.client_id] = ending = self._loop.create_future()
        self.post.share.work(self._ending(state, ending))

    def _ending(self, state: ClientState, ended: asyncio.Future[None]) -> Iterator[None]:
        """Its subscriptions, which may be thousands, end bit by bit; its record goes last, so that none outlives it."""
        for topic_filter in list(state.subscriptions):
            self.unsubscribe(state, topic_filter)
            yield
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
        del self._endings[state.client_id]
        ended.set_result(None)

    def _expire_later(self, state: ClientState) -> None:
        """Section 3.1.2.11.2: the session ends when its expiry interval has passed without a connection."""
        if state.expiry_interval >= NEVER:
            return
        left = (state.disconnected_at + state.expiry_interval * 1000 - self.wall_ms()) / 1000
        state.expiry_timer = self._loop.call_later(min(max(left, 0.0), _LONGEST_TIMER), self._expired, state)

    def _expired(self, state: ClientState) -> None:
        state.expiry_timer = None
        if state.connection is not None or self.sessions.get(state.client_id) is not state:
            return
        if state.client_id in self._endings:
            return
        if state.disconnected_at + state.expiry_interval * 1000 > self.wall_ms():
            self._expire_later(state)
            return
        self.end(state)

    def _cancel_expiry(self, state: ClientState) -> None:
        if state.expiry_timer is not None:
            state.expiry_timer.cancel()
            state.expiry_timer = None

    # -- wills

    def _will_later(self, state: ClientState) -> None:
        """Section 3.1.3.2.2: after the delay, or when the session ends if that comes first."""
        will = state.will
        if will is None:
            return
        if will.delay == 0:
            self._publish_will(state)
            return
        left = (state.disconnected_at + will.delay * 1000 - self.wall_ms()) / 1000
        will.timer = self._loop.call_later(min(max(left, 0.0), _LONGEST_TIMER), self._will_due, state, will)

    def _will_due(self, state: ClientState, will: PendingWill) -> None:
        will.timer = None
        if state.will is not will or state.connection is not None:
            return
        if state.disconnected_at + will.delay * 1000 > self.wall_ms():
            self._will_later(state)
            return
        self._publish_will(state)

    def _cancel_will(self, state: ClientState) -> None:
        """The client is back before its will was due (MQTT-3.1.3-9)."""
        will = state.will
        state.will = None
        if will is not None and will.timer is not None:
            will.timer.cancel()

    def _publish_will(self, state: ClientState) -> None:
        will = state.will
        self._cancel_will(state)
        if will is None:
            return
        self.counters.wills += 1
        now = self.wall_ms()
        expiration = now + will.expiry * 1000 if will.expiry is not None else 0
        data = will.data
        topic = data[3 : topic_end(data)].decode("utf-8")
        message = Message(
            Encoding.MQTT,
            self.mapping.address(topic),
            data,
            durable=bool(data[0] & 6),
            expiration=expiration,
            timestamp=now,
            origin=will.origin,
            user=will.user if self.post.configuration.populate_validated_user else None,
        )
        try:
            self.post.open(message.address, None, will.user)
            if data[0] & 1:
                self.retain(topic, data, expiration)
            self.post.send(message)
        except PolluxError as error:
            logger.warning("the will of MQTT client %r on %r could not be published: %s", state.client_id, topic, error)
        if state.durable and self.sessions.get(state.client_id) is state and state.connection is None:
            self.account(state)
            self.save(state)

    # -- subscriptions

    def subscribe(
        self,
        state: ClientState,
        topic_filter: str,
        qos: int,
        *,
        exclude_own: bool,
        retain_as_published: bool,
        identifier: int,
    ) -> tuple[Subscription, bool]:
        """Make or change a subscription (MQTT-3.8.4-3); whether it is new. Raises PolluxError when it cannot be."""
        subscription = state.subscriptions.get(topic_filter)
        if subscription is not None:
            subscription.configure(
                qos, exclude_own=exclude_own, retain_as_published=retain_as_published, identifier=identifier
            )
            return subscription, False
        return (
            self._subscribe(
                state,
                topic_filter,
                qos,
                exclude_own=exclude_own,
                retain_as_published=retain_as_published,
                identifier=identifier,
            ),
            True,
        )

    def _subscribe(
        self,
        state: ClientState,
        topic_filter: str,
        qos: int,
        *,
        exclude_own: bool,
        retain_as_published: bool,
        identifier: int,
    ) -> Subscription:
        share, proper = split_shared(topic_filter)
        address = self.mapping.address(proper)
        name = self.mapping.queue_name(state.client_id if share is None else share, proper)
        queue = self._queue_for(state, name, address, share)
        if share is not None:
            self._join(state, name)
            if queue.of_pattern and state.user is not None:
                self.post.address_manager.read_by(queue, state.user)
        subscription = Subscription(topic_filter, address, queue, share)
        subscription.configure(
            qos, exclude_own=exclude_own, retain_as_published=retain_as_published, identifier=identifier
        )
        subscription.gone = lambda gone, queue: self._queue_gone(state, gone, queue)
        state.subscriptions[topic_filter] = subscription
        return subscription

    def _join(self, state: ClientState, name: str) -> None:
        """Note that a client shares a queue, durably whether the next life may miss it."""
        members = self._shared.setdefault(name, set())
        if not members and name not in self._lasting:
            self.put(SHARED_KIND, name, _PASSING)
        members.add(state.client_id)
        if state.durable:
            self._outlives(state, name)

    def _outlives(self, state: ClientState, name: str) -> None:
        """A client that shares a queue will do so in the next life too: that it is missing then is no reason to end."""
        lasting = self._lasting.get(name)
        if lasting is None:
            lasting = self._lasting[name] = set()
            self.put(SHARED_KIND, name, _LASTING)
        lasting.add(state.client_id)

    def _leave(self, state: ClientState, name: str) -> bool:
        """A client shares a queue no more; whether it was the last one."""
        members = self._shared.get(name)
        if members is None:
            return False
        members.discard(state.client_id)
        lasting = self._lasting.get(name, set())
        if not members:
            del self._shared[name]
            self._lasting.pop(name, None)
            self.put(SHARED_KIND, name, None)
            return True
        if state.client_id in lasting:
            lasting.discard(state.client_id)
            if not lasting:
                del self._lasting[name]
                self.put(SHARED_KIND, name, _PASSING)
        return False

    def _queue_gone(self, state: ClientState, subscription: Subscription, queue: Queue) -> None:
        """An administrator deleted a subscription's queue: the subscription ends, and its client is told."""
        state.subscriptions.pop(subscription.topic_filter, None)
        subscription.delivery = None
        for packet_id, reference in state.unacked.items():
            if reference is not None and reference.queue is queue:
                state.unacked[packet_id] = None
        if subscription.share is not None:
            self._leave(state, queue.name)
        if state.durable:
            self.save(state)
        if state.connection is not None:
            # Not in the middle of the deletion.
            self._loop.call_soon(state.connection.queue_deleted, subscription.topic_filter)

    def _queue_for(self, state: ClientState, name: str, address: str, share: str | None) -> Queue:
        """The queue of a subscription: what is there already, or a new one."""
        queue = self.find_queue(name)
        if queue is not None:
            if queue.address != address or queue.routing_type is not RoutingType.MULTICAST:
                raise InvalidRequestError(
                    f"queue {name!r} belongs to address {queue.address!r}: choose another client id or share name"
                )
            shared = name in self._shared or (share is not None and self._was_shared(queue, share, state.user))
            if (share is None) is shared:
                raise InvalidRequestError(
                    f"queue {name!r} is a {'shared' if share is None else 'private'} subscription's: "
                    "choose another client id or share name"
                )
            if share is None and queue.user not in (None, state.user):
                raise InvalidRequestError(f"queue {name!r} belongs to another user: choose another client id")
            return queue
        durable = share is not None or state.durable
        return self.post.create_queue(
            QueueSpec(
                name,
                address,
                RoutingType.MULTICAST,
                durable=durable,
                temporary=not durable,
                auto_created=True,
                auto_delete=False,
                purge_on_no_consumers=False,
                exclusive=False,
                last_value=False,
                non_destructive=False,
                max_consumers=-1,
                user=state.user,
            )
        )

    def _was_shared(self, queue: Queue, share: str, user: str | None) -> bool:
        """Whether the record that a queue is shared is lost: it was made for this user, and is no client's own."""
        owner = self.sessions.get(share)
        private = owner is not None and any(one.queue is queue for one in owner.subscriptions.values())
        return queue.auto_created and queue.durable and queue.user == user and not private

    def unsubscribe(self, state: ClientState, topic_filter: str) -> bool:
        """End a subscription (MQTT-3.10.4-1); False when there was none."""
        subscription = state.subscriptions.pop(topic_filter, None)
        if subscription is None:
            return False
        queue = subscription.queue
        subscription.delivery = None
        held = [
            packet_id
            for packet_id, reference in state.unacked.items()
            if reference is not None and reference.queue is queue
        ]
        back = []
        for packet_id in held:
            reference = state.unacked[packet_id]
            # The client may finish what was begun: its acknowledgements find the identifier.
            state.unacked[packet_id] = None
            if reference is not None and packet_id not in state.qos2:
                back.append(reference)
        if subscription.share is not None and back:
            self.post.release(back, failed=False)
        if subscription.attached:
            subscription.attached = False
            self.post.detach(queue, subscription)
        if subscription.share is None:
            self._delete_queue(queue.name)
            return True
        if self._leave(state, queue.name):
            self._delete_queue(queue.name)
        return True

    def find_queue(self, name: str) -> Queue | None:
        """The queue of that name, None when there is none."""
        try:
            return self.post.queue(name)
        except NoSuchQueueError:
            return None

    def _delete_queue(self, name: str) -> None:
        try:
            self.post.delete_queue(name)
        except NoSuchQueueError:
            pass  # an administrator was faster
        except PolluxError as error:
            logger.warning("the queue %r of an MQTT subscription could not be deleted: %s", name, error)

    def origin_of(self, state: ClientState) -> int:
        """The id of the connection ``state`` has now, 0 for none."""
        connection = state.connection
        return 0 if connection is None else connection.transport.peer.connection_id

    def rights_of(self, state: ClientState, subscription: Subscription) -> ReadingRights | None:
        """What the client of ``state`` may have of a pattern's messages."""
        return rights_of(self._security, Identity(state.user or ""), subscription.queue)

    def may_have(self, subscription: Subscription, data: bytes) -> bool:
        """Whether the client may have a message of its topic; one that was retained is there by its queue's name."""
        rights = subscription.rights
        return rights is None or rights.allow(self.mapping.address(data[3 : topic_end(data)].decode("utf-8")))

    def may_go_on(self, state: ClientState, subscription: Subscription) -> bool:
        """Whether a session that is taken up again still has a subscription: its user's rights may have changed."""
        if self._security.allowed(state.user or "", Permission.consume, subscription.address):
            return True
        logger.warning(
            "MQTT client %r gets nothing of its subscription %r: user %r may not consume at %r any more",
            state.client_id,
            subscription.topic_filter,
            state.user,
            subscription.address,
        )
        return False

    # -- retained messages

    def retain(self, topic: str, data: bytes, expiration: int) -> None:
        """Keep ``data`` (stored form) as the topic's retained message, or clear it when the payload is empty.

        Raises LimitError.
        """
        if block_end(data, topic_end(data)) >= len(data):
            self.retained.clear(topic)
            return
        self.retained.set(topic, data, expiration)
        if expiration and self._sweeping is None:
            self._sweep_later()

    def replay(self, subscription: Subscription) -> None:
        """Send a new subscription what is retained for it (section 3.3.1.3), through its queue."""
        if subscription.share is not None:
            return  # section 4.8.2: never to shared subscriptions
        entries = self.retained.match(subscription.topic_filter, self.wall_ms())
        if subscription.restricted:
            entries = (entry for entry in entries if self.may_have(subscription, entry.data))
        self.post.share.work(self._replay(subscription, entries))

    def _replay(self, subscription: Subscription, entries: Iterator[Retained]) -> Iterator[None]:
        """A few of them each turn, so that a filter that matches very many does not hold up everybody else.

        Each as it is when its turn comes: what is retained later than it was subscribed to is the newer one.
        """
        queue = subscription.queue
        place = f"{queue.address}::{queue.name}"
        for entry in entries:
            if subscription.delivery is None:
                return
            data, expiration = entry.data, entry.expiration
            message = Message(
                Encoding.MQTT,
                place,
                as_replay(data),
                durable=bool(data[0] & 6),
                expiration=expiration,
                timestamp=self.wall_ms(),
            )
            try:
                self.post.send(message)
            except (SendError, StoreError) as error:
                logger.warning("retained messages could not be sent to %r: %s", queue.name, error)
                return
            yield

    def _sweep_later(self) -> None:
        self._sweeping = self._loop.call_later(_SWEEP, self._sweep)

    def _sweep(self) -> None:
        self.post.share.work(self._swept())

    def _swept(self) -> Iterator[None]:
        yield from self.retained.expire(self.wall_ms())
        self._sweeping = None
        if self.retained.count:
            self._sweep_later()

    def describe(self) -> dict[str, object]:
        """For management and metrics."""
        return {
            "sessions": len(self.sessions),
            "connected": sum(state.connection is not None for state in self.sessions.values()),
            "subscriptions": sum(len(state.subscriptions) for state in self.sessions.values()),
            "shared_subscriptions": len(self._shared),
            "retained": self.retained.count,
            "retained_bytes": self.retained.bytes,
            "dropped_qos0": self.counters.dropped,
            "expired": self.counters.expired,
            "too_large": self.counters.too_large,
            "wills_published": self.counters.wills,
            "takeovers": self.counters.takeovers,
        }
