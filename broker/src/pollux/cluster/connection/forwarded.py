"""A message on its way to another node. See docs/core-protocol.md, "cluster".

In its store-and-forward queue it is a copy with that queue's address and no more of what a queue acts on (priority,
group, expiry ...); all this is in one annotation, beside its number. So the queue keeps the order of arrival, and
nothing of it is seen by a consumer: it is taken off before the message is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pollux.formats.forwards import ROUTE_TO, Note, decode, encode
from pollux.message import DEFAULT_PRIORITY, Encoding, Message, RoutingType

#: By their numbers: an enumeration takes longer to find its members than a message may.
_ENCODINGS = {int(each): each for each in Encoding}

if TYPE_CHECKING:
    from pollux.cluster.routes.numbers import Number
    from pollux.message import LargeBody
    from pollux.routing.reference import MessageReference


class Forwarded(Struct, frozen=True, array_like=True):
    """A message as it is sent: its number, the queues it is for and whose they are (``owner``; empty: the receiver's),
    the nodes it went through, and itself.
    """

    life: bytes
    number: int
    queues: tuple[str, ...]
    visited: tuple[bytes, ...]
    encoding: int
    address: str
    data: bytes
    durable: bool
    priority: int
    expiration: int
    timestamp: int
    deliver_at: int
    group: str | None
    group_sequence: int
    last_value: str | None
    duplicate_id: bytes | None
    routing_type: int | None
    user: str | None
    annotations: dict[str, Any] | None
    #: Of a large message the size and, where it is known, the CRC-32C of its body, which was sent before it.
    large: tuple[int, int | None] | None = None
    owner: bytes = b""
    #: It was in a queue of its sender's before: that its duplicate id is known does not make it another one's copy.
    moved: bool = False
    #: How often its delivery failed there.
    failures: int = 0
    #: The queues are subscriptions (MULTICAST): when they are over, nobody else gets it for them.
    topic: bool = False
    #: A consumer may have had it from that queue.
    redelivered: bool = False
    #: The receiver looks at its duplicate id for the whole cluster, and routes it; no queues are named.
    home: bool = False

    @property
    def subscriptions(self) -> bool:
        """Whether its queues are subscriptions; of what was stored before that was said, as far as it tells."""
        return self.topic or self.routing_type == RoutingType.MULTICAST


def stored(
    message: Message,
    address: str,
    number: Number,
    queues: tuple[str, ...],
    visited: tuple[bytes, ...],
    *,
    owner: bytes = b"",
    reference: MessageReference | None = None,
    sent: Forwarded | None = None,
    topic: bool = False,
    home: bool = False,
) -> Message:
    """Return the copy of a message that waits at ``address`` to be sent.

    ``owner``, ``topic``, ``home``: see :class:`Forwarded`.

    ``reference``: that of the queue it leaves. ``sent``: as it came here, when it is only passed on.
    """
    copy = Message(
        message.encoding,
        address,
        message.data,
        durable=message.durable,
        timestamp=message.timestamp,
        user=message.user,
        large=message.large,
    )
    copy.priority = DEFAULT_PRIORITY
    routing_type = None if message.routing_type is None else int(message.routing_type)
    note = Note(
        number.life,
        number.value,
        queues,
        visited,
        message.address,
        message.priority,
        message.expiration,
        message.deliver_at if reference is None else reference.deliver_at,
        message.group,
        message.group_sequence,
        message.last_value,
        message.duplicate_id,
        routing_type,
        owner,
        reference is not None or (sent is not None and sent.moved),
        reference.delivery_count if reference is not None else sent.failures if sent is not None else 0,
        topic or (sent is not None and sent.topic),
        reference.redelivered if reference is not None else sent is not None and sent.redelivered,
        home,
    )
    copy.annotations = {**(message.annotations or {}), ROUTE_TO: encode(note)}
    return copy


def renumbered(copy: Message, number: Number) -> Message:
    """Return another copy of a stored one, with another number."""
    notes = dict(copy.annotations or {})
    notes[ROUTE_TO] = encode(replace(decode(notes[ROUTE_TO]), life=number.life, number=number.value))  # type: ignore[arg-type]
    another = Message(
        copy.encoding,
        copy.address,
        copy.data,
        durable=copy.durable,
        timestamp=copy.timestamp,
        user=copy.user,
        large=copy.large,
    )
    another.annotations = notes
    return another


def mark_moved(copy: Message) -> None:
    """Mark a stored copy as that of a message that was in another node's queue before."""
    notes = dict(copy.annotations or {})
    notes[ROUTE_TO] = encode(replace(decode(notes[ROUTE_TO]), moved=True))  # type: ignore[arg-type]
    copy.annotations = notes


def to_send(copy: Message) -> Forwarded | None:
    """Return what is sent of a stored copy; None when it is none: somebody sent to the queue's address."""
    notes = dict(copy.annotations or {})
    try:
        note = decode(notes.pop(ROUTE_TO))  # type: ignore[arg-type]  # what is no bytes is refused
    except (KeyError, TypeError, msgspec.MsgspecError):
        return None
    return Forwarded(
        note.life,
        note.number,
        note.queues,
        note.visited,
        int(copy.encoding),
        note.address,
        copy.data,
        copy.durable,
        note.priority,
        note.expiration,
        copy.timestamp,
        note.deliver_at,
        note.group,
        note.group_sequence,
        note.last_value,
        note.duplicate_id,
        note.routing_type,
        copy.user,
        notes or None,
        (copy.large.size, copy.large.checksum) if copy.large is not None else None,
        note.owner,
        note.moved,
        note.failures,
        note.topic,
        note.redelivered,
        note.home,
    )


def taken(sent: Forwarded, large: LargeBody | None = None) -> Message:
    """Return the message that was sent, as its producer's node had it. Raises ValueError when it cannot be one."""
    encoding = _ENCODINGS.get(sent.encoding)
    if encoding is None:
        raise ValueError(f"{sent.encoding} is no encoding of messages")
    message = Message(
        encoding,
        sent.address,
        sent.data,
        durable=sent.durable,
        priority=sent.priority,
        expiration=sent.expiration,
        timestamp=sent.timestamp,
        deliver_at=sent.deliver_at,
        group=sent.group,
        group_sequence=sent.group_sequence,
        last_value=sent.last_value,
        duplicate_id=sent.duplicate_id,
        routing_type=None if sent.routing_type is None else RoutingType(sent.routing_type),
        user=sent.user,
        large=large,
    )
    notes = sent.annotations
    if notes and not all(isinstance(value, str | int | bytes) for value in notes.values()):
        raise ValueError("an annotation is neither text, number nor bytes")
    message.annotations = notes or None
    return message
