"""The members of a cluster vote on who may serve: connections to all of them, and questions to them.

Purpose ``quorum`` of the core protocol (docs/core-protocol.md). Every member keeps a connection to every other one; a
live says by it that it serves. How votes are counted is in :mod:`pollux.cluster.votes`, who answers them in
:mod:`pollux.cluster.voter`.
"""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import CancelledError
from functools import partial
from typing import TYPE_CHECKING, Any

from pollux.cluster import vote_log
from pollux.cluster.connector import ClusterConnector, UnreachableError, tell
from pollux.cluster.duties import carry_out
from pollux.cluster.vote_channels import PURPOSE, Asked
from pollux.cluster.voter import Voter
from pollux.cluster.votes import LOOK, RECORD, SERVES, TAKE, Answer, OwnVote, Register, votes_needed
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from pollux.cluster.discovery import Others
    from pollux.cluster.link import CoreHub
    from pollux.cluster.link.core_link import CoreLink
    from pollux.cluster.votes import Enough
    from pollux.config.acceptors import Endpoint

logger = logging.getLogger("pollux.ha")

#: Longest time to connect to one member, and the pause before the next attempt, seconds.
CONNECT_LIMIT = 5.0
RETRY = 1.0
#: How often it is asked how large a topology others have seen, seconds.
LOOK_PERIOD = 2.0
#: So long after its start a member cannot tell a node that is gone from one that has not come yet, seconds.
YOUNG = 3.0
#: How long a start waits for the first attempt to reach everybody, seconds.
FIRST_LOOK = 6.0


class Electorate:
    """The members that vote, as one of them reaches them. Asked by the member's thread, else used in the loop."""

    def __init__(
        self,
        hub: CoreHub,
        others: Others,
        journal: Path,
        *,
        member: str,
        group: str,
        connect_timeout: float,
        answer_timeout: float,
        own_vote: Callable[[], OwnVote],
        coordinated: Callable[[], int],
        superseded: Callable[[str], None],
    ) -> None:
        """``member`` names this one, of the pair ``group``. Times in seconds.

        ``superseded`` is called when a majority says that somebody else serves.
        """
        self.loop = asyncio.get_running_loop()
        self.register = Register(vote_log.read(journal), young_until=self.loop.time() + YOUNG)
        self._connector = ClusterConnector(hub)
        self._others = others
        self._member = member
        self._group = group
        self._connect_timeout = connect_timeout
        self._answer_timeout = answer_timeout
        self._own_vote = own_vote
        self._coordinated = coordinated
        self._superseded = superseded
        self._links: dict[str, CoreLink] = {}
        self._beginning: asyncio.Task[None] | None = None
        self._keeping: dict[Endpoint, asyncio.Task[None]] = {}
        self._tried: set[str] = set()
        #: Where nobody listens, as the machine there has said last.
        self._absent: set[str] = set()
        #: All who are there can have been found by now.
        self._found = False
        #: Everybody was tried once.
        self.looked = asyncio.Event()
        #: The channels by which the right is promised at each member, and those by which it is told that we serve.
        self._promises: dict[str, Asked] = {}
        self._announced: dict[str, Asked] = {}
        self._against: dict[str, str] = {}
        #: What each member said last, so that it is logged once.
        self._refusals: dict[str, str] = {}
        voter = Voter(self.register, journal, own_vote, member=member, group=group)
        hub.purposes[PURPOSE] = voter.open

    def start(self) -> None:
        """Connect to everybody, and stay connected."""
        self._others.on_change.append(self._meet)
        self._beginning = self.loop.create_task(carry_out("meeting those who vote", self._begin))

    async def _begin(self) -> None:
        self._meet()
        await self._others.first()
        self._found = True
        self._look()

    def _meet(self) -> None:
        """Connect to whoever is new."""
        for endpoint in self._others.endpoints:
            if endpoint not in self._keeping:
                work = carry_out(f"votes of {_place(endpoint)}", partial(self._keep, endpoint), pause=RETRY)
                self._keeping[endpoint] = self.loop.create_task(work)

    async def stop(self) -> None:
        """Close all connections."""
        tasks = [*self._keeping.values(), *([self._beginning] if self._beginning is not None else [])]
        if self._meet in self._others.on_change:
            self._others.on_change.remove(self._meet)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def size(self) -> int:
        """The largest topology that was seen."""
        return self.register.largest

    @property
    def others(self) -> int:
        """How many other members there are, whether they answer or not."""
        return int(self.view()["members"])

    def silent(self, answered: int) -> int:
        """Return how many others may have a vote and did not say it, when so many answered. Any thread.

        Where a machine says that nobody listens nobody has one. Who was connected in the middle of the vote was not
        asked.
        """
        there = sum(_place(endpoint) not in self._absent for endpoint in self._others.endpoints)
        return max(0, there - answered)

    def view(self) -> dict[str, Any]:
        """Return what management shows: the topology's size, members, and how many are connected."""
        return {"size": self.size, "connected": len(self._links), "members": len(self._others.endpoints)}

    # -- connections

    async def _keep(self, endpoint: Endpoint) -> None:
        where, said = _place(endpoint), ""
        while True:
            try:
                link = await self._connector.connect(endpoint, min(CONNECT_LIMIT, self._connect_timeout))
            except UnreachableError as error:
                (self._absent.add if error.refused else self._absent.discard)(where)
                # A member that waits does not listen: that is no news. Something to do is told, once.
                if not said or (error.remedy and said != str(error)):
                    said = str(error)
                    tell(logger, "no vote from this member", where, error)
                self._look(where)
                if endpoint not in self._others.endpoints:
                    del self._keeping[endpoint]  # nobody says any more that it is there
                    return
            else:
                said = ""
                await self._stay(where, link)
            await asyncio.sleep(RETRY)

    def _look(self, where: str = "") -> None:
        self._tried.add(where)
        if self._found and {_place(endpoint) for endpoint in self._others.endpoints} <= self._tried:
            self.looked.set()

    async def _stay(self, where: str, link: CoreLink) -> None:
        self._links[where] = link
        self._absent.discard(where)
        self._look(where)
        try:
            looked = 0.0
            while not link.conversation.ended:
                if self.loop.time() >= looked:
                    looked = self.loop.time() + LOOK_PERIOD
                    await self._see(where)
                if self._own_vote().serves and where not in self._announced:
                    await self._announce(where)
                # An announcement that was not taken is made again; the end of the connection wakes nobody earlier.
                await asyncio.wait([link.over], timeout=RETRY)
        finally:
            self._links.pop(where, None)
            self._promises.pop(where, None)
            self._announced.pop(where, None)
            self._against.pop(where, None)
            link.close("this member votes no more")

    async def _see(self, where: str) -> None:
        """Who waits is told of nothing: it asks how large a topology others have seen, before it needs votes."""
        asked = self._ask(where, LOOK, self._own_vote().node_id or bytes(16).hex(), 0)
        answer = await asked.answered(CONNECT_LIMIT) if asked is not None else None
        if asked is not None:
            asked.close()
        if answer is not None:
            self.register.learn(answer)

    async def _announce(self, where: str) -> None:
        """Tell one member that this broker serves; as long as the channel is there it is believed."""
        own_vote = self._own_vote()
        asked = self._ask(where, SERVES, own_vote.node_id, self._coordinated())
        answer = await asked.answered(CONNECT_LIMIT) if asked is not None else None
        if asked is None or answer is None:
            return
        self.register.learn(answer)
        if answer.yes:
            self._announced[where] = asked
            self._against.pop(where, None)
            promise = self._promises.pop(where, None)
            if promise is not None:
                promise.close()
            return
        asked.close()
        if self._refusals.get(where) != answer.reason:
            self._refusals[where] = answer.reason
            event(logger, logging.WARNING, "not taken for the live", member=answer.member, reason=answer.reason)
        if answer.voter and answer.voter != own_vote.node_id and abs(answer.sequence) >= self._coordinated():
            self._against[where] = answer.reason
            if len(self._against) >= max(1, votes_needed(self.size)):
                self._superseded(f"other pairs say: {answer.reason}")

    async def announce(self) -> None:
        """Tell everybody that this broker serves now."""
        await asyncio.gather(*(self._announce(where) for where in list(self._links)))

    def _ask(self, where: str, kind: str, node_id: str, sequence: int) -> Asked | None:
        link = self._links.get(where)
        if link is None or link.conversation.ended:
            return None
        asked = Asked(link.conversation, self.loop)
        asked.channel = link.conversation.open(
            asked,
            PURPOSE,
            ask=kind,
            node_id=node_id,
            member=self._member,
            sequence=sequence,
            group=self._group,
        )
        return asked

    # -- the member's thread asks

    def take(self, node_id: str, local: int, enough: Enough) -> list[Answer]:
        """Ask all for the right to serve; it stays promised until :meth:`leave`. Blocking."""
        return self._do(TAKE, node_id, local, enough)

    def record(self, node_id: str, sequence: int, enough: Enough) -> list[Answer]:
        """Have all record the coordinated sequence. Blocking."""
        return self._do(RECORD, node_id, sequence, enough)

    def _do(self, kind: str, node_id: str, sequence: int, enough: Enough) -> list[Answer]:
        work = self._vote(kind, node_id, sequence, enough)
        try:
            asked = asyncio.run_coroutine_threadsafe(work, self.loop)
            return asked.result(self._answer_timeout + CONNECT_LIMIT)
        except (TimeoutError, CancelledError, RuntimeError) as error:
            logger.debug("a vote was not counted: %r", error)
            return []

    async def _vote(self, kind: str, node_id: str, sequence: int, enough: Enough) -> list[Answer]:
        answers: list[Answer] = []
        waiting: dict[asyncio.Task[Answer | None], tuple[str, Asked]] = {}
        for where in list(self._links):
            held = self._promises.get(where) if kind == TAKE else None
            if held is not None and (known := held.answer) is not None and known.yes:
                answers.append(known)
                continue
            asked = self._ask(where, kind, node_id, sequence)
            if asked is not None:
                waiting[self.loop.create_task(asked.answered(self._answer_timeout))] = (where, asked)
        pending = set(waiting)
        while pending and not enough(answers):
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                where, asked = waiting[task]
                answer = task.result()
                if kind == TAKE and answer is not None and answer.yes:
                    self._promises[where] = asked
                else:
                    asked.close()
                if answer is not None:
                    answers.append(answer)
                    self.register.learn(answer)
        for task in pending:
            where, asked = waiting[task]
            task.cancel()
            if kind == TAKE:
                # It may still say yes: the promise has to be given back with the others.
                self._promises[where] = asked
            else:
                asked.close()
        return answers

    def leave(self, node_id: str) -> None:
        """Give back what was promised."""
        del node_id
        self.loop.call_soon_threadsafe(self._leave)

    def _leave(self) -> None:
        given = [*self._promises.values(), *self._announced.values()]
        self._promises.clear()
        self._announced.clear()
        for asked in given:
            asked.close()


def _place(endpoint: Endpoint) -> str:
    return f"{endpoint.host}:{endpoint.port}"
