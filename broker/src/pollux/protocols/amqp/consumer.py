"""A link a client receives on: from a queue's references to transfers, and from outcomes back to the queue."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.errors import LostBodyError, PolluxError
from pollux.message import Encoding
from pollux.protocols.amqp.conditions import condition_of
from pollux.protocols.amqp.large import LargeSender, discard_delivery
from pollux.protocols.amqp.outgoing import encode
from pollux.protocols.amqp.phases import CONSUMER, LEAVING, OVER, ConsumerPhase
from pollux.transitions import follow
from pollux.wire.amqp.links import OutgoingLink
from pollux.wire.amqp.proton import (
    ACCEPTED,
    MODIFIED,
    RECEIVED,
    REJECTED,
    RELEASED,
    TRANSACTIONAL,
    Pointer,
    get,
    lib,
)

if TYPE_CHECKING:
    from pollux.engine.reading_rights import ReadingRights
    from pollux.protocols.amqp.connection import Connection
    from pollux.protocols.amqp.subscription import Subscription
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.routing.selector import Selector

#: Bytes waiting for the client's session window beyond which nothing more is taken from the queue.
MAX_BUFFERED = 1 << 20
#: How often, and how long apart, a drain looks again while the queue reads its messages from disk.
_DRAIN_CHECKS = 200
_DRAIN_PAUSE = 0.025


class Consumer(OutgoingLink["MessageReference"]):
    """A client's receiver; what a queue sees of it is :class:`pollux.routing.consumer.Consumer`."""

    __slots__ = (
        "_checks",
        "_delivered",
        "_draining",
        "browsing",
        "credit",
        "default_outcome",
        "large",
        "max_size",
        "no_local",
        "origin",
        "phase",
        "presettled",
        "priority",
        "queue",
        "retiring",
        "rights",
        "selector",
        "session",
        "subscription",
    )

    def __init__(
        self,
        session: Connection,
        pointer: Pointer,
        name: str,
        queue: Queue,
        *,
        selector: Selector | None,
        no_local: bool,
        browsing: bool,
        priority: int,
        presettled: bool,
        default_outcome: int,
        subscription: Subscription,
        max_size: int = 0,
        rights: ReadingRights | None = None,
    ) -> None:
        super().__init__(pointer, name)
        self.session = session
        self.queue = queue
        self.selector = selector
        self.no_local = no_local
        self.browsing = browsing
        self.priority = priority
        self.origin = session.origin
        self.rights = rights
        self.presettled = presettled
        self.default_outcome = default_outcome
        self.subscription = subscription
        #: The client's max-message-size in bytes (2.7.3), 0 for none.
        self.max_size = max_size
        self.credit = 0
        self.large: LargeSender | None = None
        #: Outcomes inside open transactions.
        self.retiring = 0
        self.phase = ConsumerPhase.ATTACHED
        #: A look at a drain is due; one that outlives the link finds it detached.
        self._draining = False
        self._delivered = 0
        self._checks = 0

    def __repr__(self) -> str:
        return f"<Consumer {self.name!r} of {self.queue!r}>"

    def describe(self) -> dict[str, object]:
        """Return, for management, the link as it is."""
        return {
            "name": self.name,
            "role": "consumer",
            "address": self.queue.address,
            "queue": self.queue.name,
            "credit": self.credit,
            "unsettled": len(self.unsettled),
            "messages": self._delivered,
            "browsing": self.browsing,
            "selector": self.selector.text if self.selector is not None else None,
        }

    # -- the queue's call

    def deliver(self, references: list[MessageReference]) -> None:
        """Send messages that the queue hands out, or keep them behind a large one."""
        if not self.attached:  # its C memory is gone; what it holds goes back when it is detached
            return
        session = self.session
        self.credit -= len(references)
        self._delivered += len(references)
        if self.large is not None:
            self.large.waiting.extend(references)
            return
        self.transmit(references)
        session.schedule_flush()
        if session.unsent > MAX_BUFFERED or self.buffered() > MAX_BUFFERED:
            session.hold_back()

    def transmit(self, references: list[MessageReference]) -> None:
        """Send messages; behind a large one they wait until it is through."""
        if self.max_size:
            references = self._fitting(references)
        session = self.session
        amqp = Encoding.AMQP
        presettled = self.presettled
        send_settled = self.send_settled
        send = self.send
        sent = size = 0
        for reference in references:
            message = reference.message
            if message.large is not None:
                self.large = LargeSender(self, reference, references[sent + 1 :])
                self.large.start()
                break
            if (
                message.encoding is amqp
                and not reference.redelivered
                and not message.expiration
                and message.annotations is None
                and reference.notes is None
            ):
                data = message.data
            else:
                data = encode(reference, session.services.wall_ms())
            sent += 1
            size += len(data)
            if presettled:
                send_settled(data)
            else:
                send(data, reference)
        session.unsent += size
        if not presettled:
            session.unsettled += sent
        elif not self.browsing:
            session.acknowledged.extend(references if sent == len(references) else references[:sent])

    def _fitting(self, references: list[MessageReference]) -> list[MessageReference]:
        """Return those that the client's max-message-size allows; others are dead letters (2.7.3)."""
        now = self.session.services.wall_ms()
        too_large = []
        for reference in references:
            large = reference.message.large
            size = len(encode(reference, now)) if large is None else large.size
            if size > self.max_size:
                too_large.append(reference)
        if not too_large:
            return references
        # The queue that is handing them out must not be called from here.
        self.session.transport.loop.call_soon(self._refuse, too_large)
        refused = set(map(id, too_large))
        return [reference for reference in references if id(reference) not in refused]

    def _refuse(self, references: list[MessageReference]) -> None:
        session = self.session
        session.log("%d messages are larger than the %d bytes link %r takes", len(references), self.max_size, self.name)
        if not self.browsing:
            session.post.reject(references)
        self.on_flow()

    def large_sent(
        self, delivery: Pointer | None, reference: MessageReference, waiting: list[MessageReference]
    ) -> None:
        """Go on: the large message is with the client (None: it cannot be shown to an AMQP client)."""
        if not self.attached:
            return
        session = self.session
        self.large = None
        if delivery is None:
            session.log("message %d is too large to be translated for link %r", reference.message.id, self.name)
            session.post.reject([reference])
        else:
            self.finish_delivery()
            if self.presettled:
                lib.pn_delivery_settle(delivery)
                session.acknowledged.append(reference)
            else:
                self.unsettled[delivery] = reference
                session.unsettled += 1
        self.transmit(waiting)
        self.on_flow()
        session.schedule_flush()

    def large_failed(self, reference: MessageReference, error: PolluxError) -> None:
        """Close the link: the file of a large message cannot be read."""
        if not self.attached:
            return
        session = self.session
        session.log("message %d cannot be read: %s", reference.message.id, error)
        current = lib.pn_link_current(self.pointer)
        if current:
            discard_delivery(current)
        if isinstance(error.__cause__, LostBodyError):
            session.post.set_aside(reference, error)  # it would be no better as a dead letter
        else:
            session.post.reject([reference])
        session.close_link(self, "amqp:internal-error", str(error))

    def large_lost(self, reference: MessageReference, error: LostBodyError, waiting: list[MessageReference]) -> None:
        """Go on with what comes behind: the file of a large message is not there, and nothing was sent."""
        if not self.attached:
            return
        session = self.session
        session.log("message %d cannot be read: %s", reference.message.id, error)
        self.large = None
        session.post.set_aside(reference, error)
        self.transmit(waiting)
        self.on_flow()
        session.schedule_flush()

    # -- the engine's calls

    def on_flow(self) -> None:
        """Take the client's credit, and do the drain that it asks for."""
        if not self.attached:
            return
        session = self.session
        if self.large is not None:
            self.large.wake()
            return
        if session.paused:
            return
        if self.buffered() > MAX_BUFFERED:
            session.backlogged.add(self)
            self.credit = 0
            return
        credit = self.remote_credit()
        allowed = session.settings.max_unsettled - session.unsettled
        if credit > allowed:
            credit = allowed
            session.limited.add(self)
        if credit != self.credit:
            raised = credit > self.credit
            self.credit = max(credit, 0)
            if raised:
                session.post.wake(self.queue)
        if lib.pn_link_get_drain(self.pointer) and not self._draining:
            if self.credit <= 0:
                self._drained()
                return
            self._draining = True
            self._checks = 0
            session.post.wake(self.queue)
            session.transport.loop.call_soon(self._drain, self._delivered)

    def _drain(self, delivered: int) -> None:
        """Give unused credit back when the queue had its chance to use it."""
        self._draining = False
        if not self.attached or not lib.pn_link_get_drain(self.pointer):
            return
        if self.credit <= 0:
            self._drained()
            return
        loop = self.session.transport.loop
        self._checks += 1
        if self._delivered != delivered or self._checks == 1:
            self._draining = True
            loop.call_soon(self._drain, self._delivered)
        elif self.queue.cold and self._checks < _DRAIN_CHECKS and not self.queue.paused:
            self._draining = True
            self.session.post.wake(self.queue)
            loop.call_later(_DRAIN_PAUSE, self._drain, self._delivered)
        else:
            self._drained()

    def _drained(self) -> None:
        """Say that the drain is over, whether there was credit left or not (2.6.7)."""
        self.credit = 0
        self.answer_drain()
        self.session.drained.add(self)
        self.session.schedule_flush()

    def on_outcome(self, delivery: Pointer, item: MessageReference, state: int, settled: bool) -> None:
        """Do what an outcome asks for, and answer it unless the client has settled."""
        session = self.session
        if state == ACCEPTED:
            if settled:
                self.forget(delivery)
                lib.pn_delivery_settle(delivery)
                if not self.browsing:
                    session.acknowledged.append(item)
            else:
                self.forget(delivery)
                if self.browsing:
                    self.settle_with(delivery, state)
                else:  # receiver settle mode second: settled when the acknowledgement is durable
                    session.acknowledged.append(item)
                    session.accepting.append((self, delivery))
            return
        if state == RECEIVED or (state == 0 and not settled):
            return
        if state == TRANSACTIONAL:
            self._retire(delivery, item, settled)
            return
        self.forget(delivery)
        if not self.browsing:
            self.apply(delivery, item, state)
        if settled:
            lib.pn_delivery_settle(delivery)
        else:
            self.settle_with(delivery, state)

    def _retire(self, delivery: Pointer, item: MessageReference, settled: bool) -> None:
        """Make the client's outcome part of the transaction it names."""
        try:
            local, outcome = self.session.transactions.named_by(delivery)
        except PolluxError as error:
            self.session.close_link(self, condition_of(error), str(error))
            return
        if self.browsing:
            self.forget(delivery)
            lib.pn_delivery_settle(delivery)
        else:
            local.retire(self, delivery, item, outcome or ACCEPTED, settled)

    def forget(self, delivery: Pointer) -> None:
        """Count a delivery as the client's no more."""
        del self.unsettled[delivery]
        self.session.unsettled -= 1

    def apply(self, delivery: Pointer | None, item: MessageReference, state: int) -> None:
        """Do what an outcome other than accepted asks for."""
        session = self.session
        session.settle_acknowledged()
        post = session.post
        if state == 0:
            state = self.default_outcome
        if state == ACCEPTED:
            session.acknowledged.append(item)
        elif state == REJECTED:
            post.reject([item])
        elif state == RELEASED:
            seen = item.redelivered
            post.release([item], failed=False)
            item.redelivered = seen  # the client says that it did nothing with it
        else:
            failed = True
            if state == MODIFIED and delivery is not None:
                remote = lib.pn_delivery_remote(delivery)
                failed = bool(lib.pn_disposition_is_failed(remote))
                _annotate(item, lib.pn_disposition_annotations(remote))
                if lib.pn_disposition_is_undeliverable(remote) and not self.queue.exclude(item, self):
                    # Nobody else could take it: a dead letter.
                    post.reject([item])
                    return
            post.release([item], failed=failed)

    # -- the end

    def end(self, *, closed: bool) -> None:
        """Take nothing more, for the link is over; :meth:`leave` gives back what it holds."""
        if self.phase in OVER:
            return
        session = self.session
        # What deliver() asks for each batch: cheaper than the phase, and the engine clears it for every kind of link.
        self.attached = False
        self.credit = 0
        session.backlogged.discard(self)
        session.drained.discard(self)
        session.limited.discard(self)
        session.settle_acknowledged()
        items = list(self.unsettled.values())
        session.unsettled -= len(items)
        if self.large is not None:
            items += self.large.references
            self.large.stop()
            self.large = None
        self.unsettled.clear()
        leaving = ConsumerPhase.CLOSING if closed else ConsumerPhase.RETIRING
        orphaned = self.phase is ConsumerPhase.ORPHANED
        self.phase = follow(CONSUMER, self.phase, ConsumerPhase.DETACHED if orphaned else leaving)
        if self.retiring and items:
            # What it acknowledged in open transactions stays with it until they end.
            session.post.release(session.transactions.not_retired(items), failed=False)

    def retired(self) -> None:
        """Count an outcome less: its transaction ended."""
        self.retiring -= 1
        self.leave()

    def leave(self) -> None:
        """Give back what an ended link holds, unless it has outcomes in open transactions.

        A subscription that ends with the link is deleted.
        """
        if self.retiring or self.phase not in LEAVING:
            return
        closed = self.phase is ConsumerPhase.CLOSING
        self.phase = follow(CONSUMER, self.phase, ConsumerPhase.DETACHED)
        session = self.session
        try:
            session.post.detach(self.queue, self)
            self.subscription.ended(session.post, self.queue, closed=closed)
        except PolluxError as error:
            session.log("ending link %r: %s", self.name, error)

    def queue_deleted(self, queue: Queue) -> None:
        """Close the link: its queue was deleted, and has let go of it."""
        if self.phase not in OVER:
            self.phase = follow(CONSUMER, self.phase, ConsumerPhase.ORPHANED)
        elif self.phase in LEAVING:
            self.phase = follow(CONSUMER, self.phase, ConsumerPhase.DETACHED)
        self.session.close_link(self, "amqp:resource-deleted", f"queue {queue.name!r} was deleted")


def _annotate(item: MessageReference, data: Pointer) -> None:
    """Add the annotations of a modified outcome to a message that only this client holds."""
    annotations = get(data)
    message = item.message
    if isinstance(annotations, dict) and annotations and message.references <= 1:
        merged = dict(message.annotations or {})
        for key, value in annotations.items():
            if isinstance(key, str) and isinstance(value, str | int | bytes):
                merged[str(key)] = value
        message.annotations = merged
