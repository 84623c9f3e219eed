"""The two ends of a connection inside the broker: the session, and the transport that the server gives it.

A session turns bytes from one client into calls on the post office and back. It owns no
socket: the connection (``pollux.process.connection``) gives it a :class:`Transport`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import asyncio

    from pollux.engine.peer import Peer

#: Seconds from the timer that finds a client silent to the one that may end it. Timers have their turn before sockets,
#: so a loop that stood still finds every client silent, and what they sent meanwhile unread.
SECOND_LOOK = 0.05


class Transport(Protocol):
    """The writing side of a connection, as a session sees it. All calls are from the loop's thread."""

    peer: Peer
    loop: asyncio.AbstractEventLoop

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Queue bytes for sending; never blocks. See :meth:`Session.pause_writing`."""

    def close(self) -> None:
        """Close after everything queued was sent, within a bounded time."""

    def abort(self) -> None:
        """Close at once."""

    def pause_reading(self) -> None:
        """Stop taking bytes from the client (back pressure)."""

    def resume_reading(self) -> None:
        """Take bytes again."""


class Session(ABC):
    """One client's conversation, whatever its protocol."""

    #: "AMQP", "STOMP", "MQTT": for management and logs.
    protocol: str = ""
    #: Set once the client is authenticated.
    user: str | None = None
    client_id: str | None = None
    #: Another broker is at the other end: it stays until the store is closed.
    of_broker = False
    #: Who ends the conversation, "client" or "broker", and why; None while nobody does.
    ended: tuple[str, str] | None = None

    def ends(self, who: str, why: str) -> None:
        """Note, for the log, who ends the conversation and why: what was noted first stays."""
        self.ended = self.ended or (who, why)

    @abstractmethod
    def data_received(self, data: bytes) -> None:
        """Take bytes from the client. Must not raise: a violation answers with the protocol's error and closes."""

    @abstractmethod
    def connection_lost(self, error: Exception | None) -> None:
        """Give back every message held and end what was temporary: the connection is gone."""

    @abstractmethod
    def shutdown(self, reason: str) -> None:
        """Say why in the protocol's words, then close: the broker stops, or an administrator closes this client."""

    def pause_writing(self) -> None:  # noqa: B027  (a session without deliveries has nothing to hold back)
        """Stop delivering until :meth:`resume_writing`: the client does not keep up."""

    def resume_writing(self) -> None:  # noqa: B027
        """Deliver again: the client keeps up."""

    def buffered(self) -> int:
        """Return the bytes held of what the client sent: the start of a frame, and what waits until it can go on."""
        return 0

    def describe(self) -> dict[str, object]:
        """Return, for management, all that this session has open (links, subscriptions, credit, unacknowledged)."""
        return {}
