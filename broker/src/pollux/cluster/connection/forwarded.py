"""A message on its way to another node. See docs/core-protocol.md, "cluster".

In its store-and-forward queue it is a copy with that queue's address and no more of what a queue acts on (priority,
group, expiry ...); all this is in one annotation, beside its number. So the queue keeps the order of arrival, and
nothing of it is seen by a consumer: it is taken off before the message is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pollux.formats.forwards import ROUTE_TO, Note, all_numbered, decode, encode, halves, numbered
from pollux.message import DEFAULT_PRIORITY, Encoding, Message, RoutingType

#: By their numbers: an enumeration takes longer to find its members than a message may.
_ENCODINGS = {int(each): each for each in Encoding}
_ROUTING: dict[int | None, RoutingType | None] = {None: None, **{int(each): each for each in RoutingType}}

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pollux.cluster.routes.numbers import Number, Numbering
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


class Shape(Struct, frozen=True, eq=False):
    """All that plain messages of one kind have in common: those without times, a group or an id of their own.

    ``one`` is sent of them; ``before`` and ``behind`` their number the notes are the same, too.
    """

    one: Forwarded
    before: bytes
    behind: bytes


class Plain(Struct, frozen=True, gc=False):
    """A plain message that waits, as long as it is in memory: what is not the same of all of its ``shape``."""

    life: bytes
    number: int
    shape: Shape


#: Life, queues, visited, owner, moved, redelivered, topic, home: as Forwarded has them.
_Way = tuple[bytes, tuple[str, ...], tuple[bytes, ...], bytes, bool, bool, bool, bool]
#: What messages have in common -> their shape.
_shapes: dict[tuple[_Way, object], Shape] = {}
_SHAPES_KEPT = 10_000


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
    if (
        message.annotations is None
        and message.duplicate_id is None
        and message.group is None
        and not (message.expiration or message.deliver_at or message.group_sequence)
        and message.last_value is None
        and message.large is None
        and sent is None
        and (reference is None or not (reference.delivery_count or reference.deliver_at))
    ):
        redelivered = reference is not None and reference.redelivered
        way = (number.life, queues, visited, owner, reference is not None, redelivered, topic, home)
        shape = _shape_of(message, way)
        copy.annotations = {ROUTE_TO: numbered(shape.before, number.value, shape.behind)}
        copy.content = Plain(number.life, number.value, shape)
        return copy
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


def change(
    messages: Sequence[Message],
    address: str,
    numbering: Numbering,
    queues: tuple[str, ...],
    visited: tuple[bytes, ...],
    *,
    owner: bytes,
    topic: bool,
) -> list[bytes]:
    """Make copies as :func:`stored` does of plain messages themselves, which differ in nothing but data and times.

    Return their notes, which are all that they are annotated with.
    """
    life, number = numbering.life, numbering.take(len(messages))
    shape = _shape_of(messages[0], (life, queues, visited, owner, False, False, topic, False))
    notes = all_numbered(shape.before, number, len(messages), shape.behind)
    for value, (message, note) in enumerate(zip(messages, notes, strict=True), number):
        message.address, message.priority, message.routing_type, message.origin = address, DEFAULT_PRIORITY, None, 0
        message.annotations = {ROUTE_TO: note}
        message.content = Plain(life, value, shape)
    return notes


def _shape_of(message: Message, way: _Way) -> Shape:
    kind = (message.address, message.priority, message.routing_type, message.encoding, message.durable, message.user)
    shape = _shapes.get((way, kind))
    if shape is not None:
        return shape
    life, queues, visited, owner, moved, redelivered, topic, home = way
    routing_type = None if message.routing_type is None else int(message.routing_type)
    note = Note(
        *(life, 0, queues, visited, message.address, message.priority, 0, 0, None, 0, None, None),
        *(routing_type, owner, moved, 0, topic, redelivered, home),
    )
    copy = Message(message.encoding, "", b"", durable=message.durable, user=message.user)
    if len(_shapes) >= _SHAPES_KEPT:
        _shapes.clear()
    shape = _shapes[way, kind] = Shape(_as_sent(copy, note, None), *halves(note))
    return shape


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
    copy.content = None


def to_send(copy: Message) -> Forwarded | None:
    """Return what is sent of a stored copy; None when it is none: somebody sent to the queue's address."""
    notes = dict(copy.annotations or {})
    try:
        note = decode(notes.pop(ROUTE_TO))  # type: ignore[arg-type]  # what is no bytes is refused
    except (KeyError, TypeError, msgspec.MsgspecError):
        return None
    return _as_sent(copy, note, notes or None)


def known(copy: Message) -> Plain | None:
    """Return a stored copy that is plain; None: :func:`to_send` looks at all of it."""
    content = copy.content
    return content if isinstance(content, Plain) else None


class Order(NamedTuple):
    """The life that a stored copy is numbered in, and the name that its message was sent to: in each it has a place."""

    life: bytes
    address: str


def order_of(copy: Message) -> Order | None:
    """Return whom a stored copy may not overtake; None when it is none."""
    plain = known(copy)
    if plain is not None:
        return Order(plain.life, plain.shape.one.address)
    try:
        note = decode((copy.annotations or {})[ROUTE_TO])  # type: ignore[arg-type]  # what is no bytes is refused
    except (KeyError, TypeError, msgspec.MsgspecError):
        return None
    return Order(note.life, note.address)


def _as_sent(copy: Message, note: Note, notes: dict[str, Any] | None) -> Forwarded:
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
        notes,
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


def is_plain(sent: Forwarded) -> bool:
    """Whether nothing but data and time tells one message of this kind from another."""
    return (
        sent.annotations is None
        and sent.duplicate_id is None
        and sent.group is None
        and not (sent.expiration or sent.deliver_at or sent.group_sequence or sent.failures)
        and sent.last_value is None
        and sent.large is None
        and sent.encoding in _ENCODINGS
        and sent.routing_type in _ROUTING
    )


def plainly_taken(sent: Forwarded, timestamp: int, run: Sequence[bytes]) -> list[Message]:
    """Return plain messages of this kind with these data, as :func:`taken` would."""
    if not run:
        return []
    first = Message(
        _ENCODINGS[sent.encoding],
        sent.address,
        run[0],
        durable=sent.durable,
        priority=sent.priority,
        timestamp=timestamp,
        routing_type=_ROUTING[sent.routing_type],
        user=sent.user,
    )
    return [first, *map(first.like, run[1:])]
