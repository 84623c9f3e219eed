"""Redistribution: which queues of this node have a mover, and which of them leave altogether."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.cluster.connection.departures import Leaving
from pollux.cluster.connection.mover import Mover
from pollux.cluster.connection.pace import Pace
from pollux.cluster.routes.moves import HOLD

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable, Sequence

    from pollux.cluster.connection.local import Prefixes
    from pollux.cluster.connection.spread import Spreading
    from pollux.cluster.routes.table import RoutingTable
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.queue import Queue

#: Seconds after which whatever is another one is looked at in any case.
LOOK = 1.0


class Redistribution:
    """The movers of one cluster connection."""

    def __init__(
        self,
        post: PostOffice,
        table: RoutingTable,
        spreading: Spreading,
        prefixes: Prefixes,
        *,
        moves: bool,
        changed: Callable[[Queue], None],
        confirmed: Callable[[], int],
    ) -> None:
        """``moves``: those of all queues move, else of those that leave. ``changed``: told of who leaves, or stays.

        ``confirmed``: how many messages other nodes said to have so far.
        """
        self._post = post
        self._loop = post.loop
        self._table = table
        self._spreading = spreading
        self._prefixes = prefixes
        self._moves = moves
        self._changed = changed
        self.leaves = Leaving(post.storage, post.recovered)
        self._movers: dict[int, Mover] = {}
        self._pace = Pace(lambda: post.routed_total + post.acknowledged_total - confirmed())
        #: Queue id -> when it is to be looked at again, as a delay is over then (the loop's clock).
        self._due: dict[int, float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0

    def stop(self) -> None:
        """Move nothing any more."""
        if self._timer is not None:
            self._timer.cancel()
        for mover in self._movers.values():
            mover.stop()

    def leave(self, queue: Queue, *, named: bool = False) -> None:
        """Send what a queue holds to the others of its group, and put nothing into it any more where there are any.

        ``named``: it is a subscription that clients find by its name.
        """
        if self.leaves.add(queue.name, named=named):
            self._forget_mover(queue)
            self._changed(queue)

    def stay(self, queue: Queue) -> None:
        """Keep a queue after all."""
        if self.leaves.remove(queue.name):
            self._forget_mover(queue)
            self._changed(queue)

    def leaving(self) -> list[Queue]:
        """Return the queues that leave."""
        found = [self._post.space.queue(name) for name in self.leaves.names]
        return [queue for queue in found if queue is not None]

    def _forget_mover(self, queue: Queue) -> None:
        mover = self._movers.pop(queue.id, None)
        if mover is not None:
            mover.stop()

    def arrived(self, queues: Iterable[Queue], messages: Sequence[Message]) -> None:
        """Note messages that came from another node."""
        now = self._loop.time()
        for queue in queues:
            mover = self._movers.get(queue.id)
            if mover is None:
                continue
            if mover.arrived(messages, now) and queue.id not in self._due:
                self._again(queue.id, now + HOLD)

    def review(self, queues: Iterable[Queue]) -> None:
        """Look whether something of these queues is to be moved."""
        if not self._moves:
            queues = [queue for queue in queues if queue.name in self.leaves.names]
        now = self._loop.time()
        for queue in queues:
            self._due.pop(queue.id, None)
            mover = self._mover(queue)
            if mover is not None and (again := mover.review(now)) is not None:
                self._again(queue.id, again)

    def _again(self, queue_id: int, at: float) -> None:
        self._due[queue_id] = at
        if self._timer is None or at < self._timer_at:
            self._plan(at)

    def _plan(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = self._loop.call_at(at + 0.001, self._review_due)

    def _review_due(self) -> None:
        self._timer = None
        now, space = self._loop.time(), self._post.space
        due = [each for each, at in self._due.items() if at <= now]
        for each in due:
            del self._due[each]
        self.review([queue for each in due if (queue := space.queue_by_id(each)) is not None])
        if self._due:
            self._plan(min(self._due.values()))

    def _mover(self, queue: Queue) -> Mover | None:
        leaving = queue.name in self.leaves.names
        delay = 0 if leaving else self._post.space.settings(queue.address).redistribution_delay
        there = self._post.space.queue_by_id(queue.id) is queue
        wanted = there and delay >= 0 and not queue.spec.internal and queue.address in self._prefixes
        mover = self._movers.get(queue.id)
        if not wanted:
            if mover is not None:
                mover.stop()
                del self._movers[queue.id]
            return None
        if mover is None:
            mover = Mover(
                queue,
                delay / 1000,
                post=self._post,
                table=self._table,
                spreading=self._spreading,
                pace=self._pace,
                leaving=leaving,
            )
            self._movers[queue.id] = mover
        mover.change_delay(delay / 1000)
        return mover

    def tidy(self) -> None:
        """Let go of movers of queues that are gone."""
        for gone in [each for each in self._movers if self._post.space.queue_by_id(each) is None]:
            del self._movers[gone]

    @property
    def moved(self) -> dict[str, int]:
        """How many messages of each queue were moved to other nodes."""
        space = self._post.space
        found = {space.queue_by_id(each): mover.moved for each, mover in self._movers.items() if mover.moved}
        return {queue.name: moved for queue, moved in found.items() if queue is not None}
