"""The coordination service of a pair without one: the other members' registers, asked over the core protocol.

Implements :class:`pollux.ha.replication.coordination.Coordinator` by votes (:mod:`pollux.cluster.votes`). The
lock is a majority's promise and lasts as long as the connections by which it was given; the number is what a majority
has recorded. Who cannot get a majority and may go on nevertheless is told by the settings.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Protocol

from pollux.cluster.votes import Answer, Candidacy, Count, count
from pollux.ha.copies.replicas import LostRightError
from pollux.ha.replication.coordination import CoordinationError, NotNewestError, NotOursError
from pollux.logs import event

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.cluster.votes import Enough
    from pollux.ha.replication.settings import Votes

logger = logging.getLogger("pollux.ha")


class Electorate(Protocol):
    """The other members. Every call may block, and is made in a member's own thread.

    Answers are waited for until all have come, ``enough`` says that no more are needed, or time is up.
    """

    def take(self, node_id: str, local: int, enough: Enough) -> list[Answer]:
        """Ask all for the right to serve; it stays promised until :meth:`leave`."""

    def record(self, node_id: str, sequence: int, enough: Enough) -> list[Answer]:
        """Have all record the coordinated sequence."""

    def leave(self, node_id: str) -> None:
        """Give back what was promised."""

    @property
    def size(self) -> int:
        """The largest topology that was seen."""

    def silent(self, answered: int) -> int:
        """How many others may have a vote and did not say it, when so many answered."""


class QuorumCoordinator:
    """The lock and the number as votes. ``local``: our data's sequence. ``session``: how long a silent live counts."""

    def __init__(
        self,
        identity: str,
        electorate: Electorate,
        candidacy: Candidacy,
        votes: Votes,
        *,
        local: Callable[[], int],
        session: float,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] | None = None,
        least: Callable[[], int] = lambda: 0,
    ) -> None:
        """``wait`` sleeps between the attempts of a live vote, and returns early when the member stops.

        ``least``: so many votes are needed even by who has never seen another pair.
        """
        self.session = session
        self._identity = identity
        self._electorate = electorate
        self._candidacy = candidacy
        self._votes = votes
        self._local = local
        self._clock = clock
        self._stopped = threading.Event()
        self._wait = wait or self._stopped.wait
        self._least = least
        self._held = False
        #: Without a majority it may go on: it was handed over, or nobody else is there to know better.
        self._alone = False
        self._serving = False
        self._agreed = 0
        self._said = ""

    def connect(self, on_change: Callable[[], None]) -> None:
        """The members are connected by who made them."""
        del on_change

    def sequence(self) -> int:
        """Return what was agreed on; when it is time, by a vote. Raises CoordinationError without the right."""
        if not self._held and self._candidacy.in_sync:
            return self._local()
        if not self._held and self._candidacy.may_ask(self._clock()):
            self._vote()
        if not self._held:
            raise (NotNewestError if self._candidacy.contradicted else CoordinationError)(self._candidacy.reason)
        return self._agreed

    def catch_up(self) -> None:
        """Do nothing: every vote is asked anew."""

    def acquire(self) -> bool:
        """Whether the right was won."""
        return self._held

    def _vote(self) -> None:
        local = self._local()
        # Whoever served last listens to all: one may know that somebody else has served since.
        answers = self._electorate.take(
            self._identity, local, lambda found: self._count(found).won and not self._candidacy.own
        )
        result = self._count(answers)
        if not self._candidacy.judge(result, answers, self._clock(), self._electorate.silent(len(answers))):
            self._electorate.leave(self._identity)
            self._say("vote lost", result, self._candidacy.reason)
            return
        self._alone = not result.won
        # Who has a newer number than ours and says yes knows of a claim that was not finished.
        self._agreed = result.sequence if abs(result.sequence) > local else local
        self._held = True
        if result.won:
            self._say("vote won", result, result.reason)
        else:
            self._say("no majority is needed", result, self._candidacy.reason)

    def _say(self, what: str, result: Count, reason: str) -> None:
        if (said := f"{what}: {reason}") != self._said:
            self._said = said
            fields = {"node": self._identity, "votes": result.votes, "needed": result.needed, "reason": reason}
            event(logger, logging.INFO, what, **fields)

    def prove(self) -> None:
        """Whoever may serve may go on until it loses its backup: then :meth:`change` needs a majority."""
        if not self._held:
            raise NotOursError("the right to serve was not won")

    def change(self, expected: int, new: int) -> None:
        """Have a majority record the number. A live without vote-on-replication-failure goes on without one."""
        self.prove()
        if expected != self._agreed:
            raise CoordinationError(f"the coordinated sequence is {self._agreed}, not {expected}")
        result = self._recorded(new)
        free = self._alone or (self._serving and not self._votes.on_replication_failure)
        attempts = 0 if free else self._votes.retries
        while not result.won and attempts and not self._stopped.is_set():
            attempts -= 1
            self._wait(self._votes.wait)
            result = self._recorded(new)
        if not result.won and not free:
            self._held = False
            raise LostVoteError(
                f"the vote was lost ({result.reason}): other pairs cannot be reached, or somebody else was given the"
                " right to serve"
            )
        self._agreed = new

    def register(self, group: str, node_id: str) -> str:
        """Those who vote look at groups themselves."""
        del group
        return node_id

    def _recorded(self, new: int) -> Count:
        return self._count(self._electorate.record(self._identity, new, lambda found: self._count(found).won))

    def _count(self, answers: list[Answer]) -> Count:
        return count(answers, self._identity, self._electorate.size, self._votes.quorum_size, self._least())

    def serves(self) -> None:
        """Clients are served: what is changed from now on is because a backup was lost."""
        self._serving = True
        self._alone = False

    def release(self) -> None:
        """Give the promises back."""
        if self._held:
            self._held = False
            self._electorate.leave(self._identity)

    def close(self) -> None:
        """Ask nobody any more, and give the promises back."""
        self._stopped.set()
        self.release()


class LostVoteError(CoordinationError, LostRightError):
    """No majority: this member must not serve."""
