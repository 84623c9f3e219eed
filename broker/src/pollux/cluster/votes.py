"""Quorum votes: who may serve, decided by the lives of the other pairs instead of a coordination service. Pure.

Every member keeps a :class:`Register` of what it was told about other nodes: for each node id the coordinated sequence
(signed as in :mod:`pollux.cluster.sequence`) and who holds the right to serve with its data. Lives answer with
it; a right, and a promise of one, lasts as long as the connection by which it was asked for. A backup that lost its
live asks for the right (*backup vote*); a live that lost its backup has its raised sequence recorded (*live vote*).
Both need the same majority, so only one of them can get it, and only somebody with the newest data.

The majority is that of the largest topology seen, as Artemis counts it (`quorum-size` replaces it): more than half of
the pairs, of which the asking one has no vote itself. A pair that never saw another one needs none.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

from pollux.cluster.sequence import Action, judge

if TYPE_CHECKING:
    from collections.abc import Iterable

#: The live has given its right to this member.
HANDED_OVER = "handed-over"
#: Questions: told that somebody serves; asked for the right to serve; asked to record a sequence; nothing is wanted.
SERVES, TAKE, RECORD, LOOK = "serves", "take", "record", "look"
_MAY = (Action.ACTIVATE, Action.REPAIR, Action.TAKE_OVER)
#: Seconds until a vote is repeated in which somebody who was asked still took the live for there; doubled each time.
SOON = 0.2


def votes_needed(size: int) -> int:
    """How many votes of other lives make a majority of ``size`` pairs; the asking pair has none."""
    return size // 2 + 1 if size > 2 else size // 2


class OwnVote(NamedTuple):
    """The state of this member that its votes rest on; of its data the ``sequence``, 0 when that is not complete.

    ``node_id`` empty: it has no data.
    """

    node_id: str
    serves: bool
    sequence: int


class Question(NamedTuple):
    """A question of another ``member`` of the pair ``group``, about the data of a node with this ``sequence``."""

    kind: str
    node_id: str
    member: str
    sequence: int
    group: str


class Ruling(NamedTuple):
    """A vote, before it is sent. ``against``: something is known that forbids it; a plain no cannot tell."""

    yes: bool
    against: bool
    reason: str


YES = Ruling(yes=True, against=False, reason="")


def _against(reason: str) -> Ruling:
    return Ruling(yes=False, against=True, reason=reason)


class Answer(NamedTuple):
    """The answer of one member. ``voter``: the node id it serves with; empty when it serves nobody, and has no vote.

    ``against``: it knows something that forbids it, while a plain no only means that it cannot tell. ``sequence``: the
    coordinated one, as far as it knows. ``size``: the largest topology it has seen.
    """

    member: str
    voter: str
    yes: bool
    against: bool
    reason: str
    sequence: int
    size: int
    #: The nodes of that topology, and those that were removed for good; of a broker that does not say so: none.
    topology: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()


#: Whether these answers are enough, and no more need to be waited for.
Enough = Callable[[list[Answer]], bool]


class Count(NamedTuple):
    """The result of one vote. ``needed`` votes of different pairs; ``sequence``: the newest that a yes told of."""

    won: bool
    votes: int
    needed: int
    sequence: int
    size: int
    reason: str


def count(answers: Iterable[Answer], node_id: str, size: int, quorum_size: int = -1, least: int = 0) -> Count:
    """Count a vote about ``node_id``. ``size``: the largest topology that the asking member has seen.

    ``least`` votes are needed even when nobody was seen: of several backups of one live only one may go on.
    """
    found = list(answers)
    size = max([size, *(one.size for one in found)])
    needed = votes_needed(quorum_size) if quorum_size > 0 else max(least, votes_needed(size))
    lives = [one for one in found if one.voter and one.voter != node_id]
    votes = {one.voter for one in lives if one.yes}
    sequence = max((one.sequence for one in found if one.yes), key=abs, default=0)
    won = len(votes) >= needed
    against = [one.reason for one in lives if not one.yes]
    heard = f"{len(votes)} of {needed} votes needed, {len({one.voter for one in lives})} other lives answered"
    return Count(won, len(votes), needed, sequence, size, "; ".join([heard, *dict.fromkeys(against)]))


class Known(Struct):
    """One node as a member knows it: its sequence, and who holds the right to serve (empty: nobody)."""

    sequence: int = 0
    holder: str = ""
    #: The holder serves already; otherwise it was only promised the right.
    serves: bool = False


class Register:
    """The nodes that a member was told of; those remembered from before at first. Times are seconds, monotonic."""

    def __init__(self, sequences: dict[str, int] | None = None, *, young_until: float = 0.0) -> None:
        """``young_until``: before that a node of which nothing was heard may only not have had the time to come."""
        self.known = {node: Known(sequence) for node, sequence in (sequences or {}).items()}
        #: The largest topology that was seen, by node ids; of one of which only the size was told, that.
        self.topology: frozenset[str] = frozenset()
        self._told = 1
        #: The nodes that were removed for good: they are not counted.
        self.removed: set[str] = set()
        self._young_until = young_until

    @property
    def sequences(self) -> dict[str, int]:
        """Return the sequences that are to be remembered, by node id."""
        return {node: known.sequence for node, known in self.known.items()}

    @property
    def largest(self) -> int:
        """Return the size of the largest topology that was seen, without the nodes that were removed since."""
        return max(self._told, len(self.topology - self.removed))

    def saw(self, size: int) -> None:
        """Note that another member has seen a topology of this size."""
        self._told = max(self._told, size)

    def saw_nodes(self, nodes: Iterable[str]) -> None:
        """Note a topology that was seen here or by another member."""
        seen = frozenset(nodes) - self.removed
        if len(seen) > len(self.topology - self.removed):
            self.topology = seen

    def learn(self, answer: Answer) -> None:
        """Note how large a topology another member has seen, and which nodes are removed, as it says."""
        self.removed.update(answer.removed)
        if answer.topology:
            self.saw_nodes(answer.topology)
        else:
            self.saw(answer.size)

    def _of(self, node_id: str) -> Known:
        return self.known.setdefault(node_id, Known())

    def judge(self, asked: Question, own: OwnVote, me: str, group: str, now: float) -> Ruling:
        """Answer a question, and note what it says. ``me`` and ``group`` name this member and its pair."""
        if asked.kind == LOOK:
            return Ruling(yes=False, against=False, reason="")
        if own.node_id == asked.node_id:
            if own.serves:
                return _against(f"{me} serves")
            if own.sequence > abs(asked.sequence):
                return _against(f"{me} has newer data (sequence {own.sequence}, not {asked.sequence})")
        if own.serves and asked.group and asked.group == group and asked.node_id != own.node_id:
            what = "give it a group-name of its own, or make it a <backup> without data"
            return _against(f"{me} is the live of the group {asked.group[:100]!r} with other data: {what}")
        if asked.kind == TAKE:
            return self.take(asked.node_id, asked.member, asked.sequence, now)
        if asked.kind == RECORD:
            return self.record(asked.node_id, asked.member, asked.sequence)
        return self.serves(asked.node_id, asked.member, asked.sequence, own.node_id)

    def serves(self, node_id: str, member: str, sequence: int, mine: str) -> Ruling:
        """Note that ``member`` serves, or say why that is not taken. ``mine``: the node id of our own pair."""
        known = self._of(node_id)
        if known.holder not in ("", member):
            return _against(f"{known.holder} holds the right to serve {node_id}")
        if abs(known.sequence) > abs(sequence):
            return _against(f"newer data of {node_id} exists (sequence {known.sequence}, not {sequence})")
        known.holder, known.serves, known.sequence = member, True, sequence
        present = {node for node, one in self.known.items() if one.serves} | {mine}
        self.saw_nodes(present - {""})
        return YES

    def gone(self, node_id: str, member: str) -> None:
        """Note that the connection of a holder, or of one that was promised the right, is gone."""
        known = self._of(node_id)
        if known.holder == member:
            known.holder, known.serves = "", False

    def take(self, node_id: str, member: str, local: int, now: float) -> Ruling:
        """Promise the right to a member with the ``local`` sequence, or say why not."""
        known = self._of(node_id)
        if known.holder not in ("", member):
            what = "serves" if known.serves else "was promised the right to serve"
            return _against(f"{known.holder} {what}")
        verdict = judge(local, known.sequence)
        if abs(known.sequence) >= local and verdict.action not in _MAY:
            return _against(verdict.reason)
        if now < self._young_until and known.sequence == 0:
            return Ruling(yes=False, against=False, reason="nothing was heard of this node yet")
        known.holder, known.serves = member, False
        return YES

    def record(self, node_id: str, member: str, sequence: int) -> Ruling:
        """Change the coordinated sequence for the holder, or say why not.

        It need not hold the right here: it may have it from the others.
        """
        known = self._of(node_id)
        if known.holder not in ("", member):
            return _against(f"{known.holder} holds the right to serve")
        if abs(known.sequence) > abs(sequence):
            return _against(f"newer data exists (sequence {known.sequence})")
        if known.sequence == -sequence and known.sequence > 0:
            return _against(f"{known.sequence} is finished already")
        known.sequence = sequence
        return YES


class Candidacy:
    """Whether a member that waits may ask for the right to serve, and when. Times are seconds, monotonic.

    ``own``: its data is what it served with last. It asks too, and whoever knows better is believed; but where no
    majority answers (all pairs are being started) it goes on after the last attempt, and ``at_once`` (a live without
    check-for-live-server) after the first. Once somebody knew better it needs a majority, also when that one does not
    answer any more (``contradicted``). A copy may only be served when it was in sync at the moment at which its
    live was lost: who has been left behind, or was started again, cannot know what was confirmed since. After the last
    lost vote it has to be in sync anew.

    ``outvoted``: it served until it lost the vote. Then it goes on alone only where it sees that nobody else can have
    been given the right: fewer members are silent than a majority has votes.
    """

    def __init__(self, *, own: bool, retries: int, wait: float, at_once: bool = False, outvoted: bool = False) -> None:
        self.own = own
        self._outvoted = outvoted
        self.handed_over = False
        #: Somebody said that newer data than ours exists, or that somebody else serves.
        self.contradicted = False
        self._retries = retries
        self._wait = wait
        #: The live that is followed has nothing that is not here.
        self.in_sync = False
        self._left = (0 if at_once else retries) + 1 if own else 0
        self._next = 0.0
        self._soon = wait
        self._cut_off = ""
        self.reason = (
            "our data is what this broker served with last"
            if own
            else "this copy was not in sync with a live since this broker started"
        )

    def synced(self) -> None:
        """Note that all that the live has is here."""
        self.in_sync = True

    def followed(self) -> None:
        """Ask for nothing: a live has taken us as its backup, so it is there."""
        self.in_sync = self.own = self.handed_over = self.contradicted = False
        self._left = 0
        self.reason = "a live is there"

    def live_lost(self, code: str, now: float) -> None:
        """Ask for the right if we had all of the live that is gone."""
        if not self.in_sync:
            self.reason = "the live was lost before this copy was complete"
            return
        self.in_sync = False
        self.handed_over = code == HANDED_OVER
        if self._cut_off and not self.handed_over:
            self.reason = f"the live was lost while this host was {self._cut_off}"
            return
        self._left = 1 + self._retries
        self._next = now
        self._soon = SOON
        self.reason = "the live is gone"

    def cut_off(self, problem: str) -> None:
        """Note that this host is cut off, as the network check says (empty: not any more).

        A copy that has lost its live then cannot know what was confirmed since: it has to be in sync anew. What was
        handed over stays: nobody else has it.
        """
        self._cut_off = problem
        if problem and not (self.in_sync or self.own or self.handed_over):
            self._left = 0
            self.reason = problem

    def asks(self) -> bool:
        """Whether it wants the right."""
        return self.own or self.handed_over or self._left > 0

    def may_ask(self, now: float) -> bool:
        """Whether a vote may be asked for now."""
        return self.asks() and now >= self._next

    def judge(self, result: Count, answers: Iterable[Answer], now: float, silent: int = 0) -> bool:
        """Return whether a vote gives us the right. ``silent`` others may have one of their own, and did not answer."""
        against = [one for one in answers if one.against]
        if against and self._soon < self._wait:
            self._next = now + self._soon
            self._soon *= 2
        else:
            self._next = now + self._wait
            self._left = max(0, self._left - 1)
        if self.own and against:
            self.contradicted = True
            self.reason = f"{against[0].member}: {against[0].reason}"
            return False
        if result.won or self.handed_over:
            return True
        if self.contradicted:
            return False  # the reason stays that one
        self.reason = result.reason
        if self.own and self._left == 0:
            if not self._outvoted or silent < result.needed:
                return True
            self.reason = (
                f"this broker was outvoted, and {silent} others that may have voted are silent ({result.reason})"
            )
        elif self._left == 0:
            self.reason = (
                f"the vote was lost for good ({result.reason}): this broker waits for a live; start the live, or stop"
                " both and compare them with `pollux journal compare`"
            )
        return False
