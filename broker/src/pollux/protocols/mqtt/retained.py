"""Retained messages as connections use them: kept, given to new subscriptions, and gone when they expire."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pollux.errors import SendError, StoreError
from pollux.message import Encoding, Message
from pollux.protocols.mqtt.subscriptions import may_have
from pollux.wire.mqtt.stored import as_replay, block_end, topic_end

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator

    from pollux.engine.post_office import PostOffice
    from pollux.protocols.mqtt.retained_store import Retained, RetainedStore
    from pollux.protocols.mqtt.subscription import Subscription
    from pollux.wire.mqtt.topics import TopicMapping

logger = logging.getLogger("pollux.mqtt")

#: Seconds between two looks for retained messages that expired.
_SWEEP = 60.0


def _nobody(_topic: str) -> None:
    """Tell nobody of what is retained."""


class RetainedMessages:
    """Retains, replays and expires the messages in ``store``."""

    def __init__(
        self,
        store: RetainedStore,
        post: PostOffice,
        mapping: TopicMapping,
        loop: asyncio.AbstractEventLoop,
        *,
        wall_ms: Callable[[], int],
    ) -> None:
        self.store = store
        #: Told of each topic whose retained message a client has changed.
        self.changed: Callable[[str], None] = _nobody
        self._post = post
        self._mapping = mapping
        self._loop = loop
        self._wall_ms = wall_ms
        self._sweeping: asyncio.TimerHandle | None = None

    def restored(self) -> None:
        """Start to look for expired messages: all that was stored is here."""
        if self.store.count:
            self._sweep_later()

    def retain(self, topic: str, data: bytes, expiration: int) -> None:
        """Keep ``data`` (stored form) as the topic's retained message, or clear it when the payload is empty.

        Raises LimitError.
        """
        if block_end(data, topic_end(data)) >= len(data):
            self.store.clear(topic)
            self.changed(topic)
            return
        self.keep(topic, data, expiration)
        self.changed(topic)

    def keep(self, topic: str, data: bytes, expiration: int) -> None:
        """Keep ``data`` as the topic's retained message, whoever it is from. Raises LimitError."""
        self.store.set(topic, data, expiration)
        if expiration and self._sweeping is None:
            self._sweep_later()

    def replay(self, subscription: Subscription) -> None:
        """Send a new subscription what is retained for it (section 3.3.1.3), through its queue."""
        if subscription.share is not None:
            return  # section 4.8.2: never to shared subscriptions
        entries = self.store.match(subscription.topic_filter, self._wall_ms())
        if subscription.restricted:
            entries = (entry for entry in entries if may_have(subscription, entry.data, self._mapping))
        self._post.share.work(self._replay(subscription, entries))

    def _replay(self, subscription: Subscription, entries: Iterator[Retained]) -> Iterator[None]:
        """Send a few of them each turn, so that a filter that matches very many does not hold up everybody else.

        Each as it is when its turn comes: what is retained later than it was subscribed to is the newer one.
        """
        queue = subscription.queue
        place = f"{queue.address}::{queue.name}"
        for entry in entries:
            if subscription.delivery is None:
                return
            data, expiration = entry.data, entry.expiration
            message = Message(
                Encoding.MQTT,
                place,
                as_replay(data),
                durable=bool(data[0] & 6),
                expiration=expiration,
                timestamp=self._wall_ms(),
            )
            try:
                self._post.send(message)
            except (SendError, StoreError) as error:
                logger.warning("retained messages could not be sent to %r: %s", queue.name, error)
                return
            yield

    def _sweep_later(self) -> None:
        self._sweeping = self._loop.call_later(_SWEEP, self.sweep)

    def sweep(self) -> None:
        """Look for those that expired, bit by bit."""
        self._post.share.work(self._swept())

    def _swept(self) -> Iterator[None]:
        yield from self.store.expire(self._wall_ms())
        self._sweeping = None
        if self.store.count:
            self._sweep_later()
