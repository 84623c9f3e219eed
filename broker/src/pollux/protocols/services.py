"""The broker's services for sessions, handed over in one object when the connection is accepted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.config.acceptors import AcceptorSettings
    from pollux.config.model import Configuration
    from pollux.engine.post_office import PostOffice
    from pollux.engine.security import Security
    from pollux.protocols.redirects import Router


class Door(Protocol):
    """Answer what a log-in asks of a broker, one that serves or one that sends its clients away."""

    @property
    def security(self) -> Security:
        """Who may come in."""

    @property
    def router(self) -> Callable[[], Router | None]:
        """Who says where a client is served; it returns None where all are served here."""


def _no_router() -> Router | None:
    return None


class Services(Struct):
    """The broker as sessions see it."""

    configuration: Configuration
    post: PostOffice
    security: Security
    #: Milliseconds since the epoch.
    wall_ms: Callable[[], int]
    #: The other members that a client of a protocol, with TLS or without, may fail over to: ``(host, port, scheme)``.
    #: Empty for a single broker.
    failover_servers: Callable[[str, bool], list[tuple[str, int, str]]]
    #: The acceptor the connection came in by: its URI's parameters, typed and with their defaults.
    acceptor: AcceptorSettings
    #: The connection router of that acceptor, as it is now; None: it has none, and all its clients are served here.
    router: Callable[[], Router | None] = _no_router
