"""The way out to one MQTT client, in order: packets as they come, and large messages in chunks between them.

Normally :meth:`Outlet.send` writes through. While a job (a large message read from its file) writes its packet, what
comes after waits here, because nothing may come between the bytes of a packet. The one asyncio task of a session.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from pollux.errors import StoreError
from pollux.logs import event, failure
from pollux.protocols.mqtt.phases import WAY, Way
from pollux.transitions import follow

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pollux.engine.post_office import PostOffice
    from pollux.protocols.base import Transport

    Job = Callable[["Outlet"], Awaitable[None]]

logger = logging.getLogger("pollux.mqtt")

THROUGH, STREAMING, STOPPED = Way
#: Bytes that may wait behind a large message; deliveries stop meanwhile, these are answers to the client.
MAX_HELD = 8 * 1024 * 1024


class Outlet:
    """Writes packets and large messages to one client. All methods are called in the loop's thread."""

    __slots__ = ("_held", "_idle", "_post", "_queue", "_room", "_stable", "_task", "_transport", "phase")

    def __init__(self, transport: Transport, post: PostOffice) -> None:
        self._transport = transport
        self._post = post
        #: What waits until what it tells of is durable.
        self._stable: deque[list[bytes | Job]] = deque()
        self._queue: deque[bytes | Job] = deque()
        self._held = 0
        self._task: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._idle: Callable[[], None] | None = None
        #: While it is not THROUGH, nothing more is to be delivered.
        self.phase = THROUGH

    def on_idle(self, callback: Callable[[], None]) -> None:
        """Call back whenever the last large message is through."""
        self._idle = callback

    def send(self, data: bytes) -> None:
        """Write whole packets, or keep them while a large message is on its way."""
        if self.phase is THROUGH:
            self._transport.write(data)
            return
        if self.phase is STOPPED:
            return
        self._queue.append(data)
        self._held += len(data)
        if self._held > MAX_HELD:
            logger.warning("an MQTT client asks for more than it reads: disconnected")
            self.stop()
            self._transport.abort()

    def run(self, job: Job) -> None:
        """Let ``job`` write one packet with :meth:`chunk`, after everything sent before."""
        if self.phase is STOPPED:
            return
        self._queue.append(job)
        if self.phase is THROUGH:
            self.phase = follow(WAY, self.phase, STREAMING)
            self._task = self._transport.loop.create_task(self._work())

    def when_stable(self, items: list[bytes | Job]) -> None:
        """Send packets and run jobs as soon as everything that was done so far is durable."""
        self._stable.append(items)
        self._post.when_stable(self._stable_now)

    def _stable_now(self, error: Exception | None) -> None:
        items = self._stable.popleft()
        for item in items if error is None else ():
            if isinstance(item, bytes):
                self.send(item)
            else:
                self.run(item)

    async def chunk(self, data: bytes) -> None:
        """Write a part of the job's packet; wait while the client does not keep up."""
        await self._room.wait()
        if self.phase is not STOPPED:
            self._transport.write(data)

    def pause(self) -> None:
        """Hold a large message up: the client's socket is full."""
        self._room.clear()

    def resume(self) -> None:
        """Let a large message go on: the client's socket takes bytes again."""
        self._room.set()

    def stop(self) -> None:
        """Send nothing more: the connection is gone."""
        if self.phase is STOPPED:
            return
        self.phase = follow(WAY, self.phase, STOPPED)
        self._queue.clear()
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def _work(self) -> None:
        try:
            while self._queue:
                item = self._queue.popleft()
                if isinstance(item, bytes):
                    self._held -= len(item)
                    await self.chunk(item)
                else:
                    await item(self)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            # The packet was begun and cannot be finished: the stream is of no use any more.
            tell = event if isinstance(error, StoreError) else failure
            connection = self._transport.peer.connection_id
            tell(logger, logging.WARNING, "a large message broke off", connection=connection, reason=str(error))
            self.stop()
            self._transport.abort()
            return
        if self.phase is STOPPED:  # by what the last job caused
            return
        self.phase = follow(WAY, self.phase, THROUGH)
        self._task = None
        if self._idle is not None:
            self._idle()
