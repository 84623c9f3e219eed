"""The producing half of a STOMP session: SEND, small and large, and waiting for addresses that are full."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from pollux.engine.security import Permission
from pollux.protocols.stomp.send_plan import SendPlan
from pollux.wire.stomp.encoder import escaped
from pollux.wire.stomp.headers import StompError, unescape

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.message import Message
    from pollux.protocols.stomp.conversation import Conversation
    from pollux.protocols.stomp.transactions import Transactions
    from pollux.store.large import LargeWriter
    from pollux.wire.stomp.decoder import Frame, LargeFrame

#: Header blocks whose meaning is remembered, and the longest that is.
_PLANS: Final = 256
_PLAN_BLOCK: Final = 1024
#: What of a large message stays in memory: its headers, and of its body what fits in here.
_HEAD: Final = 4096


class Producer:
    """Turn SEND frames into messages."""

    __slots__ = (
        "_awaiting",
        "_body_head",
        "_large_plan",
        "_parking",
        "_plans",
        "_run",
        "_run_plan",
        "_session",
        "_transactions",
        "_writer",
        "large_frame",
        "refused",
    )

    def __init__(self, session: Conversation, transactions: Transactions) -> None:
        self._session = session
        self._transactions = transactions
        self._plans: dict[bytes, SendPlan] = {}
        self._parking = session.parking
        #: Addresses whose opening we will be told.
        self._awaiting: dict[str, Callable[[], None]] = {}
        #: Messages of one plan in a row, with their frames and receipts: :meth:`finish` takes them in at once.
        self._run: list[tuple[Message, Frame, bytes | None]] = []
        self._run_plan: SendPlan | None = None
        #: The frame of a row that was refused.
        self.refused: Frame | None = None
        #: The SEND whose body is arriving in pieces.
        self.large_frame: LargeFrame | None = None
        self._large_plan: SendPlan | None = None
        self._writer: LargeWriter | None = None
        self._body_head = b""

    def send(self, frame: Frame) -> None:
        """A SEND frame; what it asks for is done by the next :meth:`finish`. Raises what refuses it."""
        session = self._session
        block = frame.block
        receipt: bytes | None = None
        rest = block
        # Frames of one producer differ in their receipt: without it the block is one we have seen.
        at = 0 if block.startswith(b"receipt:") else block.find(b"\nreceipt:")
        if at >= 0:
            start = at + 9 if at else 8
            end = block.find(b"\n", start)
            if end < 0:
                receipt = block[start:]
                rest = block[:at]
            else:
                receipt = block[start:end]
                rest = block[:at] + block[end:] if at else block[end + 1 :]
            if not receipt.isascii() or b"\\" in receipt:
                self._check_receipt(receipt)
        plan = self._plans.get(rest)
        if plan is None:
            plan = self._plan(rest)
        if plan is not self._run_plan:
            self.finish()
        if (plan.checked != session.batch or self._parking) and self._must_wait(frame, plan):
            return
        message = plan.message(frame.body, session.now, session.origin, self._user())
        if plan.alike:
            self._run_plan = plan
            self._run.append((message, frame, receipt))
            return
        if plan.transaction is None:
            session.post.send(message)
        else:
            session.post.send(message, self._transactions.get(plan.transaction).transaction)
        if receipt is not None:
            session.receipts.append(receipt)
        elif plan.receipt is not None:
            session.receipts.append(escaped(plan.receipt, session.version))

    def finish(self) -> None:
        """Take in the row of messages that came last. Raises what refuses one; ``refused`` is its frame then."""
        if self._run_plan is None:
            return
        run, self._run, self._run_plan = self._run, [], None
        session = self._session
        if len(run) > 1 and session.post.send_alike([message for message, _, _ in run]):
            session.receipts += [receipt for _, _, receipt in run if receipt is not None]
            return
        for message, frame, receipt in run:
            self.refused = frame
            session.post.send(message)
            if receipt is not None:
                session.receipts.append(receipt)
        self.refused = None

    def _user(self) -> str | None:
        """Who is noted as the sender of a message."""
        session = self._session
        return session.user if session.settings.populate_user else None

    def _plan(self, block: bytes) -> SendPlan:
        plan = SendPlan(block, self._session.version, self._session.settings)
        if len(block) <= _PLAN_BLOCK and plan.duplicate_id is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            self._plans[block] = plan
        return plan

    def _check_receipt(self, receipt: bytes) -> None:
        """A receipt goes back as it was written: it must be valid in this version."""
        try:
            unescape(receipt.decode(), self._session.version)
        except UnicodeDecodeError:
            raise StompError("headers are not valid UTF-8") from None

    # -- permission and room

    def _check_permission(self, plan: SendPlan) -> None:
        session = self._session
        identity = session.identity
        address, _, queue = plan.address.partition("::")
        session.security.check(identity, Permission.send, address, queue or None)

    def _must_wait(self, frame: Frame, plan: SendPlan) -> bool:
        """Check permission and room, once for a batch of frames; true when the frame has to wait."""
        self._check_permission(plan)
        if (not self._parking or self._parking.draining) and self._session.post.writable(plan.address):
            plan.checked = self._session.batch
            return False
        self._parking.add(frame, plan.transaction)
        self._await(plan.address)
        return True

    def _await(self, address: str) -> None:
        if address not in self._awaiting:
            self._awaiting[address] = wakeup = partial(self.address_open, address)
            self._session.post.on_writable(address, wakeup)

    def address_open(self, address: str) -> None:
        """``address`` takes messages again: handle what waited, in order, until something must wait again."""
        session = self._session
        self._awaiting.pop(address, None)
        self._parking.draining = True
        try:
            while self._parking:  # nothing is, once the session ends
                before = len(self._parking)
                session.handle([self._parking.pop()])
                if len(self._parking) >= before:
                    self._parking.last_to_front()
                    break
        finally:
            self._parking.draining = False
        if self._parking.size <= session.settings.park_limit // 2:
            session.release_reading("parked")
        if not self._parking:
            session.go_on()

    # -- large messages in

    def large_begins(self, frame: LargeFrame) -> bool:
        """The headers of a SEND whose body follows in pieces; false when it must wait for its address to open.

        Its body is not taken meanwhile, not even to disk: that may be what is full.
        """
        plan = SendPlan(frame.block, self._session.version, self._session.settings)
        self._check_permission(plan)
        if plan.transaction is not None:
            self._transactions.get(plan.transaction)
        if self._parking:
            return False
        if not self._session.post.writable(plan.address):
            self._await(plan.address)
            return False
        self._session.post.open(plan.address, plan.routing_type, self._session.identity.user)
        self.large_frame = frame
        self._large_plan = plan
        self._body_head = b""
        self._writer = self._session.post.storage.large.create()
        self._writer.write(plan.head)
        return True

    def large_continues(self, data: bytes) -> None:
        """A piece of the body goes to the file; a disk slower than the client stops the client."""
        writer, plan = self._writer, self._large_plan
        if writer is None or plan is None:
            return
        room = _HEAD - len(plan.head) - len(self._body_head)
        if room > 0:
            self._body_head += data[:room]
        writer.write(data)
        if writer.full:
            self._session.hold_reading("large")
            writer.on_drain(self._drained)

    def _drained(self) -> None:
        self._session.release_reading("large")

    def large_ends(self) -> None:
        """The body is complete."""
        session, writer, plan = self._session, self._writer, self._large_plan
        if writer is None or plan is None:
            return
        message = plan.message(self._body_head, session.now, session.origin, self._user())
        transaction = None if plan.transaction is None else self._transactions.get(plan.transaction).transaction
        large = writer.finish(durable=plan.durable)
        self._writer = self._large_plan = None
        self._body_head = b""
        message.large = large
        try:
            session.post.send(message, transaction)
        except BaseException:
            session.post.storage.large.delete(large.id)
            raise
        if plan.receipt is not None:
            session.receipts.append(escaped(plan.receipt, session.version))
        self.large_frame = None

    def close(self) -> None:
        """The session ends: forget what waits and what is half received."""
        self._run.clear()
        self._run_plan = None
        self._parking.clear()
        # Clients that come and go while an address is full must not pile up in the post office.
        for address, wakeup in self._awaiting.items():
            self._session.post.off_writable(address, wakeup)
        self._awaiting.clear()
        if self._writer is not None:
            self._writer.abort()
            self._writer = self._large_plan = None
