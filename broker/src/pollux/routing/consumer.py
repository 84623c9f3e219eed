"""Consumers as a queue sees them, and what the queue remembers of each one."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.message import Message
    from pollux.routing.reference import MessageReference
    from pollux.routing.selector import Selector

#: Positions a consumer shall look at again; beyond this it looks again at everything from the least of them.
_REVISITS = 1024


class Rights(Protocol):
    """Which messages a consumer of a pattern of addresses may have: by the address each was sent to.

    ``user`` is whose rights they are. Not ``restricted``: all of them, nobody need ask.
    """

    user: str

    @property
    def restricted(self) -> bool:
        """Whether some may be refused; changes when the configuration is read again."""

    def allow(self, address: str) -> bool:
        """May the consumer have what was sent to ``address``?"""


class Consumer(Protocol):
    """Who receives from a queue; sessions implement it.

    ``origin`` is the id of its connection (for ``no_local``). ``credit`` is how many messages it can
    take now. ``browsing`` consumers see messages without taking them. One of a pattern's queue may have ``rights``
    (:class:`Rights`) as well.
    """

    priority: int
    selector: Selector | None
    browsing: bool
    no_local: bool
    origin: int
    credit: int

    def deliver(self, references: list[MessageReference]) -> None:
        """Take messages, at most ``credit``, and lower ``credit`` by their number.

        Must not call back into the queue. The list belongs to the consumer.
        """


def counts(consumer: Consumer) -> bool:
    """Return whether a consumer counts as one: not who only looks, nor what brings messages to another node."""
    return not consumer.browsing and not getattr(consumer, "empties", False)


def uses(consumer: Consumer) -> bool:
    """Return whether it keeps a queue in use: also who only looks, not what brings messages to another node."""
    return consumer.browsing or counts(consumer)


class Attachment:
    """A consumer and the queue's bookkeeping for it.

    ``held`` is what it has and has not acknowledged: reference -> position. ``cursors`` has, for each
    message priority, the position up to which it looked and found nothing (more) for itself;
    ``revisits`` are positions below the cursor that changed since. ``groups`` are the message groups it
    owns. ``looking``: (position, id) of what is being read from disk for it (browsers only), at
    ``looking_at`` (a message priority).
    """

    __slots__ = (
        "__weakref__",
        "batch",
        "consumer",
        "cursors",
        "groups",
        "guard",
        "held",
        "left",
        "looking",
        "looking_at",
        "no_local",
        "permit",
        "plain",
        "priority",
        "revisits",
        "selector",
        "taken",
    )

    def __init__(self, consumer: Consumer) -> None:
        self.consumer = consumer
        self.priority = consumer.priority
        self.selector = consumer.selector
        self.no_local = consumer.no_local
        #: Asked about the address of each message; None: it may have all.
        self.permit: Callable[[str], bool] | None = None
        #: Asked last, about each message that would be given to it; None: it gets all of them.
        self.guard: Callable[[Message], bool] | None = None
        self.plain = True
        self.held: dict[MessageReference, int] = {}
        #: Messages it was handed since it is attached; those it no longer holds it has settled.
        self.taken = 0
        self.cursors: list[int] = [0] * 10
        self.revisits: list[list[int] | None] = [None] * 10
        self.groups: set[str | int] = set()
        self.looking: list[tuple[int, int]] = []
        self.looking_at = 0
        #: Used while the queue dispatches: credit left, and what will be delivered.
        self.left = 0
        self.batch: list[MessageReference] = []
        self.review()

    def review(self) -> None:
        """Take over what the consumer's rights are now; it looks again at what it was refused."""
        rights: Rights | None = getattr(self.consumer, "rights", None)
        refused = self.permit is not None
        self.permit = rights.allow if rights is not None and rights.restricted else None
        self.plain = self.selector is None and not self.no_local and self.permit is None and self.guard is None
        if refused and not self.consumer.browsing:
            for priority in range(len(self.cursors)):
                self.rewind(priority, 0)

    def changed(self, priority: int, position: int) -> None:
        """The message at ``position`` is there (again): look at it although the cursor passed it."""
        if self.cursors[priority] <= position:
            return
        heap = self.revisits[priority]
        if heap is None:
            heap = self.revisits[priority] = []
        if len(heap) >= _REVISITS:
            self.rewind(priority, min(heap[0], position))
        else:
            heappush(heap, position)

    def rewind(self, priority: int, position: int) -> None:
        """Look at everything from ``position`` on again."""
        heap = self.revisits[priority]
        if heap:
            position = min(position, heap[0])
            heap.clear()
        self.cursors[priority] = min(self.cursors[priority], position)

    def next_revisit(self, priority: int) -> int:
        """The least position to look at again, -1 when there is none."""
        heap = self.revisits[priority]
        return heappop(heap) if heap else -1
