"""Nodes that are reached by way of others: what a neighbour asks is asked of those behind this node, too.

As far as max-hops says, and within a cluster connection: messages go as far. What comes by several ways of a ring
counts once. Who passes something on waits a little less long than who asked it, and answers for those who answered.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pollux.caches import make_room
from pollux.cluster.mqtt.words import Passed, Reached
from pollux.cluster.once import Once
from pollux.errors import NotPermittedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pollux.cluster.mqtt.channels import Answering, Asking
    from pollux.cluster.mqtt.words import Given, Take
    from pollux.protocols.mqtt.neighbours import MovingSession

#: Things passed on that are remembered, and sessions that others gave by way of this node.
_PASSED, _GIVEN = 20_000, 20_000
#: Seconds that nobody waits longer than, whoever asks.
_LONGEST = 5.0


class Cluster(Protocol):
    """The cluster connections as this module needs them."""

    def waiting(self, node: bytes) -> int:
        """Return how many messages wait for a node."""

    def tell_now(self) -> None:
        """Tell the other nodes of changed queues now."""

    def complete(self) -> bool:
        """Whether every node that is known of is reached, and reaches this one."""

    def hops(self, connection: str) -> int:
        """Return how far a cluster connection goes (max-hops)."""


class Answers(NamedTuple):
    """The latest of the sessions that were given, and who gave one; who did not answer in time."""

    session: MovingSession | None
    givers: list[Asking]
    late: list[Asking]


async def answers(asked: Mapping[asyncio.Future[Given | None], Asking], within: float) -> Answers:
    """Wait for answers about a client, ``within`` seconds at most. Raises NotPermittedError: it is another user's."""
    if not asked:
        return Answers(None, [], [])
    done, late = await asyncio.wait(asked, timeout=_bounded(within))
    found: list[MovingSession] = []
    givers = []
    for future in done:
        given = future.result()
        if given is not None and given.refused:
            raise NotPermittedError(given.refused)
        if given is not None and given.session is not None:
            found.append(given.session)
            givers.append(asked[future])
    return Answers(latest(found), givers, [asked[one] for one in late])


def latest(sessions: Iterable[MovingSession]) -> MovingSession | None:
    """Return whose client was connected last. One that is connected has no time yet: it is the latest."""
    return max(sessions, key=lambda one: one.since or 1 << 63, default=None)


def _bounded(within: float) -> float:
    """Return how long to wait: who asks says it, and may say anything."""
    return within if 0 <= within <= _LONGEST else _LONGEST


class Beyond:
    """``reached``: the nodes that can be asked; ``asking``: those that ask this one."""

    def __init__(
        self, cluster: Cluster, reached: Callable[[], list[Asking]], asking: Callable[[], list[Answering]]
    ) -> None:
        self._cluster = cluster
        self._reached = reached
        self._asking = asking
        self._once = Once(_PASSED)
        #: Who asked for a client, and its id -> the nodes behind this one that gave its session.
        self._givers: dict[tuple[bytes, str], list[Asking]] = {}

    def begin(self, within: float) -> Callable[[int], Passed]:
        """Begin something that others pass on; return how far, by the max-hops of who hears it.

        ``within``: seconds that this node waits.
        """
        what = os.urandom(8)
        self._once.first(what, 1 << 32)
        return lambda hops: Passed(hops + 1, within, what).on() if hops > 1 else Passed()

    def is_new(self, passed: Passed) -> bool:
        """Whether something is to be done here, and was not yet."""
        return (not passed.what and passed.hops <= 1) or self._once.first(passed.what, passed.hops)

    # -- clients

    def ask(self, asked: Take, by: Answering) -> dict[asyncio.Future[Given | None], Asking]:
        """Ask those behind this node for a client."""
        if asked.passed.hops <= 1:
            return {}
        on, clean, came = asked.passed.on(), asked.clean, asked.came
        return {one.take(asked.client_id, asked.user, on, clean=clean, came=came): one for one in self._behind(by)}

    def gave(self, client_id: str, by: Answering, givers: list[Asking]) -> None:
        """Note who gave a session to who asked."""
        if givers:
            make_room(self._givers, _GIVEN)
            self._givers[by.peer, client_id] = givers

    def given(self, client_id: str, to: Answering) -> None:
        """Have those behind this node give up a session."""
        for one in self._givers.pop((to.peer, client_id), ()):
            one.taken(client_id)

    def reached(self, new: Asking) -> None:
        """Tell those who ask this node that another one can be asked by way of it."""
        hops = self._cluster.hops(new.connection)
        if hops > 1:
            self._tell(Reached(new.peer, self.begin(0)(hops).on()), new)

    def told(self, told: Reached, by: Asking) -> bool:
        """Pass on that a node can be asked; return whether that is new here."""
        direct = any(one.peer == told.node and one.connection == by.connection for one in self._reached())
        if direct or not self.is_new(told.passed):
            return False
        if told.passed.hops > 1:
            self._tell(Reached(told.node, told.passed.on()), by)
        return True

    def _tell(self, told: Reached, of: Asking) -> None:
        for one in self._in_front(of):
            if one.hops > 1:
                one.reached(told)

    # -- queues

    async def synced(self, passed: Passed, by: Asking) -> int:
        """Return how many messages are on their way to a node behind this one and here; -1: it is not known."""
        waiting = 0
        if self.is_new(passed):
            self._cluster.tell_now()
            asked = [one.sync(passed.on()) for one in self._in_front(by)]
            if asked:
                await asyncio.wait(asked, timeout=_bounded(passed.within))
            if not self._cluster.complete() or any(not one.done() or one.result() < 0 for one in asked):
                return -1
            waiting = sum(one.result() for one in asked)
        return waiting + self._cluster.waiting(by.peer)

    # -- the others

    def _behind(self, by: Answering) -> list[Asking]:
        """Return who can be asked of the same cluster connection, but for who asks."""
        return [one for one in self._reached() if one.connection == by.connection and one.peer != by.peer]

    def _in_front(self, of: Asking) -> list[Answering]:
        """Return who asks this node by the same cluster connection, but for the other one."""
        return [one for one in self._asking() if one.connection == of.connection and one.peer != of.peer]

    def tell_on(self, topic: str, number: int, of: Asking) -> None:
        """Tell of a topic that another node retained: who does not reach that one hears of it from here."""
        if self._cluster.hops(of.connection) > 1:
            for one in self._in_front(of):
                one.changed(topic, number)
