"""The interface of publishers and subscribers, and what is the same over all protocols."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.client.errors import SendRefusedError
    from pollux.client.stream import Stream
    from pollux.client.url import Target

    #: id, the connection over which it was confirmed
    Confirmed = Callable[[str, Stream], None]
    #: id, whether it is marked as redelivered, the connection over which it came
    Received = Callable[[str, bool, Stream], None]

#: Messages a publisher has under way, unless it is told otherwise; well below the brokers' id-cache-size.
WINDOW = 200
#: Messages a subscriber is sent ahead.
PREFETCH = 100
#: Messages in one transaction at most.
TRANSACTION = 10


def body_of(identifier: str, size: int) -> bytes:
    """Return a body of at least `size` bytes that carries an id (which has no blanks)."""
    return (identifier.encode() + b" ").ljust(size, b".")


def id_in(body: bytes) -> str:
    """Return the id in a body made by :func:`body_of`."""
    return body.split(b" ", 1)[0].decode("utf-8", "replace")


class Publisher(ABC):
    """Sends messages to one destination. `on_confirmed` is called once for each message that the broker has stored."""

    def __init__(self, target: Target, destination: str, on_confirmed: Confirmed, *, window: int = WINDOW) -> None:
        self.target = target
        self.destination = destination
        self.on_confirmed = on_confirmed
        self.window = window
        self._room = asyncio.Event()
        self._empty = asyncio.Event()
        self._room.set()
        self._empty.set()
        #: What ended the publisher for good.
        self.failure: BaseException | None = None
        #: Told of each refusal when the broker may refuse (a full disk); else the first one ends the publisher.
        self.on_refused: Callable[[SendRefusedError], None] | None = None

    @property
    @abstractmethod
    def unconfirmed(self) -> int:
        """Messages sent and not confirmed."""

    @abstractmethod
    async def start(self) -> None:
        """Connect. Raises ClientError."""

    @abstractmethod
    def _send(self, identifier: str, body: bytes) -> None:
        """Send now, or as soon as there is a broker."""

    async def room(self) -> None:
        """Wait until fewer than `window` messages are unconfirmed, or the publisher has ended."""
        while self.unconfirmed >= self.window and self.failure is None:
            self._room.clear()
            await self._room.wait()

    async def send(self, identifier: str, body: bytes) -> None:
        """Hand a message over when there is room for it. Raises what ended the publisher."""
        await self.room()
        self._check()
        self._empty.clear()
        self._send(identifier, body)

    async def drain(self) -> None:
        """Wait until everything is confirmed."""
        while self.unconfirmed and self.failure is None:
            self._empty.clear()
            await self._empty.wait()
        self._check()

    def _done(self) -> None:
        """Wake who waits for room: something was confirmed."""
        self._room.set()
        if not self.unconfirmed:
            self._empty.set()

    def _refuse(self, error: SendRefusedError) -> None:
        """Tell of a refused message, which is not sent again; without a listener the publisher fails."""
        if self.on_refused is None:
            self._fail(error)
        else:
            self.on_refused(error)

    def _fail(self, error: BaseException) -> None:
        if self.failure is None:
            self.failure = error
        self._room.set()
        self._empty.set()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    @abstractmethod
    async def close(self) -> None:
        """Close the connection to the broker."""


class Subscriber(ABC):
    """Receives from one destination; acknowledges each message after `on_message` has returned."""

    def __init__(self, target: Target, destination: str, on_message: Received, *, prefetch: int = PREFETCH) -> None:
        self.target = target
        self.destination = destination
        self.on_message = on_message
        self.prefetch = prefetch
        #: What ended the subscriber for good.
        self.failure: BaseException | None = None

    async def prepare(self) -> None:  # noqa: B027  (a queue needs nothing)
        """Have the broker keep what is sent here until :meth:`start`; a queue does so by itself. Raises ClientError."""

    @abstractmethod
    async def start(self) -> None:
        """Connect and subscribe: from now on the broker keeps what is sent here. Raises ClientError."""

    @abstractmethod
    async def close(self) -> None:
        """Unsubscribe and disconnect."""
