"""A connection to another broker's acceptor, opened from here."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from pollux.errors import PolluxError
from pollux.session.core.conversation import Conversation

if TYPE_CHECKING:
    import ssl

    from pollux.session.core.conversation import CoreHub
    from pollux.wire.core.peer import Hello


class CoreConnectionError(PolluxError):
    """The other broker cannot be reached, or does not take us; the text says why."""


class CoreLink(asyncio.Protocol):
    """The socket of a conversation that this broker began."""

    def __init__(self, hub: CoreHub, loop: asyncio.AbstractEventLoop) -> None:
        self._hub = hub
        self._loop = loop
        self._transport: asyncio.Transport
        self.conversation: Conversation
        #: Done when both ends have proven who they are; an exception when that cannot be.
        self.ready: asyncio.Future[None] = loop.create_future()
        #: Done when the connection is of no use any more.
        self.over: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected (and its TLS handshake done)."""
        # uvloop's transports have the interface without the base class.
        self._transport = cast("asyncio.Transport", transport)
        self.conversation = Conversation(
            self._hub,
            self._transport,
            self._loop,
            initiator=True,
            on_ready=self._ready,
            on_end=self._ended,
        )

    def _ready(self, _peer: Hello) -> None:
        if not self.ready.done():
            self.ready.set_result(None)

    def _ended(self, code: str, text: str) -> None:
        if not self.over.done():
            self.over.set_result(None)
        if not self.ready.done():
            self.ready.set_exception(CoreConnectionError(f"{code}: {text}" if text else code))
            self.ready.exception()  # whoever waits is told; nobody may wait any more

    def data_received(self, data: bytes) -> None:
        """Bytes of the other broker."""
        self.conversation.feed(data)

    def pause_writing(self) -> None:
        """The other broker does not keep up."""
        self.conversation.pause()

    def resume_writing(self) -> None:
        """It keeps up again."""
        self.conversation.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection is gone."""
        self.conversation.end("failed", str(exc) if exc else "the connection was closed")

    def close(self, reason: str) -> None:
        """End it from here."""
        self.conversation.stop("stopping", reason)
        self._transport.close()


async def connect(
    hub: CoreHub, host: str, port: int, *, tls: ssl.SSLContext | None = None, limit: float
) -> CoreLink:
    """Connect and prove who we are, within ``limit`` seconds. Raises CoreConnectionError."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(limit):
            _, link = await loop.create_connection(
                lambda: CoreLink(hub, loop), host, port, ssl=tls, server_hostname=host if tls is not None else None
            )
            try:
                await link.ready
            except BaseException:
                link.close("not ready")
                raise
    except TimeoutError:
        raise CoreConnectionError(f"no answer within {limit:g} s") from None
    except OSError as error:
        raise CoreConnectionError(error.strerror or str(error)) from error
    return link
