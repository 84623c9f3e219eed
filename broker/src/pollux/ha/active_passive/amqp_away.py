"""Tell an AMQP client that comes to a broker which waits, after its log-in, where clients are served.

AMQP has a redirection for a connection that is open, so the client opens one first. Its log-in is that of the acceptor
(the same users and mechanisms, pauses after wrong passwords too), so no password is asked for that would not be there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.config.active_passive import parse_url
from pollux.protocols.amqp import introduction
from pollux.protocols.amqp.backpressure import Reading
from pollux.protocols.amqp.login import Login
from pollux.protocols.redirects import Elsewhere
from pollux.wire.amqp import sasl

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pollux.engine.peer import Peer
    from pollux.engine.security import Identity, Security

#: Why a connection is closed while nobody is known to serve.
UNKNOWN = "amqp:connection:forced", "this broker waits, and the primary is not known"


def redirection(primary: str) -> bytes:
    """Return our open and close. ``primary``: where clients are served, in Qpid's grammar; empty: not known."""
    failed = introduction.open_properties({}, refused=True)
    try:
        there = parse_url(primary)[0] if primary else None
    except ValueError:
        there = None
    if there is None:
        return sasl.error_frames(*UNKNOWN, properties=failed)
    condition, text, info = introduction.redirection(Elsewhere(there.host, there.port, there.tls))
    return sasl.error_frames(condition, text, info, properties=failed)


class SentAway:
    """One AMQP client. It is the broker that its log-in asks, the owner that this tells, and the way to the socket."""

    def __init__(
        self,
        transport: asyncio.Transport,
        loop: asyncio.AbstractEventLoop,
        peer: Peer,
        security: Security,
        mechanisms: tuple[str, ...],
        *,
        primary: Callable[[], str],
    ) -> None:
        """``primary`` as for :func:`redirection`; ``mechanisms``: those of the acceptor, empty for all."""
        self.loop = loop
        self.peer = peer
        self.security = security
        self.reading = Reading(self)
        self._transport = transport
        self._primary = primary
        self._login: Login | None = Login(self, self, mechanisms, self)

    def feed(self, data: bytes) -> None:
        """Take bytes. What comes after the log-in is not looked at: the client closes when it has read our close."""
        if self._login is not None:
            self._login.feed(data)

    def stop(self) -> None:
        """Check no password any more: the connection is gone."""
        self.reading.end()
        if self._login is not None:
            self._login.stop()

    # -- what its log-in asks, and tells

    def router(self) -> None:
        """Return nobody: who is sent away is sent to the primary."""

    def logged_in(self, identity: Identity, rest: bytes) -> None:
        """Say where to go."""
        del identity, rest
        self._login = None
        self.write(sasl.AMQP_HEADER + redirection(self._primary()))

    def refused(self) -> None:
        """Close: the client has been told why."""
        self.close()

    # -- the socket

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes, if there is still somebody: uvloop raises for a socket that broke meanwhile."""
        if not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Close after what was sent."""
        self._transport.close()

    def abort(self) -> None:
        """Close at once."""
        self._transport.abort()

    def pause_reading(self) -> None:
        """Take no bytes."""
        self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take bytes again."""
        self._transport.resume_reading()
