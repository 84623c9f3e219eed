"""One subscription of one MQTT client: the consumer that its queue delivers to.

It lives as long as the session. While the client is away it has no :class:`~pollux.protocols.mqtt.delivery.Delivery`
and no credit; it stays attached to its queue only while it holds what the client must get again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from pollux.wire.mqtt.primitives import encode_variable
from pollux.wire.mqtt.stored import REPLAY
from pollux.wire.mqtt.topics import has_wildcard

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.engine.reading_rights import ReadingRights
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference
    from pollux.routing.selector import Selector


class Sending(Protocol):
    """The sending side of a connection, as its subscriptions know it."""

    def credit(self, subscription: Subscription) -> int:
        """Return how many messages ``subscription`` may be handed now."""

    def deliver(self, subscription: Subscription, references: list[MessageReference]) -> None:
        """Send a batch to the client."""


class Subscription:
    """One subscription of one client: the consumer its queue delivers to."""

    __slots__ = (
        "address",
        "attached",
        "browsing",
        "delivery",
        "exclude_own",
        "extra",
        "gone",
        "heads",
        "hide_dollar",
        "identifier",
        "no_local",
        "origin",
        "priority",
        "qos",
        "queue",
        "retain_as_published",
        "rights",
        "selector",
        "share",
        "topic_filter",
    )

    def __init__(self, topic_filter: str, address: str, queue: Queue, share: str | None) -> None:
        self.topic_filter = topic_filter
        self.address = address
        self.queue = queue
        self.share = share
        #: The connection's side; None while the client is away.
        self.delivery: Sending | None = None
        self.attached = False
        #: Told when the queue is deleted under the subscription.
        self.gone: Callable[[Subscription, Queue], None] | None = None
        self.priority = 0
        self.selector: Selector | None = None
        self.browsing = False
        #: No Local is the queue's (``no_local_origin``): an own message must not wait in the queue.
        self.no_local = False
        self.origin = 0
        #: Which topics' messages the client may have, when it subscribes to a pattern; the connection sets it.
        self.rights: ReadingRights | None = None
        proper = topic_filter if share is None else topic_filter.split("/", 2)[2]
        self.hide_dollar = has_wildcard(proper[:1])
        self.configure(0, exclude_own=False, retain_as_published=False, identifier=0)

    def configure(self, qos: int, *, exclude_own: bool, retain_as_published: bool, identifier: int) -> None:
        """Set the options of a SUBSCRIBE (section 3.8.3.1)."""
        self.qos = qos
        self.exclude_own = exclude_own
        self.retain_as_published = retain_as_published
        self.identifier = identifier
        #: Property bytes every delivery carries.
        self.extra = b"" if not identifier else b"\x0b" + encode_variable(identifier)
        # First byte of the PUBLISH for each low half of the stored flags.
        heads = bytearray(16)
        for flags in range(16):
            retain = 1 if flags & REPLAY else flags & 1 if retain_as_published else 0
            heads[flags] = 0x30 | min(flags >> 1 & 3, qos, 2) << 1 | retain
        self.heads = bytes(heads)

    @property
    def restricted(self) -> bool:
        """Whether there may be topics of its pattern that the client may not have."""
        return self.rights is not None and self.rights.restricted

    @property
    def credit(self) -> int:
        """Messages the client can take now; the queue asks before each dispatch."""
        delivery = self.delivery
        return 0 if delivery is None else delivery.credit(self)

    @credit.setter
    def credit(self, value: int) -> None:
        """The window is the connection's, shared by all its subscriptions: :meth:`deliver` lowers it."""

    def deliver(self, references: list[MessageReference]) -> None:
        """Hand a batch of the queue to the connection."""
        delivery = self.delivery
        if delivery is None:  # cannot be: credit was 0
            raise RuntimeError(f"a delivery to {self.topic_filter!r} whose client is away")
        delivery.deliver(self, references)

    def queue_deleted(self, queue: Queue) -> None:
        """Note that the queue is gone, and tell the session: an administrator deleted it."""
        self.attached = False
        if self.gone is not None:
            self.gone(self, queue)
