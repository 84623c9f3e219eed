"""The end of deliveries to an MQTT client: messages and queues that it leaves to others, or to its next connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.routing.queue import Queue, queue_of

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator

    from pollux.engine.post_office import PostOffice
    from pollux.protocols.mqtt.state import ClientState
    from pollux.protocols.mqtt.subscription import Subscription
    from pollux.routing.reference import MessageReference


def give_back(post: PostOffice, state: ClientState) -> set[Queue]:
    """Let others have what a client that is gone did not acknowledge. Return the queues that keep something for it.

    They hold what this session must send again with the same identifiers. Section 4.8.2: of a shared subscription
    others get it, but not what began at QoS 2.
    """
    private: set[Queue] = set()
    if state.durable and state.unacked:
        private = {each.queue for each in state.subscriptions.values() if each.share is None}
    kept: set[Queue] = set()
    back: list[MessageReference] = []
    for packet_id, reference in list(state.unacked.items()):
        if reference is None:
            continue
        if state.durable and (reference.queue in private or packet_id in state.qos2):
            kept.add(queue_of(reference))
            continue
        del state.unacked[packet_id]
        state.qos2.discard(packet_id)
        back.append(reference)
    if back:
        post.release(back, failed=False)
    return kept


def leave(post: PostOffice, subscriptions: deque[Subscription]) -> Iterator[None]:
    """Detach from the queues, which may be thousands, bit by bit; not from one that a connection has by then.

    They are let go one by one as well: to free thousands takes as long.
    """
    while subscriptions:
        subscription = subscriptions.popleft()
        if subscription.attached and subscription.delivery is None:
            subscription.attached = False
            post.detach(subscription.queue, subscription)
        yield
