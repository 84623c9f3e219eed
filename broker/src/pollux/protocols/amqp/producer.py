"""A link a client sends on: from transfers to messages in the post office, and their confirmation."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from pollux.engine.security import MANAGEMENT_ADDRESS
from pollux.errors import InvalidRequestError, LimitError, NoSuchAddressError, PolluxError, SendError
from pollux.message import Encoding, Message, RoutingType
from pollux.protocols.amqp.conditions import condition_of
from pollux.protocols.amqp.large import LargeReceiver
from pollux.protocols.amqp.management import manage, relay_address
from pollux.protocols.amqp.subscription import delete_temporary
from pollux.wire.amqp.codec import DecodeError
from pollux.wire.amqp.links import IncomingLink
from pollux.wire.amqp.proton import ACCEPTED, TRANSACTIONAL, Pointer, lib
from pollux.wire.amqp.sections import inspect, plain_header

if TYPE_CHECKING:
    from pollux.engine.transaction import Transaction
    from pollux.protocols.amqp.connection import Connection
    from pollux.protocols.amqp.transactions import LocalTransaction

_AMQP = Encoding.AMQP
_NEVER = 1 << 62
#: Bytes a connection may have in messages whose last frame has not come, beside large ones in files.
MAX_PARTIAL = 16 << 20
_ROUTING_TYPES = {0: RoutingType.MULTICAST, 1: RoutingType.ANYCAST}


class Producer(IncomingLink):
    """A client's sender. ``address`` None: an anonymous relay, each message says where it goes."""

    __slots__ = (
        "_full",
        "_kind",
        "_large",
        "_low",
        "_min_large",
        "_ordinary",
        "_partial",
        "_plain",
        "_run",
        "_second",
        "_temporary",
        "_waiting",
        "address",
        "last_value_key",
        "pending",
        "received",
        "routing_type",
        "session",
        "touched",
        "unconfirmed",
    )

    def __init__(
        self,
        session: Connection,
        pointer: Pointer,
        name: str,
        address: str | None,
        *,
        routing_type: RoutingType | None,
        last_value_key: str | None,
        second: bool = False,
        temporary: str | None = None,
    ) -> None:
        super().__init__(pointer, name)
        self.session = session
        self.address = address
        self.routing_type = routing_type
        self.last_value_key = (last_value_key or "_AMQ_LVQ_NAME").encode()
        #: Deliveries of this pass to be confirmed.
        self.pending: list[Pointer] = []
        self.touched = False
        self.unconfirmed = 0
        self.received = 0
        self._low = session.settings.low_credits
        self._full = session.settings.credits
        self._waiting = False
        self._min_large = session.settings.min_large if session.settings.min_large >= 0 else _NEVER
        #: Larger messages than this are looked at twice.
        self._ordinary = min(self._min_large, session.settings.max_message_size or _NEVER)
        #: Bytes kept of the message the client is sending.
        self._partial = 0
        #: The message the client is sending, when it is large.
        self._large: LargeReceiver | None = None
        #: Plain messages of this pass that are not sent yet, and their deliveries (None: settled); and what they have
        #: in common: durable, priority.
        self._run: list[tuple[Message, Pointer | None]] = []
        self._kind: tuple[bool, int, int | None] | None = None
        #: Messages without more to them than a header and a body are sent together.
        self._plain = address is not None and not session.settings.populate_user
        #: Receiver settle mode second: the client settles after us, see on_settled.
        self._second = second
        self._temporary = temporary

    def describe(self) -> dict[str, object]:
        """Return, for management, the link as it is."""
        return {
            "name": self.name,
            "role": "producer",
            "address": self.address,
            "credit": self.credit,
            "unsettled": self.unconfirmed,
            "messages": self.received,
        }

    # -- the engine's calls

    def on_message(self, delivery: Pointer, data: bytes, settled: bool) -> None:
        """Send a complete message; its confirmation follows when it is durable."""
        session = self.session
        if not self.touched:
            self.touched = True
            session.touched.append(self)
        self.received += 1
        session.received_bytes += len(data)
        if self._partial:
            self._forget_partial()
        local: LocalTransaction | None = None
        large = self._large
        transactional = not settled and lib.pn_delivery_remote_state(delivery) == TRANSACTIONAL
        try:
            if self._plain and not transactional and large is None and len(data) <= self._ordinary:
                header = plain_header(data)
                if header is not None and not header[2]:
                    self._join(header, data, None if settled else delivery)
                    return
            session.end_run()
            if not self.attached:
                return  # what came before ended the link
            if transactional:
                local = session.transactions.named_by(delivery).transaction
            transaction = None if local is None else local.transaction
            if large is not None or len(data) > self._ordinary:
                self._send_extraordinary(data, transaction)
            else:
                self._send(data, transaction)
        except PolluxError as error:
            self._refuse(None if settled else delivery, error)
            return
        if settled:
            return
        if local is not None:
            local.accept(self, delivery)
            return
        self.unconfirmed += 1
        self.pending.append(delivery)

    def _join(self, kind: tuple[bool, int, int | None], data: bytes, delivery: Pointer | None) -> None:
        """Have a plain message be sent with those before it, if they are of its kind."""
        session = self.session
        if session.running is not self or kind != self._kind:
            session.end_run()
            if not self.attached:
                return  # what came before ended the link
            session.running, self._kind = self, kind
        message = Message(
            _AMQP,
            self.address or "",
            data,
            durable=kind[0],
            priority=kind[1],
            timestamp=session.now,
            origin=session.origin,
        )
        message.routing_type = self.routing_type
        self._run.append((message, delivery))

    def end_run(self) -> None:
        """Send what is not sent yet; what follows comes after it."""
        run, self._run = self._run, []
        post, attached = self.session.post, self.attached
        together = False
        if len(run) > 1:
            with suppress(PolluxError):  # nothing was done then: each is tried by itself, and told
                together = post.send_alike([message for message, _ in run])
        taken: list[Pointer] = []
        if together:
            taken = [delivery for _, delivery in run if delivery is not None]
        else:
            for message, delivery in run:
                try:
                    post.send(message)
                except PolluxError as error:
                    if attached:
                        self._refuse(delivery, error)
                        if not self.attached:  # that ended the link, and with it what came behind
                            return
                else:
                    if delivery is not None:
                        taken.append(delivery)
        if self.attached:
            self.unconfirmed += len(taken)
            self.pending += taken

    def _send(self, data: bytes, transaction: Transaction | None) -> None:
        session = self.session
        address = self.address
        header = plain_header(data) if address is not None else None
        if header is None or address is None:
            message = self._inspected(data)
            if address is None and message.address == MANAGEMENT_ADDRESS:
                if transaction is not None:
                    raise InvalidRequestError("a management request is not part of a transaction")
                manage(session, message)
                return
            session.post.send(message, transaction)
            return
        message = Message(
            _AMQP, address, data, durable=header[0], priority=header[1], timestamp=session.now, origin=session.origin
        )
        message.routing_type = self.routing_type
        if header[2]:
            message.expiration = session.now + header[2]
        if session.settings.populate_user:
            message.user = session.user
        session.post.send(message, transaction)

    def _send_extraordinary(self, data: bytes, transaction: Transaction | None) -> None:
        """Send a message that is large, or refuse one larger than allowed."""
        limit = self.session.settings.max_message_size
        if limit and len(data) > limit:
            raise LimitError(f"a message has more than {limit} bytes (max-message-size)")
        if self._large is not None or len(data) > self._min_large:
            self._send_large(data, transaction)
        else:
            self._send(data, transaction)

    def _send_large(self, data: bytes, transaction: Transaction | None) -> None:
        session = self.session
        large = self._large
        if large is None:
            large = LargeReceiver(session)
        self._large = None
        try:
            large.write(data)
            message = self._inspected(large.head(), partial=True)
            message.large = large.finish(durable=message.durable)
        except PolluxError:
            large.abort()
            raise
        try:
            session.post.send(message, transaction)
        except PolluxError:
            session.post.storage.large.delete(message.large.id)
            raise

    def _inspected(self, data: bytes, *, partial: bool = False) -> Message:
        """Return a message with more to it than a header and a body. ``partial``: the head of a large one."""
        session = self.session
        address = self.address
        inspected = inspect(data, last_value_key=self.last_value_key, partial=partial)
        if address is None:
            address = inspected.to
            if not address:
                raise NoSuchAddressError("a message on an anonymous link has no 'to'")
            address = relay_address(session, address)
            if not session.post.writable(address):
                self._wait_for(address)
        now = session.now
        expiration = 0
        if inspected.ttl:
            expiration = now + inspected.ttl
        elif inspected.absolute_expiry:
            expiration = inspected.absolute_expiry
        routing_type = self.routing_type
        if inspected.routing_type is not None:
            routing_type = _ROUTING_TYPES[inspected.routing_type]
        return Message(
            _AMQP,
            address,
            data if partial else inspected.data,
            durable=inspected.durable,
            priority=inspected.priority,
            expiration=expiration,
            timestamp=inspected.creation_time or now,
            deliver_at=inspected.deliver_at or (now + inspected.deliver_delay if inspected.deliver_delay else 0),
            group=inspected.group,
            group_sequence=inspected.group_sequence,
            last_value=inspected.last_value,
            duplicate_id=inspected.duplicate_id if session.settings.duplicate_detection else None,
            routing_type=routing_type,
            origin=session.origin,
            user=session.user if session.settings.populate_user else None,
        )

    def _refuse(self, delivery: Pointer | None, error: PolluxError) -> None:
        """Reject a message that was not taken, or end the link when the client wants no outcome (None)."""
        if delivery is None:
            if not isinstance(error, SendError | DecodeError):
                self.session.close_link(self, condition_of(error), str(error))
            return
        self.reject(delivery, condition_of(error), str(error))

    def on_part(self, delivery: Pointer, total: int) -> bool:  # noqa: ARG002  (the hook's signature)
        """Put an unfinished large message into its file, and bound any other; false: the link was closed over it."""
        limit = self.session.settings.max_message_size
        if limit and total > limit:
            self.session.close_link(
                self, "amqp:link:message-size-exceeded", f"a message has more than {limit} bytes (max-message-size)"
            )
            return False
        if self._large is None and total > self._min_large:
            self._large = LargeReceiver(self.session)
        session = self.session
        if self._large is not None:
            self._large.write(b"".join(self.take_parts()))
            total = 0
        session.partial_bytes += total - self._partial
        self._partial = total
        if session.partial_bytes > MAX_PARTIAL:
            session.close_link(
                self,
                "amqp:resource-limit-exceeded",
                f"unfinished messages of this connection have more than {MAX_PARTIAL} bytes",
            )
            return False
        return True

    def _forget_partial(self) -> None:
        self.session.partial_bytes -= self._partial
        self._partial = 0

    def on_aborted(self) -> None:
        """Forget the message that the client gave up."""
        self._forget_partial()
        if self._large is not None:
            self._large.abort()
            self._large = None
        self.replenish()

    def on_overrun(self) -> None:
        """Close the link."""
        self.session.close_link(self, "amqp:link:transfer-limit-exceeded", "a transfer came without credit")

    # -- credit

    def replenish(self) -> None:
        """Give the client credit again when little is left, unless its address takes nothing now."""
        if self.credit > self._low or not self.attached or self._waiting or self.unconfirmed > 2 * self._full:
            return
        address = self.address
        post = self.session.post
        if address is not None and not post.writable(address):
            self._wait_for(address)
            return
        self.grant(self._full - self.credit)

    def _wait_for(self, address: str) -> None:
        """Give no credit until the address takes messages again."""
        if not self._waiting:
            self._waiting = True
            self.session.blocked.wait(address, self)

    def writable(self) -> None:
        """Give credit again: the address that was waited for takes messages."""
        self._waiting = False
        if self.attached:
            self.replenish()
            self.session.schedule_flush()

    def confirm(self, deliveries: list[Pointer]) -> None:
        """Accept messages that are durable now."""
        if self._second:
            # They stay unsettled, and counted, until the client has settled them.
            for delivery in deliveries:
                lib.pn_delivery_update(delivery, ACCEPTED)
        else:
            self.accept(deliveries)
            self.unconfirmed -= len(deliveries)
        self.replenish()

    def on_settled(self, delivery: Pointer) -> None:
        """Settle, too: the last step of receiver settle mode second."""
        if self._second and lib.pn_delivery_local_state(delivery):
            lib.pn_delivery_settle(delivery)
            self.unconfirmed -= 1
            self.replenish()

    def end(self, *, closed: bool) -> None:  # noqa: ARG002  (a producer leaves nothing behind either way)
        """Let go of what came in, for the link is over; :meth:`leave` does the rest."""
        self.abandon()
        if self.session.running is self:
            self.session.end_run()
        self.pending = []
        self._forget_partial()
        if self._large is not None:
            self._large.abort()
            self._large = None

    def leave(self) -> None:
        """Delete the node that was made for the link."""
        if self._temporary is not None:
            delete_temporary(self.session.post, self._temporary)
            self._temporary = None
