"""Messages for consumers: the stored bytes, with the sections the broker answers for made anew."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.message import INGRESS_TIMESTAMP, VALIDATED_USER, Encoding, Message
from pollux.wire.amqp.content import encode_content
from pollux.wire.amqp.sections import for_delivery
from pollux.wire.decoders import content_of

if TYPE_CHECKING:
    from pollux.routing.reference import MessageReference

#: The broker's annotations under the names AMQP clients of Artemis know.
_ANNOTATIONS = {
    "_AMQ_ORIG_ADDRESS": "x-opt-ORIG-ADDRESS",
    "_AMQ_ORIG_QUEUE": "x-opt-ORIG-QUEUE",
    "_AMQ_ORIG_MESSAGE_ID": "x-opt-ORIG-MESSAGE-ID",
    "_AMQ_ACTUAL_EXPIRY": "x-opt-ACTUAL-EXPIRY",
    INGRESS_TIMESTAMP: "x-opt-ingress-time",
    VALIDATED_USER: "x-opt-VALIDATED-USER",
}


def sections(reference: MessageReference, data: bytes, now: int) -> tuple[bytes, int]:
    """Return the first sections of a delivery, and from where on the encoded message ``data`` follows."""
    message = reference.message
    annotations = message.annotations
    if annotations:
        annotations = {_ANNOTATIONS.get(key, key): value for key, value in annotations.items()}
    count = reference.delivery_count
    if reference.redelivered and not count:
        count = 1  # a consumer may have seen it, which clients only recognise by a count
    return for_delivery(
        data,
        durable=message.durable,
        priority=message.priority,
        ttl=max(message.expiration - now, 0) if message.expiration else None,
        first_acquirer=not reference.redelivered,
        delivery_count=count,
        annotations=annotations,
        properties=reference.notes,
    )


def encode(reference: MessageReference, now: int, whole: bytes | None = None) -> bytes:
    """Return the complete message as this delivery shows it. ``now``: ms since the epoch.

    ``whole`` is the stored form of a large message, of which the message itself has only the head.
    """
    message = reference.message
    data = message.data if whole is None else whole
    if message.encoding is not Encoding.AMQP:
        if whole is None:
            content = content_of(message)
        else:
            content = content_of(Message(message.encoding, message.address, whole))
        data = encode_content(message, content)
    head, rest = sections(reference, data, now)
    return head + data[rest:]
