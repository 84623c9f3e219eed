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

from pollux.errors import PolluxError
from pollux.ha.lease import Lease
from pollux.ha.machine import Machine
from pollux.ha.replication import local
from pollux.ha.replication.coordination import CoordinationError
from pollux.ha.replication.local import LocalState
from pollux.ha.replication.member import Member, RefusedError
from pollux.ha.replication.quorum import LostVoteError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.ha.replication.coordination import Coordinator
    from pollux.ha.replication.member import Right

NODE = "0b" * 16
NAMES = ("castor", "pollux")
#: How long a lock, or a connection, outlives its holder's last sign of life, seconds. A lease is two thirds of it.
SESSION = 6.6
#: A member looks, and proves that it may serve, this often, seconds.
TURN = 1.0
#: What can happen to a question: before it was heard, or after it was carried out.
FAULTS = (
    *("unanswered", "answer lost", "dies before", "dies after", "other acts before", "other acts after"),
    *("stands still before", "stands still after", "is slow before", "is slow after"),
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
    """What happens to the ``number``-th question from now."""

    number: int
    kind: str


class World:
    """Time, the disks, the network between the members, and what clients were promised.

    ``without`` names a rule of the product that is taken out: ``claims``, ``sequence``, ``fencing``, ``order``, and
    those of :mod:`broker.ha.voters_model`.
    """

    #: The one that the patched clock and disks belong to.
    current: World

    def __init__(self, without: str = "") -> None:
        World.current = self
        self.without = without
        self.now = 1000.0
        self.disks: dict[Path, LocalState] = {}
        self.joined = True
        self.confirmed: set[int] = set()
        self.sent = self.activations = self.fenced = 0
        self.broken = False
        #: A member that was given the right to serve was lost before it served: an operator decides.
        self.stranded = False
        self.nodes = self.make_nodes()
        self.castor, self.pollux = (self.nodes[name] for name in NAMES)

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
        self.joined = True
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
        if self.castor.serves and self.pollux.serves:
            self.breaks("both serve at the same time")
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
        #: The live believes that the other one has a complete copy, and waits for it.
        self.in_sync = False
        #: The copy is lost, but the sequence is not raised yet: what was sent since waits.
        self.settling = False
        self.waiting: set[int] = set()
        #: It copies what the other one does; nothing may be written to its data.
        self.follows = self.held = False
        self.silent = 0.0
        self.looking = self.raising = False
        self.fault: Fault | None = None

    @property
    def other(self) -> Node:
        return self.world.nodes[NAMES[1 - NAMES.index(self.name)]]

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
        if self.settling:
            return self.serves and self.world.without == "order"
        return self.serves and (not self.in_sync or self.other.follows)

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
            self.other.act()
        if process != self.process:
            raise DiedError  # it ended meanwhile

    # -- what the member says

    def stop_following(self) -> None:
        self.held = True
        self.follows = False

    def follow_again(self) -> None:
        self.held = False

    def granted(self, right: Right) -> None:
        self.live = True
        self.in_sync = self.settling = False
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
            make_node_id=lambda: NODE,
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
        self.live = self.in_sync = self.settling = self.paused = self.follows = self.held = self.looking = False
        self.waiting.clear()

    def act(self) -> None:
        """One turn of the member's threads."""
        member, process = self.member, self.process
        if member is None or self.paused:
            return
        try:
            if self.live:
                member._prove()
                self.settle()
            elif not self.looking:
                self.looking = True
                try:
                    member._look()
                finally:
                    self.looking = False
        except RefusedError as error:
            self.world.breaks(f"{self.name} contradicts the coordination service: {error}")
        except DiedError:
            if process == self.process:
                self.end()

    def hand_over(self) -> None:
        """It is stopped in order: clients go first, then the right to serve."""
        member = self.member
        if not self.confirms or self.paused or member is None:
            return
        self.live = False
        try:
            self.give_away(member, complete=self.in_sync and self.world.joined and not self.other.paused)
            member.stop(release=True)
        except (PolluxError, DiedError):
            pass
        self.end()

    def give_away(self, member: Member, *, complete: bool) -> None:
        member.hand_over(prefix=complete, stay=False, seconds=0.0)

    # -- the copy

    def notice(self) -> None:
        """Whoever is connected to the other member hears nothing of it any more."""
        if self.member is None or self.paused:
            return
        other = self.other
        there = self.world.joined and not other.paused
        self.silent = 0.0 if there else self.silent + TURN
        overdue = self.silent > SESSION
        if self.in_sync and ((there and not other.follows) or overdue):
            self.settling = True
        if self.follows and ((there and not other.live) or overdue):
            self.live_lost()

    def live_lost(self) -> None:
        self.follows = False

    def copy(self, *, whole: bool) -> None:
        """Follow the live until the copy is complete, or not that far."""
        live = self.other
        busy = self.live or self.paused or self.held or self.looking or self.follows
        if self.member is None or busy or not self.world.joined:
            return
        if not live.confirms or live.paused or live.member is None:
            return
        mark: dict[str, Any] = live.member.mark()
        mine = self.state
        if mine is not None and mine.complete and mine.sequence > mark["sequence"]:
            self.world.breaks(f"{self.name} has newer data than the live")
        if mine is not None and not mine.replica:
            self.data = set()  # somebody served with it: it is moved aside
        elif not self.data <= live.data:
            self.world.breaks(f"{self.name} completes data that is not a beginning of the live's")
        self.accepted()
        sequence = mine.sequence if mine is not None else 0
        state = LocalState(NODE, sequence, mark["epoch"], complete=False, replica=True)
        self.world.disks[self.disk] = state
        if whole:
            self.data = set(live.data)
            self.world.disks[self.disk] = LocalState(
                NODE, mark["sequence"], mark["epoch"], complete=True, replica=True
            )
            self.follows = live.in_sync = True
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
        other = self.other
        if self.in_sync and not self.settling:
            if self.world.joined and not other.paused and other.follows:
                other.data.add(message)
            else:
                self.settling = True
        self.confirm()

    def settle(self) -> None:
        """The copy is lost: the sequence is raised before what waits is confirmed."""
        if not self.settling or self.raising or self.member is None:
            return
        self.raising = True
        try:
            self.member.raise_sequence()
        except LostVoteError as error:
            self.vote_lost(error)
        except CoordinationError:
            return
        else:
            self.in_sync = self.settling = False
        finally:
            self.raising = False
        self.confirm()

    def vote_lost(self, error: LostVoteError) -> None:
        if self.member is not None:
            self.member.fence(str(error))

    def confirm(self) -> None:
        """What waits is confirmed, if it may be."""
        if self.confirms:
            self.world.confirmed |= self.waiting
            self.waiting.clear()
            self.world.check()


# -- rules that can be taken out


def raise_without_claim(member: Member, state: LocalState, epoch: int, tell: object = None) -> LocalState:
    """In place of :meth:`Member._raise`: two steps instead of three."""
    coordinator: Any = member._coordinator
    raised = LocalState(state.node_id, state.sequence + 1, epoch, complete=True, replica=False)
    local.write(member._journal, raised)
    coordinator.change(state.sequence, raised.sequence)
    return raised
