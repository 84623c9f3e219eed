"""Where connections come from, and who goes when they hold too much."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pollux.process.sources import Held, place_of, who_goes


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("", ""),
        ("/run/pollux", "/run/pollux"),
    ],
)
def test_places(address: str, place: str) -> None:
    assert place_of(address) == place


def test_the_flood_goes_and_not_who_comes_beside_it() -> None:
    flood = [(f"flood-{number}", Held("flooder", 1000, float(number))) for number in range(100)]
    honest = [("same host", Held("flooder", 10, 99.0)), ("other host", Held("other", 5000, 0.0))]
    gone = list(who_goes([*honest, *flood], 50_000))
    assert gone == [f"flood-{number}" for number in range(50)]


HELD = st.builds(Held, st.sampled_from("abc"), st.integers(1, 100), st.floats(0, 100))


@given(st.lists(HELD), st.integers(-10, 5000))
def test_no_more_go_than_must(held: list[Held], excess: int) -> None:
    """Breaks when it stops early while somebody is left, goes on when enough is free, or names somebody twice."""
    gone = list(who_goes(list(enumerate(held)), excess))
    assert len(set(gone)) == len(gone)
    freed = [held[number].size for number in gone]
    assert sum(freed) >= min(excess, sum(each.size for each in held))
    assert not freed or sum(freed[:-1]) < excess
    # Whoever stays at a place is no larger than who went there.
    for number in gone:
        place = held[number].place
        staying = [each.size for at, each in enumerate(held) if at not in gone and each.place == place]
        assert not staying or max(staying) <= held[number].size
