"""Subscriptions of MQTT clients and their queues: made, changed, ended, and what their clients may have of them."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from pollux.engine.reading_rights import rights_of
from pollux.engine.security import Identity, Permission
from pollux.errors import InvalidRequestError, NoSuchQueueError, PolluxError
from pollux.message import RoutingType
from pollux.protocols.mqtt.shared_subscriptions import SharedSubscriptions
from pollux.protocols.mqtt.subscription import Subscription
from pollux.routing.spec import QueueSpec
from pollux.wire.mqtt.stored import topic_end
from pollux.wire.mqtt.topics import split_shared

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping

    from pollux.engine.post_office import PostOffice
    from pollux.engine.reading_rights import ReadingRights
    from pollux.engine.security import Security
    from pollux.protocols.mqtt.neighbours import Neighbours
    from pollux.protocols.mqtt.state import ClientState, SubscriptionRecord
    from pollux.routing.queue import Queue
    from pollux.wire.mqtt.topics import TopicMapping

logger = logging.getLogger("pollux.mqtt")

#: Subscriptions of one client.
MAX_SUBSCRIPTIONS = 10_000


class Subscriptions:
    """The subscriptions of all sessions. ``save`` stores a durable session's record."""

    def __init__(
        self,
        post: PostOffice,
        mapping: TopicMapping,
        security: Security,
        loop: asyncio.AbstractEventLoop,
        *,
        put: Callable[[str, str, bytes | None], None],
        sessions: Mapping[str, ClientState],
        save: Callable[[ClientState], None],
    ) -> None:
        self.shared = SharedSubscriptions(put)
        #: The other nodes of a cluster; None: there is none.
        self.neighbours: Neighbours | None = None
        self._post = post
        self._mapping = mapping
        self._security = security
        self._loop = loop
        self._sessions = sessions
        self._save = save

    def subscribe(
        self,
        state: ClientState,
        topic_filter: str,
        qos: int,
        *,
        exclude_own: bool,
        retain_as_published: bool,
        identifier: int,
    ) -> tuple[Subscription, bool]:
        """Make or change a subscription (MQTT-3.8.4-3); whether it is new. Raises PolluxError when it cannot be."""
        subscription = state.subscriptions.get(topic_filter)
        if subscription is not None:
            subscription.configure(
                qos, exclude_own=exclude_own, retain_as_published=retain_as_published, identifier=identifier
            )
            return subscription, False
        return (
            self.make(
                state,
                topic_filter,
                qos,
                exclude_own=exclude_own,
                retain_as_published=retain_as_published,
                identifier=identifier,
            ),
            True,
        )

    def make_again(self, state: ClientState, record: SubscriptionRecord) -> Subscription:
        """Make one that was recorded. Raises PolluxError when it cannot be."""
        return self.make(
            state,
            record.topic_filter,
            record.qos,
            exclude_own=record.no_local,
            retain_as_published=record.retain_as_published,
            identifier=record.identifier,
        )

    def make(
        self,
        state: ClientState,
        topic_filter: str,
        qos: int,
        *,
        exclude_own: bool,
        retain_as_published: bool,
        identifier: int,
    ) -> Subscription:
        """Make a subscription that is not there yet, with its queue. Raises PolluxError when it cannot be."""
        share, proper = split_shared(topic_filter)
        address = self._mapping.address(proper)
        name = self._mapping.queue_name(state.client_id if share is None else share, proper)
        queue = self._queue_for(state, name, address, share)
        if share is not None:
            self.shared.join(state, name)
            if queue.of_pattern and state.user is not None:
                self._post.address_manager.read_by(queue, state.user)
        if self.neighbours is not None:
            self.neighbours.stays(queue)
        subscription = Subscription(topic_filter, address, queue, share)
        subscription.configure(
            qos, exclude_own=exclude_own, retain_as_published=retain_as_published, identifier=identifier
        )
        subscription.gone = lambda gone, queue: self._queue_gone(state, gone, queue)
        state.subscriptions[topic_filter] = subscription
        return subscription

    def _queue_gone(self, state: ClientState, subscription: Subscription, queue: Queue) -> None:
        """End a subscription whose queue an administrator deleted, and tell its client."""
        state.subscriptions.pop(subscription.topic_filter, None)
        subscription.delivery = None
        for packet_id, reference in state.unacked.items():
            if reference is not None and reference.queue is queue:
                state.unacked[packet_id] = None
        if subscription.share is not None:
            self.shared.leave(state, queue.name)
        if state.durable:
            self._save(state)
        if state.connection is not None:
            # Not in the middle of the deletion.
            self._loop.call_soon(state.connection.queue_deleted, subscription.topic_filter)

    def _queue_for(self, state: ClientState, name: str, address: str, share: str | None) -> Queue:
        """Return the queue of a subscription: what is there already, or a new one."""
        queue = self.find_queue(name)
        if queue is not None:
            if queue.address != address or queue.routing_type is not RoutingType.MULTICAST:
                raise InvalidRequestError(
                    f"queue {name!r} belongs to address {queue.address!r}: choose another client id or share name"
                )
            shared = name in self.shared or (share is not None and self._was_shared(queue, share, state.user))
            if (share is None) is shared:
                raise InvalidRequestError(
                    f"queue {name!r} is a {'shared' if share is None else 'private'} subscription's: "
                    "choose another client id or share name"
                )
            if share is None and queue.user not in (None, state.user):
                raise InvalidRequestError(f"queue {name!r} belongs to another user: choose another client id")
            return queue
        durable = share is not None or state.durable
        return self._post.create_queue(
            QueueSpec(
                name,
                address,
                RoutingType.MULTICAST,
                durable=durable,
                temporary=not durable,
                auto_created=True,
                auto_delete=False,
                purge_on_no_consumers=False,
                exclusive=False,
                last_value=False,
                non_destructive=False,
                max_consumers=-1,
                user=state.user,
            )
        )

    def _was_shared(self, queue: Queue, share: str, user: str | None) -> bool:
        """Return whether a queue is shared and its record lost: it was made for this user, and is no client's own."""
        owner = self._sessions.get(share)
        private = owner is not None and any(one.queue is queue for one in owner.subscriptions.values())
        return queue.auto_created and queue.durable and queue.user == user and not private

    def unsubscribe(self, state: ClientState, topic_filter: str) -> bool:
        """End a subscription (MQTT-3.10.4-1); False when there was none."""
        subscription = state.subscriptions.pop(topic_filter, None)
        if subscription is None:
            return False
        queue = subscription.queue
        subscription.delivery = None
        held = [
            packet_id
            for packet_id, reference in state.unacked.items()
            if reference is not None and reference.queue is queue
        ]
        back = []
        for packet_id in held:
            reference = state.unacked[packet_id]
            # The client may finish what was begun: its acknowledgements find the identifier.
            state.unacked[packet_id] = None
            if reference is not None and packet_id not in state.qos2:
                back.append(reference)
        if subscription.share is not None and back:
            self._post.release(back, failed=False)
        if subscription.attached:
            subscription.attached = False
            self._post.detach(queue, subscription)
        if subscription.share is None:
            self.delete_queue(queue.name)
        elif self.shared.leave(state, queue.name):
            if self.neighbours is not None and self.neighbours.elsewhere(queue):
                self.neighbours.leaves(queue)  # it is the others' who share it at other nodes
            else:
                self.delete_queue(queue.name)
        return True

    def give_up(self, state: ClientState, subscription: Subscription) -> None:
        """End a subscription that its client has at another node now; what its queue holds goes there."""
        del state.subscriptions[subscription.topic_filter]
        subscription.delivery = None
        if subscription.attached:
            subscription.attached = False
            self._post.detach(subscription.queue, subscription)
        if (subscription.share is None or self.shared.leave(state, subscription.queue.name)) and self.neighbours:
            self.neighbours.leaves(subscription.queue)

    def find_queue(self, name: str) -> Queue | None:
        """Return the queue of that name, None when there is none."""
        try:
            return self._post.queue(name)
        except NoSuchQueueError:
            return None

    def delete_queue(self, name: str) -> None:
        """Delete a subscription's queue, if it is there still."""
        try:
            self._post.delete_queue(name)
        except NoSuchQueueError:
            pass  # an administrator was faster
        except PolluxError as error:
            logger.warning("the queue %r of an MQTT subscription could not be deleted: %s", name, error)

    def delete_empty(self, name: str) -> None:
        """Delete a subscription's queue if nothing is in it."""
        queue = self.find_queue(name)
        if queue is not None and not self._post.message_count(queue):
            self.delete_queue(name)

    def origin_of(self, state: ClientState) -> int:
        """Return the id of the connection ``state`` has now, 0 for none."""
        connection = state.connection
        return 0 if connection is None else connection.transport.peer.connection_id

    def rights_of(self, state: ClientState, subscription: Subscription) -> ReadingRights | None:
        """Return which of a pattern's messages the client of ``state`` may have; None: all."""
        return rights_of(self._security, Identity(state.user or ""), subscription.queue)

    def may_go_on(self, state: ClientState, subscription: Subscription) -> bool:
        """Return whether a session that goes on still has a subscription: its user's rights may have changed."""
        if self._security.allowed(state.user or "", Permission.consume, subscription.address):
            return True
        logger.warning(
            "MQTT client %r gets nothing of its subscription %r: user %r may not consume at %r any more",
            state.client_id,
            subscription.topic_filter,
            state.user,
            subscription.address,
        )
        return False


def may_have(subscription: Subscription, data: bytes, mapping: TopicMapping) -> bool:
    """Return whether the client may have a message of its topic; one that was retained is there by its queue's name."""
    rights = subscription.rights
    return rights is None or rights.allow(mapping.address(data[3 : topic_end(data)].decode("utf-8")))
