"""The byte stream to one broker: an asyncio protocol that codecs subclass. Knows no protocol.

It notices silence: a broker that is stopped or cut off keeps its TCP connection, so a stream on which nothing was
heard for `clientFailureCheckPeriod` ends like one that broke. Subclasses make the broker speak often enough.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, cast

from pollux.client.calls import HandshakeError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from pollux.client.url import Endpoint

#: Seconds that the rest of what was written, and TLS's farewell, may take.
_CLOSE_TIMEOUT = 2.0


class Stream(asyncio.Protocol):
    """One connection, from its opening to :attr:`lost`."""

    def __init__(self, endpoint: Endpoint, check_period: int) -> None:
        """`check_period` in milliseconds, -1 for none."""
        self.endpoint = endpoint
        self.loop = asyncio.get_running_loop()
        self.period = check_period / 1000 if check_period > 0 else 0.0
        self.transport: asyncio.Transport | None = None
        #: The name that the certificate has to be for, and where to connect from; None: the host, and anywhere.
        self.server_name: str | None = None
        self.local_address: tuple[str, int] | None = None
        #: Why the stream ended; None while it stands.
        self.reason: str | None = None
        self.lost: asyncio.Event = asyncio.Event()
        self.on_lost: Callable[[], None] | None = None
        self.writable = asyncio.Event()
        self.writable.set()
        self._heard = self.loop.time()
        self._timer: asyncio.TimerHandle | None = None
        #: Whether the broker let us in.
        self.opened = False
        self._question: asyncio.Future[None] | None = None
        #: Whether the transport has let go of the socket.
        self._gone = asyncio.Event()

    async def connect(self, context: ssl.SSLContext | None) -> Self:
        """Open the TCP (and TLS) connection. Raises OSError."""
        host, port = self.endpoint
        name = (self.server_name or host) if context else None
        try:
            await self.loop.create_connection(
                lambda: self, host, port, ssl=context, server_hostname=name, local_addr=self.local_address
            )
        except BaseException:
            self.end("not opened")
            raise
        return self

    # -- questions that a broker answers before anything else goes on: logging in, subscribing

    async def open_with(self, context: ssl.SSLContext | None, hello: bytes) -> None:
        """Connect, and log in with `hello`. Raises OSError, HandshakeError or LoginError."""
        await self.connect(context)
        await self.ask(hello)
        self.opened = True

    async def ask(self, data: bytes) -> None:
        """Send something and wait for :meth:`answer`; the stream ends when there is none.

        Raises what was answered, or HandshakeError when the stream ends.
        """
        if self.reason is not None:
            raise HandshakeError(self.reason)
        self._question = self.loop.create_future()
        try:
            self.write(data)
            await self._question
        except BaseException:
            self.end("not answered")
            raise

    def answer(self, error: Exception | None = None) -> None:
        """Note that the broker answered what was asked; later calls change nothing."""
        question = self._question
        if question is None or question.done():
            return
        if error is None:
            question.set_result(None)
        else:
            question.set_exception(error)
            question.exception()  # marked as seen: the caller may have stopped waiting

    # -- asyncio's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports, which a broker has, have the interface without the base class.
        self.transport = cast("asyncio.Transport", transport)
        self._heard = self.loop.time()
        if self.period:
            self._check()

    def data_received(self, data: bytes) -> None:
        self._heard = self.loop.time()
        if self.reason is not None:
            return
        try:
            self.feed(data)
        except HandshakeError as error:
            self.end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        self._gone.set()
        self.end(str(exc) if exc else "the broker closed the connection")

    def pause_writing(self) -> None:
        self.writable.clear()

    def resume_writing(self) -> None:
        self.writable.set()

    # -- for subclasses

    def feed(self, data: bytes) -> None:
        """Take bytes from the broker; HandshakeError when they are not of the protocol."""
        raise NotImplementedError

    def beat(self) -> None:
        """Say something, and make the broker say something; called three times in a check period."""

    def write(self, data: bytes) -> None:
        """Send bytes, or drop them when the stream has ended."""
        if self.transport is not None and self.reason is None and not self.transport.is_closing():
            self.transport.write(data)

    def end(self, reason: str) -> None:
        """End the stream at once; may be called again."""
        if self.reason is not None:
            return
        self.reason = reason
        if self._timer is not None:
            self._timer.cancel()
        if self.transport is not None:
            self.transport.abort()
        self.writable.set()
        self.answer(HandshakeError(reason))
        self.lost.set()
        if self.on_lost is not None:
            self.on_lost()

    async def close(self) -> None:
        """Close after what was written has been sent, and wait for it; one that does not take it is cut off."""
        transport = self.transport
        if transport is None:
            self.end("closed")
            return
        if self.reason is None:
            self.transport = None
            transport.close()
            self.end("closed")
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._gone.wait()
        except TimeoutError:
            transport.abort()

    def _check(self) -> None:
        silent = self.loop.time() - self._heard
        if silent >= self.period:
            self.end(f"nothing was heard from the broker for {silent * 1000:.0f} ms")
            return
        self.beat()
        self._timer = self.loop.call_later(self.period / 3, self._check)
