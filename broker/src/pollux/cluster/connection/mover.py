"""Redistribution: a consumer of a queue that takes what nobody here wants and somebody elsewhere does.

What that is, :mod:`pollux.cluster.routes.moves` decides, for each message and again whenever something changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.cluster.connection.lately import Lately
from pollux.cluster.connection.local import demand
from pollux.cluster.connection.pace import CROWDED, FULL, LONG_CROWDED
from pollux.cluster.connection.spread import matches
from pollux.cluster.connection.taker import Taker
from pollux.cluster.routes.moves import HOLD, Demand, Elsewhere, Moves
from pollux.message import RoutingType
from pollux.routing.selector import Selector

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Sequence

    from pollux.cluster.connection.pace import Pace
    from pollux.cluster.connection.spread import Spreading
    from pollux.cluster.routes.table import RoutingTable
    from pollux.engine.forwards import Forward
    from pollux.engine.post_office import PostOffice
    from pollux.message import Message
    from pollux.routing.queue import Queue
    from pollux.routing.reference import MessageReference

#: Messages taken at a time; and those on the way to a node beyond which no more are: what its clients send goes there
#: behind them.
_CREDIT, _ON_THE_WAY = 200, 10_000


def kept(queue: Queue, *, leaving: bool = False) -> str:
    """Return why nothing is moved from a queue; empty: it may be.

    Another consumer would be the only one of some queues, or the one that others wait for. Of a queue that is
    ``leaving`` nobody takes anything here.
    """
    attributes = queue.attributes
    if attributes.exclusive and not leaving:
        return "it is exclusive"
    if attributes.non_destructive:
        return "it is non-destructive"
    if attributes.purge_on_no_consumers:
        return "it is purged when nobody takes from it (purge-on-no-consumers)"
    if attributes.consumers_before_dispatch > 1:
        return "it waits for more consumers (consumers-before-dispatch)"
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
        pace: Pace,
        leaving: bool = False,
    ) -> None:
        """``leaving``: everything is moved, whether somebody takes it there or not."""
        super().__init__(post.loop, _CREDIT)
        self.moved = 0
        #: Lets through what is to be moved; not asked where that is everything.
        self._some = Selector("to be moved", lambda message: self.target(message) is not None)
        self._pace = pace
        #: Ends its rest; and the queue in which all that it moved last waits to be sent (None: there are several).
        self._rested: asyncio.TimerHandle | None = None
        self._outlet: Queue | None = None
        self._queue = queue
        self._moves = Moves(delay)
        self._leaving = leaving
        self._post = post
        self._table = table
        self._spreading = spreading
        self._inputs: tuple[Demand, list[Elsewhere], frozenset[str]] | None = None
        #: What was moved here, by the loop's clock.
        self._arrived = Lately()

    def change_delay(self, delay: float) -> None:
        """Wait for so many seconds from the next look on: a reload may change redistribution-delay."""
        self._moves.delay = delay

    def arrived(self, messages: Sequence[Message], now: float) -> bool:
        """Note that messages came from another node; return whether to look again when they may be moved on."""
        self._arrived.add([message.id for message in messages], now)
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
        held = self._arrived.forget(now - HOLD)
        due = self._moves.due(now)
        inputs = (here, [one._replace(free=0) for one in elsewhere], due)
        if self._attached and (held or inputs != self._inputs):
            self._detach()  # it looks again at what it passed over
        if due and not self._attached and not kept(queue, leaving=self._leaving):
            self._attach(now)
        if self._attached and self._arrived:  # else nobody waits until what came from another node may be moved on
            over = self._arrived.oldest + HOLD
            again = over if again is None else min(again, over)
        self._inputs = inputs
        return again

    def target(self, message: Message) -> Elsewhere | None:
        """Return where a message goes, those of a group all to one place."""
        now = self._post.loop.time()
        arrived = self._arrived.when(message.id) if not self._leaving else None
        return self._moves.target(lambda text: matches(text, message), arrived, now, message.group)

    # -- the queue's consumer

    def _hand_over(self) -> None:
        references, self._taken = self._taken, []
        if not self._attached or not references:
            return
        post, effort = self._post, self._post.share.effort
        began, now = effort(), post.loop.time()
        moves, stay = self._moves_of(references, now)
        if moves:
            post.hand_over(self._queue, moves)
            self.moved += len(moves)
        rest = self._pace.rest(len(moves), effort() - began, now)
        if stay:
            post.release(stay, failed=False)
            if self.selector is None:  # it has to ask about each
                self._detach()
                self._attach(now)
        if stay and post.storage.full:
            rest = FULL
        # Only where all goes to one node: else one that is slow would hold up what others want.
        self._outlet = moves[-1][1].queue if moves and self._moves.only(now) is not None else None
        self.credit = 0
        if rest > 0:
            self._rested = post.loop.call_later(rest, self._go_on)
        else:
            self._go_on()

    def _moves_of(
        self, references: list[MessageReference], now: float
    ) -> tuple[list[tuple[MessageReference, Forward]], list[MessageReference]]:
        """Return what is moved, with its copies, and what stays: nobody wants it any more, or there is no way."""
        moves, stay = [], []
        only = self._moves.only(now)
        full = self._post.storage.full
        for reference in references:
            message = reference.message
            target = only if only is not None and (self._leaving or not self._arrived) else self.target(message)
            try:
                if target is None or (full and message.durable):
                    raise KeyError  # noqa: TRY301  (it stays, as one without a way)
                copy = self._spreading.forward(message, target.node, (target.queue,), reference=reference)
            except KeyError:
                stay.append(reference)
            else:
                moves.append((reference, copy))
        return moves, stay

    def _go_on(self, patience: float = CROWDED) -> None:
        """Take more, when there is room for it on the way."""
        self._rested = None
        if not self._attached:
            return
        post = self._post
        if self._outlet is not None and self._crowded(self._outlet):
            self._rested = post.loop.call_later(patience, self._go_on, min(2 * patience, LONG_CROWDED))
            return
        self.credit = _CREDIT
        post.wake(self._queue)

    def _crowded(self, outlet: Queue) -> bool:
        """Whether as much is on the way as may be: what is still being written is in no queue yet.

        What waits there for room at other addresses holds up nothing; for room at this one nothing more is moved.
        """
        held = self._spreading.held_of(outlet)
        if held is not None and held.waits(self._queue.address):
            return True
        in_memory = self._post.accounts.of(outlet.address).gauge.messages
        on_the_way = max(in_memory, self._post.message_count(outlet)) - (held.count if held is not None else 0)
        return on_the_way >= _ON_THE_WAY

    def _attach(self, now: float) -> None:
        self._attached = True
        everything = self._moves.only(now) is not None and (self._leaving or not self._arrived)
        self.selector = None if everything else self._some
        self._post.attach(self._queue, self)

    def _detach(self) -> None:
        self._attached = False
        self._taken = []
        if self._rested is not None:
            self._rested.cancel()
            self._rested = None
        self._post.detach(self._queue, self)
        self.credit = _CREDIT

    def stop(self) -> None:
        """Move nothing any more."""
        if self._attached:
            self._detach()
