"""Large messages: through a file in both directions, a chunk at a time, never whole in memory.

The file holds the complete encoded message; ``Message.data`` holds its head, all sections before
the body. Inbound, the client is held back while the disk is behind; outbound, reading stops while
the client's session window or its network is full.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pollux.errors import LimitError, LostBodyError, PolluxError, StoreError
from pollux.message import Encoding
from pollux.protocols.amqp.outgoing import encode, sections
from pollux.wire.amqp.codec import DecodeError
from pollux.wire.amqp.proton import Pointer, lib
from pollux.wire.amqp.sections import walk

if TYPE_CHECKING:
    from pollux.message import LargeBody
    from pollux.protocols.amqp.connection import Connection
    from pollux.protocols.amqp.consumer import Consumer
    from pollux.routing.reference import MessageReference
    from pollux.store.large import LargeReader, LargeWriter

#: Bytes ahead of the client at which reading the file pauses.
_AHEAD = 256 << 10
#: A large message of another protocol is translated in memory; a larger one is a dead letter for AMQP clients.
MAX_FOREIGN = 16 << 20
#: Least bytes of the message kept in memory.
_HEAD = 4096


class LargeReceiver:
    """One message on its way from a client to its file. ``error`` is why it cannot be taken; the rest is dropped."""

    __slots__ = ("_head", "_head_limit", "_reading", "_writer", "error")

    def __init__(self, session: Connection) -> None:
        self._reading = session.reading
        #: As many bytes as a message may have before it is large: sections before the body must lie in them.
        self._head_limit = max(session.settings.min_large, _HEAD)
        self._head = b""
        self._writer: LargeWriter | None = session.post.storage.large.create()
        self.error: PolluxError | None = None

    def write(self, data: bytes) -> None:
        """Take the next bytes."""
        writer = self._writer
        if writer is None or not data:
            return
        if len(self._head) < self._head_limit:
            self._head += data[: self._head_limit - len(self._head)]
        try:
            writer.write(data)
        except StoreError as error:
            self._fail(error)
            return
        if writer.full and self not in self._reading.holders:
            self._reading.hold(self)
            writer.on_drain(self._drained)

    def _drained(self) -> None:
        self._reading.release(self)

    def _fail(self, error: PolluxError) -> None:
        self.error = error
        self.abort()

    def head(self) -> bytes:
        """Return the sections before the body, and some of it. Raises DecodeError or LimitError."""
        where = walk(self._head, partial=True)
        if not where.complete or where.body >= len(self._head):
            self._fail(LimitError(f"a large message has more than {self._head_limit} bytes before its body"))
        if self.error is not None:
            raise self.error
        return self._head[: max(_HEAD, where.body + 16)]

    def finish(self, *, durable: bool) -> LargeBody:
        """Return the body of the complete message. Raises StoreError."""
        writer, self._writer = self._writer, None
        if writer is None:
            raise self.error or StoreError("the large message was aborted")
        self._drained()
        try:
            return writer.finish(durable=durable)
        except StoreError:
            writer.abort()
            raise

    def abort(self) -> None:
        """Drop the message and its file."""
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.abort()
        self._drained()


class LargeSender:
    """One large message on its way to a client; ``waiting`` is what comes behind it on the link."""

    __slots__ = ("_consumer", "_reference", "_room", "_task", "waiting")

    def __init__(self, consumer: Consumer, reference: MessageReference, waiting: list[MessageReference]) -> None:
        self._consumer = consumer
        self._reference = reference
        self._room = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.waiting = waiting

    @property
    def references(self) -> list[MessageReference]:
        """All that is not sent yet."""
        return [self._reference, *self.waiting]

    def start(self) -> None:
        """Read and send in a task of its own."""
        self._task = self._consumer.session.transport.loop.create_task(self._run())

    def stop(self) -> None:
        """Send no more: the link is over."""
        if self._task is not None:
            self._task.cancel()

    def wake(self) -> None:
        """Look again for room."""
        self._room.set()

    async def _run(self) -> None:
        consumer = self._consumer
        try:
            delivery = await self._send()
        except LostBodyError as error:
            consumer.large_lost(self._reference, error, self.waiting)
            return
        except (StoreError, DecodeError) as error:
            consumer.large_failed(self._reference, error)
            return
        consumer.large_sent(delivery, self._reference, self.waiting)

    async def _send(self) -> Pointer | None:
        consumer = self._consumer
        session = consumer.session
        message = self._reference.message
        large = message.large
        if large is None:
            return None
        await self._wait_for_room()
        if message.encoding is not Encoding.AMQP:
            data = await self._translated(large)
            if data is None:
                return None
            delivery = consumer.start_delivery()
            consumer.add_bytes(data)
            return delivery
        head, skip = sections(self._reference, message.data, session.services.wall_ms())
        reader = session.post.storage.large.open(large)
        try:
            chunk = await reader.read()  # before anything is sent: the file may not be there
            delivery = consumer.start_delivery()
            consumer.add_bytes(head)
            while chunk:
                if skip < len(chunk):
                    consumer.add_bytes(chunk[skip:] if skip else chunk)
                skip = max(skip - len(chunk), 0)
                session.flush()
                await self._wait_for_room()
                chunk = await self._next(reader)
        finally:
            reader.close()
        return delivery

    @staticmethod
    async def _next(reader: LargeReader) -> bytes:
        """Return the next bytes of a delivery that was begun: it cannot be taken back as if nothing had been sent."""
        try:
            return await reader.read()
        except LostBodyError as error:
            raise StoreError(str(error)) from error

    async def _wait_for_room(self) -> None:
        """Wait while the client's session window or its network is full."""
        consumer = self._consumer
        session = consumer.session
        while consumer.buffered() > _AHEAD or session.paused:
            self._room.clear()
            session.backlogged.add(consumer)
            await self._room.wait()

    async def _translated(self, large: LargeBody) -> bytes | None:
        """Return a large message of another protocol as AMQP, None when it is too large to be translated."""
        if large.size > MAX_FOREIGN:
            return None
        reader = self._consumer.session.post.storage.large.open(large)
        try:
            data = b"".join([chunk async for chunk in reader])
        finally:
            reader.close()
        return encode(self._reference, self._consumer.session.services.wall_ms(), data)


def discard_delivery(delivery: Pointer) -> None:
    """Give up a delivery that was begun."""
    lib.pn_delivery_abort(delivery)
