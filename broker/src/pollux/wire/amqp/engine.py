"""One AMQP connection on proton's C engine: bytes in, calls to its handler, bytes out.

Used for one pass per wake-up: :meth:`Engine.receive` takes all bytes and reports everything that
happened, :meth:`Engine.output` makes all bytes to send at once. Deliveries go straight to their
link object (:mod:`pollux.wire.amqp.links`). No asyncio, no SASL (see :mod:`pollux.wire.amqp.sasl`),
no knowledge of queues. All C memory is given back by :meth:`Engine.free`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pollux.transitions import follow
from pollux.wire.amqp.codec import Array, Symbol
from pollux.wire.amqp.guard import Attach, FrameError, Guard, Open
from pollux.wire.amqp.links import IncomingLink
from pollux.wire.amqp.phases import CLOSING, ENGINE, TAKING, Phase
from pollux.wire.amqp.proton import NULL, Pointer, ffi, lib, put, set_condition, text
from pollux.wire.amqp.sasl import AMQP_HEADER, close_frame

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pollux.wire.amqp.links import Link

#: Transfers of a peer in flight before it must wait for us. Each wake-up takes all of them, so that this
#: bounds nothing but the peer's run ahead; what a peer may make us hold is bounded where it is held.
WINDOW_FRAMES = 4096
_OUTPUT = 65536
_output = ffi.new("char[]", _OUTPUT)
_output_view = ffi.buffer(_output)

_DELIVERY = int(lib.PN_DELIVERY)
_LINK_FLOW = int(lib.PN_LINK_FLOW)
_FREED = Phase.FREED


class Handler(Protocol):
    """A connection as its engine sees it: whom to tell what the client did."""

    def on_open(self, remote: Open) -> None:
        """Answer a client that opens the connection."""

    def on_close(self) -> None:
        """Close, too: the client closed the connection."""

    def on_session_open(self, session: Pointer) -> None:
        """Accept a session that the client began."""

    def on_session_close(self, session: Pointer) -> None:
        """End a session, too, that the client ended."""

    def on_attach(self, link: Pointer, attach: Attach) -> None:
        """Answer a link that the client attached."""

    def on_detach(self, link: Link, closed: bool) -> None:
        """Detach a link, too; ``closed``: the client closed it for good."""

    def on_error(self, condition: str, description: str) -> None:
        """Let go of the links, then call :meth:`Engine.fail`: the client broke the protocol."""


class Engine:
    """The proton objects of one connection. Call nothing but :attr:`phase` after :meth:`free`."""

    __slots__ = (
        "_collector",
        "_connection",
        "_epilogue",
        "_guard",
        "_transport",
        "links",
        "phase",
        "window",
    )

    def __init__(self, *, max_frame: int, max_sessions: int, max_handles: int, idle_timeout: int) -> None:
        self._transport = lib.pn_transport()
        self._connection = lib.pn_connection()
        self._collector = lib.pn_collector()
        self._epilogue = b""
        self.phase = Phase.OPEN
        self.links: dict[Pointer, Link] = {}
        self.window = WINDOW_FRAMES * max_frame
        self._guard = Guard(max_frame=max_frame, max_sessions=max_sessions, max_handles=max_handles)
        # proton writes warnings about its peer to standard error otherwise.
        lib.pn_transport_trace(self._transport, 0)
        lib.pn_connection_collect(self._connection, self._collector)
        lib.pn_transport_set_max_frame(self._transport, max_frame)
        lib.pn_transport_set_channel_max(self._transport, max_sessions - 1)
        lib.pn_transport_set_idle_timeout(self._transport, idle_timeout)
        lib.pn_transport_bind(self._transport, self._connection)
        lib.pn_transport_push(self._transport, AMQP_HEADER, 8)

    @property
    def buffered(self) -> int:
        """The number of bytes held of a frame that is not complete."""
        return self._guard.buffered

    # -- bytes

    def receive(self, data: bytes, handler: Handler) -> None:
        """Take bytes from the client (behind the protocol header) and report all that they caused."""
        if self.phase not in TAKING:
            return
        try:
            data = self._guard.check(data)
        except FrameError as error:
            handler.on_error(error.condition, str(error))
            return
        transport, push, start = self._transport, lib.pn_transport_push, ffi.from_buffer(data)
        offset, size = 0, len(data)
        while offset < size:
            taken = push(transport, start + offset, size - offset)
            if taken <= 0:
                break
            offset += taken
            if offset < size and self.phase in TAKING:
                self.dispatch(handler)
                if self.phase is _FREED:
                    return
        self.dispatch(handler)

    def dispatch(self, handler: Handler) -> None:
        """Report everything waiting in the collector."""
        collector, links = self._collector, self.links
        peek, pop, kind_of = lib.pn_collector_peek, lib.pn_collector_pop, lib.pn_event_type
        link_of, delivery_of = lib.pn_event_link, lib.pn_event_delivery
        while event := peek(collector):
            kind = kind_of(event)
            if kind == _DELIVERY:
                link = links.get(link_of(event))
                if link is not None:
                    link.on_delivery(delivery_of(event))
            elif kind == _LINK_FLOW:
                link = links.get(link_of(event))
                if link is not None:
                    link.on_flow()
            else:
                self._other(event, kind, handler)
                if self.phase is _FREED:
                    return
            pop(collector)

    def _other(self, event: Pointer, kind: int, handler: Handler) -> None:
        guard = self._guard
        if self.phase in CLOSING and kind not in (lib.PN_CONNECTION_REMOTE_CLOSE, lib.PN_TRANSPORT_ERROR):
            return
        if kind == lib.PN_LINK_REMOTE_OPEN:
            link = lib.pn_event_link(event)
            attach = guard.attached.popleft()
            handler.on_attach(link, attach)
        elif kind in (lib.PN_LINK_REMOTE_CLOSE, lib.PN_LINK_REMOTE_DETACH):
            pointer = lib.pn_event_link(event)
            found = self.links.get(pointer)
            closed = kind == lib.PN_LINK_REMOTE_CLOSE
            if found is not None:
                handler.on_detach(found, closed)
            else:
                self.finish_link(pointer, closed=closed)
        elif kind == lib.PN_SESSION_REMOTE_OPEN:
            guard.begun.popleft()
            handler.on_session_open(lib.pn_event_session(event))
        elif kind == lib.PN_SESSION_REMOTE_CLOSE:
            handler.on_session_close(lib.pn_event_session(event))
        elif kind == lib.PN_CONNECTION_REMOTE_OPEN:
            if guard.open is not None:
                handler.on_open(guard.open)
        elif kind == lib.PN_CONNECTION_REMOTE_CLOSE:
            handler.on_close()
        elif kind == lib.PN_TRANSPORT_ERROR and self.phase in TAKING:
            self._take_no_more()
            condition = lib.pn_transport_condition(self._transport)
            handler.on_error(
                text(lib.pn_condition_get_name(condition)) or "amqp:connection:framing-error",
                text(lib.pn_condition_get_description(condition)) or "the connection is broken",
            )

    def output(self) -> list[bytes]:
        """Return all bytes to send now."""
        parts: list[bytes] = []
        if self.phase is _FREED:
            return parts
        transport, view = self._transport, _output_view
        while (size := lib.pn_transport_peek(transport, _output, _OUTPUT)) > 0:
            parts.append(view[:size])
            lib.pn_transport_pop(transport, size)
        if self._epilogue:
            parts.append(self._epilogue)
            self._epilogue = b""
        return parts

    def tick(self, now: int) -> int:
        """Do what is due at ``now`` (milliseconds, any epoch but 0); returns when next, 0 for never."""
        return 0 if self.phase is _FREED else int(lib.pn_transport_tick(self._transport, now))

    # -- connection

    def open(
        self, container: str, *, offered: Sequence[str], properties: dict[object, object], hostname: str | None = None
    ) -> None:
        """Open our side of the connection."""
        connection = self._connection
        lib.pn_connection_set_container(connection, container.encode())
        if hostname:
            lib.pn_connection_set_hostname(connection, hostname.replace("\0", "").encode())
        put(lib.pn_connection_offered_capabilities(connection), Array(Symbol(name) for name in offered))
        put(lib.pn_connection_properties(connection), properties)
        lib.pn_connection_open(connection)

    def close(
        self, condition: str | None = None, description: str = "", info: dict[object, object] | None = None
    ) -> None:
        """Close our side, with an error when ``condition`` is given. May be called again: the first one counts."""
        if self.phase in CLOSING or self.phase is _FREED:
            return
        self.phase = follow(ENGINE, self.phase, Phase.FAILED if self.phase is Phase.BROKEN else Phase.CLOSED)
        connection = self._connection
        if condition is not None:
            set_condition(lib.pn_connection_condition(connection), condition, description, info)
        # proton would hold the close frame back until everything queued was sent, maybe for ever. After this
        # nothing is reported but the client's close, so that a link freed here is not freed again. A link that
        # receives has nothing queued, and must not be freed before the close frame: proton settles what it holds then,
        # without an outcome, and there are clients that take this for a confirmation.
        for pointer, link in self.links.items():
            link.abandon()
            if not isinstance(link, IncomingLink):
                lib.pn_link_free(pointer)
        self.links.clear()
        lib.pn_connection_close(connection)

    def fail(self, condition: str, description: str) -> None:
        """Stop taking input, and close with an error."""
        reported = self.phase not in TAKING
        if not reported:
            self._take_no_more()
        self.close(condition, description)
        if not reported and self._guard.open is None:
            # proton sends no close before it has seen the peer's open.
            self._epilogue = close_frame(condition, description)

    def _take_no_more(self) -> None:
        """Look at no input any more; our side is to be closed, if it is not."""
        self.phase = follow(ENGINE, self.phase, Phase.BROKEN if self.phase is Phase.OPEN else Phase.FAILED)

    # -- sessions and links

    def open_session(self, session: Pointer) -> None:
        """Accept a session."""
        lib.pn_session_set_incoming_capacity(session, self.window)
        lib.pn_session_open(session)

    def end_session(self, session: Pointer) -> None:
        """Answer and free a session that the client ended, with its links."""
        self._forget_links(session)
        lib.pn_session_close(session)
        lib.pn_session_free(session)

    def _forget_links(self, session: Pointer) -> None:
        for pointer in [each for each in self.links if lib.pn_link_session(each) == session]:
            self.links.pop(pointer).abandon()

    def links_of(self, session: Pointer) -> list[Link]:
        """Return the links of one session."""
        return [link for pointer, link in self.links.items() if lib.pn_link_session(pointer) == session]

    def answer(
        self,
        pointer: Pointer,
        attach: Attach,
        *,
        source_address: str | None = None,
        target_address: str | None = None,
        resumed: bool = False,
        filters: dict[object, object] | None = None,
        coordinator: Sequence[str] | None = None,
        snd_settle_mode: int | None = None,
        rcv_settle_mode: int = 0,
        max_message_size: int = 0,
    ) -> None:
        """Answer an attach: the client's termini, with the addresses and filters that hold here.

        ``resumed``: the client named no source, and gets the one its durable subscription has, with its ``filters``.
        """
        source, target = lib.pn_link_source(pointer), lib.pn_link_target(pointer)
        lib.pn_terminus_copy(source, lib.pn_link_remote_source(pointer))
        lib.pn_terminus_copy(target, lib.pn_link_remote_target(pointer))
        if coordinator is not None:
            lib.pn_terminus_set_type(target, lib.PN_COORDINATOR)
            put(lib.pn_terminus_capabilities(target), Array(Symbol(name) for name in coordinator))
        if source_address is not None:
            lib.pn_terminus_set_type(source, lib.PN_SOURCE)
            lib.pn_terminus_set_address(source, source_address.encode())
        if resumed:
            lib.pn_terminus_set_durability(source, lib.PN_DELIVERIES)
            lib.pn_terminus_set_expiry_policy(source, lib.PN_EXPIRE_NEVER)
            put(lib.pn_terminus_capabilities(source), Array([Symbol("topic")]))
        given = attach.source is not None and isinstance(attach.source[7], dict)
        if filters is not None and (resumed or given):
            if filters:
                put(lib.pn_terminus_filter(source), filters)
            else:
                lib.pn_data_clear(lib.pn_terminus_filter(source))
        if target_address is not None:
            lib.pn_terminus_set_type(target, lib.PN_TARGET)
            lib.pn_terminus_set_address(target, target_address.encode())
        lib.pn_link_set_snd_settle_mode(pointer, attach.snd_settle_mode if snd_settle_mode is None else snd_settle_mode)
        lib.pn_link_set_rcv_settle_mode(pointer, rcv_settle_mode)
        if max_message_size:
            lib.pn_link_set_max_message_size(pointer, max_message_size)
        lib.pn_link_open(pointer)

    def refuse_link(self, pointer: Pointer, attach: Attach, condition: str, description: str) -> None:
        """Answer an attach with a null terminus on our side and detach with an error (2.6.3)."""
        if attach.role_receiver:
            lib.pn_terminus_copy(lib.pn_link_target(pointer), lib.pn_link_remote_target(pointer))
            lib.pn_terminus_set_type(lib.pn_link_source(pointer), lib.PN_UNSPECIFIED)
        else:
            lib.pn_terminus_copy(lib.pn_link_source(pointer), lib.pn_link_remote_source(pointer))
            lib.pn_terminus_set_type(lib.pn_link_target(pointer), lib.PN_UNSPECIFIED)
        self.close_link(pointer, condition, description)

    def close_link(self, pointer: Pointer, condition: str | None = None, description: str = "") -> None:
        """Close our side of a link, with an error when given; it is freed when the client has detached it."""
        link = self.links.pop(pointer, None)
        if link is not None:
            link.abandon()
        if condition is not None:
            set_condition(lib.pn_link_condition(pointer), condition, description)
        if lib.pn_link_state(pointer) & lib.PN_LOCAL_UNINIT:
            lib.pn_link_open(pointer)
        lib.pn_link_close(pointer)

    def finish_link(self, pointer: Pointer, *, closed: bool) -> None:
        """Answer in kind and free a link that the client closed (or only detached)."""
        link = self.links.pop(pointer, None)
        if link is not None:
            link.abandon()
        if not lib.pn_link_state(pointer) & lib.PN_LOCAL_CLOSED:
            if lib.pn_link_state(pointer) & lib.PN_LOCAL_UNINIT:
                lib.pn_link_open(pointer)
            (lib.pn_link_close if closed else lib.pn_link_detach)(pointer)
        lib.pn_link_free(pointer)

    def free(self) -> None:
        """Give back everything. No pointer of this engine may be used afterwards."""
        if self.phase is _FREED:
            return
        self.phase = follow(ENGINE, self.phase, _FREED)
        for link in self.links.values():
            link.abandon()
        self.links.clear()
        self._guard.close()
        lib.pn_transport_unbind(self._transport)
        lib.pn_connection_release(self._connection)
        lib.pn_collector_free(self._collector)
        lib.pn_decref(self._connection)
        lib.pn_decref(self._transport)
        self._transport = self._connection = self._collector = NULL
