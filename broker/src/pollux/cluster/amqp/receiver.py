"""Fetches messages from an address there into the queue of its name here.

The other broker is told that a message was accepted when it is on disk here, and not before. While there is no room it
waits, and so does all that is behind it. A message that the queue here will never take goes back as undeliverable here:
the other broker gives it to somebody else or makes a dead letter of it, and what is behind it comes.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

from pollux.client import frames
from pollux.client.links import ReceiverLink
from pollux.cluster.amqp.link import Watched, capability_of
from pollux.errors import PolluxError, SendError
from pollux.logs import event
from pollux.message import Encoding, Message
from pollux.wire.amqp.codec import DecodeError, Described, UByte, UInt, ULong
from pollux.wire.amqp.guard import ATTACH
from pollux.wire.amqp.sections import inspect, walk

if TYPE_CHECKING:
    from pollux.client.frames import Frame
    from pollux.client.session import Session
    from pollux.engine.post_office import PostOffice
    from pollux.routing.queue import Queue

logger = logging.getLogger("pollux.bridge")

#: Messages, and bytes of them, that the other broker may send before they are stored here.
AHEAD, WINDOW = 200, 1 << 20
#: Bytes of a message: it is in memory until it is whole.
LARGEST = 100 << 20
#: Bytes from which a message is stored in a file of its own, and what of it stays in memory.
_LARGE, _HEAD = 100 << 10, 4096
#: Seconds until a message is tried again that there is no place for.
_AGAIN = 1.0
#: What is said of a message that is for somebody else: delivery-failed, undeliverable-here.
_NOT_HERE = Described(frames.MODIFIED, [True, True])


class _NotHereError(Exception):
    """The queue will never take this message."""


class _Link(Watched, ReceiverLink):
    """The link from the other broker."""

    _size = 0

    def attach(self) -> bytes:
        """Return the attach frame, which says how large messages may be."""
        super().attach()
        settle: list[object] = [UByte(0), UByte(0)]
        target = Described(frames.TARGET, [self.name])
        fields = [self.name, UInt(self.handle), True, *settle, self.source, target, None, None, None, ULong(LARGEST)]
        return frames.frame(ATTACH, fields, self.session.number)

    def on_transfer(self, frame: Frame) -> None:
        """Take in a frame, unless it is of a message that no broker should have sent."""
        self._size = self._size + len(frame.payload) if self._parts else len(frame.payload)
        if self._size > LARGEST:
            self.stop(f"a message of more than {LARGEST} bytes came, which is larger than was agreed")
            return
        super().on_transfer(frame)


class Receiver:
    """Fetches into one queue, while the connection stands."""

    def __init__(self, name: str, queue: Queue, post: PostOffice, session: Session, pause: float) -> None:  # noqa: ARG002  (as a Sender)
        """``name``: of the link."""
        self.queue = queue
        #: Why nothing is taken.
        self.reason = ""
        self._post = post
        self._session = session
        source = Described(frames.SOURCE, [queue.address, *[None] * 9, capability_of(queue)])
        self.link = _Link(session, session.new_handle(), name, source, credit=AHEAD, window=WINDOW)
        self.taken = 0
        #: Messages that went back because the queue would never take them.
        self.returned = 0
        self._unconfirmed = 0

    async def run(self) -> str:
        """Fetch until the link is over; returns why it is. Raises what refuses it."""
        link = self.link
        await self._session.add(link)
        while not link.over.done():
            link.changed.clear()
            while not link.over.done() and (taken := link.take()) is not None:
                await self._store(*taken)
            if not link.arrived:
                changed = asyncio.ensure_future(link.changed.wait())
                await asyncio.wait((changed, link.over), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
        return link.over.result()

    def queue_deleted(self, _queue: Queue) -> None:
        """Somebody deleted the queue."""
        self.link.stop("its queue is deleted")

    async def _store(self, number: int, data: bytes) -> None:
        """Store a message, as soon as there is room for it."""
        where = f"{self.queue.address}::{self.queue.name}"
        while not self.link.over.done():
            try:
                if self._post.writable(where):
                    self._receive(where, data)
                    break
                self.reason = f"{self.queue.address!r} takes no messages now"
            except DecodeError as error:
                self._refuse(number, str(error))
                return
            except _NotHereError as error:
                self._give_back(number, str(error))
                return
            except PolluxError as error:
                self.reason = str(error)
            await asyncio.sleep(_AGAIN)
        else:
            return
        self.reason = ""
        self.taken += 1
        self._unconfirmed += 1
        self._post.when_stable(partial(self._confirm, number))

    def _receive(self, where: str, data: bytes) -> None:
        """Send a message to the queue.

        Raises DecodeError, _NotHereError, or PolluxError: there is no place for it now.
        """
        post = self._post
        inspected = inspect(data)
        now = post.wall_ms()
        message = Message(
            Encoding.AMQP,
            where,
            inspected.data,
            durable=inspected.durable,
            priority=inspected.priority,
            expiration=now + inspected.ttl if inspected.ttl else inspected.absolute_expiry,
            timestamp=inspected.creation_time or now,
            deliver_at=inspected.deliver_at or (now + inspected.deliver_delay if inspected.deliver_delay else 0),
            group=inspected.group,
            group_sequence=inspected.group_sequence,
            last_value=inspected.last_value,
            duplicate_id=inspected.duplicate_id,
            routing_type=self.queue.routing_type,
        )
        self._require_taker(message)
        body = inspected.data
        if len(body) > _LARGE and walk(body).body < _LARGE:
            writer = post.storage.large.create()
            try:
                writer.write(body)
                message.large = writer.finish(durable=message.durable)
            except PolluxError:
                writer.abort()
                raise
            message.data = body[: max(_HEAD, walk(body).body + 16)]
            message.size += len(message.data) - len(body)
        kept = False
        tx = post.storage.next_id()
        try:
            kept = post.receive(message, tx)
        finally:
            if not kept and message.large is not None:
                post.storage.large.delete(message.large.id)
        post.storage.append_commit(tx)

    def _require_taker(self, message: Message) -> None:
        """Raise _NotHereError or SendError unless the queue takes it: it would be accepted, and in no queue."""
        queue = self.queue
        if queue.selector is not None and not queue.selector.matches(message):
            raise _NotHereError(f"the filter of queue {queue.name!r} does not select it")
        if not self._post.reachable(message):
            raise SendError(f"queue {queue.name!r} takes no messages now: it is disabled, or purged without consumers")

    def _confirm(self, number: int, error: Exception | None) -> None:
        """Tell the other broker that a message is here."""
        self._unconfirmed -= 1
        if error is None:
            self._settle(number, Described(frames.ACCEPTED, []))

    def _refuse(self, number: int, reason: str) -> None:
        event(logger, logging.WARNING, "another broker sent what is no message", queue=self.queue.name, reason=reason)
        self._settle(number, Described(frames.REJECTED, []))

    def _give_back(self, number: int, reason: str) -> None:
        if not self.returned:
            fields = {"queue": self.queue.name, "reason": reason}
            event(logger, logging.WARNING, "a message of another broker is not for the queue here", **fields)
        self.returned += 1
        self.reason = ""
        self._settle(number, _NOT_HERE)

    def _settle(self, number: int, state: Described) -> None:
        stream = self._session.stream
        if stream is not None and not self.link.over.done():
            stream.send(frames.disposition(self._session.number, number, state))

    def describe(self) -> dict[str, Any]:
        """Return what management shows."""
        return {"inFlight": self._unconfirmed, "messages": self.taken, "returned": self.returned}
