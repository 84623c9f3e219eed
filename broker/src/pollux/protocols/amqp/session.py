"""One AMQP connection: from bytes to calls on the post office, and back.

One pass per wake-up: all bytes go through the engine, which calls the links; what they did is
then settled in batches (:meth:`AmqpSession._finish_pass`), and all output is written at once.
Links are in :mod:`pollux.protocols.amqp.producer`, ``consumer`` and ``coordinator``.
"""

from __future__ import annotations

import logging
from collections import deque
from contextlib import suppress
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from pollux.engine.memory import LINK
from pollux.engine.security import Permission
from pollux.errors import LimitError, PolluxError
from pollux.protocols.amqp.attach import attach_link
from pollux.protocols.amqp.conditions import INTERNAL_ERROR, UnknownTransactionError, condition_of
from pollux.protocols.amqp.consumer import MAX_BUFFERED, Consumer
from pollux.protocols.amqp.login import Login
from pollux.protocols.amqp.producer import Producer
from pollux.protocols.amqp.settings import settings_of
from pollux.protocols.amqp.terminus import node_of
from pollux.protocols.amqp.transactions import state_of
from pollux.protocols.base import Session
from pollux.wire.amqp.codec import Symbol, UShort
from pollux.wire.amqp.engine import Engine
from pollux.wire.amqp.proton import ACCEPTED, get, lib

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pollux.engine.security import Identity
    from pollux.protocols.amqp.coordinator import Coordinator
    from pollux.protocols.amqp.transactions import LocalTransaction
    from pollux.protocols.base import Transport
    from pollux.protocols.services import Services
    from pollux.routing.reference import MessageReference
    from pollux.wire.amqp.guard import Attach, Open
    from pollux.wire.amqp.links import IncomingLink, Link
    from pollux.wire.amqp.proton import Pointer

_log = logging.getLogger(__name__)
OFFERED = ("sole-connection-for-container", "DELAYED_DELIVERY", "SHARED-SUBS", "ANONYMOUS-RELAY")
#: How long a client may take to answer our close.
CLOSE_TIMEOUT = 5.0
#: Bytes received from one client that the disk has not caught up with, beyond which the client is not read.
MAX_UNSTABLE = 16 << 20
#: Handles of one session; more links than this need more sessions.
_HANDLES = 1024

try:
    VERSION = version("pollux-broker")
except PackageNotFoundError:  # pragma: no cover (a tree that is not installed)
    VERSION = "unknown"


class AmqpSession(Session):
    """The conversation with one AMQP client."""

    protocol = "AMQP"

    def __init__(self, transport: Transport, services: Services) -> None:
        self.transport = transport
        self.services = services
        self.post = services.post
        #: User and container id -> its connections: for sole-connection-for-container and stolen links.
        self._containers: dict[tuple[str, str], set[AmqpSession]] = self.post.shared.setdefault(self.protocol, {})
        self.settings = settings_of(services)
        self.identity: Identity | None = None
        self.user = None
        self.client_id = None
        self.origin = transport.peer.connection_id
        #: Milliseconds since the epoch, as of the current pass.
        self.now = services.wall_ms()
        self.engine: Engine | None = None
        self.transactions: dict[bytes, LocalTransaction] = {}
        #: Bytes of messages that were given to the engine since its output was last written.
        self.unsent = 0
        #: The client's writes are held back by the network: deliver nothing.
        self.paused = False
        #: Deliveries to this client that it has not settled.
        self.unsettled = 0
        #: Links that the connection's part of the memory was taken for.
        self._counted_links = 0
        self._login: Login | None = Login(transport, services, self.settings.mechanisms, self)
        self._timer: asyncio.TimerHandle | None = None
        self._flusher: asyncio.Handle | None = None
        self._in_pass = False
        self._closing = False
        self._ended = False
        self._reading_paused = 0
        #: Producers that received in this pass, and what waits for the disk: a list for each pass.
        self.touched: list[Producer] = []
        self._stable: deque[tuple[list[tuple[IncomingLink, list[Pointer]]], int]] = deque()
        #: Bytes received in this pass, and in all passes that the disk has not caught up with.
        self.received_bytes = 0
        self._unstable_bytes = 0
        self._behind = False
        #: Bytes of messages whose last frames are still to come, of all links.
        self.partial_bytes = 0
        #: Blocked addresses and who waits for them.
        self._waiting: dict[str, list[Producer]] = {}
        self._wakeups: dict[str, Callable[[], None]] = {}
        #: Consumers with credit that may not be used because too much is unsettled.
        self.limited: set[Consumer] = set()
        #: Settled by the client in this pass, in order.
        self.acknowledged: list[MessageReference] = []
        #: Accepted but not settled by the client: its delivery is settled when the acknowledgement is durable.
        self._accepting: list[tuple[Consumer, Pointer]] = []
        #: Consumers whose client's session window is full.
        self.backlogged: set[Consumer] = set()

    # -- the server's calls

    def data_received(self, data: bytes) -> None:
        """See :meth:`Session.data_received`."""
        if self._ended:
            return
        try:
            if self.engine is None:
                if self._login is not None:
                    self._login.feed(data)
                return
            self._pass(data)
        except PolluxError as error:
            self._fail(condition_of(error), str(error))
        except Exception:
            _log.exception("connection %s: internal error", self.origin)
            self._fail(INTERNAL_ERROR, "internal error; see the broker's log")

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  (how it was lost changes nothing)
        """See :meth:`Session.connection_lost`."""
        if self._ended:
            return
        self._ended = True
        if self._login is not None:
            self._login.stop()
            self._login = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.engine is not None:
            self._release_links()
            self.engine.free()
        self._stop_waiting()
        if self._flusher is not None:
            self._flusher.cancel()
        self._forget_container()
        if self.identity is not None:
            self.services.security.connection_closed(self.identity, self.transport.peer)
            self.identity = None

    def buffered(self) -> int:
        """See :meth:`Session.buffered`."""
        return 0 if self.engine is None else self.engine.buffered + self.partial_bytes

    def shutdown(self, reason: str) -> None:
        """See :meth:`Session.shutdown`."""
        if self._ended or self._closing:
            return
        if self.engine is None:
            self.transport.close()
            return
        self._fail("amqp:connection:forced", reason)

    def pause_writing(self) -> None:
        """See :meth:`Session.pause_writing`."""
        self.paused = True
        for link in self.links():
            if isinstance(link, Consumer):
                link.credit = 0

    def resume_writing(self) -> None:
        """See :meth:`Session.resume_writing`."""
        self.paused = False
        for link in self.links():
            if isinstance(link, Consumer):
                link.on_flow()
        self.schedule_flush()

    def describe(self) -> dict[str, object]:
        """See :meth:`Session.describe`."""
        links = [link.describe() for link in self.links() if isinstance(link, Producer | Consumer)]
        return {"links": links, "unsettled": self.unsettled, "transactions": len(self.transactions)}

    def links(self) -> list[Link]:
        """The open links."""
        return [] if self.engine is None else list(self.engine.links.values())

    # -- login

    def logged_in(self, identity: Identity, rest: bytes) -> None:
        """See :class:`~pollux.protocols.amqp.login.Owner`."""
        self._login = None
        settings = self.settings
        self.identity = identity
        self.user = identity.user
        self.engine = Engine(
            max_frame=settings.max_frame,
            max_sessions=settings.max_sessions,
            max_handles=min(settings.max_links, _HANDLES),
            idle_timeout=2 * settings.idle_timeout,
        )
        try:
            self.services.security.connection_opened(identity, self.transport.peer)
        except LimitError as error:
            self._fail(condition_of(error), str(error))
        else:
            self._tick()
        self.data_received(rest)
        self.flush()

    def refused(self) -> None:
        """See :class:`~pollux.protocols.amqp.login.Owner`."""
        self._closing = True
        self.transport.close()

    # -- passes

    def _pass(self, data: bytes) -> None:
        engine = self.engine
        if engine is None or engine.freed:
            return
        self.now = self.services.wall_ms()
        self._in_pass = True
        try:
            engine.receive(data, self)
        finally:
            self._in_pass = False
        self._finish_pass()
        self.flush()

    def _finish_pass(self) -> None:
        """Everything the links collected goes on in batches."""
        self.settle_acknowledged()
        if self._accepting:
            accepting, self._accepting = self._accepting, []
            self.post.when_stable(lambda error: self._accepted(accepting, error))
        if self.touched:
            batch: list[tuple[IncomingLink, list[Pointer]]] = []
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
        """Pass on what was acknowledged so far, so that what follows comes after it."""
        if self.acknowledged:
            acknowledged, self.acknowledged = self.acknowledged, []
            self.post.acknowledge(acknowledged)

    def _accepted(self, accepting: list[tuple[Consumer, Pointer]], error: Exception | None) -> None:
        if error is not None or self._ended or self.engine is None or self.engine.freed:
            return
        for consumer, delivery in accepting:
            if consumer.attached:
                consumer.answer(delivery, ACCEPTED)
        self.flush()

    def stable(self, batch: list[tuple[IncomingLink, list[Pointer]]]) -> None:
        """Accept these deliveries once everything so far is durable."""
        received, self.received_bytes = self.received_bytes, 0
        self._unstable_bytes += received
        if self._unstable_bytes > MAX_UNSTABLE and not self._behind:
            self._behind = True
            self.pause_reading()
        self._stable.append((batch, received))
        self.post.when_stable(self._confirm)

    def _confirm(self, error: Exception | None) -> None:
        batch, received = self._stable.popleft()
        self._unstable_bytes -= received
        if self._behind and self._unstable_bytes <= MAX_UNSTABLE // 2:
            self._behind = False
            self.resume_reading()
        if self._ended or self.engine is None or self.engine.freed:
            return
        if error is not None:
            self._fail(INTERNAL_ERROR, f"the message store failed: {error}")
            return
        for producer, deliveries in batch:
            if not producer.attached:
                continue
            if isinstance(producer, Producer):
                producer.confirm(deliveries)
            else:
                producer.accept(deliveries)
        self.flush()

    def schedule_flush(self) -> None:
        """Write what the engine has to say at the end of this turn of the loop."""
        if self._flusher is None and not self._in_pass and not self._ended:
            self._flusher = self.transport.loop.call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._flusher = None
        if self._ended or self.engine is None:
            return
        self._finish_pass()
        self.flush()

    def flush(self) -> None:
        """Write what the engine has to say."""
        engine = self.engine
        if engine is None or engine.freed or self._ended:
            return
        self.unsent = 0
        parts = engine.output()
        if parts:
            self.transport.write(parts[0] if len(parts) == 1 else b"".join(parts))
        if self.backlogged:
            waiting = list(self.backlogged)
            self.backlogged.clear()
            for consumer in waiting:
                consumer.on_flow()

    def _tick(self) -> None:
        self._timer = None
        engine = self.engine
        if engine is None or engine.freed or self._ended:
            return
        loop = self.transport.loop
        now = int(loop.time() * 1000) + 1
        due = engine.tick(now)
        engine.dispatch(self)
        self.flush()
        if due and not self._ended and not self._closing:
            self._timer = loop.call_later(max(due - now, 1) / 1000, self._tick)

    # -- back pressure

    def hold_back(self) -> None:
        """Much waits to be sent: write it now, and stop the links whose session's window is full.

        A full network stops all of them (:meth:`pause_writing`). Otherwise each of many links would add a batch of its
        own before this turn of the loop ends.
        """
        if not self._in_pass:
            self.flush()
        for link in self.links():
            if isinstance(link, Consumer) and link.credit > 0 and link.attached and link.buffered() > MAX_BUFFERED:
                link.credit = 0
                self.backlogged.add(link)

    def pause_reading(self) -> None:
        """Take no more bytes until as many :meth:`resume_reading` as pauses were called."""
        self._reading_paused += 1
        if self._reading_paused == 1:
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """See :meth:`pause_reading`."""
        self._reading_paused -= 1
        if self._reading_paused == 0 and not self._ended:
            self.transport.resume_reading()

    # -- closing

    def _fail(self, condition: str, description: str) -> None:
        """Close with an error; links are given back at once."""
        engine = self.engine
        if self._ended:
            return
        if engine is None or engine.freed:
            self.transport.abort()
            return
        self._closing = True
        self._release_links()
        engine.close(condition, description, self._failover_info())
        self.flush()
        self._await_close()

    def _await_close(self) -> None:
        """The client has a bounded time to answer our close."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.transport.loop.call_later(CLOSE_TIMEOUT, self.transport.close)

    def _failover_info(self) -> dict[object, object]:
        servers = self.services.failover_servers("AMQP", self.transport.peer.tls)
        return {Symbol("failover-server-list"): _server_list(servers)} if servers else {}

    def _release_links(self) -> None:
        """End every link for the broker: what they hold goes back to its queues."""
        for link in self.links():
            if isinstance(link, Producer | Consumer):
                link.end(closed=False)
        transactions = list(self.transactions.values())
        self.transactions.clear()
        for transaction in transactions:
            with suppress(PolluxError):
                transaction.roll_back()

    def _forget_container(self) -> None:
        if self.client_id is not None:
            sessions = self._containers
            same = sessions.get(self._container)
            if same is not None:
                same.discard(self)
                if not same:
                    del sessions[self._container]

    @property
    def _container(self) -> tuple[str, str]:
        return self.user or "", self.client_id or ""

    def container_sessions(self) -> set[AmqpSession]:
        """All connections of this user with this client's container id."""
        return self._containers.get(self._container, set())

    # -- the engine's calls

    def on_open(self, remote: Open) -> None:
        """See :class:`pollux.wire.amqp.engine.Handler`."""
        engine = self.opened()
        properties: dict[object, object] = {
            Symbol("product"): "pollux",
            Symbol("version"): VERSION,
            Symbol("platform"): "Python",
        }
        properties |= self._failover_info()
        same = self._containers.setdefault((self.user or "", remote.container_id), set())
        refused = bool(same) and (
            "sole-connection-for-container" in remote.desired or any(session.sole for session in same)
        )
        if refused:
            properties[Symbol("amqp:connection-establishment-failed")] = True
        engine.open(self.services.configuration.name, offered=OFFERED, properties=properties)
        if refused:
            self._closing = True
            engine.close(
                "amqp:invalid-field",
                f"container {remote.container_id!r} has a connection already",
                {Symbol("invalid-field"): Symbol("container-id")},
            )
            self._await_close()
            return
        # The client's idle timeout is known only now.
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.transport.loop.call_later(0, self._tick)
        self.sole = "sole-connection-for-container" in remote.desired
        self.client_id = remote.container_id
        same.add(self)

    #: Whether the client asked to be the only connection of its container id.
    sole = False

    def on_close(self) -> None:
        """See :class:`pollux.wire.amqp.engine.Handler`."""
        self._closing = True
        self._release_links()
        self.opened().close()
        self.flush()
        self.transport.close()

    def on_session_open(self, session: Pointer) -> None:
        """See :class:`pollux.wire.amqp.engine.Handler`."""
        self.opened().open_session(session)

    def on_session_close(self, session: Pointer) -> None:
        """See :class:`pollux.wire.amqp.engine.Handler`."""
        engine = self.opened()
        for link in engine.links_of(session):
            if isinstance(link, Producer | Consumer):
                link.end(closed=False)
        engine.end_session(session)

    def on_attach(self, link: Pointer, attach: Attach) -> None:
        """See :class:`pollux.wire.amqp.engine.Handler`."""
        engine = self.opened()
        try:
            if len(engine.links) >= self.settings.max_links:
                raise LimitError(f"a connection may have {self.settings.max_links} links")
            self._count_links(len(engine.links) + 1)
            attach_link(self, link, attach)
        except PolluxError as error:
            engine.refuse_link(link, attach, condition_of(error), str(error))

    def on_detach(self, link: Link, closed: bool) -> None:
        """See :class:`pollux.wire.amqp.engine.Handler`."""
        if isinstance(link, Producer | Consumer):
            link.end(closed=closed)
        engine = self.opened()
        engine.finish_link(link.pointer, closed=closed)
        self._count_links(len(engine.links))

    def _count_links(self, links: int) -> None:
        """Account for what this connection's links cost; raises LimitError."""
        holder = self.post.memory.holder(self.origin)
        more = links - self._counted_links
        if more > 0:
            holder.take(LINK * more)
        else:
            holder.give(-LINK * more)
        self._counted_links = links

    def on_error(self, condition: str, description: str) -> None:
        """See :class:`pollux.wire.amqp.engine.Handler`."""
        _log.info("connection %s from %s: %s: %s", self.origin, self.transport.peer.address, condition, description)
        self._closing = True
        self._release_links()
        self.opened().fail(condition, description)
        self.flush()
        self.transport.close()

    def opened(self) -> Engine:
        """The engine, which every connection past its login has."""
        if self.engine is None:
            raise RuntimeError("the client has not logged in")
        return self.engine

    def proven(self) -> Identity:
        """Who the client is, which every connection past its login has proven."""
        if self.identity is None:
            raise RuntimeError("the client has not logged in")
        return self.identity

    # -- for the links

    def add_link(self, link: Link) -> None:
        """Have the engine call ``link``."""
        self.opened().links[link.pointer] = link

    def log(self, text: str, *values: object) -> None:
        """A line about this connection."""
        _log.info("connection %s: " + text, self.origin, *values)

    def await_writable(self, address: str, producer: Producer) -> None:
        """Tell ``producer`` once when ``address`` takes messages again; the post office is asked once for it."""
        waiting = self._waiting.get(address)
        if waiting is not None:
            waiting[:] = [each for each in waiting if each.attached]
            waiting.append(producer)
            return
        self._waiting[address] = [producer]
        self._wakeups[address] = wakeup = partial(self.address_writable, address)
        self.post.on_writable(address, wakeup)

    def address_writable(self, address: str) -> None:
        """An address that producers wait for takes messages again."""
        self._wakeups.pop(address, None)
        for producer in self._waiting.pop(address, ()):
            producer.writable()

    def _stop_waiting(self) -> None:
        """Clients that come and go while an address is blocked must not pile up in the post office."""
        for address, wakeup in self._wakeups.items():
            self.post.off_writable(address, wakeup)
        self._wakeups.clear()
        self._waiting.clear()

    def anonymous_address(self, name: str) -> str:
        """Where a message on an anonymous link goes; raises NotPermittedError."""
        node = node_of(name, (), self.settings)
        self.services.security.check(self.proven(), Permission.send, node.address, node.queue)
        return node.address if node.queue is None else f"{node.address}::{node.queue}"

    def accept_unsettled(self, consumer: Consumer, delivery: Pointer, item: MessageReference) -> None:
        """The client accepted without settling (receiver settle mode second): settle when that is durable."""
        consumer.forget(delivery)
        self.acknowledged.append(item)
        self._accepting.append((consumer, delivery))

    def transaction_of(self, delivery: Pointer) -> LocalTransaction:
        """The transaction a delivery's state names. Raises UnknownTransactionError."""
        identifier, _ = state_of(delivery)
        return self._transaction(identifier)

    def _transaction(self, identifier: bytes) -> LocalTransaction:
        local = self.transactions.get(identifier)
        if local is None:
            raise UnknownTransactionError(f"transaction {identifier.hex()} is not open")
        return local

    def retire_in(self, consumer: Consumer, delivery: Pointer, item: MessageReference, settled: bool) -> None:
        """A consumer's outcome is part of a transaction."""
        try:
            identifier, state = state_of(delivery)
            local = self._transaction(identifier)
        except PolluxError as error:
            self.close_link(consumer, condition_of(error), str(error))
            return
        if consumer.browsing:
            consumer.forget(delivery)
            lib.pn_delivery_settle(delivery)
        elif not any(each.delivery == delivery for each in local.retired):
            local.retire(consumer, delivery, item, state or ACCEPTED, settled)

    def not_retired(self, items: list[MessageReference]) -> list[MessageReference]:
        """Those that no open transaction has an outcome for."""
        retired = {id(each.item) for local in self.transactions.values() for each in local.retired}
        return [item for item in items if id(item) not in retired]

    @staticmethod
    def annotate(item: MessageReference, data: Pointer) -> None:
        """Add the annotations of a modified outcome to a message that only this client holds."""
        annotations = get(data)
        message = item.message
        if isinstance(annotations, dict) and annotations and message.references <= 1:
            merged = dict(message.annotations or {})
            for key, value in annotations.items():
                if isinstance(key, str) and isinstance(value, str | int | bytes):
                    merged[str(key)] = value
            message.annotations = merged

    def steal(self, queue: str) -> None:
        """A second link for the same subscription takes the first one's place (2.6.1)."""
        for session in list(self.container_sessions()):
            for link in session.links():
                if isinstance(link, Consumer) and link.queue.name == queue:
                    session.close_link(link, "amqp:link:stolen", "the subscription was taken by another link")

    def close_link(self, link: Producer | Consumer | Coordinator, condition: str, description: str) -> None:
        """Detach a link with an error."""
        if not link.attached:
            return
        if isinstance(link, Producer | Consumer):
            link.end(closed=False)
        self.opened().close_link(link.pointer, condition, description)
        self.schedule_flush()


def _server_list(servers: list[tuple[str, int, str]]) -> list[object]:
    """The entries AMQP JMS clients expect: as for a redirected connection (hostname is the one to open with)."""
    return [
        {
            Symbol("network-host"): host,
            Symbol("hostname"): host,
            Symbol("port"): UShort(port),
            Symbol("scheme"): scheme,
        }
        for host, port, scheme in servers
    ]
