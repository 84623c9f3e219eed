"""Publishers and subscribers over a protocol's own streams (STOMP, MQTT): what they do again after each failover.

The AMQP ones need none of this: they stand on :class:`pollux.client.connection.Connection`.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from pollux.client.dialer import Dialer, tls_context
from pollux.client.errors import ClientError
from pollux.client.stream import Stream
from pollux.client.traffic_base import Publisher, Subscriber

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pollux.client.traffic_base import Confirmed, Received
    from pollux.client.url import Endpoint, Target

S = TypeVar("S", bound=Stream)


def _discard(stream: Stream) -> None:
    stream.end("another broker was faster")


class Reconnecting(Generic[S]):
    """Keeps one stream to whoever is live. `opener` makes a stream that is logged in; `on_open` gets each one."""

    def __init__(
        self,
        target: Target,
        opener: Callable[[Endpoint], Awaitable[S]],
        on_open: Callable[[S], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._dialer = Dialer(target)
        self._opener = opener
        self._on_open = on_open
        self._on_failure = on_failure
        self._task: asyncio.Task[None] | None = None
        self.stream: S | None = None

    async def start(self) -> None:
        """Connect for the first time, then stay connected. Raises ClientError."""
        self.stream = await self._dialer.first(self._opener, _discard)
        self._on_open(self.stream)
        self._task = asyncio.create_task(self._run(self.stream))

    async def _run(self, stream: S) -> None:
        try:
            while True:
                await stream.lost.wait()
                stream = await self._dialer.again(self._opener, _discard)
                self.stream = stream
                self._on_open(stream)
        except (ClientError, OSError) as error:
            self._on_failure(error)

    async def close(self, farewell: bytes = b"") -> None:
        """Disconnect, with a last word."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self.stream is not None:
            if farewell:
                self.stream.write(farewell)
            await self.stream.close()


class StreamPublisher(Publisher, Generic[S]):
    """A publisher over streams of its own."""

    #: The last word before it disconnects.
    FAREWELL: ClassVar[bytes] = b""

    def __init__(self, target: Target, destination: str, on_confirmed: Confirmed, *, window: int) -> None:
        super().__init__(target, destination, on_confirmed, window=window)
        self.context = tls_context(target.options)
        self.client: Reconnecting[S] = Reconnecting(target, self._open, self._opened, self._fail)

    async def start(self) -> None:
        await self.client.start()

    async def close(self) -> None:
        await self.client.close(self.FAREWELL)

    @abstractmethod
    async def _open(self, endpoint: Endpoint) -> S:
        """Return a stream to a broker that let us in. Raises OSError, HandshakeError or LoginError."""

    @abstractmethod
    def _opened(self, stream: S) -> None:
        """Send what was not confirmed to a broker that serves."""


class StreamSubscriber(Subscriber, Generic[S]):
    """A subscriber over streams of its own."""

    FAREWELL: ClassVar[bytes] = b""

    def __init__(self, target: Target, destination: str, on_message: Received, *, prefetch: int) -> None:
        super().__init__(target, destination, on_message, prefetch=prefetch)
        self.context = tls_context(target.options)
        self.client = self.reconnecting()

    def reconnecting(self) -> Reconnecting[S]:
        """Return what keeps it subscribed."""
        return Reconnecting(self.target, self._open, lambda _stream: None, self._failed)

    async def start(self) -> None:
        await self.client.start()

    async def close(self) -> None:
        await self.client.close(self.FAREWELL)

    @abstractmethod
    async def _open(self, endpoint: Endpoint) -> S:
        """Return a stream that is subscribed. Raises OSError, HandshakeError or LoginError."""

    def _failed(self, error: BaseException) -> None:
        self.failure = error
