"""The connection as its links see it: what they share, and what they may ask of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from pollux.engine.post_office import PostOffice
    from pollux.engine.security import Identity
    from pollux.protocols.amqp.backpressure import Reading
    from pollux.protocols.amqp.blocked import BlockedAddresses
    from pollux.protocols.amqp.settings import AmqpSettings
    from pollux.protocols.amqp.transactions import Transactions
    from pollux.protocols.base import Transport
    from pollux.protocols.services import Services
    from pollux.routing.reference import MessageReference
    from pollux.wire.amqp.links import Link
    from pollux.wire.amqp.proton import Pointer


class Flowing(Protocol):
    """A link that sends to the client, and had to stop."""

    def on_flow(self) -> None:
        """Look again at what the client may be sent."""


class Draining(Protocol):
    """A link that answered a drain."""

    def end_drain(self) -> bool:
        """Forget the drain; false: its answer is not sent yet."""


class Confirmed(Protocol):
    """A link whose deliveries are confirmed when they are durable."""

    attached: bool

    def confirm(self, deliveries: list[Pointer]) -> None:
        """Tell the client that these deliveries are durable."""


class Receiving(Confirmed, Protocol):
    """A link that received messages in this pass."""

    #: Deliveries of this pass to be confirmed.
    pending: list[Pointer]
    touched: bool

    def replenish(self) -> None:
        """Give the client credit again when little is left."""


class Running(Protocol):
    """A link whose last messages are sent together."""

    def end_run(self) -> None:
        """Send what is not sent yet."""


class Connection(Protocol):
    """Say what links use of the session they belong to; it is an attribute of theirs, so that none costs a call."""

    services: Services
    transport: Transport
    post: PostOffice
    settings: AmqpSettings
    user: str | None
    origin: int
    #: Milliseconds since the epoch, as of the current pass.
    now: int
    transactions: Transactions
    blocked: BlockedAddresses
    reading: Reading

    #: Links that received in this pass.
    touched: list[Receiving]
    #: The link whose messages were received last, and are not sent yet; None: all are sent.
    running: Running | None
    #: Bytes received in this pass.
    received_bytes: int
    #: Bytes of messages whose last frames are still to come, of all links.
    partial_bytes: int

    #: The client's writes are held back by the network: deliver nothing.
    paused: bool
    #: Bytes of messages that were given to the engine since its output was last written.
    unsent: int
    #: Deliveries to this client that it has not settled.
    unsettled: int
    #: Links with credit that may not be used because too much is unsettled.
    limited: set[Flowing]
    #: Links whose client's session window is full.
    backlogged: set[Flowing]
    #: Links whose drain was answered in this pass.
    drained: set[Draining]
    #: Settled by the client in this pass, in order.
    acknowledged: list[MessageReference]
    #: Accepted but not settled by the client: the delivery is settled when the acknowledgement is durable.
    accepting: list[tuple[Link, Pointer]]

    def settle_acknowledged(self) -> None:
        """Pass on all that was sent and acknowledged so far, so that what follows comes after it."""

    def end_run(self) -> None:
        """Send the messages that were collected to be sent together, so that what follows comes after them."""

    def stable(self, batch: list[tuple[Confirmed, list[Pointer]]]) -> None:
        """Confirm these deliveries once everything so far is durable."""

    def proven(self) -> Identity:
        """Return who the client is."""

    def schedule_flush(self) -> None:
        """Write all output of the engine at the end of this turn of the loop."""

    def flush(self) -> None:
        """Write all output of the engine."""

    def hold_back(self) -> None:
        """Write the much that waits now, and stop the links whose session's window is full."""

    def close_link(self, link: Link, condition: str, description: str) -> None:
        """Detach a link with an error."""

    def log(self, text: str, *values: object) -> None:
        """Log a line about this connection."""
