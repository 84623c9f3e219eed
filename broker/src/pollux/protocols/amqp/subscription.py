"""Subscriptions: the queues, or nodes, that end with a consumer's link."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.errors import PolluxError

if TYPE_CHECKING:
    from pollux.engine.post_office import PostOffice
    from pollux.routing.queue import Queue


class Subscription(Struct):
    """When the queue of a link is deleted.

    ``delete_always``: with the link. ``delete_when_closed``: when the client closes (and not only detaches) its last
    link. ``delete_when_unused``: when the last link is gone. ``temporary``: the node made for the link, which goes too.
    """

    delete_always: bool = False
    delete_when_closed: bool = False
    delete_when_unused: bool = False
    temporary: str | None = None

    def ended(self, post: PostOffice, queue: Queue, *, closed: bool) -> None:
        """Delete what ends with the link, which is over; ``closed``: by the client, for good."""
        unused = not queue.consumer_count
        over = self.delete_when_closed and closed and unused
        if post.space.queue(queue.name) is queue:
            if self.delete_always or (self.delete_when_unused and unused) or over:
                post.delete_queue(queue.name)
            if over:
                post.named.over(queue.name, queue.address, queue.user)
            elif self.delete_when_closed:
                post.named.unused(queue)
        if self.temporary is not None:
            delete_temporary(post, self.temporary)


#: A consumer of a queue that is there for everybody.
NOTHING = Subscription()


def delete_temporary(post: PostOffice, name: str) -> None:
    """Delete a node that was made for a link, with everything in it."""
    if post.space.address(name) is not None:
        with suppress(PolluxError):
            post.address_manager.delete_address(name, force=True)
