"""The conversation with one STOMP client: connecting, batches of frames, receipts, errors, the end.

Everything a chunk of bytes asks for is done in one go (a "batch"); what it wants confirmed is
confirmed together once it is on stable storage. A receipt therefore never leaves before what it
confirms is durable, and receipts leave in the order of their frames.

Errors end the connection, as STOMP has it: an ERROR frame after all receipts that are due, then close.
What frames do is in :mod:`producer`, :mod:`deliveries` and :mod:`transactions`.
"""

from __future__ import annotations

import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final

from pollux.errors import AuthenticationError, LimitError, PolluxError
from pollux.logs import event, failure
from pollux.protocols.base import SECOND_LOOK, Session
from pollux.protocols.redirects import Client
from pollux.protocols.stomp.connect import Greeting, RefusedError, read_connect, served_here
from pollux.protocols.stomp.deliveries import Consuming
from pollux.protocols.stomp.heartbeat import HeartBeat, negotiate
from pollux.protocols.stomp.outbox import Outbox
from pollux.protocols.stomp.parked import Parking
from pollux.protocols.stomp.phases import ENDED, SESSION, SessionPhase
from pollux.protocols.stomp.producer import Producer
from pollux.protocols.stomp.settings import settings_of
from pollux.protocols.stomp.transactions import Transactions
from pollux.transitions import follow
from pollux.wire.stomp.decoder import BodyChunk, Decoder, Event, Frame, LargeFrame, Violation
from pollux.wire.stomp.encoder import error as error_frame
from pollux.wire.stomp.encoder import escaped, frame, receipts
from pollux.wire.stomp.headers import StompError, Version, parse_headers

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from pollux.engine.security import Identity
    from pollux.protocols.base import Transport
    from pollux.protocols.services import Services
    from pollux.protocols.stomp.subscription import Subscription
    from pollux.routing.reference import MessageReference

_CLOSED: Final = SessionPhase.CLOSED  # looked at for each write
_SERVER: Final = "Pollux"
#: What may be written to a client that does not read before we stop reading from it (bytes).
_SLOW_LIMIT: Final = 256 << 10
#: How long a client may then not read before it is dropped, and how long the rest of a large message
#: may take when the session ends (seconds).
_SLOW_DEADLINE: Final = 60.0
_END_DEADLINE: Final = 10.0

logger = logging.getLogger("pollux.stomp")


class StompSession(Session):
    """Hold the conversation with one client. All methods are called in the loop's thread."""

    protocol = "STOMP"

    def __init__(self, transport: Transport, services: Services) -> None:
        self.phase = SessionPhase.GREETING
        self.transport = transport
        self.loop = transport.loop
        self.post = services.post
        self.services = services
        self.security = services.security
        self.origin = transport.peer.connection_id
        self.settings = settings_of(services)
        self.version = Version.V1_2
        self.user = None
        self.client_id = None
        #: Counts batches; 0 is before the first. ``now``: wall clock of the batch, milliseconds.
        self.batch = 0
        self.now = 0
        #: Receipts asked for in this batch, as the client wrote them; and batches that are not durable yet.
        self.receipts: list[bytes] = []
        self._unconfirmed: deque[list[bytes]] = deque()
        self.parking = Parking(self.settings.park_limit, partial(self.hold_reading, "parked"))
        self.transactions = Transactions(self)
        self.producing = Producer(self, self.transactions)
        self.consuming = Consuming(self, self.transactions)
        self._outbox = Outbox(self, self.consuming)
        self._wall_ms = services.wall_ms
        self._decoder = Decoder(self.settings.limits)
        #: What came behind the start of a large message that waits for its address.
        self._stalled: list[Event] = []
        self._handlers: dict[bytes, Callable[[Frame], None]] = {
            b"CONNECT": self._connect,
            b"STOMP": self._connect,
            b"SEND": self.producing.send,
            b"ACK": self.consuming.ack,
            b"NACK": self.consuming.nack,
            b"SUBSCRIBE": self.consuming.subscribe,
            b"UNSUBSCRIBE": self.consuming.unsubscribe,
            b"BEGIN": self.transactions.begin,
            b"COMMIT": self.transactions.commit,
            b"ABORT": self.transactions.abort,
            b"DISCONNECT": self._disconnect,
        }
        self._identity: Identity | None = None
        self._login: asyncio.Task[None] | None = None
        #: Why reading is held.
        self._holds: set[str] = set()
        self._slow = False
        self._slow_bytes = 0
        self._slow_timer: asyncio.TimerHandle | None = None
        self._last_words = b""
        self._end_timer: asyncio.TimerHandle | None = None
        self._beat = HeartBeat()
        self._beat_timer: asyncio.TimerHandle | None = None
        self._looked_again = False
        self._received_at = self._sent_at = self.loop.time()

    def _become(self, phase: SessionPhase) -> None:
        self.phase = follow(SESSION, self.phase, phase)

    # -- from the connection

    def data_received(self, data: bytes) -> None:
        """Bytes from the client."""
        self._received_at = self.loop.time()
        events = self._decoder.receive(data)  # none once the session ends
        if self._stalled:
            self._stalled += events  # reading is held: this is what was on its way
        elif events:
            self.handle(events)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002  (why it was lost changes nothing)
        """The connection is gone."""
        if self.phase is SessionPhase.CLOSED:
            return
        before = self.phase
        self._become(SessionPhase.CLOSED)
        for timer in (self._beat_timer, self._slow_timer, self._end_timer):
            if timer is not None:
                timer.cancel()
        if self._login is not None:
            self._login.cancel()
        self._outbox.close()
        if before not in ENDED:
            self._let_go(clean=False)
        if self._identity is not None:
            self.security.connection_closed(self._identity, self.transport.peer)

    def buffered(self) -> int:
        """Return the bytes held for the client: of frames that are not complete, and of those that wait."""
        return self._decoder.buffered + self.parking.size

    def shutdown(self, reason: str) -> None:
        """The broker or an administrator ends this session."""
        self._end(error_frame(reason, reason, self.version), clean=True)

    def pause_writing(self) -> None:
        """The client does not keep up."""
        self._slow = True
        self._slow_bytes = 0
        self._outbox.pause()
        self.consuming.hold_back(hold=True)

    def resume_writing(self) -> None:
        """The client keeps up again."""
        self._slow = False
        if self._slow_timer is not None:
            self._slow_timer.cancel()
            self._slow_timer = None
        self._outbox.resume()
        self.release_reading("slow")
        if not self._outbox.busy:
            self.consuming.hold_back(hold=False)

    def describe(self) -> dict[str, object]:
        """Return the state of the session, for management."""
        return {
            "version": self.version.text,
            "subscriptions": self.consuming.describe(),
            "transactions": len(self.transactions),
            "unconfirmed": sum(map(len, self._unconfirmed)),
            "parked": len(self.parking),
            "parked_bytes": self.parking.size,
            "reading_held": sorted(self._holds),
            "heart_beat": {"send": self._beat.send, "receive": self._beat.receive},
        }

    # -- one batch

    def handle(self, events: Iterable[Event]) -> None:
        """Do what these events ask for."""
        self.batch += 1
        self.now = self._wall_ms()
        handlers = self._handlers
        phase = self.phase
        current: Frame | LargeFrame | None = None
        rest = iter(events)
        try:
            for event in rest:
                if type(event) is Frame:
                    current = event
                    if event.command != b"SEND":
                        self.producing.finish()
                    handlers[event.command](event)
                else:
                    self.producing.finish()
                    current = event if isinstance(event, LargeFrame) else self.producing.large_frame
                    if not self._handle_other(event):
                        self._stalled = [event, *rest]
                        self.hold_reading("stalled")
                if self.phase is not phase:
                    return  # the session ends, or CONNECT came: nothing is decoded behind it
            self.flush()
        except PolluxError as problem:
            self._refuse(problem, current)
        except Exception:
            failure(logger, logging.ERROR, "internal error in a STOMP session", connection=self.origin)
            self.fail(StompError("internal error"), current)

    def _refuse(self, problem: PolluxError, current: Frame | LargeFrame | None) -> None:
        """Answer with ERROR, once what came before is taken in; of that, too, something may be refused."""
        try:
            self.producing.finish()
        except PolluxError as earlier:
            problem = earlier
        self.fail(problem, self.producing.refused or current)

    def _handle_other(self, event: Event) -> bool:
        """Handle what is not a whole frame; false when it has to wait."""
        if isinstance(event, BodyChunk):
            self.producing.large_continues(event.data)
        elif isinstance(event, LargeFrame):
            return self.producing.large_begins(event)
        elif isinstance(event, Violation):
            raise StompError(event.message)
        else:
            self.producing.large_ends()
        return True

    def go_on(self) -> None:
        """Handle a large message that waited for its address, and what came behind it."""
        if self._stalled:
            events, self._stalled = self._stalled, []
            self.handle(events)
            if not self._stalled:
                self.release_reading("stalled")

    def flush(self) -> None:
        """Pass on what the batch collected."""
        self.producing.finish()
        self.consuming.flush()
        if self.receipts:
            self._unconfirmed.append(self.receipts)
            self.receipts = []
            self.post.when_stable(self._confirm)

    def _confirm(self, error: Exception | None) -> None:
        batch = self._unconfirmed.popleft()
        if self.phase is SessionPhase.CLOSED:
            return
        if error is not None:
            self.transport.abort()
            return
        self.write(receipts(batch))

    def receipt(self, headers: dict[str, str]) -> None:
        """Confirm the frame with these headers, if it asks for that."""
        receipt = headers.get("receipt")
        if receipt is not None:
            self.receipts.append(escaped(receipt, self.version))

    @property
    def identity(self) -> Identity:
        """Who the client is."""
        if self._identity is None:
            raise StompError("not connected")
        return self._identity

    # -- reading and writing

    def hold_reading(self, reason: str) -> None:
        """Take no more bytes from the client until every reason is gone."""
        if not self._holds and self.phase is not SessionPhase.CLOSED:
            self.transport.pause_reading()
        self._holds.add(reason)

    def release_reading(self, reason: str) -> None:
        """``reason`` is gone."""
        if reason in self._holds:
            self._holds.discard(reason)
            if not self._holds and self.phase is not SessionPhase.CLOSED:
                self._received_at = self.loop.time()  # we did not listen: silence proved nothing
                self.transport.resume_reading()

    def write(self, data: bytes) -> None:
        """Send frames to the client, behind a large message if one is on its way."""
        if self._slow or self._outbox.busy:
            self._written_to_slow(len(data))
        if self._outbox.busy:
            self._outbox.add(data)
        else:
            self.write_now(data)

    def write_now(self, data: bytes) -> None:
        """Send bytes to the client."""
        if self.phase is not _CLOSED:
            self._sent_at = self.loop.time()
            self.transport.write(data)

    def _written_to_slow(self, size: int) -> None:
        """A client that asks for answers and does not read them is not read from either, and not for ever."""
        self._slow_bytes += size
        if self._slow_bytes > _SLOW_LIMIT and "slow" not in self._holds:
            self.hold_reading("slow")
            if self._slow_timer is None:
                self._slow_timer = self.loop.call_later(_SLOW_DEADLINE, self._too_slow)

    def _too_slow(self) -> None:
        self._slow_timer = None
        if "slow" in self._holds and self.phase is not SessionPhase.CLOSED:
            event(
                logger,
                logging.WARNING,
                "a STOMP client does not read and is dropped",
                connection=self.origin,
                user=self.user,
            )
            self.transport.abort()

    def send_large(self, subscription: Subscription, reference: MessageReference) -> None:
        """Stream a large message; what is written after it follows it."""
        self._slow_bytes = 0
        self._outbox.add_large(subscription, reference)
        self.consuming.hold_back(hold=True)

    def outbox_empty(self) -> None:
        """No large message is on its way any more."""
        if self.phase is SessionPhase.CLOSED:
            return
        if not self._slow:
            self.release_reading("slow")
            if self._slow_timer is not None:
                self._slow_timer.cancel()
                self._slow_timer = None
        if self.phase in ENDED:
            if not self._unconfirmed:
                self._say_last_words(None)
        elif not self._slow:
            self.consuming.hold_back(hold=False)

    # -- CONNECT

    def _connect(self, connect: Frame) -> None:
        greeting = read_connect(connect.block)
        self.version = greeting.version
        self._become(SessionPhase.LOGGING_IN)
        self.hold_reading("login")
        self._login = self.loop.create_task(self._log_in(greeting))

    async def _log_in(self, greeting: Greeting) -> None:
        security, peer = self.security, self.transport.peer
        try:
            if greeting.login is None and peer.certificate_subject is not None:
                identity = security.authenticate_certificate(peer)
            else:
                identity = await security.authenticate_password(greeting.login, greeting.passcode, peer)
            await served_here(self.services, Client(self.protocol, peer, identity, greeting.client_id))
            if self.phase is not SessionPhase.LOGGING_IN:
                return
            security.connection_opened(identity, peer)
        except (AuthenticationError, LimitError, StompError) as problem:
            self.fail(problem)
            return
        except Exception:
            failure(logger, logging.ERROR, "log-in failed", connection=self.origin)
            self.fail(StompError("internal error"))
            return
        finally:
            self._login = None
        self._become(SessionPhase.CONNECTED)
        self._identity = identity
        self.user = identity.user
        self.client_id = greeting.client_id
        self._greet(greeting)
        self._decoder.accept(greeting.version)
        self.release_reading("login")
        self.handle(self._decoder.receive(b""))

    def _greet(self, greeting: Greeting) -> None:
        """CONNECTED, and heart-beats from here on."""
        settings = self.settings
        self._beat, offer = negotiate(
            greeting.heart_beat, least=settings.heartbeat_min, tolerance=settings.tolerance, ttl=settings.ttl
        )
        headers = {"version": greeting.version.text, "session": str(self.origin)}
        if settings.server_header:
            headers["server"] = _SERVER
        if greeting.version > Version.V1_0:
            headers["heart-beat"] = f"{offer[0]},{offer[1]}"
        self.write(frame("CONNECTED", headers, version=Version.V1_0))
        if self._beat.send or self._beat.receive:
            self._received_at = self.loop.time()
            self._beat_timer = self.loop.call_later(0, self._beat_now)

    def _beat_now(self) -> None:
        if self.phase is not SessionPhase.CONNECTED:
            return
        now = self.loop.time()
        if self._holds:
            self._received_at = now  # we are not listening: silence proves nothing
        dead = self._beat.dead(now, self._received_at)
        if dead and self._looked_again:
            self.fail(StompError("no heart-beat and no frame came in time"))
            return
        # Perhaps it was this loop that stood still: what the client sent meanwhile is read before the second look.
        self._looked_again = dead
        if self._beat.must_send(now, self._sent_at):
            if self._outbox.busy:
                self._sent_at = now  # bytes are on their way, and a newline would be part of the body
            else:
                self.write_now(b"\n")
        delay = SECOND_LOOK if dead else self._beat.next_look(now, self._received_at, self._sent_at)
        self._beat_timer = self.loop.call_later(delay, self._beat_now)

    # -- the end

    def _disconnect(self, disconnect: Frame) -> None:
        headers = parse_headers(disconnect.block, self.version)
        self._decoder.close()
        if self.parking and not self.parking.draining:
            self.parking.add(disconnect, None)
            return
        self.receipt(headers)
        self.ends("client", "DISCONNECT")
        self._end(b"", clean=True)

    def fail(self, problem: PolluxError, cause: Frame | LargeFrame | None = None) -> None:
        """Answer with ERROR and close."""
        if self.phase in ENDED:
            return
        receipt: str | None = None
        if cause is not None:
            try:
                receipt = parse_headers(cause.block, self.version).get("receipt")
            except StompError:
                receipt = None
        extra = problem.headers if isinstance(problem, RefusedError) else {}
        what = f"{cause.command.decode()}: {problem}" if cause is not None else str(problem)
        self.ends("broker", what)
        event(logger, logging.INFO, "STOMP client refused", connection=self.origin, user=self.user, reason=what)
        self._end(error_frame(str(problem), what, self.version, receipt, extra))

    def _end(self, last_words: bytes, *, clean: bool = False) -> None:
        """Send ``last_words`` behind all receipts that are due, then close."""
        if self.phase in ENDED:
            return
        self._become(SessionPhase.ENDING)
        self._decoder.close()
        self._last_words = last_words
        try:
            self._let_go(clean=clean)
            self.flush()
            if self._unconfirmed:
                self.post.when_stable(self._say_last_words)
            else:
                self._say_last_words(None)
        except Exception:
            failure(logger, logging.ERROR, "a STOMP session did not end cleanly", connection=self.origin)
            self.transport.abort()

    def _let_go(self, *, clean: bool) -> None:
        """Give back what is held; transactions that did not commit are undone."""
        self._decoder.close()
        self._stalled.clear()
        self.producing.close()
        self.transactions.close()
        self.consuming.close(clean=clean)

    def _say_last_words(self, error: Exception | None) -> None:
        if self.phase is not SessionPhase.ENDING:
            return
        if error is not None:
            self.transport.abort()
            return
        if self._outbox.busy:  # comes back through outbox_empty
            if self._end_timer is None:
                self._end_timer = self.loop.call_later(_END_DEADLINE, self.transport.abort)
            return
        self._become(SessionPhase.SAID)
        if self._last_words:
            self.write_now(self._last_words)
        self.transport.close()
