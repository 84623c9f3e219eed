"""A cluster in simulated time: the broker's own decisions (pollux.cluster.routes), around them a network and stores
that fail. One seed is one history; what it does wrong is in :attr:`Cluster.wrong`.

What a node does to its store in one step is there altogether after a kill; what was on the network is not.
"""

from __future__ import annotations

import random
from functools import partial
from heapq import heappop, heappush
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from pollux.cluster.routes.choice import Balancing, Candidate, choose
from pollux.cluster.routes.moves import HOLD, Demand, Elsewhere, Moves
from pollux.cluster.routes.numbers import Number, Numbering, Taken
from pollux.cluster.routes.records import QueueRecord, Teller, Telling
from pollux.cluster.routes.table import RoutingTable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pollux.cluster.routes.records import Key
    from pollux.cluster.routes.table import Path

QUEUE, GROUP = "q", ("q", "")
COLOURS = ("red", "blue")
#: A filter: "" lets everything through.
FILTERS = ("", *COLOURS)


class Without(NamedTuple):
    """Parts that a history does without, to see that it is found."""

    horizon: bool = True
    numbers: bool = True
    hold: float = HOLD


class Message(NamedTuple):
    """A message in a queue, or on its way to one: to which, and the nodes it went through."""

    id: int
    colour: str
    moved_at: float | None = None
    number: Number | None = None
    target: Key | None = None
    visited: tuple[bytes, ...] = ()

    def passes(self, text: str) -> bool:
        return not text or text == self.colour


class Link:
    """A connection by which ``source`` sends to ``sink``, and ``sink`` tells of itself."""

    def __init__(self, source: Node, sink: Node) -> None:
        self.source, self.sink = source, sink
        self.teller = Teller()
        self.sent: set[Number] = set()
        self.up = True
        #: When the last thing of each direction arrives: nothing overtakes.
        self.arrives = [0.0, 0.0]


class Node:
    """One broker. ``stored`` is what a kill leaves."""

    def __init__(self, cluster: Cluster, name: bytes) -> None:
        self.cluster = cluster
        self.name = name
        self.up = False
        self.consumers: list[str] = []
        # stored
        self.queue: list[Message] = []
        self.forwards: dict[bytes, list[Message]] = {}
        self.taken: dict[bytes, list[Number]] = {}
        self.epoch = 0

    def start(self) -> None:
        self.up = True
        self.epoch += 1
        self.table = RoutingTable(self.name, hops=self.cluster.hops, horizon=self.cluster.parts.horizon)
        self.numbering = {
            peer: Numbering(self.cluster.random.randbytes(8)) for peer in self.cluster.neighbours[self.name]
        }
        self.moves = Moves(self.cluster.delay, hold=self.cluster.parts.hold)
        self.changes = 0
        self.turn = 0
        self._elsewhere: tuple[int, list[Elsewhere]] = (-1, [])
        self.changed()

    def kill(self) -> None:
        self.up = False
        for link in self.cluster.links_of(self):
            self.cluster.cut(link)

    def copy(self) -> tuple[list[Message], dict[bytes, list[Message]], dict[bytes, list[Number]]]:
        return (
            list(self.queue),
            {peer: list(waiting) for peer, waiting in self.forwards.items()},
            {peer: list(numbers) for peer, numbers in self.taken.items()},
        )

    # -- what others know

    def records(self) -> dict[Key, QueueRecord]:
        filters = [text for text in self.consumers if text]
        mine = QueueRecord(
            self.name,
            QUEUE,
            self.epoch << 32 | self.changes,
            QUEUE,
            False,
            (self.name,),
            consumers=self.consumers.count(""),
            filtered=tuple((text, filters.count(text)) for text in sorted(set(filters))),
            credit=len(self.consumers),
        )
        return {mine.key: mine}

    def told(self, link: Link, keys: Iterable[Key] | None = None) -> dict[Key, QueueRecord]:
        found = self.records()
        for key in self.table.queues if keys is None else keys:
            if key[0] != self.name and (record := self.table.told(link.source.name, key)) is not None:
                found[key] = record
        return found

    def tell(self, keys: Iterable[Key]) -> None:
        for link in list(self.cluster.links.values()):
            if link.sink is self:
                telling = link.teller.changes(self.told(link, keys), keys)
                if telling is not None:
                    self.cluster.send(link, 1, partial(link.source.hear, link, telling))

    def tell_all(self, link: Link) -> None:
        telling = link.teller.all(self.told(link).values())
        self.cluster.send(link, 1, partial(link.source.hear, link, telling))

    def hear(self, link: Link, telling: Telling) -> None:
        changed = self.table.hear(link.sink.name, telling)
        if self.table.listener(link.sink.name).missed:
            self.cluster.send(link, 0, partial(link.sink.tell_all, link))
        self.learned(changed)

    def learned(self, changed: set[Key]) -> None:
        if changed:
            self.tell(changed)
            self.redistribute()

    def changed(self) -> None:
        self.changes += 1
        self.tell([(self.name, QUEUE)])
        self.redistribute()

    # -- messages

    def route(self, message: Message) -> None:
        others = [
            (key, path) for key, path in self.table.group(GROUP).items() if not {key[0], path.peer} & {*message.visited}
        ]
        here = Candidate(local=True, wanted=any(map(message.passes, self.consumers)), free=len(self.consumers))
        candidates = [here] + [
            Candidate(
                local=False,
                connected=path.connected,
                wanted=path.record.consumers > 0 or any(message.passes(text) for text, _ in path.record.filtered),
                free=path.record.credit,
            )
            for _, path in others
        ]
        self.turn += 1
        at = choose(self.cluster.balancing, candidates, self.turn % len(candidates), multicast=False)
        if at == 0:
            self.queue.append(message._replace(target=None, number=None, visited=()))
        else:
            self.forward(message, *others[at - 1])

    def forward(self, message: Message, key: Key, path: Path) -> None:
        peer = path.peer
        if peer in message.visited:
            self.cluster.wrong.append(f"message {message.id} goes back to {peer!r}")
        number = self.numbering[peer].next()
        self.forwards.setdefault(peer, []).append(
            message._replace(target=key, number=number, visited=(*message.visited, self.name))
        )
        self.drain(peer)

    def drain(self, peer: bytes) -> None:
        link = self.cluster.link(self.name, peer)
        if link is None:
            return
        for message in self.forwards.get(peer, [])[:8]:
            if message.number is not None and message.number not in link.sent:
                link.sent.add(message.number)
                self.cluster.send(link, 0, partial(link.sink.take, link, message))

    def take(self, link: Link, message: Message) -> None:
        number = message.number
        assert number is not None
        taken = Taken(self.taken.get(link.source.name, ()))
        if taken.is_new(number) or not self.cluster.parts.numbers:
            taken.take(number)
            self.taken[link.source.name] = taken.numbers
            self.place(message)
        self.cluster.send(link, 1, partial(link.source.confirmed, link, number))

    def place(self, message: Message) -> None:
        target = message.target
        assert target is not None
        if target[0] == self.name:
            self.queue.append(message._replace(moved_at=self.cluster.now, target=None, number=None, visited=()))
            self.redistribute()
            return
        path = self.table.path(target, message.visited)
        if path is None:
            self.route(message)
        else:
            self.forward(message, target, path)

    def confirmed(self, link: Link, number: Number) -> None:
        peer = link.sink.name
        self.forwards[peer] = [each for each in self.forwards[peer] if each.number != number]
        self.drain(peer)

    # -- consumers

    def consume(self) -> None:
        for text in self.consumers:
            found = next((message for message in self.queue if message.passes(text)), None)
            if found is not None:
                self.queue.remove(found)
                self.cluster.consumed(found, text)

    def delay_over(self, epoch: int) -> None:
        if self.up and self.epoch == epoch:
            self.redistribute()

    def elsewhere(self) -> list[Elsewhere]:
        if self._elsewhere[0] != self.table.version:
            self._elsewhere = self.table.version, self._others()
        return self._elsewhere[1]

    def _others(self) -> list[Elsewhere]:
        return [
            Elsewhere(
                key[0],
                key[1],
                Demand(path.record.consumers > 0, frozenset(text for text, _ in path.record.filtered)),
                connected=path.connected,
                free=path.record.credit,
            )
            for key, path in self.table.group(GROUP).items()
        ]

    def redistribute(self) -> None:
        if not self.cluster.balancing.moves:
            return
        now = self.cluster.now
        here = Demand("" in self.consumers, frozenset(text for text in self.consumers if text))
        again = self.moves.update(here, self.elsewhere(), now)
        if again is not None:
            self.cluster.at(again, partial(self.delay_over, self.epoch))
        if not self.queue or not self.moves.ready(now):
            return
        for message in list(self.queue):
            target = self.moves.target(message.passes, message.moved_at, now)
            if target is None:
                continue
            key = (target.node, target.queue)
            path = self.table.path(key)
            if path is not None:
                self.cluster.moved(self, message)
                self.queue.remove(message)
                self.forward(message._replace(visited=()), key, path)


class Cluster:
    """A whole history: :meth:`run`, then what is in :attr:`wrong`."""

    def __init__(self, seed: int, parts: Without | None = None) -> None:
        self.parts = parts or Without()
        self.random = random.Random(seed)  # noqa: S311  (a history, not a secret)
        self.now = 0.0
        self.wrong: list[str] = []
        self.links: dict[tuple[bytes, bytes], Link] = {}
        self.apart: set[frozenset[bytes]] = set()
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()
        self._ids = count(1)
        self.produced: set[int] = set()
        self._consumed: dict[int, int] = {}
        #: Of these it is not known where they are: a store was restored that had them, or not.
        self.unsure: set[int] = set()
        self._moves: dict[int, float] = {}
        self.left: dict[tuple[bytes, str], float] = {}
        self.copies: dict[bytes, object] = {}
        size = self.random.randint(2, 12)
        names = [bytes([65 + at]) * 16 for at in range(size)]
        self.shape = self.random.choice(("mesh", "chain", "ring"))
        self.neighbours = {name: self._neighbours(names, at) for at, name in enumerate(names)}
        self.hops = 1 if self.shape == "mesh" else size
        self.balancing = self.random.choice(
            (Balancing.ON_DEMAND, Balancing.ON_DEMAND, Balancing.STRICT, Balancing.OFF_WITH_REDISTRIBUTION)
        )
        self.delay = self.random.choice((0.0, 0.0, 0.3, 1.0))
        self.slow = self.random.choice((0.01, 0.05, 0.8))
        self.nodes = {name: Node(self, name) for name in names}

    def _neighbours(self, names: list[bytes], at: int) -> list[bytes]:
        if self.shape == "mesh":
            return [name for name in names if name != names[at]]
        found = {at - 1, at + 1}
        if self.shape == "ring":
            found = {one % len(names) for one in found}
        return [names[one] for one in sorted(found) if 0 <= one < len(names) and one != at]

    # -- time and network

    def at(self, when: float, what: Callable[[], object]) -> None:
        heappush(self._events, (when, next(self._order), what))

    def until(self, end: float) -> None:
        while self._events and self._events[0][0] <= end:
            self.now, _, what = heappop(self._events)
            what()
        self.now = end

    def send(self, link: Link, way: int, what: Callable[[], object]) -> None:
        when = max(self.now + self.random.uniform(0.001, self.slow), link.arrives[way])
        link.arrives[way] = when
        self.at(when, lambda: link.up and what())

    def link(self, source: bytes, sink: bytes) -> Link | None:
        return self.links.get((source, sink))

    def links_of(self, node: Node) -> list[Link]:
        return [one for one in self.links.values() if node in (one.source, one.sink)]

    def cut(self, link: Link) -> None:
        del self.links[link.source.name, link.sink.name]
        link.up = False
        if link.source.up:
            link.source.learned(link.source.table.disconnected(link.sink.name))

    def connect(self) -> None:
        """Each node tries to reach those that it has no link to, until some time after all is healed."""
        for source in self.nodes.values():
            for peer in self.neighbours[source.name]:
                sink = self.nodes[peer]
                together = source.up and sink.up and frozenset((source.name, peer)) not in self.apart
                if together and self.link(source.name, peer) is None:
                    link = Link(source, sink)
                    self.links[source.name, peer] = link
                    source.table.connected(peer)
                    sink.tell_all(link)
                    source.drain(peer)

    def redistribute(self) -> None:
        for node in self.nodes.values():
            if node.up and node.queue:
                node.redistribute()

    def consume(self) -> None:
        for node in self.nodes.values():
            if node.up:
                node.consume()

    # -- what is watched

    def consumed(self, message: Message, _text: str) -> None:
        self._consumed[message.id] = self._consumed.get(message.id, 0) + 1
        if self._consumed[message.id] > 1 and message.id not in self.unsure:
            self.wrong.append(f"message {message.id} was consumed twice")

    def moved(self, node: Node, message: Message) -> None:
        arrived = message.moved_at
        if arrived is None or self.now - arrived >= HOLD:
            return
        left = [self.left.get((node.name, text), -1.0) for text in FILTERS if message.passes(text)]
        if not any(at >= arrived for at in left):
            self.wrong.append(f"message {message.id} was moved on after {self.now - arrived:.2f} s")

    # -- the history

    def run(self) -> list[str]:
        for node in self.nodes.values():
            if self.random.random() < 0.7:
                node.start()
        for tick in range(1, 60):
            self.at(tick * 0.5, self.connect)
        for tick in range(1, 60):
            self.at(tick * 1.0, self.redistribute)
        for tick in range(1, 300):
            self.at(tick * 0.2, self.consume)
        for tick in range(200):
            self.at(tick * 0.1 + self.random.random() * 0.1, self.something)
        self.until(20.0)
        self.heal()
        self.until(60.0)
        self.check()
        return self.wrong

    def something(self) -> None:
        choice = self.random.random()
        node = self.random.choice(list(self.nodes.values()))
        if choice < 0.5:
            if node.up:
                message = Message(next(self._ids), self.random.choice(COLOURS))
                self.produced.add(message.id)
                node.route(message)
        elif choice < 0.8:
            self.consumer(node)
        elif choice < 0.9:
            if node.up:
                node.kill()
            else:
                node.start()
        elif choice < 0.97:
            pair = frozenset((node.name, self.random.choice(list(self.nodes))))
            if pair in self.apart:
                self.apart.discard(pair)
            else:
                self.apart.add(pair)
                for link in [one for one in self.links.values() if {one.source.name, one.sink.name} == pair]:
                    self.cut(link)
        else:
            self.restore(node)

    def consumer(self, node: Node) -> None:
        if not node.up:
            return
        if node.consumers and self.random.random() < 0.6:
            text = node.consumers.pop(self.random.randrange(len(node.consumers)))
            if text not in node.consumers:
                self.left[node.name, text] = self.now
        else:
            node.consumers.append(self.random.choice(FILTERS))
        node.changed()

    def restore(self, node: Node) -> None:
        """Put back a copy of a node's store that was made before, or make one."""
        if node.name not in self.copies:
            self.copies[node.name] = node.copy()
            return
        self.unsure |= self.produced
        if node.up:
            node.kill()
        node.queue, node.forwards, node.taken = self.copies.pop(node.name)  # type: ignore[misc]

    def heal(self) -> None:
        self.apart.clear()
        for node in self.nodes.values():
            if not node.up:
                node.start()
            for text in set(node.consumers):
                self.left[node.name, text] = self.now
            node.consumers = []
        for text in self.random.choice((("",), COLOURS, FILTERS)):
            self.random.choice(list(self.nodes.values())).consumers.append(text)
        for node in self.nodes.values():
            node.changed()

    def check(self) -> None:
        for node in self.nodes.values():
            self.check_routes(node)
        for number in sorted(self.produced - self.unsure):
            if number not in self._consumed and (self.balancing.moves or not self._somewhere(number)):
                self.wrong.append(f"message {number} was not consumed")

    def _somewhere(self, number: int) -> bool:
        """Whether it waits in a queue: without redistribution it may have to."""
        return any(message.id == number for node in self.nodes.values() for message in node.queue)

    def check_routes(self, node: Node) -> None:
        distances = {node.name: 0}
        at = [node.name]
        while at:
            name = at.pop(0)
            for peer in self.neighbours[name]:
                if peer not in distances:
                    distances[peer] = distances[name] + 1
                    at.append(peer)
        expected = {name: far for name, far in distances.items() if 0 < far <= self.hops}
        found = {key[0]: path for key, path in node.table.queues.items()}
        if {name: path.distance for name, path in found.items()} != expected:
            self.wrong.append(
                f"{node.name[:1]!r} has routes {sorted((name[:1], path.distance) for name, path in found.items())}"
            )
        for name, path in found.items():
            actual = self.nodes[name].records()[name, QUEUE]
            if not path.connected or replace(path.record, path=actual.path) != actual:
                self.wrong.append(f"{node.name[:1]!r} knows old things of {name[:1]!r}")
