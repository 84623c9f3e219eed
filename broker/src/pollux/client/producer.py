"""Producers: a window of unconfirmed messages, and a duplicate id for each."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING

from pollux.client.errors import CallTimeoutError
from pollux.client.messages import Message

if TYPE_CHECKING:
    from pollux.client.links import SenderLink
    from pollux.client.session import Session


class Producer:
    """Sends messages to one address."""

    def __init__(self, session: Session, link: SenderLink, address: str) -> None:
        self.session = session
        self.address = address
        self._link = link
        self._prefix = uuid.uuid4().hex
        self._count = 0

    @property
    def unconfirmed(self) -> int:
        """Messages handed over and not confirmed."""
        return len(self._link.unsettled) + len(self._link.waiting)

    async def send(self, message: Message | bytes | str) -> None:
        """Send and wait until the broker has it on stable storage (in a transaction: until it has it).

        Raises SendRefusedError, CallTimeoutError, ConnectionLostError, in a transaction TransactionRolledBackError,
        and with confirmationWindowSize=-1 FailoverError.
        """
        future = await self.submit(message)
        await self.session.answers.answer(future)

    async def submit(self, message: Message | bytes | str) -> asyncio.Future[object]:
        """Hand a message over; the future is done when the broker has it. Waits only while the window is full."""
        link = self._link
        link.check()
        window = max(self.session.answers.options.confirmation_window_size, 1)
        if link.held >= window:
            await self._wait_for_room(window)
        return self.submit_now(message)

    def submit_now(self, message: Message | bytes | str) -> asyncio.Future[object]:
        """Hand a message over whatever is unconfirmed: the caller bounds what is under way. See :meth:`submit`."""
        link, session = self._link, self.session
        link.check()
        session.begin_send()
        message = message if isinstance(message, Message) else Message(message)
        duplicate_id = None
        if link.resend and message.duplicate_id is None:
            self._count += 1
            duplicate_id = f"{self._prefix}-{self._count}"
        future = link.put(message.encode(duplicate_id), in_transaction=session.transacted)
        session.add_send(future)
        return future

    async def _wait_for_room(self, window: int) -> None:
        link = self._link
        while link.held >= window:
            link.room.clear()
            waiting = asyncio.ensure_future(link.room.wait())
            try:
                await self.session.answers.answer(waiting)
            except CallTimeoutError:
                raise CallTimeoutError(
                    f"the broker confirmed none of {self.unconfirmed} messages to {self.address} in time"
                ) from None
            finally:
                waiting.cancel()
            link.check()

    async def close(self) -> None:
        """Detach its link; the session goes on."""
        await self.session.remove(self._link)
