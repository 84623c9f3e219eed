"""Calls to several brokers at once, at most one to each: who lets us in first is taken, the others are hung up on."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from pollux.client.url import Endpoint

T = TypeVar("T")


class HandshakeError(Exception):
    """A broker answered, but this connection cannot be used: the next one is tried."""


class Answer(NamedTuple, Generic[T]):
    """The broker that has let us in, and what the opener made of it."""

    endpoint: Endpoint
    opened: T


class Calls(Generic[T]):
    """The calls under way. ``opener`` makes one call, which may take ``limit`` milliseconds."""

    def __init__(self, opener: Callable[[Endpoint], Awaitable[T]], limit: int) -> None:
        self._opener = opener
        self._limit = limit
        self._waiting: dict[Endpoint, asyncio.Task[T]] = {}
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

        def ended(task: asyncio.Task[T]) -> None:
            if not task.cancelled() and task.exception() is None:
                discard(task.result())

        for task in self._waiting.values():
            task.add_done_callback(ended)
            task.cancel()
        self._waiting.clear()

    async def _open(self, endpoint: Endpoint) -> T:
        async with asyncio.timeout(self._limit / 1000):
            return await self._opener(endpoint)

    async def _wait(self, seconds: float | None) -> Answer[T] | None:
        await asyncio.wait(self._waiting.values(), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        for endpoint, task in list(self._waiting.items()):
            if not task.done():
                continue
            del self._waiting[endpoint]
            try:
                return Answer(endpoint, task.result())
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
