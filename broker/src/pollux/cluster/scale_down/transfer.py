"""Take the messages of one queue out, in order, and write them for another node; each in one transaction.

Consumers of clients come first: what they can take is theirs. What nobody takes goes: waiting messages as they are
handed out to this consumer of lowest priority, then scheduled ones. From queues that hand nothing out (paused, for
browsing only, waiting for more consumers) messages are taken as an operator would.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from pollux.cluster.connection.taker import Taker
from pollux.errors import DiskFullError, StoreError
from pollux.message import RoutingType

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.engine.forwards import Forward
    from pollux.engine.post_office import PostOffice
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference

logger = logging.getLogger("pollux.cluster")

#: Messages in one transaction at most.
BATCH = 200
#: Messages that are looked for at a time where nothing is handed out.
_REST = 2000


class Way(Protocol):
    """Where the messages of a queue go."""

    @property
    def room(self) -> int:
        """Return how many messages may be written for the other node now."""

    def forward(self, reference: MessageReference, queue: Queue) -> Forward:
        """Return the copy of a message for the other node."""


class Emptying(Taker):
    """Empties ``queue`` by ``way``. ``moved``: called with the number of messages that were written for another node.

    A consumer to its queue.
    """

    #: Nobody takes it for a consumer of a client, and it counts for no limit.
    moves_messages = True
    empties = True

    def __init__(
        self, post: PostOffice, queue: Queue, way: Way, moved: Callable[[int], None], batch: int = BATCH
    ) -> None:
        super().__init__(post.loop)
        self.queue = queue
        self.way = way
        self._post = post
        self._moved = moved
        self._batch = batch

    # -- what waits

    def start(self) -> None:
        """Take messages from now on."""
        self._attached = True
        self.credit = self._room
        self._post.attach(self.queue, self)

    @property
    def taken(self) -> int:
        """Return how many messages it holds that go next: they are with no client."""
        return len(self._taken)

    @property
    def _room(self) -> int:
        """Return how many messages it may be handed now: of a queue that only shows them none."""
        return 0 if hands_nothing_out(self.queue) else min(self._batch, self.way.room)

    def more(self) -> None:
        """Take more, if there is room where they go."""
        if self._attached and not self._taken and self.credit <= 0 < self._room and not self._post.storage.full:
            self.credit = self._room
            self._post.wake(self.queue)

    def _hand_over(self) -> None:
        references, self._taken = self._taken, []
        if not references or not self._attached:
            return
        try:
            self._write(references, removed=False)
        except DiskFullError as error:
            logger.warning(
                "queue %s: %d messages stay until the disk has room: %s", self.queue.name, len(references), error
            )
            self._post.release(references, failed=False)
            return
        self.credit = self._room
        if self.credit > 0:
            self._post.wake(self.queue)

    def _write(self, references: list[MessageReference], *, removed: bool) -> None:
        if self._post.storage.full:
            raise DiskFullError("the disk is full: nothing is handed over until there is room")
        for start in range(0, len(references), self._batch):
            chosen = references[start : start + self._batch]
            moves = [(reference, self.way.forward(reference, self.queue)) for reference in chosen]
            self._post.hand_over(self.queue, moves, removed=removed)
        self._moved(len(references))

    # -- what is not handed out

    async def take_rest(self) -> int:
        """Take some of what is not handed out to consumers; return how many messages went."""
        queue, limit = self.queue, min(_REST, self.way.room)
        if limit <= 0 or self._post.storage.full:
            return 0
        if hands_nothing_out(queue):
            if ids := [reference.message.id for reference in islice(queue.iterate(), limit)]:
                return self._take(ids)
            if queue.cold:
                self._post.cold.feed(queue)
        if not only_scheduled(queue):
            return 0
        hot, cold = queue.scheduled_ids(limit)
        if hot:
            return self._take(hot)
        return await self._take_cold(cold) if cold else 0

    async def _take_cold(self, cold: list[tuple[int, int, int]]) -> int:
        """Take scheduled messages that are on disk only."""
        wanted = [number for number, _, _ in cold]
        try:
            messages = await self._post.storage.read_messages(wanted)
        except StoreError as error:
            logger.warning("queue %s: %d messages cannot be read now: %s", self.queue.name, len(wanted), error)
            return 0
        found = {message.id: message for message in messages if message is not None}
        _, gone = self.queue.remove(found.keys())
        still = set(gone)
        references = []
        for number, due, failures in cold:
            if number in still:
                reference = self._post.adopt(self.queue, found[number], failures=failures)
                reference.deliver_at = due
                references.append(reference)
        return self._write_removed(references)

    def _take(self, ids: list[int]) -> int:
        references, _ = self.queue.remove(set(ids))
        return self._write_removed(references)

    def _write_removed(self, references: list[MessageReference]) -> int:
        try:
            self._write(references, removed=True)
        except DiskFullError as error:  # it filled meanwhile
            logger.warning("queue %s: %d messages stay: %s", self.queue.name, len(references), error)
            self._post.arrive(self.queue, references)
            return 0
        return len(references)

    # -- the end

    def stop(self) -> None:
        """Take nothing any more; what was taken and not written is back in its place.

        Unlike a consumer that leaves it has nothing purged or deleted.
        """
        if not self._attached:
            return
        self._attached = False
        self._taken = []
        held = self.queue.remove_consumer(self)
        if held:
            self._post.release(held, failed=False)
        if not self.queue.consumers:
            self.queue.unused_since = self._post.wall_ms()


def hands_nothing_out(queue: Queue) -> bool:
    """Return whether a consumer of a queue may get nothing although something waits."""
    return queue.paused or queue.non_destructive or queue.attributes.consumers_before_dispatch > 1


def only_scheduled(queue: Queue) -> bool:
    """Return whether nothing of a queue waits any more but what is scheduled, which goes last."""
    # A queue that only shows its messages counts those that are shown among the waiting.
    return queue.message_count <= queue.scheduled + (0 if queue.non_destructive else queue.delivering)


def waits_for_its_consumers(queue: Queue) -> bool:
    """Return whether a queue is left to its consumers: a subscription whose subscriber is there."""
    return queue.routing_type is RoutingType.MULTICAST and queue.consumer_count > 0
