"""The member of a replicated pair as it is, in simulated time: crashes, pauses, partitions, lost answers, in any order.

Unlike the model in :mod:`broker.ha.test_sequence`, which repeats the rules, this one drives the real
:class:`Member` and its lease. The coordination service ends sessions by the same clock. A fault can strike at every
call of it: before it was carried out, after it, or the process dies there.
"""

from __future__ import annotations

import logging
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pollux.ha.machine import Machine
from pollux.ha.replication import local
from pollux.ha.replication import member as module
from pollux.ha.replication.coordination import CoordinationError
from pollux.ha.replication.local import LocalState
from pollux.ha.replication.member import Member, RefusedError

if TYPE_CHECKING:
    from pollux.errors import PolluxError
    from pollux.ha.replication.member import Right

NODE = "0b" * 16
SESSION = 6.0
NAMES = ("castor", "pollux")


class BrokenError(Exception):
    """An invariant does not hold."""


class DiedError(BaseException):
    """The process ends here."""


class World:
    """Time, the coordination service, the disks and what clients were promised."""

    def __init__(self, chance: random.Random, without: str = "") -> None:
        self.chance = chance
        self.without = without
        self.now = 1000.0
        self.sequence = 0
        self.holder: Coordinator | None = None
        self.disks: dict[Path, LocalState] = {}
        self.confirmed: set[int] = set()
        self.sent = self.activations = self.fenced = 0
        self.joined = True
        self.nodes = {name: Node(self, name) for name in NAMES}

    def expire(self) -> None:
        """Sessions that were silent for too long have ended."""
        if self.holder is not None and self.now - self.holder.heard > SESSION:
            self.holder = None

    def check(self, node: Node) -> None:
        serving = [one.name for one in self.nodes.values() if one.confirms]
        if len(serving) > 1:
            raise BrokenError(f"{' and '.join(serving)} serve at the same time")
        if node.confirms and not self.confirmed <= node.data:
            raise BrokenError(f"{node.name} serves without {len(self.confirmed - node.data)} confirmed messages")


class Coordinator:
    """One session."""

    def __init__(self, node: Node) -> None:
        self.session = SESSION
        self.node = node
        self.world = node.world
        self.heard = self.world.now
        self.ended = False

    def connect(self, on_change: object) -> None:
        """It is there at once."""

    def _call(self, work: Any) -> Any:
        """A call, and what may happen to it."""
        world, node = self.world, self.node
        world.expire()
        fault = world.chance.random()
        if not node.reaches or fault < 0.02:
            raise CoordinationError("no answer")
        if fault < 0.04:
            raise DiedError
        self.heard = world.now
        found = work()
        if 0.04 <= fault < 0.06:
            raise CoordinationError("the answer was lost")
        if 0.06 <= fault < 0.08:
            raise DiedError
        return found

    def sequence(self) -> int:
        found: int = self._call(lambda: self.world.sequence)
        return found

    def acquire(self) -> bool:
        def take() -> bool:
            if self.world.holder is None and not self.ended:
                self.world.holder = self
            return self.world.holder is self

        found: bool = self._call(take)
        return found

    def prove(self) -> None:
        if not self._call(lambda: self.world.holder is self):
            raise CoordinationError("the lock is not ours any more")

    def change(self, expected: int, new: int) -> None:
        def put() -> None:
            if self.world.holder is not self or self.world.sequence != expected:
                raise CoordinationError("not ours, or not the number")
            self.world.sequence = new

        self._call(put)

    def release(self) -> None:
        if self.world.holder is self:
            self.world.holder = None

    def close(self) -> None:
        self.ended = True
        self.release()


class Node:
    """A broker: its disk stays, its process comes and goes. Implements :class:`Listener`."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.disk = Path("/nowhere") / name
        self.data: set[int] = set()
        self.reaches = True
        self.paused = False
        self.live = False
        #: The other one has a complete copy, and is waited for.
        self.in_sync = False
        self.member: Member | None = None
        self.session: Coordinator | None = None

    @property
    def other(self) -> Node:
        return self.world.nodes[NAMES[1 - NAMES.index(self.name)]]

    @property
    def confirms(self) -> bool:
        """Whether a confirmation may leave now."""
        member = self.member
        return self.live and member is not None and (self.world.without == "fencing" or member.lease.held())

    # -- what the member says

    def stop_following(self) -> None: ...

    def follow_again(self) -> None: ...

    def granted(self, right: Right) -> None:
        self.live = True
        self.in_sync = False
        self.world.activations += 1
        self.world.check(self)

    def refused(self, error: PolluxError) -> None:
        raise AssertionError(error)

    def fenced(self, reason: str) -> None:
        self.world.fenced += 1
        self._end()

    # -- what happens to it

    def start(self) -> None:
        if self.member is not None:
            return

        def coordinator(_: str) -> Coordinator:
            self.session = Coordinator(self)
            return self.session

        self.member = Member(
            self.disk,
            coordinator,
            Machine(lambda: 0),
            self,
            identity="pair",
            equal=True,
            make_node_id=lambda: NODE,
            session=SESSION,
            name=self.name,
        )
        # The lock of its directories told that the process before is gone: its session is closed.
        if self.world.holder is not None and self.world.holder.node is self:
            self.world.holder = None

    def crash(self) -> None:
        self._end()

    def _end(self) -> None:
        self.member = None
        self.live = self.in_sync = self.paused = False
        self.other.lose()

    def lose(self) -> None:
        """Its copy is gone: the sequence is raised before anything more is confirmed."""
        if not self.live or not self.in_sync or self.member is None:
            self.in_sync = False
            return
        try:
            self._settle()
        except DiedError:
            self._end()

    def _settle(self) -> None:
        for _ in range(20):
            if self.member is None or not self.member.lease.held():
                return
            try:
                self.member.raise_sequence()
            except CoordinationError:
                self.world.now += 0.1
                continue
            self.in_sync = False
            return

    def act(self) -> None:
        """One turn of the member's thread."""
        if self.member is None or self.paused:
            return
        try:
            if self.live:
                self.member._prove()
            else:
                self.member._look()
        except RefusedError:
            raise BrokenError(f"{self.name} contradicts the coordination service") from None
        except DiedError:
            self._end()

    def copy(self) -> None:
        live = self.other
        if not (self.world.joined and self.member and live.confirms) or self.live or self.paused or live.paused:
            return
        assert live.member is not None
        mark: dict[str, Any] = live.member.mark()
        self.data = set(live.data)
        self.world.disks[self.disk] = LocalState(NODE, mark["sequence"], mark["epoch"], complete=True, replica=True)
        live.in_sync = True

    def send(self) -> None:
        if not self.live or self.paused:
            return
        self.world.sent += 1
        self.data.add(self.world.sent)
        if self.in_sync:
            if self.other.paused or not self.world.joined or self.other.member is None:
                self.lose()
            else:
                self.other.data.add(self.world.sent)
        # The order of the journal: written here and by every complete copy, then the guard is asked.
        if self.confirms and (not self.in_sync or self.world.sent in self.other.data):
            self.world.confirmed.add(self.world.sent)
            self.world.check(self)


def step(world: World) -> None:
    chance = world.chance
    node = world.nodes[chance.choice(NAMES)]
    what = chance.choice(
        ("act",) * 8 + ("copy",) * 3 + ("send",) * 4 + ("start",) * 3 + ("crash", "pause", "resume", "cut", "heal")
        + ("part", "join", "join", "wait", "wait", "wait")
    )  # fmt: skip
    if what == "wait":
        # kazoo's thread keeps the session while the process runs and reaches the service.
        passing = chance.choice((0.1, 0.5, 1.0, 3.0, 8.0))
        while passing > 0:
            world.now += min(0.5, passing)
            passing -= 0.5
            for one in world.nodes.values():
                if one.session is not None and one.member is not None and one.reaches and not one.paused:
                    one.session.heard = world.now
                if passing > 0 and chance.random() < 0.8:
                    one.act()
            world.expire()
            for one in world.nodes.values():
                world.check(one)
    elif what in ("pause", "resume"):
        node.paused = what == "pause" and node.member is not None
        if what == "resume":
            node.send()  # what it was about to do, before it looks at its clock again
    elif what in ("cut", "heal"):
        node.reaches = what == "heal"
    elif what in ("part", "join"):
        world.joined = what == "join"
        if not world.joined:
            for one in world.nodes.values():
                if not one.paused:
                    one.lose()
    else:
        getattr(node, what)()


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run one history; the disks and the clock are the world's."""
    worlds: list[World] = []
    monkeypatch.setattr(module, "boot_clock", lambda: worlds[-1].now)
    monkeypatch.setattr(local, "read", lambda disk: worlds[-1].disks.get(disk))  # noqa: PLW0108
    monkeypatch.setattr(logging.getLogger("pollux.ha"), "disabled", True)
    monkeypatch.setattr(local, "write", lambda disk, state: worlds[-1].disks.update({disk: state}))
    whole = Member._raise

    def without_claim(self: Member, state: LocalState, epoch: int) -> LocalState:
        coordinator: Any = self._coordinator
        raised = LocalState(state.node_id, state.sequence + 1, epoch, complete=True, replica=False)
        local.write(self._journal, raised)
        coordinator.change(state.sequence, raised.sequence)
        return raised

    def run(chance: random.Random, without: str = "") -> World:
        worlds[:] = [World(chance, without)]
        monkeypatch.setattr(Member, "_raise", without_claim if without == "claims" else whole)
        for _ in range(120):
            step(worlds[-1])
        return worlds[-1]

    return run


def test_no_history_breaks_an_invariant(simulate: Any) -> None:
    """Never two that confirm, an activation without what was confirmed, or a contradiction nobody made."""
    chance = random.Random(20261122)  # noqa: S311
    activations = confirmed = fenced = 0
    for _ in range(2500):
        world = simulate(chance)
        activations += world.activations
        confirmed += len(world.confirmed)
        fenced += world.fenced
    assert activations > 2500
    assert confirmed > 2500
    assert fenced > 100


@pytest.mark.parametrize("without", ["fencing", "claims"])
def test_it_finds_what_is_missing(simulate: Any, without: str) -> None:
    chance = random.Random(20261122)  # noqa: S311
    for _ in range(5000):
        try:
            simulate(chance, without)
        except BrokenError:
            return
    pytest.fail(f"5,000 histories without {without} broke nothing")
