"""The activation sequence: every row of its table. What it is for is shown by :mod:`broker.ha.test_pair_model`."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.cluster.sequence import Action, judge

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
