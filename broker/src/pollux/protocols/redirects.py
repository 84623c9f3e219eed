"""The question of a session to a connection router, and the answer: serve this client, send it elsewhere, or refuse it.

The router itself is :mod:`pollux.cluster.routers`; each protocol says the answer in its own words.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from pollux.engine.peer import Peer
    from pollux.engine.security import Identity
    from pollux.protocols.services import Door, Services

logger = logging.getLogger("pollux.router")


class Client(NamedTuple):
    """A client that has logged in and done nothing else. ``client_id``: None while its protocol has not said it yet."""

    protocol: str
    peer: Peer
    identity: Identity
    client_id: str | None


class Elsewhere(NamedTuple):
    """The client is served at another broker: host and port of an acceptor there, and whether that has TLS."""

    host: str
    port: int
    tls: bool

    @property
    def reference(self) -> str:
        """Return ``host:port``, with an IPv6 address in brackets."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Refused(NamedTuple):
    """The client is served nowhere. ``later``: it may be, once more brokers are there; else the settings forbid it."""

    text: str
    later: bool


class Router(Protocol):
    """The connection router of an acceptor. All calls are in the loop's thread."""

    def wait(self, client: Client) -> Awaitable[None] | None:
        """Return what is to be waited for (bounded) before it can be decided about this client; mostly None."""

    def decide(self, client: Client) -> Elsewhere | Refused | None:
        """Return where this client is served; None: here. It is counted, so it is asked once for each client."""


def waits(services: Door, client: Client) -> Awaitable[None] | None:
    """Return what is to be waited for before it is decided about a client; mostly None."""
    router = services.router()
    return router.wait(client) if router is not None else None


def route(services: Services, client: Client) -> Elsewhere | Refused | None:
    """Return where a client of an acceptor is served, and log it; None: here."""
    router = services.router()
    answer = router.decide(client) if router is not None else None
    if answer is not None:
        event(
            logger,
            logging.INFO,
            "client is refused by the router" if isinstance(answer, Refused) else "client is sent elsewhere",
            router=services.acceptor.router,
            connection=client.peer.connection_id,
            user=client.identity.user,
            client_id=client.client_id,
            to=answer.reference if isinstance(answer, Elsewhere) else None,
            reason=answer.text if isinstance(answer, Refused) else None,
        )
    return answer
