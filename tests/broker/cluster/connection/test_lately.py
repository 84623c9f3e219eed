"""Which messages came from another node lately."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from pollux.cluster.connection import lately
from pollux.cluster.connection.lately import Lately

if TYPE_CHECKING:
    import pytest


@hypothesis_settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(st.lists(st.integers(1, 3), max_size=5), st.integers(0, 2), st.integers(0, 4)), max_size=12))
def test_each_id_is_known_until_it_is_forgotten(steps: list[tuple[list[int], int, int]]) -> None:
    """Gaps of ids, time that passes, and how old what is forgotten is at least."""
    found, model = Lately(), dict[int, float]()
    number, now = 0, 0.0
    for gaps, passed, age in steps:
        ids = []
        for gap in gaps:
            number += gap
            ids.append(number)
        now += passed
        found.add(ids, now)
        model |= dict.fromkeys(ids, now)
        gone = {one for one, when in model.items() if when <= now - age}
        assert found.forget(now - age) is bool(gone)
        model = {one: when for one, when in model.items() if one not in gone}
        assert {one: found.when(one) for one in range(number + 3)} == {one: model.get(one) for one in range(number + 3)}
        assert (bool(found), len(found)) == (bool(model), len(model))
        if model:
            assert found.oldest == min(model.values())


def test_what_comes_together_is_one_run() -> None:
    """Breaks when a stream of messages takes memory for each of them."""
    found = Lately()
    for first in range(1, 100_000, 500):
        found.add(range(first, first + 500), 7.0)
    assert (len(found), len(found._when)) == (100_000, 1)


def test_runs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lately, "_MOST", 10)
    found = Lately()
    for number in range(100):
        found.add([3 * number], float(number))
        assert len(found) <= 10
    assert found.when(3 * 99) == 99.0
