"""Finding a broker that serves: goes over the known ones until one lets us in, with the pauses of the URL.

Knows neither protocol nor session: what "lets us in" means is the `open` function it is given.
"""

from __future__ import annotations

import asyncio
import random
import ssl
from typing import TYPE_CHECKING, TypeVar

from pollux.client.balancing import POLICIES, order
from pollux.client.discovery import Listener
from pollux.client.errors import ConnectionLostError, LoginError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from pollux.client.url import Endpoint, Options, Target

T = TypeVar("T")
#: Brokers remembered at most, those learnt from brokers included.
MAX_ENDPOINTS = 64


class HandshakeError(Exception):
    """A broker answered, but this connection cannot be used: the next one is tried."""


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

    async def first(self, opener: Callable[[Endpoint], Awaitable[T]]) -> T:
        """Connect for the first time. Raises LoginError or ConnectionLostError."""
        return await self._dial(opener, self.options.initial_connect_attempts)

    async def again(self, opener: Callable[[Endpoint], Awaitable[T]]) -> T:
        """Connect after a loss, first to another broker than the lost one. Raises like :meth:`first`."""
        return await self._dial(opener, self.options.reconnect_attempts)

    async def _dial(self, opener: Callable[[Endpoint], Awaitable[T]], attempts: int) -> T:
        if self._group is None:
            return await self._passes(opener, attempts, None)
        async with Listener(self._group, tls=self.options.ssl_enabled) as listener:
            return await self._passes(opener, attempts, listener)

    async def _passes(self, opener: Callable[[Endpoint], Awaitable[T]], attempts: int, listener: Listener | None) -> T:
        failures: dict[Endpoint, str] = {}
        passes = 0
        lost = self._last
        for pause in self.options.retry.pauses(attempts):
            if pause:
                await self._sleep(pause / 1000)
            if listener is not None:
                await self._discover(listener)
            passes += 1
            for endpoint in self._candidates(lost):
                try:
                    async with asyncio.timeout(self.options.connect_timeout / 1000):
                        opened = await opener(endpoint)
                except LoginError:
                    raise
                except TimeoutError:
                    failures[endpoint] = f"no answer within {self.options.connect_timeout} ms"
                except (OSError, ssl.SSLError, HandshakeError) as error:
                    failures[endpoint] = _reason(error)
                else:
                    self._last = endpoint
                    return opened
            await self._sleep(0)
        tried = "; ".join(f"{endpoint}: {reason}" for endpoint, reason in failures.items())
        if not self.endpoints:
            tried = f"nobody announced itself in {self._group}"
        raise ConnectionLostError(
            f"no broker could be reached in {passes} attempt(s): {tried}"
            if passes
            else "the connection was lost and reconnectAttempts is 0"
        )

    async def _discover(self, listener: Listener) -> None:
        """Who is there now; where nobody is known it is worth waiting."""
        if not self._known:
            await listener.first()
        self.endpoints = list(dict.fromkeys((*self._known, *listener.endpoints())))[:MAX_ENDPOINTS]

    def _candidates(self, lost: Endpoint | None) -> list[Endpoint]:
        count = len(self.endpoints)
        if not count:
            return []
        # One that was serving until now is dead or stopping: the one behind it takes over or is about to.
        first = self.endpoints.index(lost) + 1 if lost in self.endpoints else self._policy.select(count)
        return [self.endpoints[index] for index in order(first, count)]


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "refused (a backup, or not running)"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def tls_context(options: Options) -> ssl.SSLContext | None:
    """The TLS settings of a URL, None without TLS. Raises UrlError for files that cannot be used."""
    if not options.ssl_enabled:
        return None
    from pollux.client.errors import UrlError

    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        if options.certificate_file is not None:
            context.load_cert_chain(options.certificate_file, options.key_file)
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(filter(None, (options.ca_file, options.certificate_file, options.key_file)))
        raise UrlError(f"a TLS file cannot be used ({files}): {_reason(error)}") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if options.trust_all:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif not options.verify_host:
        context.check_hostname = False
    return context
