"""A replicated pair in simulated time: the members' own code, on disks, clocks and networks of the model's.

What decides is the product: :class:`Member` with its lease, sequence and machine, and with votes
:class:`QuorumCoordinator`, :class:`Candidacy` and :class:`Register`. What is simulated is what they are told: time, the
coordination service, answers that come late or never, processes that die or stand still at any question, and the copy
of the data. A message is a number; a member's data is a set of them.

:meth:`World.check` is what must hold. The histories are in :mod:`broker.ha.test_pair_model`. Not a test module.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pollux.errors import PolluxError, StoreRefusedError
from pollux.ha.copies import local
from pollux.ha.copies.local import LocalState
from pollux.ha.lease import Lease
from pollux.ha.machine import Machine
from pollux.ha.replication.coordination import CoordinationError
from pollux.ha.replication.member import Member
from pollux.ha.replication.quorum import LostVoteError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.ha.lease import Right
    from pollux.ha.replication.coordination import Coordinator

NODE = "0b" * 16
NAMES = ("castor", "pollux", "helena")
#: How long a lock, or a connection, outlives its holder's last sign of life, seconds. A lease is two thirds of it.
SESSION = 6.6
#: A member looks, and proves that it may serve, this often, seconds.
TURN = 1.0
#: What can happen to a question: before it was heard, or after it was carried out.
FAULTS = (
    *("unanswered", "answer lost", "dies before", "dies after", "other acts before", "other acts after"),
    *("stands still before", "stands still after", "is slow before", "is slow after"),
    *("other wakes before", "other wakes after"),
)
#: Longer than a session; nearly as long as a lease that was proven a turn ago. Seconds.
STANDS_STILL, SLOW = 9.0, 2.75


class BrokenError(Exception):
    """An invariant does not hold."""


class DiedError(BaseException):
    """The process ends here."""


class Unguarded(Lease):
    """A guard that says yes."""

    def held(self) -> bool:
        return True


class Fault(NamedTuple):
    """Strikes the ``number``-th question from now."""

    number: int
    kind: str


class World:
    """Time, the disks, the network between the members, and what clients were promised.

    ``without`` names a rule of the product that is taken out: ``claims``, ``sequence``, ``fencing``, ``order``, and
    those of :mod:`broker.ha.voters_model`. There are as many ``members``.
    """

    #: The one that the patched clock and disks belong to.
    current: World

    def __init__(self, without: str = "", members: int = 2) -> None:
        World.current = self
        self.without = without
        self.names = NAMES[:members]
        self.now = 1000.0
        self.disks: dict[Path, LocalState] = {}
        #: Who cannot reach the other members.
        self.parted: set[str] = set()
        self.confirmed: set[int] = set()
        self.sent = self.activations = self.fenced = 0
        self.broken = False
        #: A member that was given the right to serve was lost before it served: an operator decides.
        self.stranded = False
        self.nodes = self.make_nodes()
        self.castor, self.pollux = (self.nodes[name] for name in NAMES[:2])

    def make_nodes(self) -> dict[str, Node]:
        raise NotImplementedError

    def tick(self) -> None:
        """Sessions and connections that were silent for too long have ended."""

    def heal(self) -> None:
        """Everybody reaches the coordination service."""
        raise NotImplementedError

    def pass_time(self, seconds: float) -> None:
        """Let time pass, under traffic: who does not stand still looks, proves, notices, follows and confirms."""
        until = self.now + seconds
        while self.now < until:
            self.now = min(until, self.now + TURN)
            self.tick()
            for node in self.nodes.values():
                node.notice()
                node.act()
                node.copy(whole=True)
                node.send()
            self.check()

    def recover(self) -> None:
        """Nothing is broken any more."""
        self.parted.clear()
        self.heal()
        for node in self.nodes.values():
            node.fault = None
            node.paused = False
        for _ in range(3):
            for node in self.nodes.values():
                node.start()
            self.pass_time(3 * SESSION)

    def breaks(self, what: str) -> None:
        self.broken = True
        raise BrokenError(what)

    def check(self) -> None:
        """Never two lives, never one without what was confirmed."""
        serving = [node.name for node in self.nodes.values() if node.serves]
        if len(serving) > 1:
            self.breaks(f"{' and '.join(serving)} serve at the same time")
        for node in self.nodes.values():
            if node.confirms and not self.confirmed <= node.data:
                self.breaks(f"{node.name} serves without {len(self.confirmed - node.data)} confirmed messages")


class Node:
    """A broker: its disk stays, its process comes and goes. Implements :class:`Listener`."""

    equal = True
    identity: str | None = "pair"

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.disk = Path("/nowhere") / name
        self.data: set[int] = set()
        #: Which process it is; nothing that an earlier one was about to do happens.
        self.process = 0
        self.member: Member | None = None
        self.paused = False
        self.live = False
        #: Who has a complete copy, as this live believes: it waits for them.
        self.in_sync: set[Node] = set()
        #: Those whose loss is not settled yet: the sequence is not raised, and what was sent since waits.
        self.lost: set[Node] = set()
        self.waiting: set[int] = set()
        #: Whom it copies; and nothing may be written to its data.
        self.follows: Node | None = None
        self.held = False
        #: How long nothing was heard of another member, seconds.
        self.silent: dict[str, float] = {}
        self.looking = self.raising = False
        self.fault: Fault | None = None

    @property
    def others(self) -> list[Node]:
        return [node for node in self.world.nodes.values() if node is not self]

    def reaches_member(self, other: Node) -> bool:
        """Whether they are connected, and the other one takes part."""
        return self.world.parted.isdisjoint((self.name, other.name)) and not other.paused

    @property
    def state(self) -> LocalState | None:
        return self.world.disks.get(self.disk)

    @property
    def serves(self) -> bool:
        """Whether clients may be served now."""
        return self.live and self.member is not None and self.member.lease.held()

    @property
    def confirms(self) -> bool:
        """Whether a confirmation may leave now."""
        if self.lost:
            return self.serves and self.world.without == "order"
        return self.serves and self.followed

    @property
    def followed(self) -> bool:
        """Whether those that are waited for are there."""
        return all(one.follows is self for one in self.in_sync)

    # -- questions

    def ask(self, process: int, work: Callable[[], Any], *, reaches: bool) -> Any:
        """One question to whoever decides, and what may happen to it. Raises CoordinationError, DiedError."""
        kind = ""
        if self.fault is not None:
            number = self.fault.number - 1
            kind = self.fault.kind if number < 0 else ""
            self.fault = None if number < 0 else self.fault._replace(number=number)
        self._strikes(kind, "before", process)
        if not reaches or kind == "unanswered":
            raise CoordinationError("no answer")
        found = work()
        if kind == "answer lost":
            raise CoordinationError("the answer was lost")
        self._strikes(kind, "after", process)
        return found

    def _strikes(self, kind: str, when: str, process: int) -> None:
        if kind == f"dies {when}":
            raise DiedError
        if kind in (f"stands still {when}", f"is slow {when}") and not self.paused:
            self.paused = True
            self.world.pass_time(STANDS_STILL if kind.startswith("stands") else SLOW)
            self.paused = False
        if kind == f"other acts {when}":
            for other in self.others:
                other.act()
        if kind == f"other wakes {when}":
            for other in self.others:
                other.wake()
        if process != self.process:
            raise DiedError  # it ended meanwhile

    # -- what the member says

    def stop_following(self) -> None:
        self.held = True
        self.follows = None

    def follow_again(self) -> None:
        self.held = False

    def granted(self, right: Right) -> None:
        self.live = True
        self.in_sync, self.lost = set(), set()
        self.waiting.clear()
        self.world.activations += 1
        self.world.stranded = False
        self.world.check()

    def refused(self, error: PolluxError) -> None:
        raise AssertionError(error)

    def fenced(self, reason: str) -> None:
        self.world.fenced += 1
        self.end()

    # -- its process

    def make_coordinator(self, identity: str) -> Coordinator:
        raise NotImplementedError

    def start(self) -> None:
        if self.member is not None:
            return
        self.before_start()
        self.member = Member(
            self.disk,
            self.make_coordinator,
            Machine(lambda: 0),
            self,
            identity=self.identity,
            equal=self.equal,
            data_node_id=lambda: NODE,
            session=SESSION,
            name=self.name,
        )
        if self.world.without == "fencing":
            self.member.lease = Unguarded(self.member.lease.seconds, lambda: self.world.now)

    def before_start(self) -> None:
        """The lock of its directories told that the process before is gone."""

    def end(self) -> None:
        """The process is gone."""
        self.process += 1
        self.member = None
        self.live = self.paused = self.held = self.looking = False
        self.in_sync, self.lost, self.follows = set(), set(), None
        self.waiting.clear()

    def act(self) -> None:
        """One turn of the member's threads."""
        member, process = self.member, self.process
        if member is None or self.paused:
            return
        try:
            live = self.live
            if not self.looking:  # the member has one thread, which may stand still in a question
                self.looking = True
                try:
                    (member._prove if live else member._look)()
                finally:
                    self.looking = False
            if live:
                self.settle()
        except StoreRefusedError as error:
            self.world.breaks(f"{self.name} contradicts the coordination service: {error}")
        except DiedError:
            if process == self.process:
                self.end()

    def wake(self) -> None:
        """If it stood still: it does what it was about to do before it looks at its clock again."""
        if self.paused:
            self.paused = False
            try:
                self.send()
                self.settle()
            except DiedError:
                self.end()

    def hand_over(self) -> None:
        """Stop it in order: clients go first, then the right to serve."""
        member = self.member
        if not self.confirms or self.paused or member is None:
            return
        self.live = False
        try:
            heirs = [one for one in self.in_sync if self.reaches_member(one)]
            self.give_away(member, sorted(heirs, key=lambda one: one.name) if len(heirs) == len(self.in_sync) else [])
            if self.member is member:
                member.stop(release=True)
        except (PolluxError, DiedError):
            pass
        self.end()

    def give_away(self, member: Member, heirs: list[Node]) -> None:
        """``heirs``: who has everything."""
        member.hand_over(prefix=bool(heirs), stay=False, seconds=0.0)

    # -- the copy

    def notice(self) -> None:
        """Whoever is connected to another member hears nothing of it any more."""
        if self.member is None or self.paused:
            return
        for other in self.others:
            there = self.reaches_member(other)
            self.silent[other.name] = 0.0 if there else self.silent.get(other.name, 0.0) + TURN
            overdue = self.silent[other.name] > SESSION
            if other in self.in_sync and ((there and other.follows is not self) or overdue):
                self.lost.add(other)
            if self.follows is other and ((there and not other.live) or overdue):
                self.live_lost()

    def live_lost(self) -> None:
        self.follows = None

    def copy(self, *, whole: bool) -> None:
        """Follow the live until the copy is complete, or not that far."""
        busy = self.live or self.paused or self.held or self.looking or self.follows is not None
        if self.member is None or busy:
            return
        for live in self.others:
            if live.confirms and live.member is not None and self.reaches_member(live):
                self._copy(live, live.member, whole=whole)
                return

    def _copy(self, live: Node, member: Member, *, whole: bool) -> None:
        mark: dict[str, Any] = member.mark()
        mine = self.state
        if mine is not None and mine.complete and mine.sequence > mark["sequence"]:
            self.world.breaks(f"{self.name} has newer data than the live")
        if mine is not None and not mine.replica:
            self.data = set()  # somebody served with it: it is moved aside
        elif len(self.world.names) == 2 and not self.data <= live.data:
            # Of several copies one may have got what the live never confirmed and another has not: it is compared
            # with the live's piece by piece.
            self.world.breaks(f"{self.name} completes data that is not a beginning of the live's")
        self.accepted()
        sequence = mine.sequence if mine is not None else 0
        state = LocalState(NODE, sequence, mark["epoch"], complete=False, replica=True)
        self.world.disks[self.disk] = state
        if whole:
            self.data = set(live.data)
            self.world.disks[self.disk] = LocalState(NODE, mark["sequence"], mark["epoch"], complete=True, replica=True)
            self.follows = live
            live.in_sync.add(self)
            self.synced()

    def accepted(self) -> None:
        """A live takes us."""

    def synced(self) -> None:
        """The copy is complete."""

    def send(self) -> None:
        """A client's message. The order of the journal: here and in every complete copy, then the guard is asked."""
        if not self.live or self.paused:
            return
        self.world.sent += 1
        message = self.world.sent
        self.data.add(message)
        self.waiting.add(message)
        for other in self.in_sync - self.lost:
            if self.reaches_member(other) and other.follows is self:
                other.data.add(message)
            else:
                self.lost.add(other)
        self.confirm()

    def settle(self) -> None:
        """A copy is lost: the sequence is raised before what waits is confirmed."""
        if not self.lost or self.raising or self.member is None:
            return
        lost = min(self.lost, key=lambda one: one.name)
        self.raising = True
        try:
            self.member.raise_sequence(self._tell)
        except LostVoteError as error:
            self.vote_lost(error)
        except CoordinationError:
            return
        else:
            self.in_sync.discard(lost)
            self.lost.discard(lost)
        finally:
            self.raising = False
        self.confirm()

    def _tell(self, mark: dict[str, Any]) -> None:
        """Those that are left get the new number; who does not answer is lost the next time it is waited for."""
        for other in self.in_sync - self.lost:
            if self.reaches_member(other) and other.follows is self:
                state = LocalState(NODE, mark["sequence"], mark["epoch"], complete=True, replica=True)
                self.world.disks[other.disk] = state

    def vote_lost(self, error: LostVoteError) -> None:
        if self.member is not None:
            self.member.outvoted(str(error))

    def confirm(self) -> None:
        """Confirm all that waits, if it may be."""
        if self.confirms:
            self.world.confirmed |= self.waiting
            self.waiting.clear()
            self.world.check()


# -- rules that can be taken out


def raise_without_claim(
    coordinator: Coordinator, journal: Path, state: LocalState, epoch: int, tell: object = None
) -> LocalState:
    """In place of :func:`pollux.ha.replication.sequence_steps.raise_sequence`: two steps instead of three."""
    raised = LocalState(state.node_id, state.sequence + 1, epoch, complete=True, replica=False)
    local.write(journal, raised)
    coordinator.change(state.sequence, raised.sequence)
    return raised
