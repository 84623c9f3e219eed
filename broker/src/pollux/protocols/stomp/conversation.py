"""Name what the parts of a STOMP session use of it: who is connected, and the way to answer.

:class:`pollux.protocols.stomp.session.StompSession` is all of it. The parts know each other in one direction only.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from pollux.engine.post_office import PostOffice
    from pollux.engine.security import Identity, Security
    from pollux.errors import PolluxError
    from pollux.protocols.base import Transport
    from pollux.protocols.stomp.parked import Parking
    from pollux.protocols.stomp.settings import StompSettings
    from pollux.protocols.stomp.subscription import Subscription
    from pollux.routing.reference import MessageReference
    from pollux.wire.stomp.decoder import Event, Frame
    from pollux.wire.stomp.headers import Version


class Client(Protocol):
    """Know who is connected, and what the broker has for it."""

    post: PostOffice
    security: Security
    settings: StompSettings
    #: The id of the connection.
    origin: int
    version: Version
    user: str | None
    client_id: str | None

    @property
    def identity(self) -> Identity:
        """Return who the client is. Raises StompError before it is known."""


class Conversation(Client, Protocol):
    """Handle frames and answer them."""

    loop: asyncio.AbstractEventLoop
    transport: Transport
    #: Counts batches of frames; 0 is before the first. ``now``: wall clock of the batch, milliseconds.
    batch: int
    now: int
    #: Receipts asked for in this batch, as the client wrote them.
    receipts: list[bytes]
    #: Frames that wait.
    parking: Parking

    def handle(self, events: Iterable[Event]) -> None:
        """Do what these events ask for."""

    def go_on(self) -> None:
        """Handle a large message that waited for its address, and what came behind it."""

    def receipt(self, headers: dict[str, str]) -> None:
        """Confirm the frame with these headers, if it asks for that."""

    def fail(self, problem: PolluxError, cause: Frame | None = None) -> None:
        """Answer with ERROR and close."""

    def hold_reading(self, reason: str) -> None:
        """Take no more bytes from the client until every reason is gone."""

    def release_reading(self, reason: str) -> None:
        """Take back one reason."""

    def write(self, data: bytes) -> None:
        """Send frames to the client, behind a large message if one is on its way."""

    def write_now(self, data: bytes) -> None:
        """Send bytes to the client at once."""

    def send_large(self, subscription: Subscription, reference: MessageReference) -> None:
        """Stream a large message; what is written after it follows it."""

    def outbox_empty(self) -> None:
        """Go on with deliveries: no large message is on its way any more."""
