"""The activation sequence: every row of its table, and a model of a group that crashes, is cut off and restarts.

The model has members with a disk, a coordination service, and clients' confirmed messages. It knows nothing of the
broker; it applies the rules step by step, with a crash possible between any two of them, and must never find two lives,
an activation without a confirmed message, or a confirmed message lost. The same model must find those when a rule is
taken out: then it is a test.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pollux.ha.replication.sequence import Action, judge

TABLE = [
    (0, 0, Action.ACTIVATE, 0),
    (3, 3, Action.ACTIVATE, 3),
    (0, 1, Action.WAIT, 0),
    (3, 4, Action.WAIT, 3),
    (3, 9, Action.WAIT, 3),
    (4, -4, Action.REPAIR, 4),
    (1, -1, Action.REPAIR, 1),
    (3, -4, Action.TAKE_OVER, 4),
    (0, -1, Action.TAKE_OVER, 1),
    (3, -5, Action.WAIT, 3),
    (0, -2, Action.WAIT, 0),
    (3, 0, Action.REFUSE, 3),
    (1, 0, Action.REFUSE, 1),
    (4, 3, Action.REFUSE, 4),
    (4, -3, Action.REFUSE, 4),
]


@pytest.mark.parametrize(("local", "coordinated", "action", "sequence"), TABLE)
def test_the_table(local: int, coordinated: int, action: Action, sequence: int) -> None:
    verdict = judge(local, coordinated)
    assert (verdict.action, verdict.sequence) == (action, sequence)
    assert verdict.reason


@given(st.integers(0, 50), st.integers(-50, 50))
def test_only_who_is_not_behind_may_serve(local: int, coordinated: int) -> None:
    verdict = judge(local, coordinated)
    serves = verdict.action in (Action.ACTIVATE, Action.REPAIR, Action.TAKE_OVER)
    assert serves == (coordinated in (local, -local, -(local + 1)))
    if serves:
        assert verdict.sequence == abs(coordinated)


# -- the model


class BrokenError(Exception):
    """An invariant does not hold."""


@dataclass
class Member:
    name: str
    #: What is on its disk: survives a crash.
    local: int = 0
    data: set[int] = field(default_factory=set)
    #: Its process.
    up: bool = True
    steps: list[str] = field(default_factory=list)
    live: bool = False
    #: The lease guard has not run out.
    guard: bool = False
    #: The members whose copy is complete, as this live believes.
    in_sync: set[str] = field(default_factory=set)


class Group:
    """Members, the coordination service, the network between them, and what clients were promised."""

    def __init__(self, without: str = "") -> None:
        self.without = without
        self.members = {name: Member(name) for name in ("castor", "pollux")}
        self.coordinated = 0
        self.lock: str | None = None
        self.connected = True
        self.confirmed: set[int] = set()
        self.sent = 0
        self.activations = 0

    # -- what can happen

    def start(self, member: Member) -> None:
        member.up = True

    def crash(self, member: Member) -> None:
        """The process is gone; its session closes, or expires with the lease guard."""
        member.up = member.live = member.guard = False
        member.steps.clear()
        member.in_sync.clear()
        if self.lock == member.name:
            self.lock = None
        for other in self.members.values():
            self._lose(other, member.name)

    def pause(self, member: Member) -> None:
        """The session expires while the process stands still: its guard has run out before."""
        if self.lock == member.name:
            self.lock = None
        member.guard = self.without == "fencing"

    def resume(self, member: Member) -> None:
        """A paused live wakes up: without its guard it stops, after whatever it was about to confirm."""
        if member.live and self.lock != member.name:
            self.send(member)
            self.crash(member)

    def part(self) -> None:
        self.connected = False
        for member in self.members.values():
            for other in self.members.values():
                self._lose(member, other.name)

    def join(self) -> None:
        self.connected = True

    def _lose(self, member: Member, other: str) -> None:
        if member.live and other in member.in_sync:
            member.in_sync.discard(other)
            member.steps += self._raise_steps(member.local)

    def _raise_steps(self, local: int) -> list[str]:
        if self.without == "claims":
            return [f"local {local + 1}", f"finish {local + 1}"]
        return [f"claim {local + 1}", f"local {local + 1}", f"finish {local + 1}"]

    def try_to_serve(self, member: Member) -> None:
        if not member.up or member.live or member.steps or self.lock is not None:
            return
        self.lock = member.name
        verdict = judge(member.local, self.coordinated)
        if self.without == "sequence":
            verdict = judge(member.local, member.local)
        if verdict.action in (Action.WAIT, Action.REFUSE):
            self.lock = None
            return
        member.guard = True
        member.in_sync = set()
        member.steps = ["live"]
        base = verdict.sequence
        if verdict.action is Action.TAKE_OVER:
            member.steps = [f"local {base}", f"finish {base}", *self._raise_steps(base), "live"]
        elif verdict.action is Action.REPAIR:
            member.steps = [f"finish {base}", *self._raise_steps(base), "live"]
        else:
            member.steps = [*self._raise_steps(base), "live"]

    def step(self, member: Member) -> None:
        """The next of the steps under way; a crash may come before and after it."""
        if not member.up or not member.steps:
            return
        what, _, number = member.steps.pop(0).partition(" ")
        if what != "local" and self.lock != member.name:
            self.crash(member)  # the compare-and-set needs the session
        elif what == "claim":
            self.coordinated = -int(number)
        elif what == "local":
            member.local = int(number)
        elif what == "finish":
            self.coordinated = int(number)
        elif member.guard:
            member.live = True
            self.activations += 1
            self.check(member)

    def serve(self, member: Member) -> None:
        """All the way to live, unless something prevents it."""
        self.try_to_serve(member)
        for _ in range(len(member.steps)):
            self.step(member)

    def copy(self, member: Member) -> None:
        """A backup becomes a complete copy of the live."""
        live = next((each for each in self.members.values() if each.live and not each.steps), None)
        if live is None or member is live or not member.up or member.live or not self.connected:
            return
        if self.lock != live.name or member.steps or member.local > live.local:
            return
        live.in_sync.add(member.name)
        member.data = set(live.data)
        member.local = live.local

    def send(self, member: Member) -> None:
        """A client's message: on this disk and all complete copies before it is confirmed."""
        if not member.up or not member.live:
            return
        self.sent += 1
        member.data.add(self.sent)
        if member.steps and self.without != "order":
            return  # the loss of a copy is not settled: nothing is confirmed
        for name in member.in_sync:
            self.members[name].data.add(self.sent)
        if member.guard:
            self.confirmed.add(self.sent)
            self.check(member)

    # -- what must hold

    def check(self, member: Member) -> None:
        if not self.confirmed <= member.data:
            raise BrokenError(f"{member.name} serves without {len(self.confirmed - member.data)} confirmed messages")
        serving = [each.name for each in self.members.values() if each.live and each.guard]
        if len(serving) > 1:
            raise BrokenError(f"{' and '.join(serving)} serve at the same time")


ACTIONS = (
    *("start", "start", "crash", "pause", "resume", "try_to_serve", "serve", "serve"),
    *("step", "step", "copy", "copy", "send", "send"),
)


def history(group: Group, moves: list[tuple[str, str]]) -> None:
    for action, name in moves:
        if action in ("part", "join"):
            getattr(group, action)()
        else:
            getattr(group, action)(group.members[name])


moves = st.lists(
    st.tuples(st.sampled_from((*ACTIONS, "part", "join")), st.sampled_from(("castor", "pollux"))), max_size=60
)


@settings(max_examples=2000, suppress_health_check=list(HealthCheck), phases=(Phase.generate, Phase.shrink))
@given(moves)
def test_no_history_breaks_an_invariant(given_: list[tuple[str, str]]) -> None:
    history(Group(), given_)


def random_moves(chance: random.Random) -> list[tuple[str, str]]:
    names = ("castor", "pollux")
    return [(chance.choice((*ACTIONS, "part", "join")), chance.choice(names)) for _ in range(60)]


def test_random_histories_get_somewhere() -> None:
    """The model is not quiet because nothing happens in it."""
    activations = confirmed = 0
    chance = random.Random(20261121)  # noqa: S311
    for _ in range(500):
        group = Group()
        history(group, random_moves(chance))
        activations += group.activations
        confirmed += len(group.confirmed)
    assert activations > 500
    assert confirmed > 500


@pytest.mark.parametrize("without", ["sequence", "claims", "order", "fencing"])
def test_the_model_finds_what_is_missing(without: str) -> None:
    chance = random.Random(20261121)  # noqa: S311
    for _ in range(5000):
        try:
            history(Group(without), random_moves(chance))
        except BrokenError:
            return
    pytest.fail(f"5,000 histories without {without} broke nothing")
