"""A model of scale-down, killed at each step: what is on disk, what is only in memory, and what is on the wire.

The steps are those of the code: a message leaves its queue and enters the store-and-forward queue of a node in one
transaction, with a number that stays; what is sent and what is confirmed may be lost; whoever takes it in stores the
number with it. The choice of the target and the numbers are the code's own.
"""

from __future__ import annotations

import itertools
from collections import deque

import pytest
from msgspec import Struct, field

from pollux.cluster.routes.numbers import Number, Numbering, Taken
from pollux.cluster.scale_down.plan import About, Peer, Wanted, choose, targets

MESSAGES = 4
STEPS = ("move", "send", "take", "confirm")


class Target(Struct):
    """A node that gets messages. Everything of it is on disk but what is on the wire to it."""

    name: str
    messages: list[int] = field(default_factory=list)
    taken: Taken = field(default_factory=Taken)


class Source(Struct):
    """The node that is scaled down. ``waiting``: by target, number and message; on disk."""

    queue: list[int]
    waiting: dict[str, deque[tuple[Number, int]]] = field(default_factory=dict)
    lives: int = 0


class World:
    """Both sides and the wires. ``remembers``: receivers store the number (a model that finds nothing without it)."""

    def __init__(self, names: tuple[str, ...] = ("a", "b"), *, remembers: bool = True, together: bool = True) -> None:
        self.source = Source(list(range(MESSAGES)))
        self.targets = {name: Target(name) for name in names}
        self.remembers = remembers
        #: A message leaves its queue in the transaction in which it enters the other.
        self.together = together
        self.down: set[str] = set()
        self.start_source()

    def start_source(self) -> None:
        """A life begins: numbers of its own, nothing sent."""
        self.source.lives += 1
        self.numbering = Numbering(self.source.lives.to_bytes(8, "big"))
        self.unacknowledged: list[int] = []
        self.home = ""
        self.connect()

    def connect(self) -> None:
        """Every link begins anew: what was on the wire is gone, and what waits is sent again."""
        self.sent = dict.fromkeys(self.targets, 0)
        self.wire: dict[str, deque[tuple[Number, int]]] = {name: deque() for name in self.targets}
        self.back: dict[str, deque[Number]] = {name: deque() for name in self.targets}

    # -- steps: each is one transaction, or one thing on the wire

    def move(self) -> bool:
        """Take a message out of the queue, for the node that gets it."""
        peers = [Peer(name, name.encode(), name, name not in self.down, About(free=1)) for name in sorted(self.targets)]
        fitting, _ = targets(peers, Wanted())
        if not self.source.queue or not fitting:
            return False
        if self.home not in {peer.name for peer in fitting}:
            self.home = choose(fitting, (), {}, 1, "").name
        message = self.source.queue[0]
        self.source.waiting.setdefault(self.home, deque()).append((self.numbering.next(), message))
        if self.together:
            del self.source.queue[0]
        else:
            self.unacknowledged.append(self.source.queue.pop(0))
        return True

    def send(self) -> bool:
        for name, waiting in self.source.waiting.items():
            if name not in self.down and self.sent[name] < len(waiting):
                self.wire[name].append(waiting[self.sent[name]])
                self.sent[name] += 1
                return True
        return False

    def take(self) -> bool:
        for name, wire in self.wire.items():
            if wire:
                number, message = wire.popleft()
                target = self.targets[name]
                if not self.remembers or target.taken.is_new(number):
                    target.messages.append(message)
                    target.taken.take(number)
                self.back[name].append(number)
                return True
        return False

    def confirm(self) -> bool:
        for name, back in self.back.items():
            if back:
                number = back.popleft()
                waiting = self.source.waiting[name]
                assert waiting[0][0] == number
                waiting.popleft()
                self.sent[name] -= 1
                return True
        return False

    # -- what breaks

    def kill(self, what: str) -> None:
        if what == "source":
            self.source.queue = [*self.unacknowledged, *self.source.queue]
            self.start_source()
        elif what == "target":  # the one that gets messages; for good, as far as the source knows
            self.connect()
        elif what == "away":
            self.connect()
            self.down = {self.home} if self.home else set()

    def step(self, name: str) -> bool:
        return bool(getattr(self, name)())

    def run(self) -> None:
        """Everything comes back, and goes on to its end."""
        self.down = set()
        self.connect()
        while any(self.step(name) for name in STEPS):
            pass

    def check(self) -> None:
        """Each message is on a target once, and nowhere else; in order on each."""
        assert not self.source.queue
        assert not any(self.source.waiting.values())
        found = [message for target in self.targets.values() for message in target.messages]
        assert sorted(found) == list(range(MESSAGES)), found
        for target in self.targets.values():
            assert target.messages == sorted(target.messages)


def play(schedule: tuple[str, ...], *, kills: dict[int, str], **more: bool) -> World:
    world = World(**more)  # type: ignore[arg-type]
    for at, name in enumerate(schedule):
        if at in kills:
            world.kill(kills[at])
        world.step(name)
    world.run()
    return world


#: Ways to interleave the steps: one after the other, each as far as it goes, and in between.
SCHEDULES = (
    tuple(itertools.chain.from_iterable([STEPS] * MESSAGES)),
    tuple(itertools.chain.from_iterable([name] * MESSAGES for name in STEPS)),
    tuple(itertools.chain.from_iterable([("move", "move", "send", "take", "send", "confirm")] * 3)),
)


@pytest.mark.parametrize("schedule", range(len(SCHEDULES)))
def test_killed_twice_at_any_step_each_message_arrives_once(schedule: int) -> None:
    steps = SCHEDULES[schedule]
    for first, second in itertools.combinations(range(len(steps) + 1), 2):
        for one, other in itertools.product(("source", "target", "away"), repeat=2):
            play(steps, kills={first: one, second: other}).check()


@pytest.mark.parametrize("without", ["remembers", "together"])
def test_the_model_finds_what_happens_without_each_part(without: str) -> None:
    bad = 0
    for steps in SCHEDULES:
        for at, what in itertools.product(range(len(steps)), ("source", "target")):
            try:
                play(steps, kills={at: what}, **{without: False}).check()
            except AssertionError:
                bad += 1
    assert bad
