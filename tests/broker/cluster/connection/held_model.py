"""A link in simulated time to a node whose addresses become full: the broker's own queue, numbers and decisions, around
them a network and stores that fail. One seed is one history; what it does wrong is returned by :meth:`History.run`.

What a node has stored is there after a kill. What it acknowledged last may be back: that was not on its disk yet.
"""

from __future__ import annotations

import random
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from broker.engine.conftest import message
from pollux.cluster.connection.forwarded import renumbered, stored, to_send
from pollux.cluster.connection.held import Held
from pollux.cluster.connection.sent import Fate, Sent
from pollux.cluster.routes.numbers import Lanes, Number, Taken, base_of
from pollux.config.address_settings import AddressSettings
from pollux.message import RoutingType
from pollux.routing.queue import Queue
from pollux.routing.reference import MessageReference
from pollux.routing.spec import QueueSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from pollux.message import Message
    from pollux.routing.selector import Selector

NODE = b"n" * 16
#: What an address holds before it is full, and when it has room again; messages on their way at most.
FULL, ROOM, IN_FLIGHT, CREDIT = 4, 3, 6, 40


class Came(NamedTuple):
    """A message where it arrived."""

    address: str
    number: int


class Target:
    """The node that takes messages in. ``taken``, ``queues`` and ``came`` are what a kill leaves."""

    def __init__(self) -> None:
        self.taken: list[Number] = []
        self.queues: dict[str, list[Came]] = {}
        self.came: list[Came] = []
        self.told: set[str] = set()
        #: The most that an address held.
        self.most = 0

    def take(self, one: tuple[Number, Came]) -> None:
        number, came = one
        known = Taken(self.taken)
        if known.is_new(number):
            known.take(number)
            self.taken = known.numbers
            self.came.append(came)
            queue = self.queues.setdefault(base_of(came.address), [])
            queue.append(came)
            self.most = max(self.most, len(queue))

    def news(self, sent_to: str) -> frozenset[str] | None:
        """Return all addresses that are full when they are other ones than was told."""
        before = set(self.told)
        if len(self.queues.get(sent_to, ())) >= FULL:
            self.told.add(sent_to)
        self.told -= {address for address in self.told if len(self.queues[address]) <= ROOM}
        return frozenset(self.told) if self.told != before else None


class Source:
    """The node that sends, as one process; it is a consumer of its store-and-forward queue."""

    priority = 0
    selector: Selector | None = None
    browsing = no_local = False
    origin = 0

    def __init__(self, life: bytes, waiting: list[Message], held: Callable[[], Held]) -> None:
        self.lanes = Lanes(life)
        self.queue = Queue.create(QueueSpec("sf", "sf", routing_type=RoutingType.MULTICAST), AddressSettings(), 1)
        self.queue.add([MessageReference(each, self.queue) for each in waiting])
        self.sent = Sent()
        self.credit = 0
        self._make = held
        self.held = held()
        self._waiting: deque[MessageReference] = deque()

    def deliver(self, references: list[MessageReference]) -> None:
        self.credit -= len(references)
        self._waiting += references

    def begin(self, taken: list[Number]) -> None:
        self.lanes.apart = True
        self.sent.begin(NODE, dict(taken))
        self.credit = CREDIT
        self.queue.add_consumer(self)

    def end(self) -> None:
        self._waiting.clear()
        self.sent.end()
        self.held, self.selector = self._make(), None
        self.queue.release(self.queue.remove_consumer(self), failed=False)

    def hold_back(self, full: frozenset[str]) -> None:
        again = self.held.told(full)
        self.selector = self.held.selector
        back = self.held.sift(self._waiting)
        self.credit += len(back)
        self.queue.release(back, failed=False)
        self.queue.select(self, again=again)


class History:
    """One link and what becomes of it. ``held``: what it holds back by."""

    def __init__(self, seed: int, held: Callable[[], Held] = Held) -> None:
        self.random = random.Random(seed)  # noqa: S311  (a history, not a secret)
        self.wrong: list[str] = []
        self._held = held
        self._addresses = [f"a{at}" for at in range(self.random.choice((2, 4, 30)))]
        self._count: dict[str, int] = {}
        #: What waits on the disk of the source, and what it acknowledged that may be back after a kill.
        self._stored: list[Message] = []
        self._unsynced: list[Message] = []
        self._ids = count(1)
        self._lives = 0
        self._target = Target()
        self._connections = 0
        self._there: deque[tuple[Number, Came]] = deque()
        self._back: deque[tuple[Number | None, frozenset[str] | None]] = deque()
        self._up = False
        self._source = self._started()

    def _started(self) -> Source:
        self._lives += 1
        return Source(self._lives.to_bytes(8, "big"), self._stored, self._held)

    # -- what happens

    def produce(self) -> None:
        address = self.random.choice(self._addresses)
        name = f"{address}::q" if self.random.random() < 0.2 else address
        number = self._count[address] = self._count.get(address, 0) + 1
        copy = stored(message(b"%d" % number, name), "sf", self._source.lanes.next(name), ("q",), (NODE,))
        if self.random.random() < 0.3:
            copy.content = None  # as of one that was read from disk
        self._put(copy)

    def _put(self, copy: Message) -> None:
        copy.id = next(self._ids)
        self._stored.append(copy)
        self._unsynced.clear()  # it is written after them
        self._source.queue.add([MessageReference(copy, self._source.queue)])

    def connect(self) -> None:
        if not self._up:
            self._up = True
            self._connections += 1
            self._target.told.clear()
            self._source.begin(self._target.taken)

    def cut(self) -> None:
        if self._up:
            self._up = False
            self._there.clear()
            self._back.clear()
            self._source.end()

    def kill(self) -> None:
        """The source is killed, and started again: of what it acknowledged last some is back, in its place."""
        self.cut()
        kept = self.random.randint(0, len(self._unsynced))
        self._stored = sorted([*self._stored, *self._unsynced[kept:]], key=lambda each: each.id)
        self._unsynced.clear()
        self._source = self._started()

    def send(self) -> None:
        """Send what waits, as far as it may be on the way."""
        source = self._source
        while self._up and source.queue.dispatch():
            pass
        while self._up and source._waiting and source.sent.in_flight < IN_FLIGHT:
            reference = source._waiting.popleft()
            one = to_send(reference.message)
            assert one is not None
            fate = source.sent.next(one, reference)
            if fate is Fate.SEND:
                self._there.append((Number(one.life, one.number), Came(one.address, int(one.data))))
            elif fate is Fate.DONE:
                self._acknowledge(reference)
            else:
                self._acknowledge(reference)
                self._put(renumbered(reference.message, source.lanes.next(one.address)))

    def _acknowledge(self, reference: MessageReference) -> None:
        self._source.queue.acknowledge([reference])
        self._source.credit += 1
        self._stored.remove(reference.message)
        self._unsynced.append(reference.message)

    def arrive(self) -> None:
        if self._there:
            number, came = one = self._there.popleft()
            self._target.take(one)
            self._back.append((number, self._target.news(base_of(came.address))))

    def consume(self) -> None:
        address = self.random.choice(self._addresses)
        found = self._target.queues.get(address)
        if found:
            del found[: self.random.randint(1, 3)]
            self._tell(address)

    def _tell(self, address: str) -> None:
        if self._up:
            self._back.append((None, self._target.news(address)))

    def hear(self) -> None:
        if self._back and self._up:
            number, full = self._back.popleft()
            if full is not None:
                self._source.hold_back(full)
            if number is not None:
                for reference in self._source.sent.confirmed(*number):
                    self._acknowledge(reference)

    # -- the whole of it

    def run(self) -> list[str]:
        steps = {
            self.produce: 10,
            self.send: 10,
            self.arrive: 10,
            self.hear: 10,
            self.consume: self.random.choice((0, 1, 4)),
            self.connect: 2,
            self.cut: self.random.choice((0, 1)),
            self.kill: self.random.choice((0, 1)),
        }
        for step in self.random.choices([*steps], [*steps.values()], k=300):
            step()
        self._settle()
        self._look_at_who_waits()
        for _ in range(2000):
            if not self._stored:
                break
            for found in self._target.queues.values():
                found.clear()
            self._tell(self._addresses[0])
            self._settle()
        if self._target.most > FULL + IN_FLIGHT * self._connections:
            self.wrong.append(f"{self._target.most} messages at one address: beyond its limit")
        if self._stored:
            self.wrong.append(f"{len(self._stored)} messages wait, and nothing is full")
        for address, produced in self._count.items():
            numbers = [came.number for came in self._target.came if base_of(came.address) == address]
            if numbers != sorted(numbers):
                self.wrong.append(f"{address}: out of order: {numbers}")
            if len(numbers) != len(set(numbers)):
                self.wrong.append(f"{address}: twice")
            if len(set(numbers)) != produced:
                self.wrong.append(f"{address}: lost")
        return self.wrong

    def _settle(self) -> None:
        self.connect()
        for _ in range(10_000):
            self.send()
            if not self._there and not self._back:
                return
            self.arrive()
            self.hear()
        self.wrong.append("it never comes to rest")

    def _look_at_who_waits(self) -> None:
        """Nothing waits but what is for a full address, or has a life or an address of what waits before it."""
        lives: set[bytes] = set()
        addresses = set(self._target.told)
        for copy in self._stored:
            one = to_send(copy)
            assert one is not None
            address = base_of(one.address)
            if address not in addresses and one.life not in lives:
                self.wrong.append(f"a message for {address} waits for nothing")
            lives.add(one.life)
            addresses.add(address)
