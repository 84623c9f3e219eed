"""MQTT sessions and retained messages that go to another node when this one is scaled down, and those that come.

A session goes when all messages of its subscriptions went, and no connection has it. What its client was sent at QoS 2
and has not settled is a message of its queue again by then, with a mark: where it arrives the session finds it by the
mark, and sends it with the packet identifier that the client knows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from pollux.errors import PolluxError
from pollux.protocols.mqtt.state import (
    QOS2_IN_KIND,
    RELEASED,
    SENT,
    ClientState,
    SessionRecord,
    decode_session,
    encode_out,
    encode_session,
    packet_key,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.protocols.mqtt.sessions import MqttSessions
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference

#: The annotation of a message that a client was sent at QoS 2: the numbers of queue and message where it was.
MARK = "_PX_MQTT_SENT"


class Moved(Struct, frozen=True, array_like=True):
    """A session on its way. ``session`` is its record; packet identifiers with duplicate ids, marks, and released."""

    client_id: str
    session: bytes
    inbound: tuple[tuple[int, bytes], ...]
    sent: tuple[tuple[int, str], ...]
    released: tuple[int, ...]


class MovingSessions:
    """The sessions of one broker, as scale-down hands them over (:class:`pollux.cluster.scale_down.drain.States`)."""

    name = "mqtt-session"

    def __init__(self, mqtt_sessions: MqttSessions | None) -> None:
        """``mqtt_sessions``: None where no acceptor speaks MQTT."""
        self._mqtt_sessions = mqtt_sessions
        self._marks: dict[tuple[int, int], int] = {}

    def _absent(self) -> Iterator[ClientState]:
        """Yield the sessions that wait for their clients."""
        mqtt_sessions = self._mqtt_sessions
        for state in list(mqtt_sessions.sessions.values()) if mqtt_sessions is not None else ():
            if state.durable and state.connection is None:
                yield state

    # -- here

    def keeps(self) -> frozenset[int]:
        """Return the numbers of the queues of sessions that outlive their connections."""
        mqtt_sessions = self._mqtt_sessions
        if mqtt_sessions is None:
            return frozenset()
        return frozenset(
            subscription.queue.id
            for state in mqtt_sessions.sessions.values()
            if state.durable
            for subscription in state.subscriptions.values()
        )

    def prepare(self) -> None:
        """Put what clients did not settle back into its queues: no client comes any more."""
        if self._mqtt_sessions is None:
            return
        post = self._mqtt_sessions.post
        for state in self._absent():
            back: list[MessageReference] = []
            for packet_id, reference in list(state.unacked.items()):
                if reference is None:
                    continue
                back.append(reference)
                if packet_id in state.qos2:
                    state.redeliver[reference.queue.id, reference.message.id] = packet_id
                    state.unacked[packet_id] = None
                    state.qos2.discard(packet_id)
                else:
                    del state.unacked[packet_id]
            if back:
                post.release(back, failed=False)
            for subscription in state.subscriptions.values():
                if subscription.attached:
                    subscription.attached = False
                    post.detach(subscription.queue, subscription)
            self._marks.update(state.redeliver)

    def mark(self, reference: MessageReference) -> dict[str, str]:
        """Return the annotation that a message takes along, if any."""
        if not self._marks:
            return {}
        key = (reference.queue.id, reference.message.id)
        return {MARK: f"{key[0]}/{key[1]}"} if key in self._marks else {}

    def ready(self) -> Iterator[tuple[str, bytes]]:
        """Yield client id and value of each session that goes."""
        for state in self._absent():
            sent = tuple((packet_id, f"{queue}/{message}") for (queue, message), packet_id in state.redeliver.items())
            moved = Moved(
                state.client_id,
                encode_session(state),
                tuple(state.inbound.items()),
                sent,
                tuple(state.released),
            )
            yield state.client_id, msgspec.msgpack.encode(moved)

    def handed_over(self, key: str) -> None:
        """Forget a session that another node has: no will, no end of it is told, and its queues are empty."""
        mqtt_sessions = self._mqtt_sessions
        if mqtt_sessions is not None and (state := mqtt_sessions.sessions.get(key)) is not None:
            mqtt_sessions.give_away(state)

    # -- there

    def take(self, _node: bytes, value: bytes) -> None:
        """Have a session that another node gives; where this client has one here already, add its subscriptions."""
        mqtt_sessions = self._mqtt_sessions
        if mqtt_sessions is None:
            raise ValueError("no acceptor of this broker speaks MQTT: it keeps no sessions")
        try:
            moved = msgspec.msgpack.decode(value, type=Moved)
            record = decode_session(moved.session)
        except msgspec.MsgspecError as error:
            raise ValueError(f"an MQTT session cannot be read: {error}") from error
        state = mqtt_sessions.sessions.get(moved.client_id)
        if state is None:
            state = mqtt_sessions.adopt(moved.client_id, record)
            self._packets(mqtt_sessions, state, moved)
        else:
            self._add(mqtt_sessions, state, record)
        mqtt_sessions.save(state)

    @staticmethod
    def _add(mqtt_sessions: MqttSessions, state: ClientState, record: SessionRecord) -> None:
        """Its client began a session here before its own one came: what it subscribed to there goes on, too."""
        for entry in record.subscriptions:
            if entry.topic_filter not in state.subscriptions:
                try:
                    mqtt_sessions.subscriptions.make_again(state, entry)
                except PolluxError as error:
                    raise ValueError(f"subscription {entry.topic_filter!r}: {error}") from error

    def _packets(self, mqtt_sessions: MqttSessions, state: ClientState, moved: Moved) -> None:
        for packet_id, duplicate_id in moved.inbound:
            state.inbound[packet_id] = duplicate_id
            state.restored.add(packet_id)
            mqtt_sessions.put(QOS2_IN_KIND, packet_key(state.client_id, packet_id), duplicate_id)
        for packet_id in moved.released:
            state.unacked[packet_id] = None
            state.released[packet_id] = None
            mqtt_sessions.record_out(state, packet_id, encode_out(0, 0, RELEASED))
        marks = {mark: packet_id for packet_id, mark in moved.sent}
        for subscription in state.subscriptions.values() if marks else ():
            for reference, mark in _marked(subscription.queue):
                packet_id, number = marks.pop(mark, 0), reference.message.id
                if packet_id:
                    reference.redelivered = True
                    state.unacked[packet_id] = None
                    state.redeliver[subscription.queue.id, number] = packet_id
                    mqtt_sessions.record_out(state, packet_id, encode_out(subscription.queue.id, number, SENT))


def _marked(queue: Queue) -> Iterator[tuple[MessageReference, str]]:
    """Yield the messages in memory that have a mark, and it."""
    for reference in queue.iterate():
        mark = (reference.message.annotations or {}).get(MARK)
        if isinstance(mark, str):
            yield reference, mark


class RetainedMessage(Struct, frozen=True, array_like=True):
    """A retained message on its way: topic, stored form, and when it expires (ms since the epoch, 0: never)."""

    topic: str
    data: bytes
    expiration: int


class MovingRetained:
    """The retained messages of one broker, as scale-down hands them over."""

    name = "mqtt-retained"

    def __init__(self, mqtt_sessions: MqttSessions | None) -> None:
        """``mqtt_sessions``: None where no acceptor speaks MQTT."""
        self._mqtt_sessions = mqtt_sessions

    def keeps(self) -> frozenset[int]:
        """Return nothing: they are in no queue."""
        return frozenset()

    def prepare(self) -> None:
        """Nothing is in the way."""

    def mark(self, _reference: MessageReference) -> dict[str, str]:
        """Return nothing: a retained message is in no queue."""
        return {}

    def ready(self) -> Iterator[tuple[str, bytes]]:
        """Yield topic and value of each."""
        mqtt_sessions = self._mqtt_sessions
        for entry in mqtt_sessions.retained.store.all() if mqtt_sessions is not None else ():
            yield entry.topic, msgspec.msgpack.encode(RetainedMessage(entry.topic, entry.data, entry.expiration))

    def handed_over(self, key: str) -> None:
        """Forget one that another node has."""
        mqtt_sessions = self._mqtt_sessions
        if mqtt_sessions is not None:
            mqtt_sessions.retained.store.clear(key)

    def take(self, _node: bytes, value: bytes) -> None:
        """Retain one that another node gives, unless there is one of its topic: nobody knows which is newer."""
        mqtt_sessions = self._mqtt_sessions
        if mqtt_sessions is None:
            raise ValueError("no acceptor of this broker speaks MQTT: it retains nothing")
        found = msgspec.msgpack.decode(value, type=RetainedMessage)
        store = mqtt_sessions.retained.store
        if store.get(found.topic) is None:
            try:
                store.set(found.topic, found.data, found.expiration)
            except PolluxError as error:
                raise ValueError(str(error)) from error
