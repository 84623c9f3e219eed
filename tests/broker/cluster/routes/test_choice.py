"""Who gets a message: every row of docs/clusters.md's table, and what it leaves open."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.cluster.routes.choice import Balancing, Candidate, choose

OFF, STRICT, ON_DEMAND, WITH = (
    Balancing.OFF,
    Balancing.STRICT,
    Balancing.ON_DEMAND,
    Balancing.OFF_WITH_REDISTRIBUTION,
)
HERE, THERE, BEYOND = 0, 1, 2
#: A queue here, at a node, and at another one; with a consumer, without, and not there (None) or its node is down.
IDLE, USED = Candidate(local=True), Candidate(local=True, wanted=True, free=10)
FAR, FAR_USED = Candidate(local=False), Candidate(local=False, wanted=True, free=10)
DOWN, DOWN_USED = Candidate(local=False, connected=False), Candidate(local=False, connected=False, wanted=True, free=10)


def chosen(balancing: Balancing, candidates: list[Candidate], *, multicast: bool) -> set[int]:
    """Return who gets messages when they are sent in turn."""
    turn, found = 0, set()
    for _ in range(3 * max(1, len(candidates))):
        at = choose(balancing, candidates, turn % max(1, len(candidates)), multicast=multicast)
        found.add(at)
        turn = at + 1
    return found


ALL = {HERE, THERE, BEYOND}
ANYCAST = [
    (
        "consumers on local and remote",
        [USED, FAR_USED, FAR_USED],
        {STRICT: ALL, ON_DEMAND: ALL, WITH: {HERE}, OFF: {HERE}},
    ),
    ("and a node without", [USED, FAR_USED, FAR], {STRICT: ALL, ON_DEMAND: {HERE, THERE}, WITH: {HERE}, OFF: {HERE}}),
    ("consumers only remote", [IDLE, FAR_USED, FAR_USED], {STRICT: ALL, ON_DEMAND: {1, 2}, WITH: {HERE}, OFF: {HERE}}),
    ("consumers nowhere", [IDLE, FAR, FAR], {STRICT: ALL, ON_DEMAND: {HERE}, WITH: {HERE}, OFF: {HERE}}),
    ("consumers nowhere, no local queue", [FAR, FAR], {STRICT: {0, 1}, ON_DEMAND: {0, 1}, WITH: {-1}, OFF: {-1}}),
    ("no local queue", [FAR_USED], {STRICT: {0}, ON_DEMAND: {0}, WITH: {-1}, OFF: {-1}}),
    (
        "a node is down, others are there",
        [USED, DOWN_USED, FAR_USED],
        {STRICT: {0, 2}, ON_DEMAND: {0, 2}, WITH: {0}, OFF: {0}},
    ),
    (
        "the node of the only consumer is down",
        [IDLE, DOWN_USED, FAR],
        {STRICT: {0, 2}, ON_DEMAND: {0}, WITH: {0}, OFF: {0}},
    ),
    ("the node with the only queue is down", [DOWN_USED], {STRICT: {0}, ON_DEMAND: {0}, WITH: {-1}, OFF: {-1}}),
    ("nobody wants it, one is down", [DOWN, FAR], {STRICT: {1}, ON_DEMAND: {1}, WITH: {-1}, OFF: {-1}}),
]
MULTICAST = [
    ("queue only remote", [FAR], {STRICT: {0}, ON_DEMAND: {0}, WITH: {0}, OFF: {0}}),
    (
        "same name on both, consumers on both",
        [USED, FAR_USED],
        {STRICT: {0, 1}, ON_DEMAND: {0, 1}, WITH: {0, 1}, OFF: {0}},
    ),
    ("same name, consumers only remote", [IDLE, FAR_USED], {STRICT: {0, 1}, ON_DEMAND: {1}, WITH: {1}, OFF: {0}}),
    ("same name, consumers nowhere", [IDLE, FAR], {STRICT: {0, 1}, ON_DEMAND: {0}, WITH: {0}, OFF: {0}}),
    ("the node with the only queue is down", [DOWN], {STRICT: {0}, ON_DEMAND: {0}, WITH: {0}, OFF: {0}}),
]
ROWS = [
    pytest.param(candidates, balancing, expected, multicast, id=f"{kind}: {name}: {balancing.value}")
    for kind, multicast, rows in (("anycast", False, ANYCAST), ("multicast", True, MULTICAST))
    for name, candidates, row in rows
    for balancing, expected in row.items()
]


@pytest.mark.parametrize(("candidates", "balancing", "expected", "multicast"), ROWS)
def test_the_table(candidates: list[Candidate], balancing: Balancing, expected: set[int], multicast: bool) -> None:
    assert chosen(balancing, candidates, multicast=multicast) == expected


def test_a_queue_whose_filter_does_not_match_is_no_candidate() -> None:
    refuses = FAR_USED._replace(takes=False)
    assert chosen(STRICT, [USED, refuses], multicast=False) == {HERE}
    assert choose(ON_DEMAND, [refuses], 0, multicast=False) == -1


def test_who_has_no_credit_left_is_passed_over() -> None:
    busy = FAR_USED._replace(free=0)
    assert chosen(ON_DEMAND, [USED, busy, FAR_USED], multicast=False) == {0, 2}


def test_when_nobody_has_credit_the_least_behind_gets_it_on_a_tie_this_node() -> None:
    assert choose(ON_DEMAND, [USED._replace(free=-9), FAR_USED._replace(free=-3)], 0, multicast=False) == THERE
    assert choose(ON_DEMAND, [FAR_USED._replace(free=-3), USED._replace(free=-3)], 0, multicast=False) == 1


CANDIDATES = st.lists(
    st.builds(Candidate, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.integers(-5, 5)), max_size=6
)


@given(st.sampled_from(Balancing), CANDIDATES, st.integers(0, 10), st.booleans())
def test_what_is_always_so(balancing: Balancing, candidates: list[Candidate], turn: int, multicast: bool) -> None:
    at = choose(balancing, candidates, turn, multicast=multicast)
    eligible = [one for one in candidates if one.takes]
    if at < 0:
        assert not any(one.local or multicast or balancing in (STRICT, ON_DEMAND) for one in eligible)
        return
    assert candidates[at].takes
    if not candidates[at].local:
        assert multicast or balancing in (STRICT, ON_DEMAND)
        assert candidates[at].connected or not any(one.connected and one.takes and one.local for one in candidates)
