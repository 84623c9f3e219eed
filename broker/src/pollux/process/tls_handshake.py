"""Wrap TLS around a connection whose first bytes were read already, and say why a handshake failed.

The layer is asyncio's or uvloop's own, as ``start_tls`` of neither takes bytes that were read before.
"""

from __future__ import annotations

import importlib
import logging
from asyncio import sslproto
from typing import TYPE_CHECKING, Any

from pollux.logs import event

if TYPE_CHECKING:
    import asyncio
    import ssl
    from collections.abc import Callable

    from pollux.config.acceptors import AcceptorSettings
    from pollux.engine.peer import Peer

logger = logging.getLogger("pollux.connection")

_SHUTDOWN_TIMEOUT = 2.0


def layer_of(loop: asyncio.AbstractEventLoop) -> Any:
    """Return the TLS layer of this loop: uvloop's own (compiled) on uvloop, else asyncio's; both are built alike."""
    module = type(loop).__module__
    if module.partition(".")[0] == "uvloop":
        # uvloop's stubs do not know it; start_tls itself is built on it.
        return importlib.import_module("uvloop.loop").SSLProtocol
    return sslproto.SSLProtocol


def begin(
    protocol: asyncio.Protocol,
    raw: asyncio.Transport,
    data: bytes,
    *,
    loop: asyncio.AbstractEventLoop,
    layer: Any,
    context: ssl.SSLContext,
    seconds: float,
    done: Callable[[asyncio.Future[None]], None],
) -> None:
    """Have ``protocol`` speak TLS on ``raw``, whose first bytes are ``data``; it is connected again when that works.

    ``layer``: that of :func:`layer_of`. ``done`` is called with the outcome, as a protocol that was never made is not
    told that it is lost.
    """
    waiter: asyncio.Future[None] = loop.create_future()
    waiter.add_done_callback(done)
    wrapped = layer(
        loop,
        protocol,
        context,
        waiter,
        server_side=True,
        call_connection_made=True,
        ssl_handshake_timeout=seconds,
        ssl_shutdown_timeout=_SHUTDOWN_TIMEOUT,
    )
    raw.set_protocol(wrapped)
    wrapped.connection_made(raw)
    position = 0
    while position < len(data):
        buffer = wrapped.get_buffer(len(data) - position)
        part = data[position : position + len(buffer)]
        buffer[: len(part)] = part
        wrapped.buffer_updated(len(part))
        position += len(part)


def log_failure(peer: Peer, settings: AcceptorSettings, error: BaseException | None) -> None:
    """Log why a handshake failed, and what to do about it."""
    from pollux.cluster import tls_advice

    advice = tls_advice.accepting(settings, error)
    event(
        logger,
        logging.WARNING,
        "TLS handshake failed",
        connection=peer.connection_id,
        source=peer.address,
        acceptor=peer.acceptor,
        reason=advice.reason,
        file=advice.file or None,
        remedy=advice.remedy,
    )
