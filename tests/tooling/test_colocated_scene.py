"""Decisions of looks at the slots of hosts that have each other's backups. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from lab.colocated import Slot, stays_after, two_lives
from pollux.drill.members import DOWN, Seen

if TYPE_CHECKING:
    from lab.colocated import Stay

HOME, AWAY = Slot("a", 0), Slot("b", 1)
LIVE, LATER, WAITS = Seen("live", "n", 3), Seen("live", "n", 4), Seen("ready", "n", None)
OTHER = Seen("live", "m", 4)


def looks(*found: Seen, began: float, took: float) -> tuple[Stay, ...]:
    """One look a second from the time ``began`` on, each of which takes some seconds."""
    stays: tuple[Stay, ...] = ()
    for number, seen in enumerate(found):
        stays = stays_after(stays, seen, began + number, began + number + took)
    return stays


@pytest.mark.parametrize(
    ("home", "away", "broken"),
    [
        ((LIVE, LIVE, LIVE), (WAITS, WAITS, WAITS), False),
        # It went from one slot to the other between two looks, and came back.
        ((LIVE, LIVE, DOWN), (WAITS, WAITS, LATER), False),
        ((LIVE, LIVE, DOWN, WAITS, Seen("live", "n", 5)), (WAITS, WAITS, LATER, LATER), False),
        # The last time that it certainly served is when it was asked; it may have been gone when it had answered.
        ((LIVE, LIVE), (WAITS, LATER, LATER), False),
        ((LIVE, LIVE, LIVE, LIVE), (WAITS, LATER, LATER, WAITS), True),
        # Two that were live only for one look each may have been so one after the other.
        ((DOWN, LIVE, DOWN), (DOWN, LATER, DOWN), False),
        # Of two lives one ended before the other one was looked at again.
        ((LIVE, LIVE, LIVE, DOWN, DOWN), (LATER, LATER, DOWN, DOWN, DOWN), True),
        ((LIVE, LIVE, LIVE), (OTHER, OTHER, OTHER), False),
        # The same epoch again after it was not live is another stay.
        ((LIVE, DOWN, DOWN, LIVE), (WAITS, LATER, LATER, WAITS), False),
    ],
)
def test_two_lives_are_two_that_certainly_served_at_once(
    home: tuple[Seen, ...], away: tuple[Seen, ...], *, broken: bool
) -> None:
    found = two_lives({HOME: looks(*home, began=0, took=0.5), AWAY: looks(*away, began=0.1, took=0.2)})
    assert found == ("node n was served at a, slot 0 and at b, slot 1 at once" if broken else "")
