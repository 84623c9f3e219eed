"""Takes messages from a queue here and sends them to the address of its name there.

A message leaves its queue when the other broker has accepted it. What it rejects is a dead letter here, and what it
gives back goes to the head of the queue, as with any other consumer.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from pollux.client import frames
from pollux.client.errors import ClientError, SendRefusedError
from pollux.client.links import Item, SenderLink
from pollux.cluster.amqp.link import Watched, capability_of
from pollux.errors import LostBodyError
from pollux.logs import event
from pollux.message import Encoding
from pollux.protocols.amqp.large import MAX_FOREIGN
from pollux.protocols.amqp.outgoing import encode, sections
from pollux.wire.amqp.codec import Described, UInt
from pollux.wire.amqp.guard import TRANSFER

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

    from pollux.client.frames import Frame
    from pollux.client.session import Session
    from pollux.engine.post_office import PostOffice
    from pollux.message import LargeBody
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.routing.selector import Selector

logger = logging.getLogger("pollux.bridge")

#: Messages that are with the other broker, and that it has not said anything of.
IN_FLIGHT = 200
#: Frames of a large message that wait for the other broker's window.
_AHEAD = 8


class _Link(Watched, SenderLink):
    """The link to the other broker. ``largest``: bytes of a message that it takes, 0 for any."""

    largest = 0

    def on_ready(self, frame: Frame) -> None:
        """Note what the other side takes."""
        self.largest = frame.number(10)

    def begin(self) -> tuple[int, asyncio.Future[object]]:
        """Start a message that is sent in pieces; there is credit. Returns its number, and what becomes of it."""
        future: asyncio.Future[object] = self.session.answers.loop.create_future()
        return self.take_number(Item(b"", future, in_transaction=False)), future


class Sender:
    """A consumer of a queue whose messages go to another broker, while the connection to it stands."""

    browsing = False
    no_local = False
    origin = 0
    priority = 0
    selector: Selector | None = None
    #: It is nobody who wants messages here, for a cluster's other nodes.
    moves_messages = True

    def __init__(self, name: str, queue: Queue, post: PostOffice, session: Session, pause: float) -> None:
        """``name``: of the link. ``pause``: seconds until what was given back is sent again."""
        self.credit = 0
        self.queue = queue
        self._post = post
        self._session = session
        self._waiting: deque[MessageReference] = deque()
        #: What is here and not settled: taken from the queue.
        self._held: dict[int, MessageReference] = {}
        #: What the other broker gave back, and whether it counts as a failed delivery; sent again after a pause.
        self._returned: list[tuple[MessageReference, bool]] = []
        self._pause = pause
        self._attached = False
        self._large: asyncio.Task[None] | None = None
        target = Described(frames.TARGET, [queue.address, *[None] * 5, capability_of(queue)])
        self.link = _Link(session, session.new_handle(), name, target, resend=False)
        self.sent = 0
        #: Why nothing goes.
        self.reason = ""

    async def run(self) -> str:
        """Send until the link is over; returns why it is. Raises what refuses it."""
        await self._session.add(self.link)
        self._post.attach(self.queue, self)
        self._attached = True
        try:
            self.more()
            return await self.link.over
        finally:
            self._detach()

    def _detach(self) -> None:
        """Take nothing any more: what the other broker has not accepted goes back."""
        if self._large is not None:
            self._large.cancel()
        if self._attached:
            self._attached = False
            self._forget()
            self._post.detach(self.queue, self)

    def queue_deleted(self, _queue: Queue) -> None:
        """Somebody deleted the queue, with what it held."""
        self._attached = False
        self._forget()
        self.link.stop("its queue is deleted")

    def _forget(self) -> None:
        self._waiting.clear()
        self._held.clear()
        self._returned.clear()

    def more(self) -> None:
        """Let the queue hand out as many as may be under way."""
        if self._attached and not self._returned:
            self.credit = max(0, IN_FLIGHT - len(self._held))
            self._post.wake(self.queue)

    # -- the queue's consumer

    def deliver(self, references: list[MessageReference]) -> None:
        """Take messages, and send them when the queue is through."""
        self.credit -= len(references)
        if not self._waiting:
            self._session.answers.loop.call_soon(self._pump)
        self._waiting.extend(references)
        self._held.update((id(each), each) for each in references)

    def _pump(self) -> None:
        while self._waiting and self._large is None and self._attached:
            reference = self._waiting.popleft()
            message = reference.message
            if message.large is not None:
                self._large = self._session.answers.loop.create_task(self._send_large(reference, message.large))
                self._large.add_done_callback(self._large_done)
                return
            data = encode(reference, self._post.wall_ms())
            if self._fits(reference, len(data)):
                self.link.put(data).add_done_callback(partial(self._settled, reference))

    def _fits(self, reference: MessageReference, size: int) -> bool:
        """Whether the other broker takes so large a message; else it is a dead letter."""
        if not self.link.largest or size <= self.link.largest:
            return True
        self._dead(reference, f"the other broker takes no message of {size} bytes, only {self.link.largest}")
        return False

    def _settled(self, reference: MessageReference, future: asyncio.Future[object]) -> None:
        """Do what the other broker said of a message."""
        error = future.exception() if not future.cancelled() else ClientError("cancelled")
        if self._held.get(id(reference)) is not reference:
            return  # it went back: the connection is gone
        if error is None:
            del self._held[id(reference)]
            self.sent += 1
            self._post.acknowledge([reference])
            self._post.when_stable(None)
            self.more()
        elif isinstance(error, SendRefusedError):
            if error.outcome == frames.REJECTED:
                self._dead(reference, str(error))
            else:
                self._returning(reference, error)
        if self._returned and not self._held:
            self._session.answers.loop.call_later(self._pause, self._give_back)

    def _returning(self, reference: MessageReference, error: SendRefusedError) -> None:
        """Keep what it may take another time. What is under way is waited for, so that nothing of it is sent twice."""
        if not self._returned:
            fields = {"queue": self.queue.name, "message": reference.message.id, "reason": error}
            event(logger, logging.INFO, "another broker gives a message back", **fields)
        del self._held[id(reference)]
        self.credit = 0
        self._returned.append((reference, error.outcome == frames.MODIFIED))

    def _give_back(self) -> None:
        """Go on after a pause with what the other broker did not want then."""
        returned, self._returned = self._returned, []
        if self._attached and returned:
            for failed in (False, True):
                self._post.release([each for each, counts in returned if counts is failed], failed=failed)
            self.more()

    def _dead(self, reference: MessageReference, reason: str) -> None:
        del self._held[id(reference)]
        fields = {"queue": self.queue.name, "message": reference.message.id, "reason": reason}
        event(logger, logging.WARNING, "another broker refuses a message", **fields)
        self._post.reject([reference])
        self.more()

    # -- large messages, in pieces

    def _large_done(self, task: asyncio.Task[None]) -> None:
        self._large = None
        if not task.cancelled() and (error := task.exception()) is not None:
            self.link.stop(f"a large message cannot be sent: {error}")
        self._pump()

    async def _send_large(self, reference: MessageReference, large: LargeBody) -> None:
        """Send a message whose body is in a file."""
        post, link = self._post, self.link
        now = post.wall_ms()
        try:
            if reference.message.encoding is not Encoding.AMQP:
                if large.size > MAX_FOREIGN:
                    self._dead(reference, f"a body of {large.size} bytes is too large to be translated to AMQP")
                    return
                whole = b"".join([piece async for piece in self._read(large)])
                data = encode(reference, now, whole)
                if self._fits(reference, len(data)):
                    link.put(data).add_done_callback(partial(self._settled, reference))
                return
            if not self._fits(reference, large.size):
                return
            head, skip = sections(reference, reference.message.data, now)
            while link.credit <= 0:
                await link.pause()
            await self._stream(reference, head, skip, large)
        except LostBodyError as error:
            event(logger, logging.ERROR, "a message cannot be read", queue=self.queue.name, reason=error)
            self._held.pop(id(reference), None)
            post.set_aside(reference, error)

    async def _read(self, large: LargeBody) -> AsyncIterator[bytes]:
        reader = self._post.storage.large.open(large)
        try:
            while chunk := await reader.read():
                yield chunk
        finally:
            reader.close()

    async def _stream(self, reference: MessageReference, head: bytes, skip: int, large: LargeBody) -> None:
        """Send ``head``, and what follows the first ``skip`` bytes of the body. Raises LostBodyError."""
        link, session = self.link, self._session
        stream = session.stream
        if stream is None:
            return
        room, pending, number = stream.max_frame - 128, head, -1
        fields: list[object] = []
        try:
            async for chunk in self._read(large):
                if number < 0:  # the file is there
                    number, future = link.begin()
                    future.add_done_callback(partial(self._settled, reference))
                    fields = [UInt(link.handle), UInt(number), number.to_bytes(4, "big"), UInt(0), False]
                pending += chunk[skip:]
                skip = max(skip - len(chunk), 0)
                while len(pending) > room:
                    fields = self._piece([*fields, True], pending[:room])
                    pending = pending[room:]
                    while session.held_back > _AHEAD:
                        await link.pause()
                await stream.writable.wait()
        except LostBodyError:
            if number >= 0:
                link.unsettled.pop(number, None)
                self._piece([*fields, False, None, None, None, True], b"")  # aborted (2.7.5)
            raise
        self._piece([*fields, False], pending)

    def _piece(self, fields: list[object], data: bytes) -> list[object]:
        """Send a frame; returns how the next one begins."""
        session = self._session
        session.piece(frames.frame(TRANSFER, fields, session.number, data))
        return [UInt(self.link.handle), None, None, None, None]

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        return {"inFlight": len(self._held), "messages": self.sent}
