"""Sessions, and the links of their producers and consumers, that live through failovers.

What a failover does to each: a producer's unconfirmed messages are sent again, in order, under the duplicate ids they
had; messages a consumer holds come again, marked as redelivered; a transaction with anything in it becomes
rollback-only; calls that wait for an answer raise :class:`FailoverError`.
"""

from __future__ import annotations

import uuid
from collections import deque
from typing import TYPE_CHECKING, Self

from pollux.client import frames
from pollux.client.consumer import Consumer
from pollux.client.errors import ClientError, FailoverError
from pollux.client.links import Link, ReceiverLink, SenderLink
from pollux.client.producer import Producer
from pollux.client.transactions import Transactions
from pollux.wire.amqp.codec import Array, Described, Symbol
from pollux.wire.amqp.guard import ATTACH, BEGIN, DETACH, DISPOSITION, END, FLOW, TRANSFER

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pollux.client.amqp import AmqpStream
    from pollux.client.answers import Answers
    from pollux.client.frames import Frame

_MASK = 0xFFFFFFFF


class Session:
    """A session of a connection, with its links. Made by :meth:`Connection.session`; ``over`` is called at its end."""

    def __init__(self, answers: Answers, number: int, *, transacted: bool, over: Callable[[Session], None]) -> None:
        self.answers = answers
        self.number = number
        self._over = over
        self.transacted = transacted
        self.stream: AmqpStream | None = None
        #: Grows with each connection: deliveries of an earlier one cannot be settled.
        self.generation = 0
        self.links: dict[int, Link] = {}
        self.outgoing: dict[int, SenderLink] = {}
        self.next_delivery = 0
        self.closed = False
        self._next_handle = 0
        self._next_outgoing = 0
        self._next_incoming = 0
        self._window = 0
        self._frames: deque[bytes] = deque()
        #: The broker's handles -> ours.
        self._handles: dict[int, int] = {}
        self._begun: asyncio.Future[None] | None = None
        self._transactions: Transactions | None = None

    # -- what users call

    async def producer(self, address: str, *, capability: str | None = "queue") -> Producer:
        """Return a producer. `capability`: `queue` (ANYCAST), `topic` (MULTICAST) or None (the broker decides)."""
        target = Described(frames.TARGET, [address, *[None] * 5, _capabilities(capability)])
        # Whether unconfirmed messages are kept and sent again.
        resend = self.answers.options.confirmation_window_size >= 0
        link = SenderLink(self, self.new_handle(), _name("producer"), target, resend=resend)
        await self.add(link)
        return Producer(self, link, address)

    async def consumer(
        self, address: str, *, credit: int = 100, capability: str | None = "queue", selector: str | None = None
    ) -> Consumer:
        """Return a consumer of an address or of a queue of it (`address::queue`). `credit` messages are sent ahead."""
        if not 1 <= credit <= 1_000_000:
            raise ValueError(f"credit {credit} is out of range: allowed is 1 to 1000000")
        filters: object = None
        if selector is not None:
            name = Symbol("apache.org:selector-filter:string")
            filters = {Symbol("jms-selector"): Described(name, selector)}
        source = Described(frames.SOURCE, [address, *[None] * 6, filters, None, None, _capabilities(capability)])
        window = self.answers.options.consumer_window_size
        link = ReceiverLink(self, self.new_handle(), _name("consumer"), source, credit=credit, window=window)
        await self.add(link)
        return Consumer(self, link, address)

    async def commit(self) -> None:
        """Make everything since the last commit happen.

        Raises TransactionRolledBackError (none of it did) or TransactionInDoubtError (all of it, or nothing).
        """
        await self._transacted().commit()

    async def rollback(self) -> None:
        """Undo everything since the last commit; what was received comes again."""
        await self._transacted().rollback()

    async def close(self) -> None:
        """End the session with its producers and consumers."""
        if self.closed:
            return
        self.closed = True
        stream = self.stream
        self._over(self)
        if stream is not None:
            stream.send(frames.end(self.number))
        self._end(FailoverError("the session was closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # -- connections come and go

    async def establish(self, stream: AmqpStream) -> None:
        """Start over a new connection and attach everything again. Raises FailoverError when it is lost meanwhile."""
        self.stream = stream
        self.generation += 1
        self.next_delivery = self._next_outgoing = self._window = 0
        self._frames.clear()
        self.outgoing.clear()
        self._handles.clear()
        self._begun = self.answers.loop.create_future()
        stream.channels[self.number] = self
        stream.send(frames.begin(self.number))
        links = [link for link in self.links.values() if link.failure is None]
        for link in links:
            stream.send(link.attach())
        await self._begun
        for link in links:
            try:
                await link.ready
            except FailoverError:
                raise
            except ClientError:
                continue  # refused by this broker: the link's user is told, the others go on
            if stream.reason is not None:
                raise FailoverError(stream.reason)
        if self._transactions is not None:
            await self._transactions.declare()

    def on_lost(self, reason: str) -> None:
        """Wait for the next connection: this one is gone."""
        if self.stream is None:
            return
        self.stream = None
        error = FailoverError(f"the connection failed during the call: {reason}")
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(error)
            self._begun.exception()
        if self._transactions is not None:
            self._transactions.undone(f"the connection failed ({reason})")
        self.outgoing.clear()
        self._frames.clear()
        for link in list(self.links.values()):
            if not link.ready.done():
                link.ready.set_exception(error)
            link.on_lost(reason)

    def fail(self, error: ClientError) -> None:
        """End the session: the connection is over for good."""
        self.stream = None
        self.closed = True
        self._end(error)

    def _end(self, error: ClientError) -> None:
        if self._begun is not None and not self._begun.done():
            self._begun.set_exception(error)
            self._begun.exception()
        for link in list(self.links.values()):
            link.fail(error)
        self.links.clear()

    # -- frames

    def on_frame(self, frame: Frame) -> None:
        """Hand a frame on to the link it is for."""
        code = frame.code
        if code == DISPOSITION:
            self._on_disposition(frame)
        elif code == TRANSFER:
            self._next_incoming = (self._next_incoming + 1) & _MASK
            link = self._link(frame.number(0))
            if isinstance(link, ReceiverLink):
                link.on_transfer(frame)
        elif code == FLOW:
            self._on_flow(frame)
        elif code == BEGIN:
            self._next_incoming = frame.number(1)
            self._window = frame.number(2)
            if self._begun is not None and not self._begun.done():
                self._begun.set_result(None)
        elif code == ATTACH:
            named = next((link for link in self.links.values() if link.name == frame.field(0)), None)
            if named is not None:
                self._handles[frame.number(1)] = named.handle
                named.on_attach(frame)
        elif code == DETACH:
            found = self._link(frame.number(0))
            if found is not None:
                if found.detached is None and self.stream is not None:
                    self.stream.send(frames.detach(self.number, found.handle))
                found.on_detach(frame)
                self.links.pop(found.handle, None)
        elif code == END:
            error = frames.error_of(frame.field(0))
            if self.stream is not None:
                self.stream.send(frames.end(self.number))
            reason = f"{error.condition}: {error.description}" if error else "the broker ended the session"
            self.closed = True
            self._over(self)
            self._end(FailoverError(reason))

    def _link(self, handle: int) -> Link | None:
        """Return a link by the broker's handle."""
        return self.links.get(self._handles.get(handle, -1))

    def _on_flow(self, frame: Frame) -> None:
        expected = frame.field(0)
        seen = expected if isinstance(expected, int) else 0
        self._window = (seen + frame.number(1) - self._next_outgoing) & _MASK
        if self._window > 0x7FFFFFFF:
            self._window = 0
        self._drain()
        if frame.field(4) is not None:
            link = self._link(frame.number(4))
            if link is not None:
                link.on_flow(frame)
        if frame.field(9) is True:  # echo
            self.link_flow([])

    def _on_disposition(self, frame: Frame) -> None:
        if frame.field(0) is not True:
            return  # the broker as sender: it settles what we settled already
        first = frame.number(1)
        state = frame.field(4)
        for number in range(first, frame.number(2, first) + 1):
            link = self.outgoing.pop(number, None)
            if link is not None:
                link.settle(number, state)

    def transfer(self, handle: int, number: int, tag: bytes, data: bytes, state: object) -> None:
        """Send one message; its frames wait where the broker's window is full."""
        if self.stream is None:
            return
        self._frames.extend(frames.transfers(self.number, handle, number, tag, data, state, self.stream.max_frame))
        self._drain()

    @property
    def held_back(self) -> int:
        """How many frames wait for the broker's window."""
        return len(self._frames)

    def piece(self, frame: bytes) -> None:
        """Send a frame of a message that is sent in pieces; it waits as others do."""
        self._frames.append(frame)
        self._drain()

    def _drain(self) -> None:
        stream = self.stream
        while self._frames and self._window > 0 and stream is not None:
            stream.send(self._frames.popleft())
            self._window -= 1
            self._next_outgoing = (self._next_outgoing + 1) & _MASK

    def link_flow(self, link: list[object]) -> None:
        """Send a flow with our side of the windows."""
        if self.stream is not None:
            self.stream.send(frames.session_flow(self.number, self._next_incoming, self._next_outgoing, link))

    # -- transactions

    async def start(self) -> None:
        """Attach the coordinator of a transacted session."""
        if not self.transacted:
            return
        target = Described(frames.COORDINATOR, [Array([Symbol("amqp:local-transactions")])])
        link = SenderLink(self, self.new_handle(), _name("transactions"), target, resend=False)
        self._transactions = Transactions(link, self._pump)
        await self.add(link)
        if not self._transactions.is_open:
            await self._transactions.declare()

    def _pump(self) -> None:
        """Send what waited for a transaction."""
        for link in self.links.values():
            if isinstance(link, SenderLink):
                link.pump()

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction is open over the connection there is."""
        return self._transactions is not None and self._transactions.is_open

    def begin_send(self) -> None:
        """Raise when the transaction is rollback-only."""
        if self._transactions is not None:
            self._transactions.check()

    def add_send(self, future: asyncio.Future[object]) -> None:
        """Add a send to the transaction, where there are any."""
        if self._transactions is not None:
            self._transactions.add(future)

    def transactional_state(self, outcome: object) -> object:
        """Return the delivery state of something done: `outcome` itself without transactions."""
        return outcome if self._transactions is None else self._transactions.state(outcome)

    def _transacted(self) -> Transactions:
        if self._transactions is None:
            raise ClientError("the session is not transacted: open it with transacted=True")
        self.answers.check()
        return self._transactions

    # -- links

    def new_handle(self) -> int:
        """Return a handle for a link of this session."""
        handle = self._next_handle
        self._next_handle += 1
        return handle

    async def add(self, link: Link) -> None:
        """Attach a link. Raises LinkRefusedError, or what ended the connection."""
        await self.answers.wait_until_ready()
        if self.closed:
            raise ClientError("the session is closed")
        self.links[link.handle] = link
        if self.stream is not None:
            self.stream.send(link.attach())
        try:
            await self.answers.answer(link.ready)
        except BaseException:
            self.links.pop(link.handle, None)
            raise

    async def remove(self, link: Link) -> None:
        """Detach a link and wait for the broker's answer."""
        if link.failure is not None or link.handle not in self.links:
            return
        if self.stream is not None and link.attached:
            link.detached = self.answers.loop.create_future()
            self.stream.send(frames.detach(self.number, link.handle))
            await self.answers.answer(link.detached)
        self.links.pop(link.handle, None)
        link.fail(ClientError("it was closed"))


def _name(kind: str) -> str:
    return f"{kind}-{uuid.uuid4()}"


def _capabilities(name: str | None) -> object:
    return None if name is None else Array([Symbol(name)])
