"""The SASL exchange of one connection, from protocol header to outcome.

Lives only until the login is through. Knows the frames (:mod:`pollux.wire.amqp.sasl`) and the
broker's security, nothing of AMQP proper.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pollux.errors import AuthenticationError, LimitError, PolluxError
from pollux.protocols.amqp.phases import LOGIN, LoginPhase
from pollux.protocols.redirects import Client, waits
from pollux.transitions import follow
from pollux.wire.amqp import sasl
from pollux.wire.amqp.sasl import SaslError, SaslInit, SaslReader, SaslResponse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from pollux.engine.security import Identity, ScramServer
    from pollux.protocols.amqp.backpressure import Reading
    from pollux.protocols.base import Transport
    from pollux.protocols.services import Door

_log = logging.getLogger(__name__)
#: Bytes a client may send ahead while its password is checked.
_MAX_AHEAD = 65536
SCRAM = "SCRAM-SHA-256"


class Owner(Protocol):
    """The session that logs in."""

    reading: Reading

    def logged_in(self, identity: Identity, rest: bytes) -> None:
        """Go on with an authenticated client; ``rest`` came behind its AMQP header, which is not answered yet."""

    def refused(self) -> None:
        """Close: the client has been told why it may not come in."""


class Login:
    """The login of one connection. Feed it bytes until it calls its owner."""

    __slots__ = (
        "_identity",
        "_mechanisms",
        "_owner",
        "_phase",
        "_reader",
        "_scram",
        "_services",
        "_task",
        "_transport",
    )

    def __init__(self, transport: Transport, services: Door, mechanisms: tuple[str, ...], owner: Owner) -> None:
        self._transport = transport
        self._services = services
        self._owner = owner
        self._reader = SaslReader()
        self._mechanisms = self._offer(mechanisms)
        self._phase = LoginPhase.LAYER
        self._identity: Identity | None = None
        self._scram: ScramServer | None = None
        self._task: asyncio.Task[None] | None = None

    def _offer(self, configured: tuple[str, ...]) -> list[str]:
        """Return the mechanisms that may be used here: EXTERNAL needs a certificate, ANONYMOUS an anonymous user."""
        peer = self._transport.peer
        names = configured or (SCRAM, "EXTERNAL", "PLAIN", "ANONYMOUS")
        offered = []
        for name in names:
            if name == "EXTERNAL" and peer.certificate_subject is None:
                continue
            if name == "ANONYMOUS" and not self._services.security.anonymous_allowed:
                continue
            if name in (SCRAM, "EXTERNAL", "PLAIN", "ANONYMOUS"):
                offered.append(name)
        return offered

    def feed(self, data: bytes) -> None:
        """Take bytes from the client."""
        if self._phase is LoginPhase.OVER and self._task is None:
            return
        self._reader.feed(data)
        self._advance()
        if self._phase is LoginPhase.CHECKING and len(self._reader.rest()) > _MAX_AHEAD:
            self._owner.reading.hold(self)

    def stop(self) -> None:
        """Check nothing any more: the connection is gone."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _go(self, phase: LoginPhase) -> None:
        self._phase = follow(LOGIN, self._phase, phase)

    def _advance(self) -> None:
        try:
            while self._step():
                pass
        except SaslError as error:
            _log.info("%s: %s", self._transport.peer.address, error)
            self._go(LoginPhase.OVER)
            self._transport.write(sasl.outcome_frame(sasl.OUTCOME_SYS))
            self._owner.refused()

    def _step(self) -> bool:
        """Take the next thing that the client sent, if this phase waits for one; whether there was one."""
        phase = self._phase
        if phase in (LoginPhase.CHECKING, LoginPhase.OVER):
            return False
        if phase in (LoginPhase.LAYER, LoginPhase.PROVEN):
            header = self._reader.header()
            if header is None:
                return False
            (self._choose_layer if phase is LoginPhase.LAYER else self._finish)(header)
            return True
        frame = self._reader.next()
        if frame is None:
            return False
        try:
            if isinstance(frame, SaslInit):
                self._begin(frame)
            else:
                self._respond(frame)
        except (AuthenticationError, LimitError) as error:
            self._fail(error)
        return True

    def _choose_layer(self, header: bytes) -> None:
        if header == sasl.SASL_HEADER:
            self._go(LoginPhase.MECHANISM)
            self._transport.write(sasl.SASL_HEADER + sasl.mechanisms_frame(self._mechanisms))
        elif header == sasl.AMQP_HEADER:
            self._without_sasl()
        else:
            # Another version or layer: answer with what we speak, then close (2.2).
            self._go(LoginPhase.OVER)
            self._transport.write(sasl.SASL_HEADER)
            self._owner.refused()

    def _without_sasl(self) -> None:
        self._go(LoginPhase.OVER)
        try:
            if self._mechanisms and "ANONYMOUS" not in self._mechanisms:
                raise AuthenticationError("log-in is required: connect with SASL")
            identity = self._services.security.anonymous(self._transport.peer)
        except PolluxError as error:
            self._transport.write(sasl.AMQP_HEADER + sasl.error_frames("amqp:unauthorized-access", str(error)))
            self._owner.refused()
            return
        self._enter(identity)

    def _begin(self, init: SaslInit) -> None:
        if self._phase is not LoginPhase.MECHANISM:
            raise SaslError("a second sasl-init")
        if init.mechanism not in self._mechanisms:
            raise AuthenticationError(f"mechanism {init.mechanism[:40]!r} is not offered")
        peer = self._transport.peer
        if init.mechanism == "ANONYMOUS":
            self._succeed(self._services.security.anonymous(peer))
        elif init.mechanism == "EXTERNAL":
            self._succeed(self._services.security.authenticate_certificate(peer))
        elif init.mechanism == "PLAIN":
            if init.response is None:
                raise SaslError("PLAIN without an initial response")
            _, user, password = sasl.parse_plain(init.response)
            self._start(partial(self._password, user, password))
        else:
            self._scram = self._services.security.scram(init.mechanism, peer)
            if init.response is None:
                self._go(LoginPhase.FIRST)
                self._transport.write(sasl.challenge_frame(b""))
            else:
                self._challenge(self._scram, init.response)

    def _respond(self, frame: SaslResponse) -> None:
        scram = self._scram
        if scram is None:
            raise SaslError("a sasl-response that nothing asked for")
        if self._phase is LoginPhase.FIRST:
            self._challenge(scram, frame.response)
        else:
            self._start(partial(self._proof, scram, frame.response))

    def _challenge(self, scram: ScramServer, first: bytes) -> None:
        challenge = scram.first(first)
        self._go(LoginPhase.FINAL)
        self._transport.write(sasl.challenge_frame(challenge))

    def _start(self, prove: Callable[[], Awaitable[tuple[Identity, bytes | None]]]) -> None:
        self._go(LoginPhase.CHECKING)
        self._task = self._transport.loop.create_task(self._check(prove))

    async def _password(self, user: str, password: str) -> tuple[Identity, bytes | None]:
        return await self._services.security.authenticate_password(user, password, self._transport.peer), None

    async def _proof(self, scram: ScramServer, response: bytes) -> tuple[Identity, bytes | None]:
        final = await scram.final(response)
        if scram.identity is None:
            raise AuthenticationError("the exchange did not prove an identity")
        return scram.identity, final

    async def _check(self, prove: Callable[[], Awaitable[tuple[Identity, bytes | None]]]) -> None:
        """Wait for the identity and what the mechanism says at its end, and go on with what the client sent ahead."""
        try:
            identity, additional = await prove()
        except (AuthenticationError, LimitError) as error:
            self._task = None
            self._fail(error)
            return
        except Exception:
            self._task = None
            _log.exception("%s: checking a log-in failed", self._transport.peer.address)
            self._go(LoginPhase.OVER)
            self._transport.write(sasl.outcome_frame(sasl.OUTCOME_SYS))
            self._owner.refused()
            return
        self._task = None
        self._succeed(identity, additional)
        self._owner.reading.release(self)
        self._advance()

    def _succeed(self, identity: Identity, additional: bytes | None = None) -> None:
        self._go(LoginPhase.PROVEN)
        self._identity = identity
        self._transport.write(sasl.outcome_frame(sasl.OUTCOME_OK, additional))

    def _fail(self, error: PolluxError) -> None:
        _log.debug("%s: login failed: %s", self._transport.peer.address, error)
        self._go(LoginPhase.OVER)
        self._transport.write(sasl.outcome_frame(sasl.OUTCOME_AUTH))
        self._owner.refused()

    def _finish(self, header: bytes) -> None:
        self._go(LoginPhase.OVER)
        if header != sasl.AMQP_HEADER or self._identity is None:
            self._transport.write(sasl.AMQP_HEADER)
            self._owner.refused()
        else:
            self._enter(self._identity)

    def _enter(self, identity: Identity) -> None:
        """Let the client in, once it can be told whether it is served here."""
        waiting = waits(self._services, Client("AMQP", self._transport.peer, identity, None))
        if waiting is None:
            self._owner.logged_in(identity, self._reader.rest())
        else:
            self._owner.reading.hold(self)
            self._task = self._transport.loop.create_task(self._enter_later(waiting, identity))

    async def _enter_later(self, waiting: Awaitable[None], identity: Identity) -> None:
        await waiting
        self._task = None
        self._owner.reading.release(self)
        self._owner.logged_in(identity, self._reader.rest())
