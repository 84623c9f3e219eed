"""Where message groups go: to one queue each, the same by every node, and no more of them move than have to."""

from __future__ import annotations

import random
from collections import Counter

from pollux.cluster.routes.choice import Candidate
from pollux.cluster.routes.grouped import choose_for_group, weight
from pollux.cluster.routes.moves import Demand, Elsewhere, Moves

GROUPS = [f"g{number}" for number in range(300)]
NODES = [bytes([number]) * 16 for number in range(1, 6)]
ANY, NOBODY = Demand(everything=True), Demand(everything=False)


def chosen(group: str, nodes: list[bytes]) -> bytes:
    """By a node that knows of the others in this order."""
    candidates = [Candidate(local=at == 0, wanted=True) for at, _ in enumerate(nodes)]
    return nodes[choose_for_group(candidates, [weight(node, "orders", group) for node in nodes])]


def test_every_node_comes_to_the_same_queue_and_all_have_a_share() -> None:
    source = random.Random(3)  # noqa: S311  (a test's reproducible choice)
    for group in GROUPS:
        assert len({chosen(group, source.sample(NODES, len(NODES))) for _ in NODES}) == 1
    shares = Counter(chosen(group, NODES) for group in GROUPS)
    assert min(shares.values()) > 30


def test_only_groups_of_a_node_that_goes_change_their_place() -> None:
    for group in GROUPS:
        before, after = chosen(group, NODES), chosen(group, NODES[1:])
        assert before in (after, NODES[0])


def test_a_consumer_counts_more_than_a_link_and_a_link_more_than_nothing() -> None:
    heavy, light = b"2", b"1"
    wanted, idle = Candidate(local=False, wanted=True), Candidate(local=True)
    away = Candidate(local=False, connected=False, wanted=True)
    closed = Candidate(local=True, takes=False, wanted=True)
    assert choose_for_group([wanted, idle], [light, heavy]) == 0
    assert choose_for_group([idle, away], [light, heavy]) == 0
    assert choose_for_group([away, closed], [light, heavy]) == 0
    assert choose_for_group([idle, idle], [light, heavy]) == 1
    assert choose_for_group([closed], [light]) == -1
    assert choose_for_group([], []) == -1


def test_a_group_is_moved_as_a_whole_and_only_where_nobody_takes_anything() -> None:
    moves = Moves(0)
    elsewhere = [Elsewhere(node, "orders", ANY, free=1) for node in NODES]
    moves.update(NOBODY, elsewhere, 0)
    for group in GROUPS:
        target = moves.target(lambda _: True, None, 0, group)
        assert target is not None
        assert target.node == chosen(group, NODES)
    assert len({one.node for _ in range(10) if (one := moves.target(lambda _: True, None, 0))}) > 1, "others in turn"
    moves.update(Demand(everything=False, filters=frozenset(("a",))), elsewhere, 1)
    assert moves.target(lambda text: not text, None, 1, "g") is None, "the others of the group would stay"
    assert moves.target(lambda text: not text, None, 1) is not None
