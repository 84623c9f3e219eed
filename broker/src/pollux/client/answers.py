"""Answers of brokers, waited for within the times that the URL allows, and through failovers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

from pollux.client.errors import CallTimeoutError

if TYPE_CHECKING:
    from pollux.client.errors import ClientError
    from pollux.client.url import Options

T = TypeVar("T")


class Answers:
    """Holds whether a broker serves a connection, and what ended it; all that is under way waits here."""

    def __init__(self, options: Options) -> None:
        self.loop = asyncio.get_running_loop()
        self.options = options
        #: Set while a broker serves, and when the connection is over.
        self.ready = asyncio.Event()
        #: Failovers so far.
        self.failovers = 0
        #: What ended the connection; None while it is not over.
        self.failure: ClientError | None = None

    def check(self) -> None:
        """Raise what ended the connection."""
        if self.failure is not None:
            raise self.failure

    async def wait_until_ready(self) -> None:
        """Wait until a broker serves us. Raises CallTimeoutError, or what ended the connection."""
        self.check()
        if not self.ready.is_set():
            waiting = asyncio.ensure_future(self.ready.wait())
            try:
                await self.answer(waiting)
            finally:
                waiting.cancel()
        self.check()

    async def answer(self, future: asyncio.Future[T]) -> T:
        """Return what a broker answers. Raises CallTimeoutError, or what ended the connection."""
        began = self.loop.time()
        failovers = self.failovers
        while True:
            failing_over = failovers != self.failovers or not self.ready.is_set()
            limit = float(self.options.call_timeout)
            if failing_over:
                more = self.options.call_failover_timeout
                limit = float("inf") if more < 0 else limit + more
            left = limit / 1000 - (self.loop.time() - began)
            if left <= 0:
                raise CallTimeoutError(f"no answer from the broker within {limit:.0f} ms")
            await asyncio.wait((future,), timeout=min(left, 1.0))
            if future.done():
                return future.result()
            self.check()
