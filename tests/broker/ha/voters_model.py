"""The pair of :mod:`broker.ha.pair_model` without a coordination service: the lives of two other pairs vote.

The votes are the product's: :class:`QuorumCoordinator`, :class:`Candidacy`, :class:`Register`. Simulated are the
connections, whose ends notice at different times that they are broken, and what :class:`pollux.cluster.electorate` does
with them: a promise lasts as long as the connection by which it was given.

With vote-on-replication-failure and check-for-live-server. Left out is one case in which docs/replication.md lets a
member serve without a majority: nobody has answered for all vote-retries after a start, and it was not outvoted before.

Not a test module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.ha.pair_model import NAMES, NODE, SESSION, Node, World
from pollux.cluster.votes import HANDED_OVER, Answer, Candidacy, Register, votes_needed
from pollux.ha.replication.coordination import CoordinationError
from pollux.ha.replication.quorum import LostVoteError, QuorumCoordinator
from pollux.ha.replication.settings import Votes

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.cluster.votes import Ruling
    from pollux.ha.replication.coordination import Coordinator
    from pollux.ha.replication.member import Member

VOTES = Votes(quorum_size=-1, retries=2, wait=1.0, answers=1.0, on_replication_failure=True, check_for_live=True)
#: A start asks until a majority has answered, unless the broker was outvoted before.
RETRIES = 1 << 30
VOTERS = ("b", "c")
#: A voter that has just started does not take silence for death, seconds.
YOUNG = 3.0


class Voter:
    """The live of another pair."""

    def __init__(self, world: VotesWorld, name: str) -> None:
        self.world = world
        self.name = name
        self.node_id = name * 32
        self.register = Register({NODE: 0})
        #: Who is connected, and when it was heard last.
        self.heard: dict[str, float] = {}

    def drop(self, member: str) -> None:
        """The connection is gone."""
        self.heard.pop(member, None)
        self.register.gone(NODE, member)

    def restart(self) -> None:
        """Start it anew: it remembers the sequences, and nobody is connected."""
        kept = self.register.sequences if self.world.without != "memory" else {}
        self.register = Register(kept, young_until=self.world.now + YOUNG)
        self.heard.clear()
        for node in self.world.members.values():
            node.unlink(self)

    def tick(self) -> None:
        for member, heard in list(self.heard.items()):
            if self.world.now - heard > SESSION:
                self.drop(member)


class VotesWorld(World):
    """A primary, its backups, and two voters. ``without`` also: ``majority``, ``memory``, ``silence``."""

    def __init__(self, without: str = "", members: int = 2) -> None:
        self.members: dict[str, VotesNode] = {}
        super().__init__(without, members)
        self.voters = {name: Voter(self, name) for name in VOTERS}
        self.needed = 1 if without == "majority" else votes_needed(3)

    def make_nodes(self) -> dict[str, Node]:
        self.members = {name: VotesNode(self, name) for name in self.names}
        return {**self.members}

    def tick(self) -> None:
        for node in self.members.values():
            node.beat()
        for voter in self.voters.values():
            voter.tick()

    def heal(self) -> None:
        for node in self.members.values():
            node.cut.clear()


class VotesNode(Node):
    """A member that has to ask; ``castor`` is the primary."""

    identity = None

    def __init__(self, world: VotesWorld, name: str) -> None:
        super().__init__(world, name)
        self.votes_world = world
        self.equal = name == NAMES[0]
        #: Voters that cannot be reached, and those that are connected as far as this member knows, since when silent.
        self.cut: set[str] = set()
        self.links: dict[str, float] = {}
        self.promised: dict[str, Answer] = {}
        self.announced: set[str] = set()
        self.against: set[str] = set()
        self.candidacy: Candidacy
        self.coordinator: QuorumCoordinator | None = None

    @property
    def me(self) -> str:
        """As voters know it: another process is somebody else."""
        return f"{self.name} {self.process}"

    @property
    def serves(self) -> bool:
        """Without a lock, a live that has not missed its backup yet can only serve what this one confirms."""
        return super().serves and not self.lost and self.followed

    # -- its process

    def make_coordinator(self, identity: str) -> Coordinator:
        self.coordinator = QuorumCoordinator(
            identity,
            Asking(self.votes_world, self),
            self.candidacy,
            VOTES._replace(quorum_size=2 if self.world.without == "majority" else -1),
            local=lambda: self.sequence,
            session=SESSION,
            clock=lambda: self.world.now,
            wait=self.world.pass_time,
            least=lambda: 1 if len(self.world.names) > 2 else 0,
        )
        return self.coordinator

    @property
    def sequence(self) -> int:
        state = self.member.state if self.member is not None else None
        return state.sequence if state is not None else 0

    def before_start(self) -> None:
        mine = self.state
        own = self.equal if mine is None else mine.complete and not mine.replica
        outvoted = mine is not None and mine.outvoted
        retries = RETRIES if own and not outvoted else VOTES.retries
        self.candidacy = Candidacy(own=own, retries=retries, wait=VOTES.wait, outvoted=outvoted)
        self.coordinator = None

    def end(self) -> None:
        gone = self.me
        super().end()
        for name in list(self.links):
            voter = self.votes_world.voters[name]
            self.unlink(voter)
            if name not in self.cut:
                voter.drop(gone)

    # -- its connections

    def unlink(self, voter: Voter) -> None:
        """This member knows that a connection is broken."""
        self.links.pop(voter.name, None)
        self.promised.pop(voter.name, None)
        self.announced.discard(voter.name)
        self.against.discard(voter.name)

    def beat(self) -> None:
        """Connections are made, kept and missed."""
        if self.member is None or self.paused:
            return
        for name, voter in self.votes_world.voters.items():
            if name in self.cut:
                if self.world.now - self.links.get(name, self.world.now) > SESSION:
                    self.unlink(voter)
                continue
            if name not in self.links or self.me not in voter.heard:
                self.unlink(voter)
                voter.drop(self.me)
            self.links[name] = voter.heard[self.me] = self.world.now
            if self.live and name not in self.announced:
                self.announce(voter)

    def announce(self, voter: Voter) -> None:
        """Tell that it serves."""
        member = self.member
        if member is None or voter.name in self.cut or voter.name not in self.links or self.me not in voter.heard:
            return
        number = member.coordinated or 0
        if voter.register.serves(NODE, self.me, number, voter.node_id).yes:
            self.announced.add(voter.name)
            self.promised.pop(voter.name, None)
            self.against.discard(voter.name)
        elif abs(voter.register.sequences[NODE]) >= number:
            self.against.add(voter.name)
            if len(self.against) >= self.votes_world.needed:
                member.fence("other pairs say that somebody else serves")

    def granted(self, right: object) -> None:
        super().granted(right)  # type: ignore[arg-type]  # passed on
        if self.coordinator is not None:
            self.coordinator.serves()
        for voter in self.votes_world.voters.values():
            self.announce(voter)

    # -- following

    def accepted(self) -> None:
        self.candidacy.followed()

    def synced(self) -> None:
        self.candidacy.synced()

    def live_lost(self) -> None:
        super().live_lost()
        self.candidacy.live_lost("failed", self.world.now)

    def stop_following(self) -> None:
        super().stop_following()
        self.candidacy.live_lost("stopping", self.world.now)

    def give_away(self, member: Member, heirs: list[Node]) -> None:
        """Only the one that gets the right is taken for complete."""
        for other in heirs[1:]:
            self.lost.add(other)
            while other in self.lost:
                self.settle()
        if self.member is not member:
            return  # the vote was lost
        super().give_away(member, heirs)
        for other in heirs[:1]:
            if isinstance(other, VotesNode) and other.follows is self:
                other.follows = None
                other.candidacy.live_lost(HANDED_OVER, self.world.now)
                self.world.stranded = True

    def vote_lost(self, error: LostVoteError) -> None:
        if self.world.without == "fencing":
            self.in_sync -= self.lost
            self.lost.clear()
            return
        super().vote_lost(error)


class Asking:
    """The questions of one process. Implements :class:`pollux.ha.replication.quorum.Electorate`."""

    size = 1 + len(VOTERS)

    def __init__(self, world: VotesWorld, node: VotesNode) -> None:
        self.world = world
        self.node = node
        self.process = node.process
        self.me = node.me

    def silent(self, _answered: int) -> int:
        """Whoever does not run, but can be reached, says so; all others answer."""
        node = self.node
        others = sum(not node.reaches_member(other) for other in node.others)
        return 0 if self.world.without == "silence" else len(node.cut) + others

    def take(self, node_id: str, local: int, enough: Callable[[list[Answer]], bool]) -> list[Answer]:
        node = self.node
        answers: list[Answer] = []
        for voter in self.world.voters.values():
            if enough(answers):
                break
            held = node.promised.get(voter.name)
            answer = held or self._ask(voter, lambda one: one.register.take(node_id, self.me, local, self.world.now))
            if answer is None:
                continue
            answers.append(answer)
            if answer.yes:
                node.promised[voter.name] = answer
        return answers

    def record(self, node_id: str, sequence: int, enough: Callable[[list[Answer]], bool]) -> list[Answer]:
        def one(voter: Voter) -> Ruling:
            return voter.register.record(node_id, self.me, sequence)

        answers: list[Answer] = []
        for voter in self.world.voters.values():
            if not enough(answers) and (answer := self._ask(voter, one)) is not None:
                answers.append(answer)
        return answers

    def _ask(self, voter: Voter, judge: Callable[[Voter], Ruling]) -> Answer | None:
        node = self.node

        def work() -> Answer:
            if self.me not in voter.heard:
                # The voter has ended the connection while this member stood still: nothing that is sent is heard.
                raise CoordinationError("the connection is gone")
            return Answer(voter.name, voter.node_id, *judge(voter), voter.register.sequences.get(NODE, 0), self.size)

        there = voter.name in node.links and voter.name not in node.cut and self.me in voter.heard
        try:
            found: Answer = node.ask(self.process, work, reaches=there)
        except CoordinationError:
            if there:
                # Answers are lost with their connection only; the other end notices in its own time.
                node.unlink(voter)
            return None
        # While it waited the connection may have been lost.
        return found if voter.name in node.links else None

    def leave(self, node_id: str) -> None:
        """Leave; whatever cannot be given back now is lost with its connection."""
        node = self.node
        for name in {*node.promised, *node.announced}:
            voter = self.world.voters[name]
            if name in node.cut:
                node.unlink(voter)
            else:
                voter.register.gone(node_id, self.me)
        node.promised.clear()
        node.announced.clear()
