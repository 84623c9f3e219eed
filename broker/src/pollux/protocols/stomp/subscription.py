"""One subscription: a consumer of a queue that turns what it is given into MESSAGE frames.

It counts what the client holds and from that says how much more it takes (``credit``). It must not
call the queue or the post office while it is given messages; the session does that afterwards.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from pollux.message import Encoding
from pollux.protocols.stomp.phases import SUBSCRIPTION, SubscriptionPhase
from pollux.transitions import follow
from pollux.wire.stomp.encoder import NUL
from pollux.wire.stomp.headers import StompError, Version

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux.engine.reading_rights import ReadingRights
    from pollux.protocols.stomp.destinations import Destination
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.routing.selector import Selector
    from pollux.wire.stomp.encoder import Delivery

_STOMP = Encoding.STOMP
_ACTIVE = SubscriptionPhase.ACTIVE
#: Messages an auto-ack subscription takes in one turn of the loop.
AUTO_CREDIT = 1000
#: Bytes written at a time; only between them a client that does not keep up is noticed.
_PIECE = 256 << 10
#: Assumed size of a message before one was seen.
_FIRST_GUESS = 1024


class AckMode(Enum):
    """How a client acknowledges (STOMP 1.2 "SUBSCRIBE ack Header")."""

    AUTO = "auto"
    CLIENT = "client"  #: cumulative
    INDIVIDUAL = "client-individual"


class SubscribeRequest(Struct, frozen=True):
    """A SUBSCRIBE. ``key`` names the subscription on this connection, ``identity`` is its id header if any.

    ``window`` is bytes (-1: no limit), ``prefetch`` messages.
    """

    key: str
    identity: str | None
    destination: Destination
    text: str
    mode: AckMode
    selector: str | None
    durable_name: str | None
    no_local: bool
    browsing: bool
    window: int
    prefetch: int
    priority: int


class Outlet(Protocol):
    """Name all that a subscription needs of its session."""

    #: Nothing may be delivered now: the client does not keep up, or a large message is on its way.
    held_back: bool

    def write(self, data: bytes) -> None:
        """Send bytes to the client, in order."""

    def encode_other(self, subscription: Subscription, reference: MessageReference) -> bytes:
        """The frame of a message that is not stored as this client must get it."""

    def send_large(self, subscription: Subscription, reference: MessageReference) -> None:
        """Stream a large message; what is written after it follows it."""

    def delivered(self, subscription: Subscription, references: list[MessageReference]) -> None:
        """These were sent and need no ACK."""

    def detach(self, subscription: Subscription) -> None:
        """Take the subscription from its queue, and give back what it still holds."""

    def queue_gone(self, subscription: Subscription) -> None:
        """The queue was deleted under the subscription."""


class Subscription:
    """Hold what one subscription was given. ``number`` tells this connection's subscriptions apart in ack ids."""

    __slots__ = (
        "_average",
        "_first",
        "_order",
        "_outlet",
        "_redelivered",
        "_window",
        "_with_ack",
        "acknowledged",
        "backlog",
        "browsing",
        "credit",
        "delivery",
        "destination",
        "durable_name",
        "held_bytes",
        "key",
        "mode",
        "no_local",
        "number",
        "origin",
        "pending",
        "phase",
        "prefetch",
        "priority",
        "queue",
        "raw",
        "rights",
        "selector",
        "sent",
        "temporary",
        "transactions",
    )

    def __init__(
        self,
        outlet: Outlet,
        request: SubscribeRequest,
        delivery: Delivery,
        queue: Queue,
        *,
        number: int,
        origin: int,
        selector: Selector | None = None,
        temporary: bool = False,
        rights: ReadingRights | None = None,
    ) -> None:
        self._outlet = outlet
        self.key = request.key
        self.number = number
        self.queue = queue
        self.mode = request.mode
        self.delivery = delivery
        self.destination = request.text
        self._window = request.window
        self.prefetch = request.prefetch
        self.origin = origin
        self.selector = selector
        self.rights = rights
        self.priority = request.priority
        self.no_local = request.no_local
        self.browsing = request.browsing
        #: The queue lives and dies with this subscription.
        self.temporary = temporary
        self.durable_name = request.durable_name
        #: Sent and not acknowledged, by message id, in the order sent.
        self.pending: dict[int, MessageReference] = {}
        self._order: deque[int] | None = deque() if request.mode is AckMode.CLIENT else None
        self.held_bytes = 0
        #: Given by the queue, not sent yet because deliveries are held back.
        self.backlog: deque[MessageReference] = deque()
        #: Acknowledged by the client in this batch of frames, not yet passed on.
        self.acknowledged: list[MessageReference] = []
        self.sent = 0
        #: Open transactions in which messages of this subscription are acknowledged.
        self.transactions = 0
        self.phase = SubscriptionPhase.ACTIVE
        self._average = _FIRST_GUESS
        self.raw = delivery.version is Version.V1_2
        self._with_ack = delivery.with_ack
        self._first, self._redelivered = delivery.templates()
        self.credit = 0
        self.refill()

    def become(self, phase: SubscriptionPhase) -> None:
        """Change the phase. Raises IllegalTransitionError."""
        self.phase = follow(SUBSCRIPTION, self.phase, phase)

    def left_transaction(self) -> None:
        """Go on without one of its transactions, which ended: it may have waited for that end only."""
        self.transactions -= 1
        if self.phase is SubscriptionPhase.DRAINING and not self.transactions:
            self._outlet.detach(self)

    def deliver(self, references: list[MessageReference]) -> None:
        """Send messages to the client (:class:`pollux.routing.consumer.Consumer`)."""
        if self.backlog or self._outlet.held_back:
            self.backlog.extend(references)
            self.credit = 0
        else:
            self._send(references)

    def send_backlog(self) -> None:
        """Deliveries may go on: first what was given before they were held back."""
        if self.backlog:
            references = list(self.backlog)
            self.backlog.clear()
            self._send(references)

    def _send(self, references: Iterable[MessageReference]) -> None:
        """Send as much as the client takes; the rest becomes the backlog."""
        automatic = self.mode is AckMode.AUTO
        outlet = self._outlet
        raw = self.raw
        with_ack = self._with_ack
        first = self._first
        pending = self.pending
        order = self._order
        sent: list[MessageReference] = []
        parts: list[bytes] = []
        add = parts.append
        total = size = count = 0
        rest = iter(references)
        for reference in rest:
            message = reference.message
            data = message.data
            identity = message.id
            size += len(data)
            count += 1
            if automatic:
                if message.large is None:
                    sent.append(reference)
            else:
                pending[identity] = reference
                if order is not None:
                    order.append(identity)
            if (
                message.encoding is _STOMP
                and message.large is None
                and message.annotations is None
                and reference.notes is None
                and (raw or b"\\" not in data)
            ):
                opening = self._redelivered if reference.redelivered else first
                if with_ack:
                    add(opening % (identity, identity, message.timestamp))
                else:
                    add(opening % (identity, message.timestamp))
                add(data)
                add(NUL)
            elif message.large is None:
                add(outlet.encode_other(self, reference))
            if size > _PIECE or message.large is not None:
                outlet.write(b"".join(parts))
                parts.clear()
                total += size
                size = 0
                if message.large is not None:
                    total += message.large.size
                    outlet.send_large(self, reference)
                if outlet.held_back:
                    self.backlog.extend(rest)
                    break
        if parts:
            outlet.write(b"".join(parts))
            total += size
        self.sent += count
        self._average = max((self._average * 3 + total // count) >> 2, 1) if count else self._average
        if automatic:
            self.credit = max(self.credit - count, 0) if not self.backlog else 0
            outlet.delivered(self, sent)
        else:
            self.held_bytes += total
            self.refill()

    def opening(self, reference: MessageReference) -> bytes:
        """The lines that are this delivery's; the message's own header lines follow."""
        delivery = self.delivery
        return delivery.opening(reference.message, redelivered=reference.redelivered) + delivery.noted(reference.notes)

    def refill(self) -> bool:
        """Work out ``credit`` anew. True when there is some."""
        if self._outlet.held_back or self.phase is not _ACTIVE or self.backlog:
            self.credit = 0
        elif self.mode is AckMode.AUTO:
            self.credit = AUTO_CREDIT
        else:
            credit = self.prefetch - len(self.pending)
            if self._window >= 0 and credit > 0:
                room = self._window - self.held_bytes
                # A window smaller than one message still lets one through when nothing is held.
                credit = min(credit, room // self._average) if room >= self._average else int(not self.pending)
            self.credit = max(credit, 0)
        return self.credit > 0

    def acknowledge(self, identity: int) -> None:
        """An ACK of ``identity`` outside of transactions: what it covers joins ``acknowledged``. Raises as ``take``."""
        if self._order is not None:
            self.acknowledged += self.take(identity)
            return
        reference = self.pending.pop(identity, None)
        if reference is None:
            raise self._unknown(identity)
        message = reference.message
        self.held_bytes -= len(message.data) if message.large is None else len(message.data) + message.large.size
        self.acknowledged.append(reference)

    @staticmethod
    def _unknown(identity: int) -> StompError:
        return StompError(f"message {identity} is not waiting for an acknowledgement here")

    def take(self, identity: int) -> list[MessageReference]:
        """Take from ``pending`` what an ACK or NACK of ``identity`` covers. Raises StompError for nothing."""
        order = self._order
        if order is None:
            reference = self.pending.pop(identity, None)
            if reference is None:
                raise self._unknown(identity)
            self._forget(reference)
            return [reference]
        if identity not in self.pending:
            raise self._unknown(identity)
        taken = []
        while True:
            next_identity = order.popleft()
            reference = self.pending.pop(next_identity)
            self._forget(reference)
            taken.append(reference)
            if next_identity == identity:
                return taken

    def take_all(self) -> tuple[list[MessageReference], list[MessageReference]]:
        """Everything pending, and everything not sent yet, in order; it is no longer here."""
        taken = list(self.pending.values()), list(self.backlog)
        self.pending.clear()
        self.backlog.clear()
        if self._order is not None:
            self._order.clear()
        self.held_bytes = 0
        return taken

    def lose(self, reference: MessageReference) -> bool:
        """A message that was not sent after all is no longer pending; false when it was not."""
        identity = reference.message.id
        if self.pending.pop(identity, None) is None:
            return False
        if self._order is not None:
            self._order.remove(identity)
        self._forget(reference)
        return True

    def _forget(self, reference: MessageReference) -> None:
        message = reference.message
        self.held_bytes -= len(message.data) + (message.large.size if message.large is not None else 0)

    def queue_deleted(self, queue: Queue) -> None:  # noqa: ARG002  (there is only one)
        """The queue is gone, and this consumer detached from it (called by the post office)."""
        self.become(SubscriptionPhase.QUEUE_DELETED)
        self.take_all()
        self.acknowledged = []
        self._outlet.queue_gone(self)

    def describe(self) -> dict[str, object]:
        """Return the state of the subscription, for management."""
        return {
            "id": self.key,
            "destination": self.destination,
            "queue": self.queue.name,
            "ack": self.mode.value,
            "selector": self.selector.text if self.selector is not None else None,
            "durable": self.durable_name,
            "browsing": self.browsing,
            "credit": self.credit,
            "backlog": len(self.backlog),
            "unacknowledged": len(self.pending),
            "unacknowledged_bytes": self.held_bytes,
            "sent": self.sent,
        }
