"""Finding a broker that serves: goes over the known ones until one lets us in, with the pauses of the URL.

One that says nothing (a machine without power) holds nobody up: after :data:`HEAD_START` the next is tried beside it,
and passes go on over the others while it is waited for. Who lets us in first is taken.

Knows neither protocol nor session: what "lets us in" means is the `open` function it is given.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import TYPE_CHECKING, TypeVar

from pollux.client.calls import Calls, reason_of
from pollux.client.discovery import Listener
from pollux.client.errors import ConnectionLostError
from pollux.client.policies import POLICIES, order

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pollux.client.calls import Answer
    from pollux.client.url import Endpoint, Options, Target

T = TypeVar("T")
#: Brokers remembered at most, those learnt from brokers included.
MAX_ENDPOINTS = 64
#: Seconds that a broker has to let us in before another one is tried beside it. A busy one takes no longer, and nobody
#: has a backup yet when a machine is found without power.
HEAD_START = 1.0


class Dialer:
    """The brokers of one client. `sleep` and `random_source` are injected by tests."""

    def __init__(
        self,
        target: Target,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        random_source: random.Random | None = None,
    ) -> None:
        self.options: Options = target.options
        self._configured = target.endpoints
        self._group = target.group
        #: The URL's and those that brokers named; `endpoints` has those too that announce themselves.
        self._known: list[Endpoint] = list(target.endpoints)
        self.endpoints: list[Endpoint] = list(target.endpoints)
        self._sleep = sleep
        self._policy = POLICIES[target.options.policy](random_source or random.Random())  # noqa: S311  (no secret)
        self._last: Endpoint | None = None

    def learn(self, endpoints: Sequence[Endpoint], by: Endpoint) -> None:
        """Remember the brokers that the broker `by` named, instead of those that were learnt before.

        The URL's stay, and stay first. One that names nobody does not know better than the one before.
        """
        if not self.options.use_topology or not endpoints:
            return
        self._known = list(dict.fromkeys((*self._configured, by, *endpoints)))[:MAX_ENDPOINTS]
        self.endpoints = list(self._known)

    async def first(self, opener: Callable[[Endpoint], Awaitable[T]], discard: Callable[[T], None]) -> T:
        """Connect for the first time. Raises LoginError or ConnectionLostError.

        Several calls of ``opener`` may be under way, those that are not needed are cancelled; ``discard`` is given what
        one of them had opened all the same.
        """
        return await self._dial(opener, discard, self.options.initial_connect_attempts)

    async def again(self, opener: Callable[[Endpoint], Awaitable[T]], discard: Callable[[T], None]) -> T:
        """Connect after a loss, first to another broker than the lost one. As :meth:`first` otherwise."""
        return await self._dial(opener, discard, self.options.reconnect_attempts)

    async def _dial(self, opener: Callable[[Endpoint], Awaitable[T]], discard: Callable[[T], None], attempts: int) -> T:
        calls = Calls(opener, self.options.connect_timeout)
        try:
            if self._group is None:
                return await self._passes(calls, attempts, None)
            async with Listener(self._group, tls=self.options.ssl_enabled) as listener:
                return await self._passes(calls, attempts, listener)
        finally:
            calls.hang_up(discard)

    async def _passes(self, calls: Calls[T], attempts: int, listener: Listener | None) -> T:
        found: Answer[T] | None = None
        passes = 0
        for pause in self.options.retry.pauses(attempts):
            if pause:
                await self._sleep(pause / 1000)
            if listener is not None:
                await self._discover(listener)
            passes += 1
            if (found := await self._pass(calls)) is not None:
                break
            await self._sleep(0)
        while found is None and calls:
            found = await calls.answer()
        if found is not None:
            self._last = found.endpoint
            return found.opened
        tried = "; ".join(f"{endpoint}: {reason}" for endpoint, reason in calls.failures.items())
        if not self.endpoints:
            tried = f"nobody announced itself in {self._group}"
        raise ConnectionLostError(
            f"no broker could be reached in {passes} attempt(s): {tried}"
            if passes
            else "the connection was lost and reconnectAttempts is 0"
        )

    async def _discover(self, listener: Listener) -> None:
        """Note who is there now; where nobody is known it is worth waiting."""
        if not self._known:
            await listener.first()
        self.endpoints = list(dict.fromkeys((*self._known, *listener.endpoints())))[:MAX_ENDPOINTS]

    async def _pass(self, calls: Calls[T]) -> Answer[T] | None:
        """Try each broker once; when none says anything, until one does."""
        candidates = self._candidates(self._last)
        for endpoint in candidates:
            if (found := await calls.call(endpoint, HEAD_START)) is not None:
                return found
        return await calls.answer() if candidates and len(calls) == len(candidates) else None

    def _candidates(self, lost: Endpoint | None) -> list[Endpoint]:
        count = len(self.endpoints)
        if not count:
            return []
        # One that was serving until now is dead or stopping: the one behind it takes over or is about to.
        first = self.endpoints.index(lost) + 1 if lost in self.endpoints else self._policy.select(count)
        return [self.endpoints[index] for index in order(first, count)]


def tls_context(options: Options) -> ssl.SSLContext | None:
    """Return the TLS settings of a URL, None without TLS. Raises UrlError for files that cannot be used."""
    if not options.ssl_enabled:
        return None
    from pollux.client.errors import UrlError

    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        if options.certificate_file is not None:
            context.load_cert_chain(options.certificate_file, options.key_file)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (options.ca_file, options.certificate_file, options.key_file)))
        raise UrlError(f"a TLS file cannot be used ({files}): {reason_of(error)}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.trust_all:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif not options.verify_host:
        context.check_hostname = False
    return context
