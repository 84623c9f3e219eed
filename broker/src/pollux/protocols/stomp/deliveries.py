"""The consuming half of a STOMP session: subscriptions, deliveries, ACK and NACK."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.engine.memory import CONSUMER
from pollux.engine.ownership import require_owner
from pollux.engine.reading_rights import rights_of
from pollux.engine.security import Permission
from pollux.errors import InvalidRequestError, LimitError, PolluxError
from pollux.message import Encoding
from pollux.protocols.stomp.destinations import format_destination
from pollux.protocols.stomp.phases import SubscriptionPhase
from pollux.protocols.stomp.subscribe import (
    DURABLE_HEADERS,
    durable_queue_name,
    existing_queue,
    first_of,
    open_queue,
    read_subscribe,
    subscription_key,
)
from pollux.protocols.stomp.subscription import AckMode, Subscription
from pollux.protocols.stomp.transactions import refuse
from pollux.routing.selector import parse as parse_selector
from pollux.wire.decoders import content_of
from pollux.wire.stomp.encoder import Delivery, escaped
from pollux.wire.stomp.headers import StompError, Version, parse_headers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pollux.engine.memory import Holder
    from pollux.errors import LostBodyError
    from pollux.message import Message
    from pollux.protocols.stomp.conversation import Conversation
    from pollux.protocols.stomp.transactions import Transactions
    from pollux.routing.reference import MessageReference
    from pollux.wire.content import Content
    from pollux.wire.stomp.decoder import Frame


class Consuming:
    """Hold the subscriptions of a session, and be the :class:`Outlet` of each."""

    __slots__ = (
        "_automatic",
        "_by_number",
        "_changed",
        "_holder",
        "_next_number",
        "_session",
        "_transactions",
        "held_back",
        "subscriptions",
    )

    def __init__(self, session: Conversation, transactions: Transactions) -> None:
        self._session = session
        self._transactions = transactions
        self.subscriptions: dict[str, Subscription] = {}
        self._by_number: dict[int, Subscription] = {}
        self._next_number = 0
        #: What subscriptions cost counts here. It knows when the connection has given everything back, and the last
        #: of very many subscriptions end after that.
        self._holder: Holder | None = None
        #: Subscriptions with acknowledgements in this batch.
        self._changed: dict[Subscription, None] = {}
        #: Delivered to auto-ack subscriptions, not passed on yet.
        self._automatic: dict[Subscription, list[MessageReference]] = {}
        #: The client does not keep up, or a large message is on its way.
        self.held_back = False

    def flush(self) -> None:
        """Pass on what this batch of frames acknowledged, and take more."""
        if not self._changed:
            return
        changed = self._changed
        self._changed = {}
        for subscription in changed:
            self._flush_acknowledgements(subscription)
            if subscription.refill():
                self._session.post.wake(subscription.queue)

    def hold_back(self, *, hold: bool) -> None:
        """Stop deliveries, or let them go on."""
        self.held_back = hold
        for subscription in list(self.subscriptions.values()):
            if not self.held_back:  # sending may hold back again
                subscription.send_backlog()
            if subscription.refill():
                self._session.post.wake(subscription.queue)

    def close(self, *, clean: bool) -> None:
        """The session ends: give back what is held, of very many subscriptions bit by bit."""
        ending = list(self.subscriptions.values())
        for subscription in ending:
            subscription.credit = 0
        self._session.post.share.work(self._ending(ending, clean=clean))

    def _ending(self, subscriptions: list[Subscription], *, clean: bool) -> Iterator[None]:
        for subscription in subscriptions:
            if self.subscriptions.get(subscription.key) is subscription:
                self._flush_acknowledgements(subscription)
                self.drop(subscription, clean=clean)
            yield

    # -- SUBSCRIBE, UNSUBSCRIBE

    def subscribe(self, subscribe: Frame) -> None:
        headers = parse_headers(subscribe.block, self._session.version)
        request = read_subscribe(headers, self._session.version, self._session.settings)
        if request.key in self.subscriptions:
            raise InvalidRequestError(f"the subscription id {request.key!r} is in use on this connection")
        if len(self.subscriptions) >= self._session.settings.max_subscriptions:
            raise LimitError(f"a connection has at most {self._session.settings.max_subscriptions} subscriptions")
        selector = parse_selector(request.selector) if request.selector is not None else None
        if self._holder is None:
            self._holder = self._session.post.memory.holder(self._session.origin)
        self._holder.take(CONSUMER)
        queue, temporary = open_queue(self._session, request)
        number = self._next_number
        self._next_number += 1
        with_ack = self._session.version is Version.V1_2 and request.mode is not AckMode.AUTO
        told_apart = with_ack or self._session.version is Version.V1_0
        delivery = Delivery(
            self._session.version,
            escaped(request.identity, self._session.version) if request.identity is not None else None,
            b"-%d" % number if told_apart and number else b"",
            with_ack=with_ack,
        )
        # The queue of a subscription of its own filters by itself.
        own = temporary or request.durable_name is not None
        subscription = Subscription(
            self,
            request,
            delivery,
            queue,
            number=number,
            origin=self._session.origin,
            selector=None if own else selector,
            temporary=temporary,
            rights=rights_of(self._session.security, self._session.identity, queue, browsing=request.browsing),
        )
        try:
            self._session.post.attach(queue, subscription)
        except PolluxError:
            if temporary:
                self._session.post.delete_queue(queue.name)
            raise
        if subscription.durable_name is not None:
            self._session.post.named.used(queue)
            # Where another connection takes from it, too, what this one does not want is for that one.
            alone = queue.consumer_count == 1
            self._session.post.space.exclude_own(queue, self._session.origin if request.no_local and alone else 0)
        self.subscriptions[request.key] = subscription
        self._by_number[number] = subscription
        self._session.receipt(headers)

    def unsubscribe(self, unsubscribe: Frame) -> None:
        headers = parse_headers(unsubscribe.block, self._session.version)
        durable_name = first_of(headers, DURABLE_HEADERS)
        try:
            key = subscription_key(headers, self._session.version)
        except StompError:
            if durable_name is None:
                raise
            key = ""
        subscription = self.subscriptions.get(key)
        if subscription is None:
            # Artemis's clients name the durable subscription in place of a live one's id.
            if durable_name is None:
                raise InvalidRequestError(f"there is no subscription {key!r} on this connection")
            subscription = next(
                (each for each in self.subscriptions.values() if each.durable_name == durable_name), None
            )
        if subscription is not None:
            self._flush_acknowledgements(subscription)
            self.drop(subscription, clean=True)
        if durable_name is not None:
            self._delete_durable(durable_name)
        self._session.receipt(headers)

    def _delete_durable(self, durable_name: str) -> None:
        post, identity = self._session.post, self._session.identity
        name = durable_queue_name(self._session.client_id, durable_name)
        queue = existing_queue(post, name)
        found = queue or post.named.find(name)
        if found is None:
            raise InvalidRequestError(f"there is no durable subscription {name!r}")
        if queue is not None:
            require_owner(self._session.security, identity, queue)
        self._session.security.check(identity, Permission.deleteDurableQueue, found.address, name)
        if queue is not None:
            post.delete_queue(name, if_unused=True)
        post.named.over(name, found.address, identity.user if queue is None else queue.user)

    def drop(self, subscription: Subscription, *, clean: bool) -> None:
        """End a subscription and give back what it holds.

        When the client vanished, the oldest message it held counts a failed delivery: it is the one it
        was most likely working on, and a message that kills its consumers must not do so for ever.
        The others, sent ahead, were hardly looked at and do not count.
        """
        if self._holder is not None:
            self._holder.give(CONSUMER)
        del self.subscriptions[subscription.key]
        del self._by_number[subscription.number]
        self._changed.pop(subscription, None)
        subscription.become(SubscriptionPhase.DRAINING)
        subscription.credit = 0
        sent = self._automatic.pop(subscription, None)
        if sent and not subscription.browsing:
            self._session.post.acknowledge(sent)
        held, unsent = subscription.take_all()
        if held and not clean:
            self._session.post.release(held[:1], failed=True)
            held = held[1:]
        if subscription.transactions:
            if held or unsent:
                self._session.post.release(held + unsent, failed=False)
        else:
            self.detach(subscription)

    def detach(self, subscription: Subscription) -> None:
        """Take a subscription from its queue."""
        subscription.become(SubscriptionPhase.DETACHED)
        self._session.post.detach(subscription.queue, subscription)  # gives back what it still holds
        if subscription.temporary:
            self._session.post.delete_queue(subscription.queue.name)
        elif subscription.durable_name is not None:
            self._session.post.named.unused(subscription.queue)

    def queue_gone(self, subscription: Subscription) -> None:
        """An administrator deleted the queue: STOMP can say so only by ERROR."""
        self._transactions.forget(subscription.queue)
        if self.subscriptions.get(subscription.key) is subscription:
            del self.subscriptions[subscription.key]
            del self._by_number[subscription.number]
            self._changed.pop(subscription, None)
            self._automatic.pop(subscription, None)
            problem = InvalidRequestError(f"the queue {subscription.queue.name!r} was deleted")
            self._session.loop.call_soon(self._session.fail, problem)

    def _flush_acknowledgements(self, subscription: Subscription) -> None:
        references = subscription.acknowledged
        if references:
            subscription.acknowledged = []
            self._session.post.acknowledge(references)

    # -- ACK, NACK

    def ack(self, ack: Frame) -> None:
        block = ack.block
        # The frame of a 1.2 client with one subscription: nothing but the id.
        if block.startswith(b"id:") and block[3:].isdigit() and self._session.version is Version.V1_2:
            subscription = self._by_number.get(0)
            if subscription is not None and subscription.mode is not AckMode.AUTO and len(block) < 24:
                subscription.acknowledge(int(block[3:]))
                self._changed[subscription] = None
                return
        headers = parse_headers(block, self._session.version)
        transaction = headers.get("transaction")
        if self._session.parking.concerns(transaction):
            self._session.parking.add(ack, transaction)
            return
        subscription, identity = self._acknowledged_by(headers)
        if transaction is None:
            subscription.acknowledge(identity)
        else:
            entered = self._transactions.get(transaction)
            entered.enter(subscription)
            entered.acknowledged += subscription.take(identity)
        self._changed[subscription] = None
        self._session.receipt(headers)

    def nack(self, nack: Frame) -> None:
        if self._session.version is Version.V1_0:
            raise StompError("STOMP 1.0 has no NACK")
        headers = parse_headers(nack.block, self._session.version)
        transaction = headers.get("transaction")
        if self._session.parking.concerns(transaction):
            self._session.parking.add(nack, transaction)
            return
        subscription, identity = self._acknowledged_by(headers)
        requeue = headers.get("requeue", "true").lower() != "false"
        if transaction is None:
            self._flush_acknowledgements(subscription)
            refuse(self._session.post, [(reference, requeue) for reference in subscription.take(identity)])
        else:
            entered = self._transactions.get(transaction)
            entered.enter(subscription)
            entered.refused += [(reference, requeue) for reference in subscription.take(identity)]
        self._changed[subscription] = None
        self._session.receipt(headers)

    def _acknowledged_by(self, headers: dict[str, str]) -> tuple[Subscription, int]:
        """The subscription and message an ACK or NACK names, by the rules of its version."""
        if self._session.version is Version.V1_2:
            text = headers.get("id")
            if text is None:
                raise StompError("the header 'id' is missing")
        else:
            text = headers.get("message-id")
            if text is None:
                raise StompError("the header 'message-id' is missing")
        number_text, dash, suffix = text.partition("-")
        if not (text.isascii() and number_text.isdigit() and len(number_text) < 20):
            raise StompError(f"message {text[:64]!r} is not waiting for an acknowledgement here")
        key = headers.get("subscription")
        subscription: Subscription | None
        if self._session.version is not Version.V1_2 and key is not None:
            subscription = self.subscriptions.get(key)
        elif self._session.version is Version.V1_1:
            raise StompError("the header 'subscription' is missing")
        else:
            subscription = self._by_number.get(int(suffix) if dash and suffix.isdigit() and len(suffix) < 10 else 0)
        if subscription is None:
            raise StompError(f"message {text[:64]!r} belongs to no subscription of this connection")
        if subscription.mode is AckMode.AUTO:
            raise StompError(f"the subscription {subscription.key!r} acknowledges by itself (ack:auto)")
        return subscription, int(number_text)

    # -- deliveries of an Outlet

    def write(self, data: bytes) -> None:
        """Send frames to the client."""
        self._session.write(data)

    def encode_other(self, subscription: Subscription, reference: MessageReference) -> bytes:
        """A frame for what is not stored as this client must get it."""
        message = reference.message
        if message.encoding is Encoding.STOMP and message.annotations is None:
            return b"%b%b\0" % (subscription.opening(reference), subscription.delivery.stored(message))
        return self.encode_foreign(subscription, reference, message, content_of(message))

    def encode_foreign(
        self, subscription: Subscription, reference: MessageReference, message: Message, content: Content
    ) -> bytes:
        """A frame made from the neutral view; ``message`` is the reference's, or the whole of a large one."""
        lines = subscription.delivery.foreign(message, content, self.destination_of(subscription, message))
        return b"%b%b%b\0" % (subscription.opening(reference), lines, content.body)

    def destination_of(self, subscription: Subscription, message: Message) -> str:
        """Return the destination this client knows the address of a message by."""
        return format_destination(message.address, subscription.queue.routing_type, self._session.settings)

    def delivered(self, subscription: Subscription, references: list[MessageReference]) -> None:
        """Sent to an auto-ack subscription: acknowledged in the next turn of the loop."""
        if not self._automatic:
            self._session.loop.call_soon(self._acknowledge_automatic)
        waiting = self._automatic.get(subscription)
        if waiting is None:
            self._automatic[subscription] = references
        else:
            waiting += references

    def _acknowledge_automatic(self) -> None:
        automatic = self._automatic
        self._automatic = {}
        for subscription, references in automatic.items():
            if references and not subscription.browsing:
                self._session.post.acknowledge(references)
            if subscription.refill():
                self._session.post.wake(subscription.queue)

    def send_large(self, subscription: Subscription, reference: MessageReference) -> None:
        """Stream a large message; what is written after it follows it."""
        self._session.send_large(subscription, reference)

    def sent_large(self, subscription: Subscription, reference: MessageReference) -> None:
        """A large message is through."""
        if subscription.mode is AckMode.AUTO and subscription.phase is SubscriptionPhase.ACTIVE:
            self.delivered(subscription, [reference])

    def failed(self, subscription: Subscription, reference: MessageReference) -> None:
        """A large message could not be sent at all: a failed delivery."""
        if subscription.phase is not SubscriptionPhase.ACTIVE:
            return
        if subscription.mode is not AckMode.AUTO and not subscription.lose(reference):
            return
        if not subscription.browsing:
            self._session.post.release([reference], failed=True)

    def lost(self, subscription: Subscription, reference: MessageReference, error: LostBodyError) -> None:
        """The file of a large message is not there; nothing of it was sent."""
        if subscription.phase is not SubscriptionPhase.ACTIVE:
            return
        if subscription.mode is not AckMode.AUTO and not subscription.lose(reference):
            return
        self._session.post.set_aside(reference, error)

    def describe(self) -> list[dict[str, object]]:
        """Return the subscriptions, for management."""
        return [subscription.describe() for subscription in self.subscriptions.values()]
