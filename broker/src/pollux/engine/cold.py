"""Messages that are only on disk after a restart: read when a queue's consumers get to them.

A queue names the ids it needs next (:meth:`Queue.wanted`); they are read by the store in its own thread and
enter the queue in their old order. Browsers look at messages further back without bringing them in.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from pollux.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from pollux.engine.accounts import Accounts
    from pollux.message import Message
    from pollux.routing.consumer import Consumer
    from pollux.routing.queue import Queue

log = logging.getLogger("pollux.cold")

#: Messages read in one go.
BATCH = 1000
#: Seconds until a read that failed is tried again.
_RETRY = 1.0


class ColdMessages:
    """Reads what queues and their browsers need next. ``read`` gives messages by id, ``ready`` gets each queue then."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        accounts: Accounts,
        read: Callable[[list[int]], Awaitable[list[Message | None]]],
        ready: Callable[[Queue], None],
    ) -> None:
        self._loop = loop
        self._accounts = accounts
        self._read_messages = read
        self._ready = ready
        self._reading: dict[Queue, asyncio.Task[None]] = {}
        self._looking: set[asyncio.Task[None]] = set()

    def tasks(self) -> Iterable[asyncio.Task[None]]:
        """Return the reads under way."""
        return [*self._reading.values(), *self._looking]

    def feed(self, queue: Queue) -> None:
        """Read what the queue and its browsers need next."""
        if queue not in self._reading:
            ids = queue.wanted(BATCH)
            if ids:
                self._reading[queue] = self._loop.create_task(self._read(queue, ids))
        for consumer, ids in queue.looks(BATCH):
            task = self._loop.create_task(self._show(queue, consumer, ids))
            self._looking.add(task)
            task.add_done_callback(self._looking.discard)

    async def _read(self, queue: Queue, ids: list[int]) -> None:
        try:
            messages = await self._messages(queue, ids)
        finally:
            self._reading.pop(queue, None)
        for message in messages:
            if message is not None:
                message.references = 1
                self._accounts.charge(self._accounts.of(message.address), message.size)
        missing = queue.hydrate(messages)
        if missing:
            # Not acknowledged: what is left of their records stays in the journal for whoever repairs it.
            log.error(
                "queue %s: %d messages cannot be read from the journal (pollux journal verify tells where): %s",
                queue.name,
                len(missing),
                missing[:10],
            )
        self._ready(queue)

    async def _messages(self, queue: Queue, ids: list[int]) -> list[Message | None]:
        """Read the messages, None where the record is gone or damaged; ask a disk that does not answer again."""
        while True:
            try:
                return await self._read_messages(ids)
            except StoreError as error:
                log.error("queue %s: %d messages cannot be read now: %s", queue.name, len(ids), error)  # noqa: TRY400  (the text says it all)
                await asyncio.sleep(_RETRY)

    async def _show(self, queue: Queue, consumer: Consumer, ids: list[int]) -> None:
        messages = await self._messages(queue, ids)
        try:
            queue.show(consumer, messages)
        except Exception:
            log.exception("a session failed to take messages from queue %s", queue.name)
        self._ready(queue)
