"""One AMQP connection: from bytes to calls on the post office, and back.

One pass per wake-up: all bytes go through the engine, which calls the links; what they did is
then settled in batches (:meth:`AmqpSession._finish_pass`), and all output is written at once.
Links are in :mod:`pollux.protocols.amqp.producer`, ``consumer`` and ``coordinator``.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from pollux.errors import LimitError, PolluxError
from pollux.protocols.amqp.attach import attach_link
from pollux.protocols.amqp.backpressure import Reading
from pollux.protocols.amqp.blocked import BlockedAddresses
from pollux.protocols.amqp.conditions import INTERNAL_ERROR, condition_of
from pollux.protocols.amqp.consumer import Consumer
from pollux.protocols.amqp.introduction import OFFERED, SOLE, decide, failover_info, open_properties, refusal
from pollux.protocols.amqp.links import Links
from pollux.protocols.amqp.login import Login
from pollux.protocols.amqp.phases import CONNECTION, ENDING, Phase
from pollux.protocols.amqp.settings import settings_of
from pollux.protocols.amqp.transactions import Transactions
from pollux.protocols.base import Session
from pollux.protocols.redirects import Client
from pollux.transitions import follow
from pollux.wire.amqp.engine import Engine
from pollux.wire.amqp.proton import ACCEPTED

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pollux.engine.security import Identity
    from pollux.protocols.amqp.connection import Confirmed, Draining, Flowing, Receiving, Running
    from pollux.protocols.amqp.containers import Containers
    from pollux.protocols.base import Transport
    from pollux.protocols.services import Services
    from pollux.routing.reference import MessageReference
    from pollux.wire.amqp.guard import Attach, Open
    from pollux.wire.amqp.links import Link
    from pollux.wire.amqp.proton import Pointer

_log = logging.getLogger(__name__)
#: How long a client may take to answer our close.
CLOSE_TIMEOUT = 5.0
#: Bytes received from one client that the disk has not caught up with, beyond which the client is not read.
MAX_UNSTABLE = 16 << 20
#: Handles of one session; more links than this need more sessions.
_HANDLES = 1024
#: Who holds the client back while the disk is behind.
_DISK = "disk"
# Looked at for each batch of messages: an enum's members are slower to find.
_IDLE, _RECEIVING, _ENDED = Phase.IDLE, Phase.RECEIVING, Phase.ENDED


class AmqpSession(Session):
    """The conversation with one AMQP client."""

    protocol = "AMQP"

    def __init__(self, transport: Transport, services: Services, containers: Containers) -> None:
        self.transport = transport
        self.services = services
        self.post = services.post
        self.settings = settings_of(services)
        self.user: str | None = None
        self.client_id: str | None = None
        #: Whether the client asked to be the only connection of its container id.
        self.sole = False
        self.origin = transport.peer.connection_id
        self.phase = Phase.LOGIN
        self.identity: Identity | None = None
        self.engine: Engine | None = None
        self.links = Links(self.post, self.origin)
        self._login: Login | None = Login(transport, services, self.settings.mechanisms, self)
        self.containers = containers
        #: The next look at idle time-outs, or, when it closes, the end of the client's time to answer.
        self._timer: asyncio.TimerHandle | None = None
        #: Bytes of the largest frame that the client takes; until it says so the least that any does.
        self.frame = 512
        self._flusher: asyncio.Handle | None = None
        #: What waits for the disk, a batch for each pass with the bytes it received, and those bytes altogether.
        self._stable: deque[tuple[list[tuple[Confirmed, list[Pointer]]], int]] = deque()
        self._unstable_bytes = 0
        #: Links whose attach is not answered yet, and what answers it.
        self._unanswered: deque[tuple[Link, Callable[[], None]]] = deque()
        # Below: what links share, see Connection.
        self.now = services.wall_ms()
        self.transactions = Transactions(self.post)
        self.blocked = BlockedAddresses(self.post)
        self.reading = Reading(transport)
        self.touched: list[Receiving] = []
        self.running: Running | None = None
        self.received_bytes = 0
        self.partial_bytes = 0
        self.paused = False
        self.unsent = 0
        self.unsettled = 0
        self.limited: set[Flowing] = set()
        self.backlogged: set[Flowing] = set()
        self.drained: set[Draining] = set()
        self.acknowledged: list[MessageReference] = []
        self.accepting: list[tuple[Link, Pointer]] = []

    # -- the server's calls

    def data_received(self, data: bytes) -> None:
        """Take bytes: of the log-in, or of the engine."""
        if self.phase is _ENDED:
            return
        try:
            if self.engine is not None:
                self._pass(self.engine, data)
            elif self._login is not None:
                self._login.feed(data)
        except PolluxError as error:
            self._fail(condition_of(error), str(error))
        except Exception:
            _log.exception("connection %s: internal error", self.origin)
            self._fail(INTERNAL_ERROR, "internal error; see the broker's log")

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  (how it was lost changes nothing)
        """Give back everything, once."""
        if self.phase is _ENDED:
            return
        self.phase = follow(CONNECTION, self.phase, _ENDED)
        self.reading.end()
        if self._login is not None:
            self._login.stop()
            self._login = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.engine is not None:
            self._release_links()
            self.engine.free()
        self.blocked.end()
        if self._flusher is not None:
            self._flusher.cancel()
        self.containers.remove(self)
        if self.identity is not None:
            self.services.security.connection_closed(self.identity, self.transport.peer)
            self.identity = None

    def buffered(self) -> int:
        """Return the bytes of a frame, and of messages, that are not complete."""
        return 0 if self.engine is None else self.engine.buffered + self.partial_bytes

    def shutdown(self, reason: str) -> None:
        """Close with ``reason``, or at once before the log-in is through."""
        if self.phase in ENDING:
            return
        if self.engine is None:
            self.transport.close()
            return
        self._fail("amqp:connection:forced", reason)

    def pause_writing(self) -> None:
        """Deliver nothing until the network takes more."""
        self.paused = True
        self.links.pause()

    def resume_writing(self) -> None:
        """Deliver again."""
        self.paused = False
        self.links.resume()
        self.schedule_flush()

    def describe(self) -> dict[str, object]:
        """Return, for management, the links and what is open."""
        links = self.links.describe()
        return {"links": links, "unsettled": self.unsettled, "transactions": len(self.transactions)}

    # -- login

    def logged_in(self, identity: Identity, rest: bytes) -> None:
        """Go on with an engine for the client, and with ``rest``, what it sent behind its AMQP header."""
        self._login = None
        self.phase = follow(CONNECTION, self.phase, _IDLE)
        settings = self.settings
        self.identity = identity
        self.user = identity.user
        self.engine = Engine(
            max_frame=settings.max_frame,
            max_sessions=settings.max_sessions,
            max_handles=min(settings.max_links, _HANDLES),
            idle_timeout=2 * settings.idle_timeout,
        )
        self.links.begin(self.engine)
        try:
            self.services.security.connection_opened(identity, self.transport.peer)
        except LimitError as error:
            self._fail(condition_of(error), str(error))
        else:
            self._tick()
        self.data_received(rest)
        self.flush()

    def refused(self) -> None:
        """Close: the client has been told why it may not come in."""
        self.ends("broker", "the log-in was refused")
        self.phase = follow(CONNECTION, self.phase, Phase.CLOSING)
        self.transport.close()

    # -- passes

    def _pass(self, engine: Engine, data: bytes) -> None:
        self.now = self.services.wall_ms()
        # The table has these two changes; to look each time would cost more than the rest of the phases.
        if self.phase is _IDLE:
            self.phase = _RECEIVING
        try:
            engine.receive(data, self)
            self.end_run()
        finally:
            if self.phase is _RECEIVING:
                self.phase = _IDLE
        self._finish_pass()
        self.flush()

    def _finish_pass(self) -> None:
        """Pass on in batches what the links collected."""
        self.settle_acknowledged()
        if self.accepting:
            accepting, self.accepting = self.accepting, []
            self.post.when_stable(lambda error: self._accepted(accepting, error))
        if self.touched:
            batch: list[tuple[Confirmed, list[Pointer]]] = []
            for producer in self.touched:
                if producer.pending:
                    batch.append((producer, producer.pending))
                    producer.pending = []
                producer.touched = False
                producer.replenish()
            self.touched.clear()
            self.stable(batch)
        if self.limited and self.unsettled < self.settings.max_unsettled:
            limited, self.limited = self.limited, set()
            for consumer in limited:
                consumer.on_flow()

    def settle_acknowledged(self) -> None:
        """Pass on all that was sent and acknowledged so far, so that what follows comes after it."""
        self.end_run()
        if self.acknowledged:
            acknowledged, self.acknowledged = self.acknowledged, []
            self.post.acknowledge(acknowledged)

    def end_run(self) -> None:
        """Send the messages that were collected to be sent together, so that what follows comes after them."""
        running, self.running = self.running, None
        if running is not None:
            running.end_run()

    def _accepted(self, accepting: list[tuple[Link, Pointer]], error: Exception | None) -> None:
        if error is not None or self.phase is _ENDED:
            return
        for consumer, delivery in accepting:
            if consumer.attached:
                consumer.settle_with(delivery, ACCEPTED)
        self.flush()

    def stable(self, batch: list[tuple[Confirmed, list[Pointer]]]) -> None:
        """Confirm these deliveries once everything so far is durable."""
        received, self.received_bytes = self.received_bytes, 0
        self._unstable_bytes += received
        if self._unstable_bytes > MAX_UNSTABLE:
            self.reading.hold(_DISK)
        self._stable.append((batch, received))
        self.post.when_stable(self._confirm)

    def _confirm(self, error: Exception | None) -> None:
        batch, received = self._stable.popleft()
        self._unstable_bytes -= received
        if self.reading.holders and self._unstable_bytes <= MAX_UNSTABLE // 2:
            self.reading.release(_DISK)
        if self.phase is _ENDED:
            return
        if error is not None:
            self._fail(INTERNAL_ERROR, f"the message store failed: {error}")
            return
        for link, deliveries in batch:
            if link.attached:
                link.confirm(deliveries)
        self.flush()

    def schedule_flush(self) -> None:
        """Write all output of the engine at the end of this turn of the loop; a pass does that at its own end."""
        if self._flusher is None and self.phase is _IDLE:
            self._flusher = self.transport.loop.call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._flusher = None
        if self.phase is _ENDED:
            return
        self._finish_pass()
        self.flush()

    def flush(self) -> None:
        """Write all output of the engine."""
        engine = self.engine
        if engine is None or self.phase is _ENDED:
            return
        self.unsent = 0
        parts = engine.output()
        if parts:
            self.transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
        if self.drained:
            self.drained = {link for link in self.drained if not link.end_drain()}
        if self.backlogged:
            waiting = list(self.backlogged)
            self.backlogged.clear()
            for consumer in waiting:
                consumer.on_flow()

    def _tick(self) -> None:
        self._timer = None
        engine = self.engine
        if engine is None or self.phase is _ENDED:
            return
        loop = self.transport.loop
        now = int(loop.time() * 1000) + 1
        due = engine.tick(now)
        engine.dispatch(self)
        self.flush()
        if due and self.phase is _IDLE:
            self._timer = loop.call_later(max(due - now, 1) / 1000, self._tick)

    # -- back pressure

    def hold_back(self) -> None:
        """Write the much that waits now, and stop the links whose session's window is full.

        A full network stops all of them (:meth:`pause_writing`). Otherwise each of many links would add a batch of its
        own before this turn of the loop ends.
        """
        if self.phase is not _RECEIVING:
            self.flush()
        self.backlogged.update(self.links.stop_full())

    # -- closing

    def _fail(self, condition: str, description: str, info: dict[object, object] | None = None) -> None:
        """Close with an error; links are given back at once."""
        engine = self.engine
        if self.phase is _ENDED:
            return
        self.ends("broker", description)
        if engine is None:
            self.transport.abort()
            return
        self.phase = follow(CONNECTION, self.phase, Phase.CLOSING)
        self._release_links()
        engine.close(condition, description, info or failover_info(self.services, self.transport.peer, self.frame))
        self.flush()
        # The client has a bounded time to answer our close.
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.transport.loop.call_later(CLOSE_TIMEOUT, self.transport.close)

    def _release_links(self) -> None:
        """End every link for the broker: what they hold goes back to its queues."""
        self.links.end(self.links)
        self.transactions.end()

    # -- the engine's calls

    def on_open(self, remote: Open) -> None:
        """Answer the client's open, or refuse a second connection of its container."""
        engine = self.opened()
        sole = SOLE in remote.desired
        refused = decide(self.services, Client(self.protocol, self.transport.peer, self.proven(), remote.container_id))
        if refused is None and self.containers.refuses(self.user, remote.container_id, sole=sole):
            refused = refusal(remote.container_id)
        self.frame = remote.max_frame
        others = failover_info(self.services, self.transport.peer, self.frame)
        properties = open_properties(others, refused=refused is not None)
        engine.open(self.services.configuration.name, offered=OFFERED, properties=properties)
        if refused is not None:
            self._fail(*refused)
            return
        # The client's idle timeout is known only now.
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.transport.loop.call_later(0, self._tick)
        self.sole = sole
        self.client_id = remote.container_id
        self.containers.add(self)

    def on_close(self) -> None:
        """Close, too, and give everything back."""
        self.ends("client", "close")
        self.phase = follow(CONNECTION, self.phase, Phase.CLOSING)
        self._release_links()
        self.opened().close()
        self.flush()
        self.transport.close()

    def on_session_open(self, session: Pointer) -> None:
        """Accept a session."""
        self.opened().open_session(session)

    def on_session_close(self, session: Pointer) -> None:
        """End a session with its links."""
        engine = self.opened()
        self.links.end(engine.links_of(session))
        engine.end_session(session)

    def on_attach(self, link: Pointer, attach: Attach) -> None:
        """Attach a link, or refuse it."""
        engine = self.opened()
        try:
            # Who attaches and detaches while nothing gets to the disk, or to the backups, has answers that wait.
            if max(len(engine.links), len(self._unanswered)) >= self.settings.max_links:
                raise LimitError(f"a connection may have {self.settings.max_links} links")
            self.links.count(len(engine.links) + 1)
            attach_link(self, link, attach)
        except PolluxError as error:
            engine.refuse_link(link, attach, condition_of(error), str(error))

    def on_detach(self, link: Link, closed: bool) -> None:
        """End a link, and answer when it is on disk that its queue ended with it."""
        self.links.end((link,), closed=closed)
        if isinstance(link, Consumer) and self.post.address_manager.declaring(link.queue.address):
            self.post.when_stable(partial(self._detached, link, closed))
        else:
            self._detached(link, closed)

    def _detached(self, link: Link, closed: bool, error: Exception | None = None) -> None:
        engine = self.engine
        if error is None and engine is not None and engine.links.get(link.pointer) is link:
            engine.finish_link(link.pointer, closed=closed)
            self.links.count(len(engine.links))
            self.schedule_flush()

    def on_error(self, condition: str, description: str) -> None:
        """Close at once: the client broke the protocol."""
        self.ends("broker", f"{condition}: {description}")
        _log.info("connection %s from %s: %s: %s", self.origin, self.transport.peer.address, condition, description)
        self.phase = follow(CONNECTION, self.phase, Phase.CLOSING)
        self._release_links()
        self.opened().fail(condition, description)
        self.flush()
        self.transport.close()

    def opened(self) -> Engine:
        """Return the engine, which every connection past its log-in has."""
        if self.engine is None:
            raise RuntimeError("the client has not logged in")
        return self.engine

    def proven(self) -> Identity:
        """Return who the client is, which every connection past its log-in has proven."""
        if self.identity is None:
            raise RuntimeError("the client has not logged in")
        return self.identity

    # -- for the links

    def answer(self, link: Link, attach: Attach, address: str = "", **termini: Any) -> None:
        """Answer an attach (see :meth:`Engine.answer`) when the queues of its address, if any, are on disk as they are.

        A client relies on a queue that it was told of; another one may have had it made a moment ago. Answers come in
        the order of the attaches: there are clients that take the last one's for that to all.
        """
        reply = partial(self.opened().answer, link.pointer, attach, **termini)
        if self._unanswered or self.post.address_manager.declaring(address):
            self._unanswered.append((link, reply))
            self.post.when_stable(self._attached)
        else:
            reply()

    def _attached(self, error: Exception | None) -> None:
        link, reply = self._unanswered.popleft()
        if error is None and link.attached:
            reply()
            self.schedule_flush()

    def log(self, text: str, *values: object) -> None:
        """Log a line about this connection."""
        _log.info("connection %s: " + text, self.origin, *values)

    def lose_subscription(self, queue: str) -> None:
        """Close the links on the queue of a subscription: another link has taken it."""
        for link in self.links.consumers():
            if link.queue.name == queue:
                self.close_link(link, "amqp:link:stolen", "the subscription was taken by another link")

    def close_link(self, link: Link, condition: str, description: str) -> None:
        """Detach a link with an error."""
        if not link.attached:
            return
        self.links.end((link,))
        self.opened().close_link(link.pointer, condition, description)
        self.schedule_flush()
