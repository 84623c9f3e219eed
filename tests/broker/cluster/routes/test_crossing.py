"""One duplicate id that a producer sent at several nodes, each of which sent its copy on: one is left, never none."""

from __future__ import annotations

import random
from collections import deque

import pytest

from pollux.cluster.routes.crossing import Crossing, decide

SEEDS = range(3000)


class History:
    """Nodes that know of one id whether they have its message (None) or to whom they sent it; copies on links in order.

    A copy is the node that sent it first, and by how many links it came.
    """

    def __init__(self, seed: int, *, relays: bool) -> None:
        self.random = random.Random(seed)  # noqa: S311  (a history, not a secret)
        self.count = self.random.randint(2, 6)
        self.hops_more = self.random.randint(0, 2) if relays else 0
        self.known: dict[int, int | None] = {}
        self.held = 0
        self.links: dict[tuple[int, int], deque[tuple[int, int]]] = {}
        self.hops = 0

    def run(self) -> None:
        nodes = list(range(self.count))
        self.random.shuffle(nodes)
        sending = nodes[: self.random.randint(1, self.count)]
        while sending or any(self.links.values()):
            busy = [link for link, waiting in self.links.items() if waiting]
            if sending and (not busy or self.random.random() < 0.5):
                self.send(sending.pop())
            else:
                link = self.random.choice(busy)
                origin, hops = self.links[link].popleft()
                self.arrive(link[1], origin, hops + self.random.randint(0, self.hops_more))

    def send(self, node: int) -> None:
        """A producer sends it there: it goes to a queue of that node, or of another one."""
        if node in self.known:
            return
        to = self.random.randrange(self.count)
        if to == node:
            self.keep(node)
        else:
            self.known[node] = to
            self.put(node, to, node, 1)

    def put(self, node: int, to: int, origin: int, hops: int) -> None:
        self.links.setdefault((node, to), deque()).append((origin, hops))

    def keep(self, node: int) -> None:
        self.known.setdefault(node, None)
        self.held += 1

    def arrive(self, node: int, origin: int, hops: int) -> None:
        self.hops = max(hops, self.hops)
        if node not in self.known:
            self.keep(node)
            return
        away = self.known[node]
        name = None if away is None else b"%d" % away
        found = decide(b"%d" % node, b"%d" % origin, name, hops=hops, nodes=self.count)
        if found is Crossing.TAKE:
            self.keep(node)
        elif found is Crossing.FOLLOW:
            assert away is not None
            self.put(node, away, origin, hops + 1)

    def ends(self) -> int:
        """How many messages there are: each node's copy ends, by way of the next ones, at one of them, or in a ring."""
        found = set()
        for start in self.known:
            way: list[int] = []
            node: int | None = start
            while node is not None and node not in way:
                way.append(node)
                node = self.known[node]
            found.add(frozenset(way[way.index(node) :] if node is not None else way[-1:]))
        return len(found)


@pytest.mark.parametrize("relays", [False, True], ids=["direct", "by way of others"])
def test_of_all_copies_that_meet_one_is_left(relays: bool) -> None:
    rings = 0
    for seed in SEEDS:
        history = History(seed, relays=relays)
        history.run()
        rings += None not in history.known.values()
        assert history.held == history.ends(), f"history {seed}"
        assert history.hops <= history.count**2 + 1 + 2 * history.hops_more, f"history {seed}"
    assert rings > 100


def test_a_message_that_is_there_is_no_reason_to_take_another_one() -> None:
    assert decide(b"2", b"1", None, hops=1, nodes=3) is Crossing.DROP


def test_of_a_ring_the_copy_of_the_lowest_follows_the_others_and_is_left_before_it_is_back() -> None:
    """1 -> 3 -> 2 -> 1."""
    assert decide(b"3", b"1", b"2", hops=1, nodes=3) is Crossing.FOLLOW
    assert decide(b"2", b"1", b"1", hops=2, nodes=3) is Crossing.TAKE
    assert decide(b"2", b"3", b"1", hops=1, nodes=3) is Crossing.DROP
    assert decide(b"1", b"2", b"3", hops=1, nodes=3) is Crossing.DROP


def test_a_copy_that_came_back_where_it_was_sent_first_is_left() -> None:
    assert decide(b"1", b"1", b"2", hops=3, nodes=3) is Crossing.TAKE


def test_a_copy_that_never_comes_round_ends() -> None:
    assert decide(b"3", b"1", b"2", hops=9, nodes=3) is Crossing.FOLLOW
    assert decide(b"3", b"1", b"2", hops=10, nodes=3) is Crossing.DROP
