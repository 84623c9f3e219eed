"""Messages: the values every layer of the broker passes around.

A message keeps the bytes its producer sent, in the producer's own encoding. Nothing is
decoded that routing does not need: properties are decoded when a selector, a management
request or a consumer of another protocol asks for them (see :mod:`pollux.wire.content`).

This module is a leaf: it imports no other part of Pollux.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Protocol

DEFAULT_PRIORITY = 4
#: What a message costs in memory beyond its encoded bytes (objects, slots, index entries).
MESSAGE_OVERHEAD = 400
#: Characters of a name beyond which no cache that is bounded by its entries keeps it.
LONG_NAME = 1024


class Encoding(IntEnum):
    """How ``Message.data`` is encoded; the numbers are written to the journal."""

    AMQP = 1
    STOMP = 2
    MQTT = 3
    CORE = 4


class RoutingType(IntEnum):
    """How an address hands messages to its queues (the numbers are Artemis's)."""

    MULTICAST = 0
    ANYCAST = 1


class LargeBody(Protocol):
    """The body of a large message, in a file; see :mod:`pollux.store.large`."""

    id: int
    size: int
    #: CRC-32C of the whole file, None where its record does not have it (stores of version 0.1.0).
    checksum: int | None


#: Annotations the broker adds when a message comes in (``populate-validated-user``, ``enable-ingress-timestamp``):
#: who sent it, and when (milliseconds since the epoch). Each protocol has its own names for them.
VALIDATED_USER = "_AMQ_VALIDATED_USER"
INGRESS_TIMESTAMP = "_AMQ_INGRESS_TIMESTAMP"


class Message:
    """One message, shared by every queue it was routed to.

    ``data`` is the encoded message (for a large message: its head, the rest is in ``large``).
    Times are milliseconds since the epoch, 0 for "none". ``duplicate_id`` is the producer's
    ``_AMQ_DUPL_ID``. ``origin`` is the id of the connection that sent it (for no-local).
    ``routing_type`` None means: as the address says. ``ttl_applied`` says that the address's
    expiry settings were applied.
    """

    __slots__ = (
        "address",
        "annotations",
        "content",
        "data",
        "deliver_at",
        "duplicate_id",
        "durable",
        "encoding",
        "expiration",
        "group",
        "group_sequence",
        "id",
        "large",
        "last_value",
        "origin",
        "priority",
        "references",
        "routing_type",
        "size",
        "timestamp",
        "user",
    )

    def __init__(
        self,
        encoding: Encoding,
        address: str,
        data: bytes,
        *,
        durable: bool = True,
        priority: int = DEFAULT_PRIORITY,
        expiration: int = 0,
        timestamp: int = 0,
        deliver_at: int = 0,
        group: str | None = None,
        group_sequence: int = 0,
        last_value: str | None = None,
        duplicate_id: bytes | None = None,
        routing_type: RoutingType | None = None,
        large: LargeBody | None = None,
        origin: int = 0,
        user: str | None = None,
    ) -> None:
        self.id = 0
        self.encoding = encoding
        self.address = address
        self.data = data
        self.durable = durable
        self.priority = priority
        self.expiration = expiration
        self.timestamp = timestamp
        self.deliver_at = deliver_at
        self.group = group
        self.group_sequence = group_sequence
        self.last_value = last_value
        self.duplicate_id = duplicate_id
        self.routing_type = routing_type
        self.large = large
        self.origin = origin
        self.user = user
        #: How many queues still hold it in memory.
        self.references = 0
        #: What the broker added (who sent it, dead-letter origin, expiry ...); journalled beside ``data``.
        self.annotations: dict[str, str | int | bytes] | None = None
        self.size = len(data) + MESSAGE_OVERHEAD
        #: The decoded view, cached by :func:`pollux.wire.decoders.content_of`.
        self.content: object | None = None

    def like(self, data: bytes) -> Message:
        """Return another new message that differs from this one in its data alone, and is nowhere yet.

        It costs half of one that is made of its parts: where many come together all but the first are made so.
        """
        other = Message.__new__(Message)
        other.id = 0
        other.encoding = self.encoding
        other.address = self.address
        other.data = data
        other.durable = self.durable
        other.priority = self.priority
        other.expiration = self.expiration
        other.timestamp = self.timestamp
        other.deliver_at = self.deliver_at
        other.group = self.group
        other.group_sequence = self.group_sequence
        other.last_value = self.last_value
        other.duplicate_id = self.duplicate_id
        other.routing_type = self.routing_type
        other.large = self.large
        other.origin = self.origin
        other.user = self.user
        other.references = 0
        other.annotations = dict(self.annotations) if self.annotations is not None else None
        other.size = len(data) + MESSAGE_OVERHEAD
        other.content = None
        return other

    def __repr__(self) -> str:
        return f"<Message {self.id} to {self.address!r} {self.encoding.name} {len(self.data)} B>"
