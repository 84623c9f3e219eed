"""The HTTP port: starts and stops with the broker, over TLS when configured.

aiohttp takes a third of a second to import, so it is imported when the messaging ports already listen
(:class:`LazyManagement`); what is answered is in :mod:`pollux.management.routes`.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
from typing import TYPE_CHECKING, Any

from pollux.errors import PolluxError
from pollux.logs import event
from pollux.process.acceptor import ListenError, make_tls

if TYPE_CHECKING:
    from aiohttp import web

    from pollux.process.broker import Broker
    from pollux.process.tls import ServerTls

logger = logging.getLogger("pollux.management")

#: Largest request body, bytes.
MAXIMUM_BODY = 1024 * 1024
#: Seconds requests may still take when the broker stops.
SHUTDOWN_TIMEOUT = 2.0
KEEPALIVE_TIMEOUT = 75.0


class LazyManagement:
    """Answer HTTP beside the broker (:class:`pollux.process.broker.Component`)."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._runner: web.AppRunner | None = None
        self._tls: ServerTls | None = None
        self._port = 0

    async def start(self) -> None:
        """Listen. Raises ListenError, TlsError."""
        settings = self._broker.node.configuration.management
        routes = importlib.import_module("pollux.management.routes")
        errors = importlib.import_module("pollux.management.errors")
        http_logger = logging.getLogger("pollux.management.http")
        http_logger.addFilter(errors.OneLine())
        aiohttp_web = importlib.import_module("aiohttp.web")
        self._tls = make_tls(settings, "<px:management>")
        runner = aiohttp_web.AppRunner(
            routes.make_app(self._broker),
            access_log=None,
            logger=http_logger,
            handle_signals=False,
            shutdown_timeout=SHUTDOWN_TIMEOUT,
            keepalive_timeout=KEEPALIVE_TIMEOUT,
        )
        await runner.setup()
        site = aiohttp_web.TCPSite(
            runner,
            settings.host,
            settings.port,
            ssl_context=self._tls.context if self._tls is not None else None,
            reuse_address=True,
        )
        try:
            await site.start()
        except OSError as error:
            await runner.cleanup()
            raise ListenError(
                f"<px:management>: cannot listen on {settings.host}:{settings.port}: {error.strerror}; "
                'choose another <px:port>, or switch it off with enabled="false"'
            ) from error
        self._runner = runner
        self._port = _port_of(runner)
        event(
            logger,
            logging.INFO,
            "management listens",
            host=settings.host,
            port=self._port,
            tls=self._tls is not None,
        )

    async def reload(self) -> None:
        """Read the certificate again; one that is wrong is logged."""
        if self._tls is not None:
            try:
                await asyncio.to_thread(self._tls.load)
            except PolluxError as error:
                event(logger, logging.ERROR, "certificate of the management port not reloaded", reason=error)

    async def stop(self) -> None:
        """Answer what was asked, then close."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    def ports(self) -> dict[str, int]:
        """Return the port listened on, as ``management``."""
        return {"management": self._port} if self._port else {}


def _port_of(runner: Any) -> int:
    addresses = runner.addresses
    return int(addresses[0][1]) if addresses else 0
