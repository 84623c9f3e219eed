"""Expires what waits for another node, at the expiry-address of where it was sent to.

Only what was never sent there: of anything else the node may have a copy, which expires where that is.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pollux.cluster.connection.forwarded import known, taken, to_send
from pollux.engine.copies import ORIGINAL_QUEUE, ORIGINAL_ROUTING
from pollux.message import RoutingType

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pollux.cluster.connection.peers import Peers
    from pollux.cluster.connection.spread import Outlet, Spreading
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.reference import MessageReference

#: Messages looked at in a piece of work: what waits is decoded for it, 3 us each.
_PORTION = 1000


class Late:
    """Looks for it whenever the other queues are looked through (message-expiry-scan-period).

    ``left`` is told of each node for which less waits.
    """

    def __init__(self, post: PostOffice, peers: Peers, spreading: Spreading, left: Callable[[bytes], object]) -> None:
        self._post = post
        self._peers = peers
        self._spreading = spreading
        self._left = left

    def start(self) -> None:
        """Look from now on."""
        self._post.dead_letters.also_scanned.append(self._scan)

    def stop(self) -> None:
        """Look no more."""
        if self._scan in self._post.dead_letters.also_scanned:
            self._post.dead_letters.also_scanned.remove(self._scan)

    def _scan(self) -> Iterator[None]:
        """Look through what waits in memory, bit by bit, as there may be very much."""
        for node, outlet in list(self._spreading.outlets.items()):
            position = 0
            while position >= 0 and self._spreading.outlets.get(node) is outlet:
                over = partial(self._is_over, node, outlet, self._post.wall_ms())
                references, position = outlet.queue.take_where(over, position, _PORTION)
                if references:
                    found = [(reference, _as_sent(reference)) for reference in references]
                    self._post.dead_letters.expired_on_the_way(outlet.queue, found)
                    self._left(node)
                yield

    def _is_over(self, node: bytes, outlet: Outlet, now: int, message: Message) -> bool:
        if known(message) is not None or (one := to_send(message)) is None or not 0 < one.expiration <= now:
            return False
        return outlet.numbering.gives(one.life) and one.number > self._peers.sent_up_to(node, one.life)


def _as_sent(reference: MessageReference) -> Message:
    """Return the message as it was sent, with the queue that it was on its way to as the one that it left."""
    one = to_send(reference.message)
    assert one is not None  # noqa: S101  (why it was taken)
    message = taken(one, reference.message.large)
    message.id = reference.message.id
    routing = RoutingType.MULTICAST if one.subscriptions else RoutingType.ANYCAST
    queue = one.queues[0] if one.queues else one.address
    way: dict[str, str | int | bytes] = {ORIGINAL_QUEUE: queue, ORIGINAL_ROUTING: int(routing)}
    message.annotations = {**way, **(message.annotations or {})}
    return message
