"""Calls to several brokers at once, at most one to each: who lets us in first is taken, the others are hung up on."""

from __future__ import annotations

import asyncio
import re
import ssl
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from pollux.client.url import Endpoint

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")
#: What may be the host of an endpoint that a broker names.
HOST = re.compile(r"[A-Za-z0-9._:%-]{1,253}", re.ASCII)
_PORT = re.compile(r"[0-9]{1,5}")
#: Brokers that may send us on, one after the other, within one call.
MAXIMUM_REDIRECTS = 4


class HandshakeError(Exception):
    """A broker answered, but this connection cannot be used: the next one is tried."""


class RedirectError(HandshakeError):
    """A broker says which one serves us instead of it."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(f"it sends us to {endpoint}")
        self.endpoint = endpoint


def redirection(host: object, port: object, *, tls: bool, their_tls: bool | None = None) -> HandshakeError:
    """Return what to raise for a broker's words about who serves us.

    With ``tls`` all our connections have TLS, whatever a broker says, and without it none has. ``their_tls``: whether
    that one is said to have it, where that is said.
    """
    number = int(port) if isinstance(port, str) and _PORT.fullmatch(port) else port
    numbered = isinstance(number, int) and not isinstance(number, bool) and 0 < number < 65536
    if not isinstance(host, str) or not HOST.fullmatch(host) or not numbered:
        return HandshakeError("it sends us elsewhere, and does not say where")
    if their_tls and not tls:
        return HandshakeError(f"it sends us to {host}:{number}, which has TLS: use tcps:// or sslEnabled=true")
    return RedirectError(Endpoint(host, int(number)))  # type: ignore[call-overload]  # it is a number


class Answer(NamedTuple, Generic[T]):
    """The broker that has let us in, called or sent to by the one called, and what the opener made of it."""

    endpoint: Endpoint
    opened: T


class Calls(Generic[T]):
    """The calls under way. ``opener`` makes one call, which may take ``limit`` milliseconds."""

    def __init__(self, opener: Callable[[Endpoint], Awaitable[T]], limit: int) -> None:
        self._opener = opener
        self._limit = limit
        self._waiting: dict[Endpoint, asyncio.Task[Answer[T]]] = {}
        #: Those that did not answer in the time they were given.
        self._silent: set[Endpoint] = set()
        #: Why the last call to each failed.
        self.failures: dict[Endpoint, str] = {}

    def __len__(self) -> int:
        """Return how many calls are not answered."""
        return len(self._waiting)

    async def call(self, endpoint: Endpoint, seconds: float) -> Answer[T] | None:
        """Call a broker, unless a call is under way, and give it so long; one that was silent before gets no time.

        Return who has let us in meanwhile, which may be another one. Raises LoginError.
        """
        loop = asyncio.get_running_loop()
        if endpoint not in self._waiting:
            self._waiting[endpoint] = loop.create_task(self._open(endpoint))
        until = loop.time() + (0 if endpoint in self._silent else seconds)
        while endpoint in self._waiting:
            if (found := await self._wait(max(until - loop.time(), 0))) is not None:
                return found
            if loop.time() >= until:
                self._silent.add(endpoint)
                break
        return None

    async def answer(self) -> Answer[T] | None:
        """Wait until a call is answered: who has let us in, None when it failed. Raises LoginError."""
        return await self._wait(None)

    def hang_up(self, discard: Callable[[T], None]) -> None:
        """Break off what is under way; what was opened all the same is given to ``discard``."""

        def ended(task: asyncio.Task[Answer[T]]) -> None:
            if not task.cancelled() and task.exception() is None:
                discard(task.result().opened)

        for task in self._waiting.values():
            task.add_done_callback(ended)
            task.cancel()
        self._waiting.clear()

    async def _open(self, endpoint: Endpoint) -> Answer[T]:
        way = [endpoint]
        async with asyncio.timeout(self._limit / 1000):
            while True:
                try:
                    return Answer(way[-1], await self._opener(way[-1]))
                except RedirectError as redirect:
                    way.append(redirect.endpoint)
                    if redirect.endpoint in way[:-1] or len(way) > MAXIMUM_REDIRECTS + 1:
                        told = " to ".join(map(str, way))
                        raise HandshakeError(f"the brokers send us around, from {told}: see their routers") from None
                except (OSError, ssl.SSLError, HandshakeError) as error:
                    if len(way) == 1:
                        raise
                    raise HandshakeError(f"it sends us to {way[-1]}: {reason_of(error)}") from error

    async def _wait(self, seconds: float | None) -> Answer[T] | None:
        await asyncio.wait(self._waiting.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for endpoint, task in list(self._waiting.items()):
            if not task.done():
                continue
            del self._waiting[endpoint]
            try:
                return task.result()
            except TimeoutError:
                self.failures[endpoint] = f"no answer within {self._limit} ms"
            except (OSError, ssl.SSLError, HandshakeError) as error:
                self.failures[endpoint] = reason_of(error)
        return None


def reason_of(error: Exception) -> str:
    """Return why a connection could not be made, for people."""
    if isinstance(error, ConnectionRefusedError):
        return "refused (a backup, or not running)"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__
