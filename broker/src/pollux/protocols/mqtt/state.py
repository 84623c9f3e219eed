"""The session state of one MQTT client, which outlives its connections (MQTT 5, section 4.1).

Held in memory while the session lives and, for a session that outlives its connection, kept in the bindings journal
so that it outlives the broker too: the session record (this module's :func:`encode_session`), and one small record for
each QoS 2 packet identifier under way in either direction. Queues hold the messages. This module does no I/O.

Records, ``(kind, key) -> value`` of ``Storage.put``::

    mqtt-session   client id                 msgpack map, see :class:`SessionRecord`
    mqtt-qos2-in   client id NUL packet id   16 bytes: the duplicate id its message was sent with
    mqtt-qos2-out  client id NUL packet id   queue id, message id (8 bytes each, big endian), 1 byte: 0 sent, 1 released

A released delivery's record is durable before its message is acknowledged in the journal, and the acknowledgement
before PUBREL and before the record's end: whatever a crash leaves, the message is still to be sent, or known as
received and not sent again.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from asyncio import TimerHandle

    from pollux.protocols.base import Transport
    from pollux.protocols.mqtt.subscription import Subscription
    from pollux.routing.reference import MessageReference

SESSION_KIND = "mqtt-session"
QOS2_IN_KIND = "mqtt-qos2-in"
QOS2_OUT_KIND = "mqtt-qos2-out"

#: Session expiry interval that means "never" (MQTT 5, section 3.1.2.11.2).
NEVER = 0xFFFF_FFFF
#: Seconds a timer is set ahead at most; it is set again when it fires early.
LONGEST_TIMER = 86_400.0 * 20

SENT = 0
RELEASED = 1


class Connection(Protocol):
    """A connection, as the session that it belongs to and the other sessions know it."""

    user: str | None
    transport: Transport

    def taken_over(self) -> None:
        """Close, because another connection has come with the same client id."""

    def queue_deleted(self, topic_filter: str) -> None:
        """Close, because the queue of this subscription was deleted under it."""


class Ending(Enum):
    """Ways in which a connection ends, and what becomes of its will."""

    #: The will is due.
    LOST = "lost"
    #: The client said so, without asking for its will.
    LEFT = "left"
    #: The broker stops: the wills of durable sessions wait for its restart.
    STOPPED = "stopped"


class SubscriptionRecord(msgspec.Struct, array_like=True):
    """One subscription as it is stored; new fields go to the end."""

    topic_filter: str
    qos: int
    no_local: bool
    retain_as_published: bool
    identifier: int


class WillRecord(msgspec.Struct, array_like=True):
    """A will as it is stored: ``data`` is the message's stored form."""

    data: bytes
    delay: int
    expiry: int | None


class SessionRecord(msgspec.Struct):
    """A durable session. ``disconnected_at`` is wall milliseconds, 0 while (or as far as known) connected."""

    user: str | None
    version: int
    expiry_interval: int
    disconnected_at: int
    subscriptions: list[SubscriptionRecord]
    will: WillRecord | None = None


class PendingWill:
    """A will that waits for its client to go: the message's parts and who it is from."""

    __slots__ = ("data", "delay", "expiry", "origin", "timer", "user")

    def __init__(self, data: bytes, delay: int, expiry: int | None, user: str | None, origin: int) -> None:
        self.data = data
        #: Seconds between the end of the connection and the publication.
        self.delay = delay
        #: Message expiry interval in seconds, None for none.
        self.expiry = expiry
        self.user = user
        self.origin = origin
        self.timer: TimerHandle | None = None


class ClientState:
    """One session's state.

    ``unacked``: packet identifier -> the reference delivered with it, None for one that only waits for the
    client's last word (PUBCOMP, or an acknowledgement of a message that no longer exists). Its order is the
    order of sending.
    """

    __slots__ = (
        "client_id",
        "completed",
        "connected_at",
        "connection",
        "counted",
        "disconnected_at",
        "expiry_interval",
        "expiry_timer",
        "gone_at",
        "inbound",
        "next_packet_id",
        "qos2",
        "received",
        "recorded",
        "redeliver",
        "released",
        "restored",
        "storing",
        "subscriptions",
        "unacked",
        "user",
        "version",
        "will",
    )

    def __init__(self, client_id: str, user: str | None, version: int) -> None:
        self.client_id = client_id
        self.user = user
        self.version = version
        self.connection: Connection | None = None
        #: Bytes that the client's user holds for it (see :mod:`pollux.engine.memory`).
        self.counted = 0
        self.expiry_interval = 0
        self.disconnected_at = 0
        #: The same by the loop's clock, seconds: what is due after it does not move when the wall's clock is set.
        self.gone_at = 0.0
        #: When its connection came, wall milliseconds.
        self.connected_at = 0
        self.expiry_timer: TimerHandle | None = None
        self.subscriptions: dict[str, Subscription] = {}
        self.will: PendingWill | None = None
        # To the client.
        self.next_packet_id = 0
        self.unacked: dict[int, MessageReference | None] = {}
        #: Identifiers of QoS 2 deliveries that wait for PUBREC.
        self.qos2: set[int] = set()
        #: Identifiers of deliveries that have a record in the journal.
        self.recorded: set[int] = set()
        #: Identifiers that wait for PUBCOMP, in the order of their PUBREC.
        self.released: dict[int, None] = {}
        #: (queue id, message id) -> identifier of what an earlier connection of this session left unacknowledged.
        self.redeliver: dict[tuple[int, int], int] = {}
        #: (queue id, message id) -> identifier of what the client has although it is, or may be, still in its queue.
        self.received: dict[tuple[int, int], int] = {}
        #: Identifiers of those that had their PUBCOMP; free when the acknowledgement of their message is durable.
        self.completed: set[int] = set()
        # From the client: QoS 2 identifiers that wait for PUBREL -> duplicate id.
        self.inbound: dict[int, bytes] = {}
        #: Those of ``inbound`` read from the journal: whether their message was stored too is not known.
        self.restored: set[int] = set()
        #: Those whose record is on its way to the disk, their message not yet sent.
        self.storing: set[int] = set()

    @property
    def durable(self) -> bool:
        """Whether the session outlives its connection."""
        return self.expiry_interval > 0


def packet_key(client_id: str, packet_id: int) -> str:
    """Return the key of a QoS 2 record."""
    return f"{client_id}\0{packet_id}"


def split_packet_key(key: str) -> tuple[str, int]:
    """Return client id and packet identifier of a QoS 2 record's key."""
    client_id, _, packet_id = key.rpartition("\0")
    return client_id, int(packet_id)


def encode_session(state: ClientState) -> bytes:
    """Return the session record as it is stored."""
    return msgspec.msgpack.encode(record_of(state))


def record_of(state: ClientState) -> SessionRecord:
    """Return the session record."""
    will = state.will
    return SessionRecord(
        state.user,
        state.version,
        state.expiry_interval,
        state.disconnected_at,
        [
            SubscriptionRecord(
                subscription.topic_filter,
                subscription.qos,
                subscription.exclude_own,
                subscription.retain_as_published,
                subscription.identifier,
            )
            for subscription in state.subscriptions.values()
        ],
        None if will is None else WillRecord(will.data, will.delay, will.expiry),
    )


def decode_session(value: bytes) -> SessionRecord:
    """Return a session record; raises ValueError when it is not one."""
    try:
        return msgspec.msgpack.decode(value, type=SessionRecord)
    except msgspec.MsgspecError as error:
        raise ValueError(f"not an MQTT session record: {error}") from error


def encode_out(queue_id: int, message_id: int, phase: int) -> bytes:
    """Return a record of a QoS 2 delivery."""
    return queue_id.to_bytes(8, "big") + message_id.to_bytes(8, "big") + bytes((phase,))


def decode_out(value: bytes) -> tuple[int, int, int]:
    """Queue id, message id and phase of a QoS 2 delivery."""
    if len(value) != 17:
        raise ValueError("not a record of an MQTT QoS 2 delivery")
    return int.from_bytes(value[:8], "big"), int.from_bytes(value[8:16], "big"), value[16]
