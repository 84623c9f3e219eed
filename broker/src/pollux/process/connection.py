"""Hold one client's connection: tell the protocol, wrap TLS, build the session, and bound what a client may cost.

It is the asyncio protocol of the socket and the :class:`pollux.protocols.base.Transport` of the session. It knows
nothing of what the bytes mean. Timeouts are not timers of their own but deadlines looked at by the
connections' sweep (:mod:`pollux.process.connections`): 5,000 idle connections cost no timer each.

It is one object to asyncio and to the session, and what it does is told apart: reading (:mod:`pollux.process.input`),
writing (:mod:`pollux.process.output`), what the first bytes mean, endings, TLS, WebSocket, limits, buffers, strangers.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from typing import TYPE_CHECKING, Any, cast

from msgspec.structs import replace

from pollux.engine.peer import Peer
from pollux.errors import PolluxError
from pollux.logs import event, failure
from pollux.process import first_bytes, tls_handshake
from pollux.process.endings import Due, Seen, due, who_ended
from pollux.process.first_bytes import OpeningError
from pollux.process.input import SESSION, SLOW, Input
from pollux.process.output import Output
from pollux.process.strangers import TLS
from pollux.wire import proxy
from pollux.wire.proxy import ProxyError
from pollux.wire.sniff import Protocol, SniffError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.process.acceptor import Listener
    from pollux.process.websocket import WebSocket
    from pollux.protocols.base import Session, Transport

logger = logging.getLogger("pollux.connection")

#: Seconds a closing connection has to take what is queued for it.
CLOSE_TIMEOUT = 5.0
#: SO_LINGER's on and 0 seconds.
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class Connection(asyncio.Protocol):
    """Carry one client's bytes. All methods are called in the loop's thread."""

    __slots__ = (
        "_buffer",
        "_ending",
        "_input",
        "_listener",
        "_measured_at",
        "_output",
        "_proxied",
        "_raw",
        "_taken_before",
        "_takes_until",
        "_web",
        "bytes_in",
        "close_reason",
        "deadline",
        "loop",
        "measured",
        "opened",
        "peer",
        "session",
        "stranger",
        "ttl",
        "write",
    )

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self.loop = listener.loop
        self._raw: asyncio.Transport | None = None
        self._output = Output(listener.loop, listener.high_water)
        self._input = Input(listener.connections.share, self._output)
        #: Called for each message, so without a step in between.
        self.write = self._output.write
        self._buffer = b""
        #: shutdown() was called.
        self._ending = False
        self._taken_before = 0
        #: When a client that takes nothing is cut off. (The deadline may be an earlier one: that of the log-in.)
        self._takes_until = 0.0
        #: What is between this and the session, where the client speaks WebSocket.
        self._web: WebSocket | None = None
        self.peer = Peer(0, "", 0)
        self.session: Session | None = None
        #: A proxy has to say whom it speaks for before anything else.
        self._proxied = listener.acceptor.settings.proxy_protocol_enabled
        #: It has not logged in, and counts with those that have not.
        self.stranger = True
        self.opened = 0.0
        #: When (loop time) the sweep has to act: log-in, silence, close or write timeout; infinity: never.
        self.deadline = 0.0
        self.ttl = listener.ttl
        #: What :meth:`measure` found last, and after how many bytes in and out.
        self.measured = 0
        self._measured_at = 0
        self.bytes_in = 0
        self.close_reason = ""

    # -- asyncio's view

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the accepted socket, or (a second time) what its TLS handshake made of it."""
        # uvloop's transports have the interface without the base class.
        self._output.transport = made = cast("asyncio.Transport", transport)
        if self._raw is None:
            self._raw = made
            self._accepted(made)
        else:
            self._secured(made)

    def _accepted(self, transport: asyncio.Transport) -> None:
        listener = self._listener
        address = transport.get_extra_info("peername") or ("", 0)
        self.opened = self.loop.time()
        self.peer = Peer(listener.connections.next_id(), str(address[0]), int(address[1]), acceptor=listener.name)
        self.deadline = self.opened + listener.handshake_timeout
        refusal = listener.admit(self)
        if refusal is not None:
            listener.connections.log_refusal(self.peer, refusal)
            self._output.abort()
            return
        listener.tune(transport)
        transport.set_write_buffer_limits(listener.high_water, listener.low_water)

    def _secured(self, transport: asyncio.Transport) -> None:
        connection = transport.get_extra_info("ssl_object")
        self.peer = Peer(
            self.peer.connection_id,
            self.peer.address,
            self.peer.port,
            tls=True,
            certificate_subject=self._listener.certificate_subject(connection),
            sni=self._listener.asked_name(connection),
            acceptor=self._listener.name,
        )
        transport.set_write_buffer_limits(self._listener.high_water, self._listener.low_water)

    def data_received(self, data: bytes) -> None:
        """Give bytes from the client to its session, in turn with others."""
        self._input.active = True
        self.bytes_in += len(data)
        session = self.session
        if self.stranger:
            self._said_by_stranger(len(data))
            if self._output.closing:
                return
        if session is not None:
            self._input.take(data)
            buffers = self._listener.connections.buffers
            buffers.unseen += len(data)
            if buffers.unseen > buffers.often:
                self._listener.connections.look_at_buffers()
        elif self._output.closing:
            return
        elif self._web is not None:
            self._web.data_received(data)
        else:
            self._first_bytes(data)

    def _said_by_stranger(self, size: int) -> None:
        if self.session is not None and self.session.user is not None:
            self.known()
        else:
            self._listener.connections.strangers.grew(self, size)

    def known(self) -> None:
        """Count it no longer among strangers: it has logged in."""
        self.stranger = False
        self._listener.connections.strangers.remove(self)

    def eof_received(self) -> bool:
        """Close, as the client will send no more (no protocol here has half-open connections)."""
        return False

    def pause_writing(self) -> None:
        """Hold the session back: the write buffer is above its high-water mark."""
        self._output.paused = True
        self._taken_before = self._output.taken()
        if not self.closing:
            self._takes_until = self.loop.time() + self._listener.write_timeout
            self.deadline = min(self.deadline, self._takes_until)
        if self.session is not None:
            self.session.pause_writing()

    def resume_writing(self) -> None:
        """Let the session go on: the write buffer is below its low-water mark."""
        self._output.paused = False
        if not self.closing:
            # The next sweep looks again and sets the deadline that now holds (log-in, silence, none).
            self.deadline = max(self.loop.time(), self.opened + self._listener.handshake_timeout)
        self._input.resume(SLOW)
        if self.session is not None:
            self.session.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Count it out, and tell its session."""
        self._lost(exc)

    def _lost(self, error: BaseException | None) -> None:
        connections = self._listener.connections
        if connections.remove(self) is None:
            return  # refused, or already handled (a failed TLS handshake)
        who, why = who_ended(self.close_reason, self.session, error, closing=self._output.closing)
        self._output.closing = True
        self.deadline = float("inf")
        session = self.session
        if self._web is not None:
            self._web.stop()
        if session is not None:
            try:
                session.connection_lost(error if isinstance(error, Exception) else None)
            except Exception:
                failure(logger, logging.ERROR, "session failed to end", connection=self.peer.connection_id)
        self._listener.released(self)
        level = logging.INFO if session is not None else logging.DEBUG
        fields = {
            "connection": self.peer.connection_id,
            "source": self.peer.address,
            "protocol": session.protocol if session is not None else None,
            "user": session.user if session is not None else None,
            "closed_by": who,
            "reason": why,
            "bytes_in": self.bytes_in,
            "bytes_out": self.bytes_out,
            "seconds": round(self.loop.time() - self.opened, 3),
        }
        event(logger, level, "connection closed", **fields)
        if session is not None:
            connections.trail.event("client-disconnected", **fields)

    # -- before there is a session

    def _first_bytes(self, data: bytes) -> None:
        data = self._buffer + data if self._buffer else data
        try:
            if self._proxied and (header := proxy.parse(data)) is not None:
                self._proxied = False
                if not self._relocate(header):
                    return
                data = data[header.size :]
            known = data and not self._proxied
            secured = self._output.transport is not self._raw
            begins = first_bytes.read(data, self._listener.rules, secured=secured) if known else None
        except (SniffError, ProxyError, OpeningError) as error:
            self._refuse(str(error))
            return
        self._buffer = data if begins is None else b""
        if begins is Protocol.TLS:
            self._start_tls(data)
        elif begins is Protocol.HTTP:
            from pollux.process.websocket import WebSocket  # which takes a start's time, and most have none

            self._web = WebSocket(self, self._listener.acceptor.settings, self._listener.speaks)
            self._web.data_received(data)
        elif begins is not None and self.begin(begins, self) is not None:
            self._input.take(data)

    def _relocate(self, proxied: proxy.Proxied) -> bool:
        """Count it where the client is that a proxy speaks for; False: it is refused."""
        if proxied.address:
            client = replace(self.peer, address=proxied.address, port=proxied.port)
            refusal = self._listener.connections.relocate(self, client)
            if refusal is not None:
                self._refuse(refusal)
                return False
        return True

    def _start_tls(self, data: bytes) -> None:
        listener = self._listener
        assert listener.tls is not None  # noqa: S101  (the acceptor's rules say so)
        assert self._raw is not None  # noqa: S101
        listener.connections.strangers.grew(self, TLS)
        if self._output.closing:
            return
        tls_handshake.begin(
            self,
            self._raw,
            data,
            loop=self.loop,
            layer=listener.tls_layer,
            context=listener.tls.context,
            seconds=max(0.1, self.deadline - self.loop.time()),
            done=self._tls_done,
        )

    def _tls_done(self, waiter: asyncio.Future[None]) -> None:
        error = None if waiter.cancelled() else waiter.exception()
        if self.deadline == float("inf"):
            return  # dropped, and counted out
        # Cut off from here in the middle of it, the layer reports neither an error nor a connection.
        if waiter.cancelled() or error is not None or self._output.transport is self._raw:
            tls_handshake.log_failure(self.peer, self._listener.acceptor.settings, error)
            self.close_reason = "TLS handshake failed"
            self._lost(error)

    def begin(self, protocol: Protocol, transport: Transport) -> Session | None:
        """Make the session of a client whose protocol is known, on this connection or what is around it; None: no."""
        listener = self._listener
        factory = listener.session_factory(protocol)
        if factory is None:
            self._refuse(f"{protocol.value} is not spoken on this acceptor (protocols=)")
            return None
        try:
            self.session = session = factory(transport, listener.services)
        except PolluxError as error:
            self._refuse(str(error))
            return None
        self._input.begin(session, session.data_received if self._web is None else self._web.data_received)
        fields = {
            "connection": self.peer.connection_id,
            "source": self.peer.address,
            "port": self.peer.port,
            "acceptor": self.peer.acceptor,
            "protocol": protocol.value,
            "websocket": self._web is not None,
            "tls": self.peer.tls,
            "certificate": self.peer.certificate_subject,
        }
        event(logger, logging.INFO, "connection opened", **fields)
        listener.connections.trail.event("client-connected", **fields)
        return session

    def refuse(self, reason: str) -> None:
        """Close with ``reason`` for the log; what was written goes out first."""
        self._refuse(reason, abort=False)

    def _refuse(self, reason: str, *, abort: bool = True) -> None:
        self.close_reason = reason
        self._listener.connections.log_refusal(self.peer, reason)
        if abort:
            self.abort()
        else:
            self.close()

    # -- the session's view (Transport)

    def hold(self) -> Callable[[Exception | None], None]:
        """Keep what is written from now on until the answer is called: with None it goes out, with an error never."""
        return self._output.hold(self)

    def close(self) -> None:
        """Close after everything queued was sent; the sweep aborts it when that takes too long."""
        if not self._output.closing:
            self.deadline = self.loop.time() + CLOSE_TIMEOUT
            self._output.close()

    def abort(self) -> None:
        """Close at once."""
        self._output.abort()

    def pause_reading(self) -> None:
        """Stop taking bytes from the client (back pressure)."""
        self._input.pause(SESSION)

    def resume_reading(self) -> None:
        """Take bytes again."""
        self._input.resume(SESSION)

    # -- the server's view

    @property
    def closing(self) -> bool:
        """Whether it is being closed."""
        return self._output.closing or self._ending

    @property
    def bytes_out(self) -> int:
        """The number of bytes that were written to the client."""
        return self._output.written

    @property
    def reading_paused(self) -> bool:
        """Whether the client is not being read."""
        return bool(self._input.paused)

    def measure(self) -> int:
        """Return the bytes that its buffers hold, when it has logged in (before, they count elsewhere)."""
        moved = self.bytes_in + self._output.written
        if self.measured or moved != self._measured_at:
            self._measured_at = moved
            session = self.session
            if session is None or self.stranger or self._output.closing:
                self.measured = 0
            else:
                web = self._web.buffered if self._web is not None else 0
                self.measured = self._input.waiting + web + session.buffered() + self._output.unsent()
        return self.measured

    def drop(self, reason: str) -> None:
        """Cut it off for what it costs, without a word to it, and count it out at once."""
        self._refuse(reason)
        self._lost(None)

    def shutdown(self, reason: str) -> None:
        """End it in the protocol's own words, or at once when no protocol is known yet."""
        self.close_reason = self.close_reason or reason
        session = self.session
        if session is None:
            if self._web is None:
                self.abort()
            else:
                self._web.shutdown()
            return
        # The session says farewell and may wait for the client's answer: not for ever.
        self._ending = True
        self.deadline = self.loop.time() + CLOSE_TIMEOUT
        session.shutdown(reason)

    def expire(self, now: float) -> None:
        """Act on what the deadline, which the sweep found passed, was for."""
        session = self.session
        seen = Seen(
            closing=self.closing,
            logged_in=session is not None and session.user is not None,
            blocked=self._output.paused,
            early=now < self._takes_until,
            took=self._output.paused and not self.closing and now >= self._takes_until and self._took(),
            ttl=self.ttl,
            heard=self._input.active or bool(self._input.paused),
        )
        match due(seen):
            case Due.CUT_OFF:
                self.close_reason = self.close_reason or "did not take what was queued for it"
                self.abort()
            case Due.NO_LOGIN:
                self._refuse(f"no log-in within {self._listener.handshake_timeout:g} s")
            case Due.TAKES_NOTHING:
                self._forget_unsent()
                self._refuse(f"took nothing for {self._listener.write_timeout:g} s (write-timeout)")
            case Due.EARLY:
                self.deadline = self._takes_until
            case Due.TAKES:
                self.deadline = self._takes_until = now + self._listener.write_timeout
            case Due.NEVER:
                self.deadline = float("inf")
            case Due.LIVES:
                self._input.active = False
                self.deadline = now + self.ttl
            case Due.SILENT:
                self.shutdown(f"silent for {self.ttl:g} s (connection-ttl)")

    def _forget_unsent(self) -> None:
        """Have the kernel drop, at the close, what it still holds for this client: it would keep megabytes for it."""
        # One that is closing may have no socket any more.
        if self._raw is not None and not self._raw.is_closing():
            opened = self._raw.get_extra_info("socket")
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)

    def _took(self) -> bool:
        """Return whether the client took something since the last look, or what is written waits for the broker."""
        before, self._taken_before = self._taken_before, self._output.taken()
        return self._taken_before != before or self._output.held

    def describe(self) -> dict[str, Any]:
        """Return what management shows: values that can be written as JSON."""
        session, peer, transport = self.session, self.peer, self._output.transport
        return {
            "id": peer.connection_id,
            "source": peer.address,
            "port": peer.port,
            "acceptor": peer.acceptor,
            "protocol": session.protocol if session is not None else None,
            "webSocket": self._web is not None,
            "user": session.user if session is not None else None,
            "clientId": session.client_id if session is not None else None,
            "tls": peer.tls,
            "certificateSubject": peer.certificate_subject,
            "bytesIn": self.bytes_in,
            "bytesOut": self.bytes_out,
            "writeBuffer": transport.get_write_buffer_size() if not transport.is_closing() else 0,
            "writingPaused": self._output.paused,
            "readingPaused": self.reading_paused,
            "seconds": round(self.loop.time() - self.opened, 3),
        }
