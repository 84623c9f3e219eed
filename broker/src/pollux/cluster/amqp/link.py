"""The parts that links to other brokers have in common: when they are over, and waiting for room."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from pollux.client.errors import ClientError
from pollux.client.links import Link
from pollux.message import RoutingType
from pollux.wire.amqp.codec import Array, Symbol

if TYPE_CHECKING:
    from pollux.routing.queue import Queue

#: Seconds between two looks at a window that is full, while a large message is under way.
_LOOK_AGAIN = 0.02


def capability_of(queue: Queue) -> object:
    """Return the terminus capability that says what an address there is."""
    return Array([Symbol("queue" if queue.routing_type is RoutingType.ANYCAST else "topic")])


class Watched(Link):
    """A link whose end can be waited for: ``over`` has why."""

    credit: int
    _over: asyncio.Future[str] | None = None

    @property
    def over(self) -> asyncio.Future[str]:
        """Done when the link is of no use any more, with the reason."""
        if self._over is None:
            self._over = self.session.answers.loop.create_future()
        return self._over

    def fail(self, error: ClientError) -> None:
        """End the link for good."""
        super().fail(error)
        self.stop(str(error))

    def stop(self, reason: str) -> None:
        """Have it over, for what it is used for here."""
        if not self.over.done():
            self.over.set_result(reason)

    async def pause(self) -> None:
        """Wait a little, as there is no credit or no room. Raises ClientError when the link is over."""
        if self.over.done():
            raise ClientError(self.over.result())
        await asyncio.sleep(_LOOK_AGAIN)
