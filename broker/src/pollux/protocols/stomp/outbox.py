"""Send to the client in order: whole frames at once, large messages in pieces.

While a large message is on its way nothing may come between its pieces, so everything else waits
behind it here; deliveries stop meanwhile, so what waits is only what the client asked for.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from pollux.errors import LostBodyError, PolluxError, StoreError
from pollux.logs import event, failure
from pollux.message import Encoding, Message
from pollux.wire.decoders import content_of
from pollux.wire.stomp.encoder import NUL

if TYPE_CHECKING:
    from pollux.protocols.stomp.conversation import Conversation
    from pollux.protocols.stomp.deliveries import Consuming
    from pollux.protocols.stomp.subscription import Subscription
    from pollux.routing.reference import MessageReference
    from pollux.store.large import LargeReader

#: A large message of another protocol is decoded as a whole; beyond this it is not delivered (bytes).
MAX_FOREIGN: Final = 64 << 20

logger = logging.getLogger("pollux.stomp")


class _BrokeOffError(Exception):
    """A body could not be read to its end, in the middle of a frame."""


class Outbox:
    """Hold what waits behind a large message, and send it. ``busy`` while one is on its way."""

    __slots__ = ("_consuming", "_session", "_task", "_waiting", "_writable", "busy", "waiting_bytes")

    def __init__(self, session: Conversation, consuming: Consuming) -> None:
        self._session = session
        self._consuming = consuming
        self._waiting: deque[bytes | tuple[Subscription, MessageReference]] = deque()
        self._writable = asyncio.Event()
        self._writable.set()
        self._task: asyncio.Task[None] | None = None
        self.busy = False
        self.waiting_bytes = 0

    def add(self, data: bytes) -> None:
        """Bytes that wait for the large message to be through."""
        self._waiting.append(data)
        self.waiting_bytes += len(data)

    def add_large(self, subscription: Subscription, reference: MessageReference) -> None:
        """A large message, sent in its turn."""
        self._waiting.append((subscription, reference))
        if not self.busy:
            self.busy = True
            self._task = self._session.loop.create_task(self._run())

    def pause(self) -> None:
        """The client does not keep up."""
        self._writable.clear()

    def resume(self) -> None:
        """The client keeps up again."""
        self._writable.set()

    def close(self) -> None:
        """The connection is gone."""
        self._waiting.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _run(self) -> None:
        """Send what waits until nothing does."""
        session = self._session
        try:
            while self._waiting:
                item = self._waiting.popleft()
                if isinstance(item, bytes):
                    self.waiting_bytes -= len(item)
                    session.write_now(item)
                else:
                    await self._send(*item)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            tell = event if isinstance(error, _BrokeOffError) else failure
            tell(logger, logging.WARNING, "a large message broke off", connection=session.origin, reason=str(error))
            session.transport.abort()
        else:
            self.busy = False
            self._task = None
            session.outbox_empty()

    async def _send(self, subscription: Subscription, reference: MessageReference) -> None:
        message = reference.message
        large = message.large
        if large is None:
            return
        reader = self._session.post.storage.large.open(large)
        try:
            if message.encoding is Encoding.STOMP:
                await self._send_stored(subscription, reference, reader)
            else:
                await self._send_decoded(subscription, reference, reader)
        except LostBodyError as error:
            self._consuming.lost(subscription, reference, error)
        except PolluxError as error:
            # Nothing of it was written: the next attempt, or its dead letter address, may do better.
            event(
                logger,
                logging.WARNING,
                "a large message could not be read",
                message=message.id,
                queue=reference.queue.name,
                reason=str(error),
            )
            self._consuming.failed(subscription, reference)
        else:
            self._consuming.sent_large(subscription, reference)
        finally:
            reader.close()

    async def _send_stored(self, subscription: Subscription, reference: MessageReference, reader: LargeReader) -> None:
        """A STOMP message: its head is known, its body is the rest of the file."""
        message = reference.message
        delivery = subscription.delivery
        head_size = message.data.find(b"\n\n") + 2
        head = message.data[:head_size]
        chunk = await reader.read()
        if len(chunk) < head_size:
            raise StoreError(f"the file of large message {message.id} does not hold its headers")
        session = self._session
        opening = subscription.opening(reference)
        if message.annotations is None:
            lines = delivery.stored_head(head)
        else:
            destination = self._consuming.destination_of(subscription, message)
            lines = delivery.foreign(message, content_of(message), destination, reader.size - head_size)
        session.write_now(opening + lines + chunk[head_size:])
        try:
            while chunk := await reader.read():
                await self._writable.wait()
                session.write_now(chunk)
        except StoreError as error:
            raise _BrokeOffError(str(error)) from error
        session.write_now(NUL)

    async def _send_decoded(self, subscription: Subscription, reference: MessageReference, reader: LargeReader) -> None:
        """Of another protocol: decoded as a whole, because only its codec knows where its body is."""
        message = reference.message
        if reader.size > MAX_FOREIGN:
            raise StoreError(f"{reader.size} bytes of {message.encoding.name} are too many to be re-encoded as STOMP")
        data = bytearray()
        while chunk := await reader.read():
            data += chunk
        whole = Message(
            message.encoding,
            message.address,
            bytes(data),
            durable=message.durable,
            priority=message.priority,
            expiration=message.expiration,
            timestamp=message.timestamp,
        )
        whole.id = message.id
        whole.annotations = message.annotations
        del data
        await self._writable.wait()
        self._session.write_now(self._consuming.encode_foreign(subscription, reference, whole, content_of(whole)))
