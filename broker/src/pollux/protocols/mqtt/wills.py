"""Wills: messages that are published for clients whose connection is lost (MQTT 5, section 3.1.2.5)."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pollux.errors import PolluxError
from pollux.message import Encoding, Message
from pollux.protocols.mqtt.state import LONGEST_TIMER
from pollux.wire.mqtt.stored import topic_end

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from pollux.engine.post_office import PostOffice
    from pollux.protocols.mqtt.retained import RetainedMessages
    from pollux.protocols.mqtt.state import ClientState, PendingWill
    from pollux.wire.mqtt.topics import TopicMapping

logger = logging.getLogger("pollux.mqtt")


class Wills:
    """Publishes wills when they are due. ``published`` is told whose session has none any more, when that is stable."""

    def __init__(
        self,
        post: PostOffice,
        mapping: TopicMapping,
        retained: RetainedMessages,
        loop: asyncio.AbstractEventLoop,
        *,
        wall_ms: Callable[[], int],
        published: Callable[[ClientState], None],
    ) -> None:
        self._post = post
        self._mapping = mapping
        self._retained = retained
        self._loop = loop
        self._wall_ms = wall_ms
        self._published = published
        #: Wills that were due, in this life.
        self.count = 0

    def publish_later(self, state: ClientState) -> None:
        """Publish after the delay, or when the session ends if that comes first (section 3.1.3.2.2)."""
        will = state.will
        if will is None:
            return
        if will.delay == 0:
            self.publish(state)
            return
        left = state.gone_at + will.delay - self._loop.time()
        will.timer = self._loop.call_later(min(max(left, 0.0), LONGEST_TIMER), self._due, state, will)

    def _due(self, state: ClientState, will: PendingWill) -> None:
        will.timer = None
        if state.will is not will or state.connection is not None:
            return
        if state.gone_at + will.delay > self._loop.time():
            self.publish_later(state)
            return
        self.publish(state)

    def cancel(self, state: ClientState) -> None:
        """Forget a will: the client is back before it was due (MQTT-3.1.3-9)."""
        will = state.will
        state.will = None
        if will is not None and will.timer is not None:
            will.timer.cancel()

    def publish(self, state: ClientState) -> bool:
        """Publish the will of ``state`` in the name of who left it; return whether there was one.

        Its session must not be stored without it, nor forgotten, before this is stable: what is stored of sessions is
        written before messages are, and a crash between the two would lose it.
        """
        will = state.will
        self.cancel(state)
        if will is None:
            return False
        self.count += 1
        now = self._wall_ms()
        expiration = now + will.expiry * 1000 if will.expiry is not None else 0
        data = will.data
        topic = data[3 : topic_end(data)].decode("utf-8")
        message = Message(
            Encoding.MQTT,
            self._mapping.address(topic),
            data,
            durable=bool(data[0] & 6),
            expiration=expiration,
            timestamp=now,
            origin=will.origin,
            user=will.user if self._post.configuration.populate_validated_user else None,
        )
        try:
            self._post.open(message.address, None, will.user)
            if data[0] & 1:
                self._retained.retain(topic, data, expiration)
            self._post.send(message)
        except PolluxError as error:
            logger.warning("the will of MQTT client %r on %r could not be published: %s", state.client_id, topic, error)
        self._post.when_stable(lambda error: self._published(state) if error is None else None)
        return True
