"""A connection that another broker opened to an acceptor."""

from __future__ import annotations

import logging
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from pollux.cluster.link.conversation import Conversation
from pollux.errors import InvalidRequestError
from pollux.logs import event
from pollux.protocols.base import Session

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pollux.cluster.link.conversation import CoreHub
    from pollux.protocols.base import Transport
    from pollux.protocols.services import Services
    from pollux.wire.core.peer import Hello

logger = logging.getLogger("pollux.core")


class CoreSession(Session):
    """The session of another broker. Until it has proven the cluster password the log-in deadline holds for it."""

    protocol = "CORE"
    of_broker = True

    def __init__(self, transport: Transport, services: Services, hub: CoreHub | None = None) -> None:
        """``hub``: what other brokers may ask for; None: they are not talked to."""
        if hub is None:
            raise InvalidRequestError("this broker has no cluster connection with a password of its own")
        self.transport = transport
        self._security = services.security
        self._user = hub.key.user
        #: Whether it was looked at whether it knows the password.
        self._checked = False
        self._conversation = Conversation(
            hub,
            transport,
            transport.loop,
            initiator=False,
            on_ready=self._ready,
            on_end=self._ended,
            turn=self._turn,
        )

    def data_received(self, data: bytes) -> None:
        """Bytes of the other broker."""
        self._conversation.feed(data)

    @asynccontextmanager
    async def _turn(self) -> AsyncIterator[None]:
        """A guess of the cluster password waits as one of any other password does."""
        async with self._security.admitted(self.transport.peer.address, self._user):
            self._security.checks += 1
            self._checked = True
            yield

    def _ready(self, peer: Hello) -> None:
        self._security.succeeded(self._user, self.transport.peer)
        self.user = self._user
        self.client_id = peer.name
        event(logger, logging.INFO, "broker connected", broker=peer.name, source=self.transport.peer.address)

    def _ended(self, code: str, text: str) -> None:
        if code == "denied" and self._checked:
            self._security.failed(self._user, self.transport.peer, "cluster", text)
        elif code in ("denied", "busy") and self.user is None:
            self._security.log_failure(self._user, self.transport.peer, "cluster", text)
        elif self.user is None:
            fields = {"source": self.transport.peer.address, "reason": f"{code}: {text}"}
            if code == "protocol":
                fields["remedy"] = "find out what runs there; if it is no broker, keep it away from this port"
            event(logger, logging.WARNING, "broker refused", **fields)

    def connection_lost(self, error: Exception | None) -> None:
        """Settle what the connection was for: it is gone."""
        self._conversation.end("failed", str(error) if error else "the connection was closed")

    def pause_writing(self) -> None:
        """The other broker does not keep up."""
        self._conversation.pause()

    def resume_writing(self) -> None:
        """Send again: the other side keeps up."""
        self._conversation.resume()

    def shutdown(self, reason: str) -> None:
        """The broker stops, or an administrator closes this connection."""
        self._conversation.stop("stopping", reason)

    def describe(self) -> dict[str, object]:
        """Return what management shows of the connection."""
        return {"channels": len(self._conversation.channels)}
