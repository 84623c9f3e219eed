"""A connection that survives brokers: keeps one AMQP stream to whoever is live, and tells listeners about it."""

from __future__ import annotations

import asyncio
import uuid
from enum import StrEnum
from typing import TYPE_CHECKING, Self

from msgspec import Struct
from msgspec.structs import replace

from pollux.client import frames
from pollux.client.amqp import AmqpStream
from pollux.client.answers import Answers
from pollux.client.calls import HandshakeError
from pollux.client.dialer import Dialer, tls_context
from pollux.client.errors import (
    ClientError,
    ConnectionClosedError,
    ConnectionLostError,
    FailoverError,
    UrlError,
)
from pollux.client.session import Session
from pollux.client.url import Endpoint, Options, Target, Wire, parse_url

if TYPE_CHECKING:
    from collections.abc import Callable

#: Sessions of one connection; a broker may allow fewer.
MAX_SESSIONS = 1000
_CLOSE_TIMEOUT = 2.0


class EventKind(StrEnum):
    """The events that listeners are told."""

    #: The connection failed; the client now looks for a broker.
    CONNECTION_FAILED = "connection-failed"
    #: A broker serves us again, everything is attached, unconfirmed messages are on their way.
    FAILOVER_COMPLETED = "failover-completed"
    #: No broker was found within reconnectAttempts: the connection is over.
    FAILOVER_FAILED = "failover-failed"


class ConnectionEvent(Struct, frozen=True):
    """An event: with the broker it is about, and why."""

    kind: EventKind
    endpoint: Endpoint | None
    reason: str


class Connection:
    """A connection to whoever is live. Made by :func:`connect`; close it, or use it as an async context manager."""

    def __init__(self, target: Target) -> None:
        self.options = target.options
        self.container = target.options.client_id or f"pollux-client-{uuid.uuid4()}"
        self._answers = Answers(target.options)
        self._dialer = Dialer(target)
        self._context = tls_context(target.options)
        self._stream: AmqpStream | None = None
        self._sessions: dict[int, Session] = {}
        self._listeners: list[Callable[[ConnectionEvent], None]] = []
        #: Held while a stream is made ours: brokers are tried side by side.
        self._opening = asyncio.Lock()
        self._closing = False
        self._task: asyncio.Task[None] | None = None

    @property
    def failovers(self) -> int:
        """Failovers so far."""
        return self._answers.failovers

    @property
    def endpoint(self) -> Endpoint | None:
        """The broker that serves us now; None during a failover."""
        return self._stream.endpoint if self._stream is not None and self._answers.ready.is_set() else None

    @property
    def stream(self) -> AmqpStream | None:
        """The connection to the broker that serves us or served us last."""
        return self._stream

    @property
    def endpoints(self) -> tuple[Endpoint, ...]:
        """All brokers known: those of the URL and those learnt."""
        return tuple(self._dialer.endpoints)

    async def open(self) -> Self:
        """Connect. Raises LoginError or ConnectionLostError."""
        await self._dialer.first(self._open, lambda _: None)
        self._task = asyncio.create_task(self._run(), name="pollux-client-connection")
        return self

    async def session(self, *, transacted: bool = False) -> Session:
        """Open a session; in a transacted one nothing counts before `commit()`."""
        await self._answers.wait_until_ready()
        number = next((free for free in range(MAX_SESSIONS) if free not in self._sessions), None)
        if number is None:
            raise ClientError(f"a connection has at most {MAX_SESSIONS} sessions")
        session = Session(self._answers, number, transacted=transacted, over=self._forget)
        self._sessions[number] = session
        try:
            await session.establish(self._serving())
            await session.start()
        except BaseException:
            self._forget(session)
            raise
        return session

    def _serving(self) -> AmqpStream:
        if self._stream is None:
            raise FailoverError("the connection failed during the call")
        return self._stream

    def add_listener(self, listener: Callable[[ConnectionEvent], None]) -> None:
        """Call `listener` with each :class:`ConnectionEvent`, in the loop; it must not block."""
        self._listeners.append(listener)

    def remove_listener(self, listener: Callable[[ConnectionEvent], None]) -> None:
        """Undo :meth:`add_listener`."""
        self._listeners.remove(listener)

    async def close(self) -> None:
        """Close; messages that are not confirmed by now are not waited for."""
        if self._closing:
            return
        self._closing = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        stream, self._stream = self._stream, None
        if stream is not None and stream.reason is None:
            stream.on_lost = None
            stream.flush()
            stream.write(frames.close())
            try:
                async with asyncio.timeout(_CLOSE_TIMEOUT):
                    await stream.lost.wait()
            except TimeoutError:
                pass
        if stream is not None:
            await stream.close()
        self._over(ConnectionClosedError("the connection was closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _forget(self, session: Session) -> None:
        """Let go of a session that is over."""
        if self._sessions.get(session.number) is session:
            del self._sessions[session.number]
        if self._stream is not None:
            self._stream.channels.pop(session.number, None)

    # -- the connection's life

    async def _open(self, endpoint: Endpoint) -> None:
        stream = await AmqpStream.open(endpoint, self.options, self.container, self._context)
        try:
            async with self._opening:
                await self._use(stream)
        except FailoverError as error:
            stream.end(str(error))
            raise HandshakeError(str(error)) from None
        except BaseException:
            stream.end("not usable")
            raise

    async def _use(self, stream: AmqpStream) -> None:
        """Go on with this stream, unless another broker was faster."""
        if self._answers.ready.is_set():
            raise HandshakeError("another broker was faster")
        self._dialer.learn(stream.failover, stream.endpoint)
        stream.on_lost = lambda: self._on_lost(stream)
        self._stream = stream
        for session in list(self._sessions.values()):
            await session.establish(stream)
        if stream.reason is not None:
            raise HandshakeError(stream.reason)
        self._answers.ready.set()

    def _on_lost(self, stream: AmqpStream) -> None:
        if self._stream is not stream:
            return
        self._answers.ready.clear()
        self._dialer.learn(stream.failover, stream.endpoint)
        for session in list(self._sessions.values()):
            session.on_lost(stream.reason or "")

    async def _run(self) -> None:
        while True:
            stream = self._stream
            if stream is None:
                return
            await stream.lost.wait()
            self._answers.failovers += 1
            reason = stream.reason or ""
            self._tell(EventKind.CONNECTION_FAILED, stream.endpoint, reason)
            try:
                await self._dialer.again(self._open, lambda _: None)
            except ClientError as error:
                self._tell(EventKind.FAILOVER_FAILED, stream.endpoint, str(error))
                self._over(ConnectionLostError(f"{stream.endpoint}: {reason}; {error}"))
                return
            self._tell(EventKind.FAILOVER_COMPLETED, self.endpoint, reason)

    def _over(self, error: ClientError) -> None:
        if self._answers.failure is None:
            self._answers.failure = error
        for session in list(self._sessions.values()):
            session.fail(error)
        self._sessions.clear()
        self._answers.ready.set()

    def _tell(self, kind: EventKind, endpoint: Endpoint | None, reason: str) -> None:
        for listener in list(self._listeners):
            try:
                listener(ConnectionEvent(kind, endpoint, reason))
            except Exception as error:
                context = {"message": "a connection listener failed", "exception": error}
                asyncio.get_running_loop().call_exception_handler(context)


async def connect(url: str | Target, *, user: str | None = None, password: str | None = None) -> Connection:
    """Connect to the first broker of a URL that serves. `user` and `password` go before those in the URL.

    Raises UrlError, LoginError or ConnectionLostError.
    """
    target = parse_url(url) if isinstance(url, str) else url
    options: Options = target.options
    if options.protocol is not Wire.AMQP:
        raise UrlError(f"protocol={options.protocol}: connections are AMQP; pollux.client.traffic speaks the others")
    if user is not None:
        options = replace(options, user=user, password=password)
    return await Connection(replace(target, options=options)).open()
