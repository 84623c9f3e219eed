"""Redistribution: a consumer of a queue that takes what nobody here wants and somebody elsewhere does.

What that is, :mod:`pollux.cluster.routes.moves` decides, for each message and again whenever something changes.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from pollux.cluster.connection.local import demand
from pollux.cluster.connection.spread import matches
from pollux.cluster.connection.taker import Taker
from pollux.cluster.routes.moves import HOLD, Demand, Elsewhere, Moves
from pollux.message import RoutingType
from pollux.routing.selector import Selector

if TYPE_CHECKING:
    from pollux.cluster.connection.spread import Spreading
    from pollux.cluster.routes.table import RoutingTable
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.queue import Queue

#: Messages taken at a time.
_CREDIT = 200
#: Messages remembered that were moved here lately.
_REMEMBERED = 100_000


def kept(queue: Queue) -> str:
    """Return why nothing is moved from a queue; empty: it may be.

    Another consumer would be the only one of some queues, or the one that others wait for.
    """
    attributes = queue.attributes
    if attributes.exclusive:
        return "it is exclusive"
    if attributes.non_destructive:
        return "it is non-destructive"
    if attributes.purge_on_no_consumers:
        return "it is purged when nobody takes from it (purge-on-no-consumers)"
    if attributes.consumers_before_dispatch > 1:
        return "it waits for more consumers (consumers-before-dispatch)"
    if queue.no_local_origin:
        return "it does not take its own connection's messages (no-local)"
    return ""


class Mover(Taker):
    """Redistribution of one queue. ``delay``: redistribution-delay in seconds, not negative."""

    #: Nobody takes it for a consumer of a client, and it counts for no limit: clients are not refused because of it
    #: (max-consumers), and a queue that nobody uses is deleted.
    moves_messages = True
    empties = True

    def __init__(
        self,
        queue: Queue,
        delay: float,
        *,
        post: PostOffice,
        table: RoutingTable,
        spreading: Spreading,
        leaving: bool = False,
    ) -> None:
        """``leaving``: everything is moved, whether somebody takes it there or not."""
        super().__init__(post.loop, _CREDIT)
        self.moved = 0
        #: Lets through what is to be moved.
        self.selector = Selector("to be moved", lambda message: self.target(message) is not None)
        self._queue = queue
        self._moves = Moves(delay)
        self._leaving = leaving
        self._post = post
        self._table = table
        self._spreading = spreading
        self._inputs: tuple[Demand, list[Elsewhere]] | None = None
        #: Message id -> when it was moved here (the loop's clock).
        self._arrived: OrderedDict[int, float] = OrderedDict()

    def arrived(self, message: Message, now: float) -> bool:
        """Note that a message came from another node; return whether to look again when it may be moved on."""
        self._arrived[message.id] = now
        if len(self._arrived) > _REMEMBERED:
            self._arrived.popitem(last=False)
        return self._attached

    def review(self, now: float) -> float | None:
        """Look whether something is to be moved; return when to look again, None: when something changes."""
        queue = self._queue
        multicast = queue.routing_type is RoutingType.MULTICAST
        group = (queue.address, queue.name if multicast else "")
        here = demand(queue) if not self._leaving else Demand(everything=False)
        elsewhere = [
            Elsewhere(
                key[0],
                key[1],
                Demand(self._leaving or path.record.consumers > 0, frozenset(text for text, _ in path.record.filtered)),
                connected=path.connected,
                filter=path.record.filter,
                free=self._spreading.free(key, path.record),
            )
            for key, path in self._table.group(group).items()
            if path.peer in self._spreading.outlets
        ]
        again = self._moves.update(here, elsewhere, now)
        held = False
        while self._arrived:
            first, at = next(iter(self._arrived.items()))
            if at > now - HOLD:
                break
            del self._arrived[first]
            held = True
        ready = self._moves.ready(now)
        inputs = (here, [one._replace(free=0) for one in elsewhere])
        if self._attached and (not ready or held or inputs != self._inputs):
            self._detach()
        if ready and not self._attached and not kept(queue):
            self._attached = True
            self._post.attach(queue, self)
        if self._attached and self._arrived:  # else nobody waits until what came from another node may be moved on
            over = next(iter(self._arrived.values())) + HOLD
            again = over if again is None else min(again, over)
        self._inputs = inputs
        return again

    def target(self, message: Message) -> Elsewhere | None:
        """Return where a message goes, those of a group all to one place."""
        now = self._post.loop.time()
        arrived = self._arrived.get(message.id) if not self._leaving else None
        return self._moves.target(lambda text: matches(text, message), arrived, now, message.group)

    # -- the queue's consumer

    def _hand_over(self) -> None:
        references, self._taken = self._taken, []
        if not self._attached:
            return
        moves = []
        stay = []
        for reference in references:
            target = self.target(reference.message)
            try:
                if target is None or (reference.message.durable and self._post.storage.full):
                    raise KeyError  # noqa: TRY301  (it stays, as one without a way)
                message, queues = reference.message, (target.queue,)
                moves.append((reference, self._spreading.forward(message, target.node, queues, reference=reference)))
            except KeyError:
                stay.append(reference)
        if moves:
            self._post.hand_over(self._queue, moves)
            self.moved += len(moves)
        self.credit = _CREDIT
        if stay:
            self._post.release(stay, failed=False)
        else:
            self._post.wake(self._queue)

    def _detach(self) -> None:
        self._attached = False
        self._taken = []
        self._post.detach(self._queue, self)
        self.credit = _CREDIT

    def stop(self) -> None:
        """Move nothing any more."""
        if self._attached:
            self._detach()
