"""Copies of a message for another address, with notes of where it was. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.message import Message

if TYPE_CHECKING:
    from pollux.message import RoutingType
    from pollux.routing.queue import Queue

ORIGINAL_ADDRESS = "_AMQ_ORIG_ADDRESS"
ORIGINAL_QUEUE = "_AMQ_ORIG_QUEUE"
ORIGINAL_ID = "_AMQ_ORIG_MESSAGE_ID"
ORIGINAL_ROUTING = "_AMQ_ORIG_ROUTING_TYPE"


def copy_of(
    message: Message, target: str, notes: dict[str, str | int | bytes], routing_type: RoutingType | None = None
) -> Message:
    """Return the same message for another address, with the broker's notes on it. It has no id yet."""
    twin = Message(
        message.encoding,
        target,
        message.data,
        durable=message.durable,
        priority=message.priority,
        expiration=message.expiration,
        timestamp=message.timestamp,
        group=message.group,
        group_sequence=message.group_sequence,
        last_value=message.last_value,
        large=message.large,
        user=message.user,
    )
    twin.routing_type = routing_type
    twin.annotations = {**message.annotations, **notes} if message.annotations else dict(notes)
    return twin


def origin_of(message: Message, queue: Queue | None) -> dict[str, str | int | bytes]:
    """Return the notes of where a message was first: address, id, and the queue it left."""
    known = message.annotations or {}
    notes: dict[str, str | int | bytes] = {
        ORIGINAL_ADDRESS: known.get(ORIGINAL_ADDRESS, message.address),
        ORIGINAL_ID: known.get(ORIGINAL_ID, message.id),
    }
    if queue is not None:
        notes[ORIGINAL_QUEUE] = known.get(ORIGINAL_QUEUE, queue.name)
        notes[ORIGINAL_ROUTING] = known.get(ORIGINAL_ROUTING, int(queue.routing_type))
    return notes
