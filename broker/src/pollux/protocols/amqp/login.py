"""The SASL exchange of one connection, from protocol header to outcome.

Lives only until the login is through. Knows the frames (:mod:`pollux.wire.amqp.sasl`) and the
broker's security, nothing of AMQP proper.
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Protocol

from pollux.errors import AuthenticationError, LimitError, PolluxError
from pollux.wire.amqp import sasl
from pollux.wire.amqp.sasl import SaslError, SaslInit, SaslReader, SaslResponse

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Awaitable, Callable

    from pollux.engine.security import Identity, ScramServer
    from pollux.protocols.base import Transport
    from pollux.protocols.services import Services

_log = logging.getLogger(__name__)
#: Bytes a client may send ahead while its password is checked.
_MAX_AHEAD = 65536
SCRAM = "SCRAM-SHA-256"


class Owner(Protocol):
    """The session that logs in."""

    def logged_in(self, identity: Identity, rest: bytes) -> None:
        """The client is authenticated; ``rest`` is what it sent behind its AMQP header, which is not answered yet."""

    def refused(self) -> None:
        """The client has been told why it may not come in: close."""


class Login:
    """The login of one connection. Feed it bytes until it calls its owner."""

    __slots__ = (
        "_identity",
        "_mechanisms",
        "_owner",
        "_paused",
        "_reader",
        "_scram",
        "_scram_done",
        "_services",
        "_state",
        "_task",
        "_transport",
    )

    def __init__(self, transport: Transport, services: Services, mechanisms: tuple[str, ...], owner: Owner) -> None:
        self._transport = transport
        self._services = services
        self._owner = owner
        self._reader = SaslReader()
        self._mechanisms = self._offer(mechanisms)
        self._state = self._start
        self._identity: Identity | None = None
        self._scram: ScramServer | None = None
        self._scram_done = False
        self._task: asyncio.Task[None] | None = None
        self._paused = False

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
        if self._state == self._ended:
            return
        self._reader.feed(data)
        if self._task is not None:
            if len(self._reader.rest()) > _MAX_AHEAD and not self._paused:
                self._paused = True
                self._transport.pause_reading()
            return
        self._advance()

    def stop(self) -> None:
        """Check nothing any more: the connection is gone."""
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def _advance(self) -> None:
        try:
            while self._task is None and self._state():
                pass
        except SaslError as error:
            _log.info("%s: %s", self._transport.peer.address, error)
            self._state = self._ended
            self._transport.write(sasl.outcome_frame(sasl.OUTCOME_SYS))
            self._owner.refused()

    @staticmethod
    def _ended() -> bool:
        return False

    # -- states: each returns whether it made progress

    def _start(self) -> bool:
        header = self._reader.header()
        if header is None:
            return False
        if header == sasl.SASL_HEADER:
            self._transport.write(sasl.SASL_HEADER + sasl.mechanisms_frame(self._mechanisms))
            self._state = self._negotiate
            return True
        if header == sasl.AMQP_HEADER:
            self._without_sasl()
            return False
        # Another version or layer: answer with what we speak, then close (2.2).
        self._state = self._ended
        self._transport.write(sasl.SASL_HEADER)
        self._owner.refused()
        return False

    def _without_sasl(self) -> None:
        self._state = self._ended
        try:
            if self._mechanisms and "ANONYMOUS" not in self._mechanisms:
                raise AuthenticationError("log-in is required: connect with SASL")
            identity = self._services.security.anonymous(self._transport.peer)
        except PolluxError as error:
            self._transport.write(sasl.AMQP_HEADER + sasl.error_frames("amqp:unauthorized-access", str(error)))
            self._owner.refused()
            return
        self._owner.logged_in(identity, self._reader.rest())

    def _negotiate(self) -> bool:
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

    def _begin(self, init: SaslInit) -> None:
        if self._scram is not None or self._identity is not None:
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
            self._task = self._transport.loop.create_task(self._check(partial(self._password, user, password)))
        else:
            self._scram = self._services.security.scram(init.mechanism, peer)
            if init.response is None:
                self._transport.write(sasl.challenge_frame(b""))
            else:
                self._transport.write(sasl.challenge_frame(self._scram.first(init.response)))
                self._scram_done = True

    def _respond(self, frame: SaslResponse) -> None:
        scram = self._scram
        if scram is None:
            raise SaslError("a sasl-response that nothing asked for")
        if not self._scram_done:
            self._transport.write(sasl.challenge_frame(scram.first(frame.response)))
            self._scram_done = True
            return
        self._task = self._transport.loop.create_task(self._check(partial(self._proof, scram, frame.response)))

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
            self._state = self._ended
            self._transport.write(sasl.outcome_frame(sasl.OUTCOME_SYS))
            self._owner.refused()
            return
        self._task = None
        self._succeed(identity, additional)
        if self._paused:
            self._transport.resume_reading()
        self._advance()

    def _succeed(self, identity: Identity, additional: bytes | None = None) -> None:
        self._identity = identity
        self._scram = None
        self._state = self._await_header
        self._transport.write(sasl.outcome_frame(sasl.OUTCOME_OK, additional))

    def _fail(self, error: PolluxError) -> None:
        _log.debug("%s: login failed: %s", self._transport.peer.address, error)
        self._state = self._ended
        self._transport.write(sasl.outcome_frame(sasl.OUTCOME_AUTH))
        self._owner.refused()

    def _await_header(self) -> bool:
        header = self._reader.header()
        if header is None:
            return False
        self._state = self._ended
        if header != sasl.AMQP_HEADER or self._identity is None:
            self._transport.write(sasl.AMQP_HEADER)
            self._owner.refused()
            return False
        self._owner.logged_in(self._identity, self._reader.rest())
        return False
