"""The socket of a connection to another broker's acceptor, opened from here; who opens it is the server's matter."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, cast

from pollux.cluster.link.conversation import Conversation
from pollux.errors import PolluxError

if TYPE_CHECKING:
    from pollux.cluster.link.conversation import CoreHub
    from pollux.wire.core.peer import Hello


class CoreConnectionError(PolluxError):
    """The other broker cannot be reached, or does not take us; the text says why."""


class CoreLink(asyncio.Protocol):
    """The socket of a conversation that this broker began."""

    def __init__(self, hub: CoreHub, loop: asyncio.AbstractEventLoop, silence: float | None = None) -> None:
        """``silence``: seconds after which it is dead; None: as the hub has it."""
        self._hub = hub
        self._loop = loop
        self._silence = silence
        self.transport: asyncio.Transport
        self.conversation: Conversation
        #: Whether the other end has said anything, and what broke the connection.
        self.heard = False
        self.error: Exception | None = None
        #: Done when both ends have proven who they are; an exception when that cannot be.
        self.ready: asyncio.Future[None] = loop.create_future()
        #: Done when the connection is of no use any more.
        self.over: asyncio.Future[None] = loop.create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is connected (and its TLS handshake done)."""
        # uvloop's transports have the interface without the base class.
        self.transport = cast("asyncio.Transport", transport)
        self.conversation = Conversation(
            self._hub,
            self.transport,
            self._loop,
            initiator=True,
            on_ready=self._ready,
            on_end=self._ended,
            silence=self._silence,
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
        self.heard = True
        self.conversation.feed(data)

    def pause_writing(self) -> None:
        """The other broker does not keep up."""
        self.conversation.pause()

    def resume_writing(self) -> None:
        """Send again: the other side keeps up."""
        self.conversation.resume()

    def connection_lost(self, exc: Exception | None) -> None:
        """Settle what the connection was for: it is gone."""
        self.error = exc
        self.conversation.end("failed", str(exc) if exc else "the connection was closed")

    def close(self, reason: str) -> None:
        """Close the connection from here."""
        self.conversation.stop("stopping", reason)
        self.transport.close()
