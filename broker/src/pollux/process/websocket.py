"""One client's WebSocket, between its connection and its session: the handshake, then payload in and frames out.

To the session it is the transport, as if there were no WebSocket; to the connection it is where bytes go. It begins
where the first bytes are HTTP. Before the log-in nothing is kept but one request (8 KiB) or the head of a frame, and
each byte counts with those of all strangers; who pings without reading the answers is read no more, as with any answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pollux.protocols.base import Transport
from pollux.wire.sniff import SniffError, sniff
from pollux.wire.websocket.frames import (
    BINARY,
    GOING_AWAY,
    NO_STATUS,
    NORMAL,
    PONG,
    PROTOCOL_ERROR,
    Close,
    FrameDecoder,
    FrameError,
    Ping,
    close_frame,
    head,
)
from pollux.wire.websocket.handshake import (
    HandshakeError,
    NotWebSocketError,
    acceptance,
    check_origin,
    refusal,
    request_of,
)
from pollux.wire.websocket.subprotocols import SUBPROTOCOLS, choose

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pollux.config.acceptors import AcceptorSettings
    from pollux.protocols.base import Session
    from pollux.wire import sniff as sniffing

#: Seconds a client has to answer our close frame.
CLOSE_TIMEOUT = 5.0
_HTTP_HINT = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This port speaks AMQP, STOMP and MQTT, also in WebSocket. The HTTP API is on the management port.\n"
)


class Carrier(Transport, Protocol):
    """The connection, as its WebSocket sees it."""

    def begin(self, protocol: sniffing.Protocol, transport: Transport) -> Session | None:
        """Make the session of a client that speaks ``protocol``; None: it is refused, and the connection closed."""

    def refuse(self, reason: str) -> None:
        """Close with ``reason`` for the log; what was written goes out first."""


class WebSocket:
    """The WebSocket of one connection; it is the :class:`pollux.protocols.base.Transport` of its session."""

    __slots__ = (
        "_closing",
        "_connection",
        "_decoder",
        "_first",
        "_request",
        "_session",
        "_settings",
        "_speaks",
        "_timer",
        "loop",
        "peer",
    )

    def __init__(
        self, connection: Carrier, settings: AcceptorSettings, speaks: Callable[[sniffing.Protocol], bool]
    ) -> None:
        """``settings``: the acceptor's; ``speaks``: whether a protocol is spoken there."""
        self._connection = connection
        self._settings = settings
        self._speaks = speaks
        self.loop = connection.loop
        self.peer = connection.peer
        #: What came of the request; None when it is through.
        self._request: bytes | None = b""
        self._decoder: FrameDecoder | None = None
        #: Payload by which the protocol is to be told, as no sub-protocol says it.
        self._first = b""
        self._session: Session | None = None
        #: Our close frame is sent, or the connection is given up.
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None

    # -- from the connection

    def data_received(self, data: bytes) -> None:
        """Take bytes from the client; never raises."""
        if self._request is not None:
            self._handshake(self._request + data)
            return
        if self._decoder is None:
            return
        try:
            for event in self._decoder.feed(data):
                if isinstance(event, bytes):
                    self._payload(event)
                elif isinstance(event, Ping):
                    self._send(PONG, event.payload)
                else:
                    self._closed_by_client(event)
        except FrameError as error:
            self._fail(error.code, str(error))

    def stop(self) -> None:
        """Forget the client: the connection is gone."""
        self._closing = True
        self._decoder = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def buffered(self) -> int:
        """The number of bytes held of a frame."""
        return 0 if self._decoder is None else self._decoder.buffered

    # -- opening

    def _handshake(self, data: bytes) -> None:
        settings = self._settings
        try:
            found = request_of(data)
            if found is None:
                self._request = data
                return
            request, rest = found
            check_origin(request, settings.web_socket_origins)
            name, protocol = choose(request.offered, self._speaks)
        except NotWebSocketError:
            self._give_up(_HTTP_HINT, "HTTP on a messaging port")
            return
        except HandshakeError as error:
            self._give_up(refusal(error), f"WebSocket: {error}")
            return
        self._request = None
        # STOMP is text as well; the others are binary (MQTT-6.0.0-1).
        text = protocol is None or (name or "").endswith("stomp")
        self._decoder = FrameDecoder(text=text, max_frame=settings.web_socket_max_frame_payload_length)
        self._connection.write(acceptance(request, name))
        if protocol is not None:
            self._begin(protocol)
        if rest and self._decoder is not None:
            self.data_received(rest)

    def _give_up(self, answer: bytes, reason: str) -> None:
        self._request = None
        self._closing = True
        self._connection.write(answer)
        self._connection.refuse(reason)

    def _begin(self, protocol: sniffing.Protocol) -> None:
        self._session = self._connection.begin(protocol, self)
        if self._session is None:
            self.stop()  # refused

    # -- open

    def _payload(self, data: bytes) -> None:
        if self._closing:
            return
        if self._session is not None:
            self._session.data_received(data)
            return
        self._first += data
        try:
            protocol = sniff(self._first)
        except SniffError as error:
            self._fail(PROTOCOL_ERROR, str(error))
            return
        if protocol is None:
            return
        if protocol not in SUBPROTOCOLS.values():
            self._fail(PROTOCOL_ERROR, f"{protocol.value} within WebSocket")
            return
        first, self._first = self._first, b""
        self._begin(protocol)
        if self._session is not None:
            self._session.data_received(first)

    def _send(self, opcode: int, payload: bytes | bytearray | memoryview) -> None:
        if not self._closing:
            self._connection.write(head(opcode, len(payload)) + payload)

    # -- closing

    def _closed_by_client(self, close: Close) -> None:
        """Answer the client's close frame (section 5.5.1), and close."""
        said = "" if close.code == NO_STATUS else f" {close.code}"
        if self._session is not None:
            self._session.ends("client", f"WebSocket close{said}")
        if not self._closing:
            self._closing = True
            self._connection.write(close_frame(close.code))
        self._connection.close()

    def _fail(self, code: int, reason: str) -> None:
        """Say that the client broke the protocol, and close at once (section 7.1.7)."""
        self._decoder = None
        if self._closing:
            self._connection.close()
            return
        self._closing = True
        self._connection.write(close_frame(code, reason))
        self._connection.refuse(f"WebSocket: {reason}")

    def shutdown(self) -> None:
        """Close: nobody is there yet who could say why in a protocol's words."""
        if self._request is None and not self._closing:
            self._closing = True
            self._connection.write(close_frame(GOING_AWAY))
        self._connection.close()

    # -- the session's view (Transport)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes for sending, in a message of their own: clients take the payload of all as one stream."""
        self._send(BINARY, data)

    def close(self) -> None:
        """Send a close frame behind everything queued, and close when it is answered or after CLOSE_TIMEOUT."""
        if self._closing:
            return
        self._connection.write(close_frame(NORMAL))
        self._closing = True
        self._connection.resume_reading()
        self._timer = self.loop.call_later(CLOSE_TIMEOUT, self._connection.close)

    def abort(self) -> None:
        """Close at once."""
        self._closing = True
        self._connection.abort()

    def pause_reading(self) -> None:
        """Stop taking bytes from the client (back pressure)."""
        if not self._closing:
            self._connection.pause_reading()

    def resume_reading(self) -> None:
        """Take bytes again."""
        self._connection.resume_reading()
