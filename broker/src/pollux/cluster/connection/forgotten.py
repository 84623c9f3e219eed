"""Routes anew every message that waits for a node that does not come back; then its queue goes.

A consumer of the store-and-forward queue, so that paged messages and very many go the same way, a few at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.cluster.connection.forwarded import taken, to_send
from pollux.cluster.connection.taker import Taker
from pollux.engine.forwards import Spread
from pollux.errors import PolluxError
from pollux.message import RoutingType
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pollux.cluster.connection.forwarded import Forwarded
    from pollux.cluster.connection.spread import Spreading
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference

#: Messages taken at a time; seconds before one that has no place is tried again.
_CREDIT, _LATER = 100, 1.0


class Forgetting(Taker):
    """Empties the queue of one node, then deletes it. ``over`` is called when that is done."""

    priority = 0

    def __init__(self, queue: Queue, *, post: PostOffice, spreading: Spreading, over: Callable[[], object]) -> None:
        super().__init__(post.loop, _CREDIT)
        #: Messages that were routed anew, and those that nobody is there for any more.
        self.moved = self.unwanted = 0
        self.queue = queue
        #: Why a message has no place yet; empty: every one has had.
        self.held_by = ""
        self._post = post
        self._spreading = spreading
        self._over = over
        self._ended = False

    def start(self) -> None:
        """Take messages from now on."""
        self._post.attach(self.queue, self)
        self._post.loop.call_soon(self._hand_over)

    def stop(self) -> None:
        """Leave what is left where it is."""
        if not self._ended:
            self._ended = True
            self._post.detach(self.queue, self)

    # -- the queue's consumer

    def queue_deleted(self, _queue: Queue) -> None:
        """Somebody deleted the queue first."""
        if not self._ended:
            self._ended = True
            self._over()

    def _hand_over(self) -> None:
        references, self._taken = self._taken, []
        if self._ended:
            return
        held = []
        for reference in references:
            try:
                self._place(reference)
            except PolluxError as error:
                self.held_by = str(error)
                held.append(reference)
        if held:
            self._post.loop.call_later(_LATER, self._again, held)
            return
        self.credit = _CREDIT
        if not self._post.message_count(self.queue) and not self._post.in_flight(self.queue):
            self._ended = True
            self._post.detach(self.queue, self)
            self._post.delete_queue(self.queue.name)
            self._over()
        elif references:
            self._post.wake(self.queue)
        else:
            self._post.loop.call_later(_LATER, self._hand_over)  # it comes from disk

    def _again(self, references: list[MessageReference]) -> None:
        self._taken = references + self._taken
        self._hand_over()

    def _place(self, reference: MessageReference) -> None:
        """Route a message anew, in one transaction. Raises PolluxError when it has no place now."""
        post = self._post
        one = to_send(reference.message)
        if one is None:  # it was sent by a client
            post.reject([reference])
            return
        message = taken(one, reference.message.large)
        came = len(one.visited) > 1 and not one.moved and not one.home
        if came and post.accounts.sent_to(message) is not None:
            post.acknowledge([reference])  # it followed this node's own copy, which is routed anew if it waits here
            return
        if one.home:  # that one is gone: another node is it now, or this one
            spread = self._anew(message, one, self._spreading.route(message))
            message.duplicate_id = None  # it was seen here when it came first
        else:
            message.duplicate_id = None
            onward = self._spreading.onward(message, one) if one.owner else []
            found = self._spreading.again(message, one, ()) if not onward else Spread((), onward)
            spread = self._anew(message, one, found)
        if not spread.queues and not spread.forwards:
            self.unwanted += 1
            post.dead_letters.bury(reference, message)
            return
        post.place_anew(self.queue, reference, message, spread)
        self.moved += 1

    def _anew(self, message: Message, gone: Forwarded, found: Sequence[Queue] | Spread) -> Spread:
        spread = found if isinstance(found, Spread) else Spread(found, ())
        if not spread.queues and not spread.forwards and not gone.subscriptions:
            spec = QueueSpec(message.address, message.address, routing_type=RoutingType.ANYCAST, auto_created=True)
            return Spread([self._post.create_queue(spec, auto_address=False)], ())
        return spread
