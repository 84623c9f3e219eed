"""Consumers: messages one by one, or as an asynchronous iterator, and their settling."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pollux.client import frames
from pollux.client.errors import StaleDeliveryError
from pollux.client.messages import Delivery, decode
from pollux.wire.amqp.codec import Described

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pollux.client.links import ReceiverLink
    from pollux.client.session import Session


class Consumer:
    """Receives messages of one address or queue."""

    def __init__(self, session: Session, link: ReceiverLink, address: str) -> None:
        self.session = session
        self.address = address
        self._link = link

    async def receive(self, timeout: float | None = None) -> Delivery | None:  # noqa: ASYNC109  (part of the interface)
        """Return the next message; None when none came within `timeout` seconds. Goes on waiting through failovers."""
        link = self._link
        try:
            async with asyncio.timeout(timeout):
                while (taken := link.take()) is None:
                    link.check()
                    link.changed.clear()
                    link.wanted = 1
                    link.replenish(1 if link.window == 0 else 0)
                    await link.changed.wait()
        except TimeoutError:
            return None
        finally:
            link.wanted = 0
        number, data = taken
        delivery = decode(data)
        delivery.number = number
        delivery.generation = self.session.generation
        delivery.consumer = self
        return delivery

    def settle(self, delivery: Delivery, outcome: int) -> None:
        """Tell the broker the `outcome` of a delivery. Raises StaleDeliveryError after a failover."""
        session = self.session
        if delivery.generation != session.generation or session.stream is None:
            raise StaleDeliveryError("the connection failed since this message came: it comes again, as redelivered")
        session.begin_send()
        fields: list[object] = [True] if outcome == frames.MODIFIED else []
        state = session.transactional_state(Described(outcome, fields))
        session.stream.send(frames.disposition(session.number, delivery.number, state))

    async def __aiter__(self) -> AsyncIterator[Delivery]:
        while True:
            delivery = await self.receive()
            if delivery is not None:
                yield delivery

    async def close(self) -> None:
        """Detach; what was sent ahead goes back to the queue."""
        await self.session.remove(self._link)
