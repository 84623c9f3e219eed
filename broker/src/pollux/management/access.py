"""Who may use the API: the broker's own users with the ``manage`` permission, and the local administrator.

Basic authentication by the same users and roles as the messaging protocols; the token of the status directory as
Bearer; or a client certificate. Health is open to all, metrics when ``metrics-anonymous`` says so.
"""

from __future__ import annotations

import base64
import binascii
import logging
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp import web

from pollux.engine.peer import Peer
from pollux.engine.security import MANAGEMENT_ADDRESS, Identity, Permission
from pollux.errors import AuthenticationError
from pollux.logs import event
from pollux.management.errors import ApiError

if TYPE_CHECKING:
    from aiohttp.typedefs import Handler, Middleware

    from pollux.process.broker import Broker

logger = logging.getLogger("pollux.management")

IDENTITY: web.RequestKey[Identity] = web.RequestKey("identity", Identity)
_LOCAL_ADMINISTRATOR = Identity("local-administrator", administrator=True)
#: What a broker that waits for its store answers.
_WITHOUT_STORE = (
    *("/metrics", "/api/v1/status", "/api/v1/openapi.json"),
    *("/api/v1/activation/", "/api/v1/reload", "/api/v1/users"),
)
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})


def access_control(broker: Broker) -> Middleware:
    """Return the middleware that lets in who may come in."""
    node = broker.node

    @web.middleware
    async def control(request: web.Request, handler: Handler) -> web.StreamResponse:
        path = request.path
        if path.startswith("/health/") or (path == "/metrics" and node.configuration.management.metrics_anonymous):
            return await handler(request)
        _refuse_other_sites(request)
        identity = await _identify(broker, request)
        node.security.check(identity, Permission.manage, MANAGEMENT_ADDRESS)
        request[IDENTITY] = identity
        if node.engine is None and not path.startswith(_WITHOUT_STORE):
            raise ApiError(503, "not-live", "; ".join(node.not_ready()))
        response = await handler(request)
        if request.method not in _SAFE:
            event(
                logger,
                logging.INFO,
                "management request",
                user=identity.user,
                source=request.remote,
                method=request.method,
                path=path,
                status=response.status,
            )
        return response

    return control


def _refuse_other_sites(request: web.Request) -> None:
    """A browser that remembers a log-in must not act for pages of other sites."""
    origin = request.headers.get("Origin")
    if origin is not None and _site(origin) != request.host:
        raise ApiError(403, "cross-site", "requests from pages of other sites are refused")


def _site(origin: str) -> str | None:
    """The host and port of an Origin header; None for what is no URL."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


async def _identify(broker: Broker, request: web.Request) -> Identity:
    peer = _peer(request)
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        if broker.status.is_token(value.strip()):
            return _LOCAL_ADMINISTRATOR
        broker.node.security.failed("local-administrator", peer, "token", "the token is not this broker's")
        raise AuthenticationError("the token is not this broker's")
    if scheme.lower() == "basic":
        user, password = _credentials(value)
        return await broker.node.security.authenticate_password(user, password, peer)
    if peer.certificate_subject is not None:
        return broker.node.security.authenticate_certificate(peer)
    if broker.node.security.anonymous_allowed:
        return broker.node.security.anonymous(peer)
    raise AuthenticationError("log-in is required")


def _credentials(value: str) -> tuple[str, str]:
    try:
        user, separator, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        raise ApiError(400, "bad-request", "the Authorization header is not valid") from None
    if not separator:
        raise ApiError(400, "bad-request", "the Authorization header is not valid")
    return user, password


def _peer(request: web.Request) -> Peer:
    transport = request.transport
    address = transport.get_extra_info("peername") if transport is not None else None
    connection = transport.get_extra_info("ssl_object") if transport is not None else None
    subject = None
    if connection is not None:
        from pollux.process.tls import ServerTls

        subject = ServerTls.subject_of(connection)
    host, port = (str(address[0]), int(address[1])) if address else ("", 0)
    return Peer(0, host, port, tls=connection is not None, certificate_subject=subject, acceptor="management")
