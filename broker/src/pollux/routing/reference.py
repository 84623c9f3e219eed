"""A reference: one message in one queue, and what may differ between the queues that hold it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pollux.message import Message


class NamedQueue(Protocol):
    """Know a queue by its name only: whoever needs all of it asks :func:`pollux.routing.queue.queue_of`."""

    id: int
    name: str
    address: str


class MessageReference:
    """One message in one queue: what may differ between the queues that hold it.

    ``redelivered`` is true when a consumer may have seen the message before: it was returned
    by one, or it was read from the journal after a restart. ``delivery_count`` counts failed
    deliveries only. ``page`` is the page file it came from (0: none). ``notes`` are properties of
    this delivery alone (the group-first-key): the queue sets them, a session adds them.
    """

    __slots__ = ("consumer", "deliver_at", "delivery_count", "message", "notes", "page", "queue", "redelivered")

    def __init__(self, message: Message, queue: NamedQueue) -> None:
        self.message = message
        self.queue = queue
        self.delivery_count = 0
        self.redelivered = False
        self.deliver_at = message.deliver_at
        self.page = 0
        self.notes: dict[str, str | int | bytes] | None = None
        #: The consumer that holds it now; None while it waits in the queue.
        self.consumer: object | None = None

    def __repr__(self) -> str:
        return f"<MessageReference {self.message.id} in {self.queue!r}>"
