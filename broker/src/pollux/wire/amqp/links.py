"""The two kinds of links, with their per-message loops on proton's C engine.

The broker's producers and consumers (``pollux.protocols.amqp``) are subclasses that implement the
hooks. Nothing here knows queues; a message is bytes, an outcome is a number.

Pointers to deliveries are valid until they are settled here or their link is freed; ``abandon``
is called before the latter, and clears ``attached``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from struct import Struct
from typing import Generic, TypeVar

from pollux.wire.amqp.proton import ABORTED, ACCEPTED, Pointer, ffi, lib, put, set_condition

_BUFFER = 65536
_buffer = ffi.new("char[]", _BUFFER)
_view = ffi.buffer(_buffer)
_put_tag = Struct(">I").pack_into

#: What a consumer may get ahead of its settling is limited by credit; more than this is never taken as credit.
MAX_CREDIT = 0x7FFFFFFF
T = TypeVar("T")


class Link(ABC):
    """A link of a connection."""

    __slots__ = ("attached", "name", "pointer")

    def __init__(self, pointer: Pointer, name: str) -> None:
        self.pointer = pointer
        self.name = name
        #: False once the link, and with it every delivery pointer of it, is no longer valid.
        self.attached = True

    @abstractmethod
    def on_delivery(self, delivery: Pointer) -> None:
        """Look at a delivery that something happened to."""

    @abstractmethod
    def on_flow(self) -> None:
        """Look at the client's flow state, which changed."""

    def abandon(self) -> None:
        """Touch none of the link's pointers again: it ends. ``unsettled`` stays for the subclass to give back."""
        self.attached = False

    @staticmethod
    def settle_with(delivery: Pointer, state: int, fields: list[object] | None = None) -> None:
        """Settle with any delivery state (declared, transactional-state, released ...)."""
        if fields is not None:
            put(lib.pn_disposition_data(lib.pn_delivery_local(delivery)), fields)
        lib.pn_delivery_update(delivery, state)
        lib.pn_delivery_settle(delivery)


class IncomingLink(Link):
    """A link the client sends on. ``credit`` is what the client may still send."""

    __slots__ = ("_parts", "credit", "received_bytes")

    def __init__(self, pointer: Pointer, name: str) -> None:
        super().__init__(pointer, name)
        self.credit = 0
        #: Frames of a message whose last frame is still to come.
        self._parts: list[bytes] = []
        #: Bytes of that message so far, including those given to :meth:`on_part`.
        self.received_bytes = 0

    @abstractmethod
    def on_message(self, delivery: Pointer, data: bytes, settled: bool) -> None:
        """Take a complete message; ``settled``: the client wants no outcome, and ``delivery`` is gone."""

    def on_part(self, delivery: Pointer, total: int) -> bool:
        """``total`` bytes of an unfinished message have come; false: the link was closed over it."""
        return self.attached and bool(delivery) and total > 0

    def on_aborted(self) -> None:
        """Forget the message that the client gave up."""

    def on_settled(self, delivery: Pointer) -> None:
        """Settle, too, a delivery that the client settled before us."""

    @abstractmethod
    def on_overrun(self) -> None:
        """Refuse a client that sent without credit."""

    def take_parts(self) -> list[bytes]:
        """Return the frames collected so far, which are the caller's from now on."""
        parts, self._parts = self._parts, []
        return parts

    def on_flow(self) -> None:
        """Do nothing: a sender's flow carries nothing we need, and credit is ours to give."""

    def on_delivery(self, delivery: Pointer) -> None:
        """Read what is there; the one place every received message passes."""
        if not lib.pn_delivery_readable(delivery):
            if lib.pn_delivery_aborted(delivery):
                self._abort(delivery)
            elif lib.pn_delivery_settled(delivery):
                self.on_settled(delivery)
            return
        pointer = self.pointer
        size = lib.pn_link_recv(pointer, _buffer, _BUFFER)
        if self._parts or self.received_bytes or size == _BUFFER or size <= 0 or lib.pn_delivery_partial(delivery):
            self._multiple(delivery, size)
            return
        data = _view[:size]
        settled = lib.pn_delivery_settled(delivery)
        lib.pn_link_advance(pointer)
        self.credit -= 1
        if self.credit < 0:
            self.on_overrun()
            return
        if settled:
            lib.pn_delivery_settle(delivery)
        self.on_message(delivery, data, settled)

    def _multiple(self, delivery: Pointer, size: int) -> None:
        """A message of several frames, or of more than one buffer."""
        while size > 0:
            self._parts.append(_view[:size])
            self.received_bytes += size
            size = lib.pn_link_recv(self.pointer, _buffer, _BUFFER)
        if size == ABORTED:
            self._abort(delivery)
            return
        if lib.pn_delivery_partial(delivery):
            if self.credit <= 0:
                self.on_overrun()
            elif self.received_bytes:
                self.on_part(delivery, self.received_bytes)
            return
        if self.received_bytes and not self.on_part(delivery, self.received_bytes):
            return
        settled = lib.pn_delivery_settled(delivery)
        lib.pn_link_advance(self.pointer)
        self.credit -= 1
        data = b"".join(self.take_parts())
        self.received_bytes = 0
        if self.credit < 0:
            self.on_overrun()
            return
        if settled:
            lib.pn_delivery_settle(delivery)
        self.on_message(delivery, data, settled)

    def _abort(self, delivery: Pointer) -> None:
        self._parts = []
        self.received_bytes = 0
        self.credit -= 1
        # Settling advances the link past the delivery when it is the current one.
        lib.pn_delivery_settle(delivery)
        self.on_aborted()

    def grant(self, credit: int) -> None:
        """Let the client send ``credit`` more messages."""
        self.credit += credit
        lib.pn_link_flow(self.pointer, credit)

    @staticmethod
    def accept(deliveries: list[Pointer]) -> None:
        """Accept and settle; proton joins neighbours to one disposition frame."""
        update, settle = lib.pn_delivery_update, lib.pn_delivery_settle
        for delivery in deliveries:
            update(delivery, ACCEPTED)
            settle(delivery)

    @staticmethod
    def reject(delivery: Pointer, condition: str, description: str) -> None:
        """Reject and settle with an error."""
        local = lib.pn_delivery_local(delivery)
        set_condition(lib.pn_disposition_condition(local), condition, description)
        lib.pn_delivery_update(delivery, lib.PN_REJECTED)
        lib.pn_delivery_settle(delivery)


class OutgoingLink(Link, Generic[T]):
    """A link the client receives on. ``unsettled`` maps deliveries to what the subclass sent with them."""

    __slots__ = ("_tag", "_tag_view", "_tags", "unsettled")

    def __init__(self, pointer: Pointer, name: str) -> None:
        super().__init__(pointer, name)
        self.unsettled: dict[Pointer, T] = {}
        self._tags = 0
        tag = ffi.new("char[4]")
        self._tag_view = ffi.buffer(tag)
        self._tag = ffi.new("pn_delivery_tag_t *", {"size": 4, "start": tag}), tag

    @abstractmethod
    def on_outcome(self, delivery: Pointer, item: T, state: int, settled: bool) -> None:
        """Take the outcome the client gave for a delivery, or that it settled it (``state`` 0 when without one)."""

    def on_delivery(self, delivery: Pointer) -> None:
        """Hand the client's disposition on."""
        item = self.unsettled.get(delivery)
        if item is not None:
            self.on_outcome(delivery, item, lib.pn_delivery_remote_state(delivery), lib.pn_delivery_settled(delivery))

    def remote_credit(self) -> int:
        """Return how many messages the client still wants."""
        credit: int = lib.pn_link_credit(self.pointer)
        if credit < 0 and lib.pn_link_queued(self.pointer) == 0:
            return MAX_CREDIT  # more than 2^31: the unsigned field, read as signed
        return credit

    def start_delivery(self) -> Pointer:
        """Start a delivery with a fresh tag; its bytes follow with :meth:`add_bytes`."""
        self._tags = tag = (self._tags + 1) & 0xFFFFFFFF
        _put_tag(self._tag_view, 0, tag)
        return lib.pn_delivery(self.pointer, self._tag[0][0])

    def add_bytes(self, data: bytes) -> None:
        """Add bytes to the delivery begun last."""
        lib.pn_link_send(self.pointer, data, len(data))

    def finish_delivery(self) -> None:
        """Complete the delivery begun last."""
        lib.pn_link_advance(self.pointer)

    def send_settled(self, data: bytes) -> None:
        """Send one message already settled."""
        delivery = self.start_delivery()
        lib.pn_link_send(self.pointer, data, len(data))
        lib.pn_link_advance(self.pointer)
        lib.pn_delivery_settle(delivery)

    def send(self, data: bytes, item: T) -> None:
        """Send one message that the client will settle."""
        pointer = self.pointer
        self._tags = tag = (self._tags + 1) & 0xFFFFFFFF
        _put_tag(self._tag_view, 0, tag)
        delivery = lib.pn_delivery(pointer, self._tag[0][0])
        lib.pn_link_send(pointer, data, len(data))
        lib.pn_link_advance(pointer)
        self.unsettled[delivery] = item

    def answer_drain(self) -> None:
        """Give all credit back, and have the flow state sent behind what is on its way; :meth:`end_drain` follows."""
        pointer = self.pointer
        if lib.pn_link_credit(pointer) == 0:
            # proton sends the flow state only where it takes credit back, so it gets one to take back. It counts what
            # was granted apart from this, so the client sees nothing of it.
            lib.pn_link_flow(pointer, 1)
        lib.pn_link_drained(pointer)

    def end_drain(self) -> bool:
        """Forget the drain that was answered, so that the next one is seen; false: its answer is not sent yet."""
        if not self.attached:
            return True
        if lib.pn_link_queued(self.pointer) > 0:
            return False
        lib.pn_link_set_drain(self.pointer, False)
        return True

    def buffered(self) -> int:
        """Return the bytes of this link's session that wait for the client's window."""
        return int(lib.pn_session_outgoing_bytes(lib.pn_link_session(self.pointer)))
