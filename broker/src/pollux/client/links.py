"""Producers' and consumers' links: credit, deliveries under way, and what of them survives a lost connection.

A link outlives the connections it is attached over. Its session (:mod:`pollux.client.session`) hands it frames.
"""

from __future__ import annotations

import asyncio
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Protocol

from pollux.client import frames
from pollux.client.errors import (
    ClientError,
    FailoverError,
    LinkRefusedError,
    SendRefusedError,
    TransactionRolledBackError,
)
from pollux.wire.amqp.codec import Described, UInt

if TYPE_CHECKING:
    from pollux.client.answers import Answers
    from pollux.client.frames import Frame

_tag = Struct(">I").pack
_MASK = 0xFFFFFFFF


class Carrier(Protocol):
    """A session, as its links know it."""

    answers: Answers
    number: int
    generation: int
    next_delivery: int
    outgoing: dict[int, SenderLink]

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open over the connection there is."""

    def transactional_state(self, outcome: object) -> object:
        """Return the delivery state of something done: `outcome` itself without transactions."""

    def transfer(self, handle: int, number: int, tag: bytes, data: bytes, state: object) -> None:
        """Send one message."""

    def link_flow(self, link: list[object]) -> None:
        """Send a flow with the fields of a link."""


class Link:
    """A link of a session, by its handle."""

    def __init__(self, session: Carrier, handle: int, name: str) -> None:
        self.session = session
        self.handle = handle
        self.name = name
        self.attached = False
        #: Why it is over; None while it is not.
        self.failure: ClientError | None = None
        self.ready: asyncio.Future[None] = session.answers.loop.create_future()
        self.detached: asyncio.Future[None] | None = None

    def attach(self) -> bytes:
        """Return the attach frame."""
        raise NotImplementedError

    def on_attach(self, frame: Frame) -> None:
        """Handle the broker's attach: a refusal has no terminus, and a detach follows."""
        if frame.field(5 if frame.field(2) is False else 6) is None:
            return
        self.attached = True
        if not self.ready.done():
            self.ready.set_result(None)
        self.on_ready(frame)

    def on_ready(self, frame: Frame) -> None:
        """Start to use the link."""

    def on_flow(self, frame: Frame) -> None:
        """Handle the broker's flow for this link."""

    def on_detach(self, frame: Frame) -> None:
        """Handle the broker's detach, its own or the answer to ours."""
        self.attached = False
        error = frames.error_of(frame.field(2))
        if self.detached is not None and not self.detached.done():
            self.detached.set_result(None)
        condition = error.condition if error else "amqp:link:detach-forced"
        self.fail(LinkRefusedError(condition, error.description if error else ""))

    def on_lost(self, reason: str) -> None:
        """Wait for the next connection: this one is gone."""
        self.attached = False
        if self.ready.done():
            if not self.ready.cancelled():
                self.ready.exception()
            self.ready = self.session.answers.loop.create_future()
        if self.detached is not None and not self.detached.done():
            self.detached.set_result(None)
        self.drop(reason)

    def drop(self, reason: str) -> None:
        """Let go of what belongs to the lost connection."""

    def fail(self, error: ClientError) -> None:
        """End the link for good; all that waits for it raises ``error``."""
        if self.failure is None:
            self.failure = error
        if not self.ready.done():
            self.ready.set_exception(error)
            self.ready.exception()

    def check(self) -> None:
        """Raise what ended the link or its connection."""
        if self.failure is not None:
            raise self.failure
        self.session.answers.check()


class Item:
    """A message that the broker has not settled yet."""

    __slots__ = ("data", "future", "in_transaction")

    def __init__(self, data: bytes, future: asyncio.Future[object], *, in_transaction: bool) -> None:
        self.data = data
        self.future = future
        self.in_transaction = in_transaction


class SenderLink(Link):
    """A link that sends. `target` is the encoded-to-be target; `resend` says whether unsettled messages are kept."""

    def __init__(self, session: Carrier, handle: int, name: str, target: object, *, resend: bool) -> None:
        super().__init__(session, handle, name)
        self.target = target
        self.resend = resend
        self.credit = 0
        self.sent = 0
        self.waiting: deque[Item] = deque()
        self.unsettled: dict[int, Item] = {}
        self.held = 0
        self.room = asyncio.Event()
        self.room.set()

    def attach(self) -> bytes:
        self.sent = self.credit = 0
        return frames.attach_sender(self.session.number, self.handle, self.name, self.target)

    def on_flow(self, frame: Frame) -> None:
        count = frame.field(5)
        base = count if isinstance(count, int) else 0
        self.credit = (base + frame.number(6) - self.sent) & _MASK
        if self.credit > 0x7FFFFFFF:
            self.credit = 0
        self.pump()

    def put(self, data: bytes, *, in_transaction: bool = False) -> asyncio.Future[object]:
        """Send a message when there is credit; the future gets the broker's outcome."""
        future: asyncio.Future[object] = self.session.answers.loop.create_future()
        self.waiting.append(Item(data, future, in_transaction=in_transaction))
        self.held += len(data)
        self.pump()
        return future

    def pump(self) -> None:
        """Send what credit allows."""
        session = self.session
        while self.waiting and self.credit > 0 and self.attached:
            if self.waiting[0].in_transaction and not session.in_transaction:
                return  # until the transaction of the new connection is declared
            item = self.waiting.popleft()
            if item.future.cancelled():
                self.release(item)
                continue
            number = self.take_number(item)
            state = session.transactional_state(None) if item.in_transaction else None
            session.transfer(self.handle, number, _tag(number), item.data, state)

    def take_number(self, item: Item) -> int:
        """Return the number of the next delivery, which uses a credit."""
        session = self.session
        number = session.next_delivery
        session.next_delivery = (number + 1) & _MASK
        self.unsettled[number] = item
        session.outgoing[number] = self
        self.credit -= 1
        self.sent = (self.sent + 1) & _MASK
        return number

    def release(self, item: Item) -> None:
        """Let go of a message that is done with: its bytes no longer count."""
        self.held -= len(item.data)
        self.room.set()

    def settle(self, number: int, state: object) -> None:
        """Take the broker's outcome of a delivery; without one it is as little confirmed as before."""
        if not isinstance(state, Described):
            return
        item = self.unsettled.pop(number, None)
        if item is None:
            return
        self.release(item)
        if item.future.done():
            return
        outcome: object = state
        if state.descriptor == frames.TRANSACTIONAL:
            fields = state.value if isinstance(state.value, list) else []
            outcome = fields[1] if len(fields) > 1 else Described(frames.ACCEPTED, [])
        code = outcome.descriptor if isinstance(outcome, Described) else None
        if code in (frames.ACCEPTED, frames.DECLARED):
            item.future.set_result(outcome)
            return
        error = frames.error_of(_first_field(outcome)) if code == frames.REJECTED else None
        text = f"{error.condition}: {error.description}" if error else f"not accepted (outcome {code})"
        item.future.set_exception(SendRefusedError(text, code if isinstance(code, int) else None))

    def drop(self, reason: str) -> None:
        items = [*self.unsettled.values(), *self.waiting]
        untouched = len(self.unsettled)
        self.unsettled.clear()
        self.waiting.clear()
        self.credit = 0
        for index, item in enumerate(items):
            if item.in_transaction:
                error: ClientError = TransactionRolledBackError(f"rolled back by a failover: {reason}")
            elif self.resend or index >= untouched:
                self.waiting.append(item)
                continue
            else:
                error = FailoverError(f"the connection failed before the message was confirmed: {reason}")
            self.release(item)
            _raise_in(item.future, error)

    def fail(self, error: ClientError) -> None:
        super().fail(error)
        for item in [*self.unsettled.values(), *self.waiting]:
            self.release(item)
            _raise_in(item.future, error)
        self.unsettled.clear()
        self.waiting.clear()
        self.room.set()


class ReceiverLink(Link):
    """A link that receives `credit` messages ahead, fewer while `window` bytes wait to be taken."""

    def __init__(self, session: Carrier, handle: int, name: str, source: object, *, credit: int, window: int) -> None:
        super().__init__(session, handle, name)
        self.source = source
        self.window = window
        self.ahead = credit if window else 0
        self.credit = 0
        self.count = 0
        self.arrived: deque[tuple[int, bytes]] = deque()
        self.waiting_bytes = 0
        self.changed = asyncio.Event()
        self._parts: list[bytes] = []
        self._number = 0

    def attach(self) -> bytes:
        self.credit = self.count = 0
        self._parts = []
        return frames.attach_receiver(self.session.number, self.handle, self.name, self.source)

    def on_ready(self, frame: Frame) -> None:
        self.count = frame.number(9)
        self.replenish(1 if self.changed_waiters() else 0)

    def changed_waiters(self) -> bool:
        """Return whether somebody waits for a message with nothing sent ahead."""
        return self.window == 0 and self.wanted > 0

    wanted = 0

    def replenish(self, least: int = 0) -> None:
        """Give credit where it is due: half of it is used, and there is room for what comes."""
        goal = max(self.ahead if self.waiting_bytes < max(self.window, 1) else 0, least)
        if self.attached and self.credit < goal and (self.credit <= goal // 2):
            self.credit = goal
            self.session.link_flow([UInt(self.handle), UInt(self.count), UInt(goal)])

    def on_transfer(self, frame: Frame) -> None:
        """Take in a frame of a message."""
        if not self._parts:
            self._number = frame.number(1)
        if frame.field(9) is True:  # aborted
            self._parts = []
            return
        if frame.field(5) is True:
            self._parts.append(frame.payload)
            return
        data = frame.payload
        if self._parts:
            data = b"".join((*self._parts, data))
            self._parts = []
        self.count = (self.count + 1) & _MASK
        self.credit -= 1
        self.arrived.append((self._number, data))
        self.waiting_bytes += len(data)
        self.changed.set()
        self.replenish()

    def take(self) -> tuple[int, bytes] | None:
        """Return the next message, with its delivery number."""
        if not self.arrived:
            return None
        number, data = self.arrived.popleft()
        self.waiting_bytes -= len(data)
        self.replenish()
        return number, data

    def drop(self, reason: str) -> None:  # noqa: ARG002  (the hook's parameter)
        self.arrived.clear()
        self.waiting_bytes = 0
        self._parts = []

    def fail(self, error: ClientError) -> None:
        super().fail(error)
        self.changed.set()


def _first_field(outcome: object) -> object:
    fields = outcome.value if isinstance(outcome, Described) else None
    return fields[0] if isinstance(fields, list) and fields else None


def _raise_in(future: asyncio.Future[object], error: ClientError) -> None:
    if not future.done():
        future.set_exception(error)
        future.exception()  # marked as seen: whoever awaits it still gets it
