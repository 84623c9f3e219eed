"""Redistribution: what is moved when, and what stays."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from pollux.cluster.routes.moves import HOLD, Demand, Elsewhere, Moves

if TYPE_CHECKING:
    from collections.abc import Callable

NOBODY, ANY = Demand(everything=False), Demand(everything=True)
RED = Demand(everything=False, filters=frozenset(("red",)))
A, B = Elsewhere(b"A", "q", ANY), Elsewhere(b"B", "q", RED)


def colour(name: str) -> Callable[[str], bool]:
    return lambda text: text == name


def test_what_nobody_takes_here_goes_to_who_takes_it() -> None:
    moves = Moves(0)
    moves.update(NOBODY, [A], 10)
    assert moves.target(colour("red"), None, 10) == A


def test_what_somebody_takes_here_stays() -> None:
    moves = Moves(0)
    moves.update(ANY, [A], 10)
    assert not moves.ready(10)
    assert moves.target(colour("red"), None, 10) is None
    moves.update(RED, [A], 11)
    assert moves.target(colour("red"), None, 11) is None
    assert moves.target(colour("blue"), None, 11) == A


def test_a_class_that_nobody_wants_does_not_hold_up_another() -> None:
    moves = Moves(0)
    moves.update(NOBODY, [B], 0)
    assert moves.target(colour("blue"), None, 0) is None
    assert moves.target(colour("red"), None, 0) == B


def test_never_with_a_negative_delay() -> None:
    moves = Moves(-1)
    assert moves.update(NOBODY, [A], 0) is None
    assert moves.target(colour("red"), None, 1e9) is None


def test_the_delay_begins_anew_when_a_consumer_was_here() -> None:
    moves = Moves(5)
    assert moves.update(NOBODY, [A], 10) == 15
    assert moves.update(NOBODY, [A], 12) == 15
    assert moves.target(colour("red"), None, 14.9) is None
    assert moves.update(ANY, [A], 14.9) is None
    assert moves.update(NOBODY, [A], 20) == 25
    assert moves.target(colour("red"), None, 24.9) is None
    assert moves.target(colour("red"), None, 25) == A


def test_the_delay_is_of_each_class() -> None:
    moves = Moves(5)
    moves.update(NOBODY, [B], 0)
    assert moves.update(NOBODY, [B, A], 4) == 5
    assert moves.target(colour("red"), None, 5) == B
    assert moves.target(colour("blue"), None, 5) is None
    assert moves.target(colour("blue"), None, 9) == A


def test_a_node_that_is_not_connected_and_a_queue_that_does_not_take_it_get_nothing() -> None:
    moves = Moves(0)
    moves.update(NOBODY, [A._replace(connected=False), Elsewhere(b"C", "q", ANY, filter="blue")], 0)
    assert moves.target(colour("red"), None, 0) is None
    assert moves.target(colour("blue"), None, 0) is not None


def test_what_was_moved_here_stays_for_a_while() -> None:
    moves = Moves(0)
    moves.update(NOBODY, [A], 10)
    assert moves.target(colour("red"), 10, 10 + HOLD - 0.1) is None
    assert moves.target(colour("red"), 10, 10 + HOLD) == A


def test_unless_its_consumer_left() -> None:
    moves = Moves(0)
    moves.update(RED, [A], 10)
    moves.update(NOBODY, [A], 11)
    assert moves.target(colour("red"), 10.5, 11) == A
    assert moves.target(colour("blue"), 10.5, 11) is None
    assert moves.target(colour("red"), 11.5, 11.6) is None


def test_in_turn_to_those_with_credit() -> None:
    moves = Moves(0)
    far = Elsewhere(b"C", "q", ANY, free=1)
    near = Elsewhere(b"D", "q", ANY, free=1)
    moves.update(NOBODY, [A, far, near], 0)
    assert {moves.target(colour("red"), None, 0) for _ in range(4)} == {far, near}


def test_the_only_place_takes_all_that_may_be_moved_and_nothing_sooner_than_else() -> None:
    """The short way of most messages says what the long one says."""
    only = Elsewhere(b"n", "q", Demand(everything=True))
    cases: list[tuple[Demand, tuple[Elsewhere, ...]]] = [
        (Demand(everything=False), (only,)),
        (Demand(everything=True), (only,)),
        (Demand(everything=False, filters=frozenset(("a",))), (only,)),
        (Demand(everything=False), (only._replace(filter="a"),)),
        (Demand(everything=False), (only._replace(connected=False),)),
        (Demand(everything=False), (only._replace(demand=Demand(everything=False, filters=frozenset(("a",)))),)),
        (Demand(everything=False), (only, only._replace(node=b"m", demand=Demand(everything=False)))),
    ]
    for here, elsewhere in cases:
        for delay, text, moved_at, group in itertools.product(
            (-1.0, 0.0, 1.0), ("a", "b"), (None, 10.0), (None, "group")
        ):
            moves = Moves(delay)
            moves.update(here, elsewhere, 10.0)
            for now in (10.0, 10.5, 11.0, 13.0):
                short = moves.target(lambda one, text=text: one == text, moved_at, now, group)  # type: ignore[misc]
                kept, moves._only = moves._only, None
                assert short == moves.target(lambda one, text=text: one == text, moved_at, now, group)  # type: ignore[misc]
                moves._only = kept
        assert (moves._only is not None) is ((here, elsewhere) == cases[0])


def test_all_goes_to_the_only_place_that_takes_all_once_its_delay_is_over() -> None:
    moves = Moves(5)
    moves.update(NOBODY, [A], 10)
    assert (moves.only(14.9), moves.only(15)) == (None, A)
    for here, elsewhere in ((RED, [A]), (NOBODY, [B]), (NOBODY, [A, B]), (NOBODY, [A._replace(filter="red")])):
        moves.update(here, elsewhere, 20)
        assert moves.only(100) is None


def test_classes_are_due_one_by_one() -> None:
    """A mover looks again at what it passed over when one more of them is."""
    moves = Moves(5)
    moves.update(NOBODY, [B], 10)
    moves.update(NOBODY, [B, A], 12)
    assert [moves.due(at) for at in (14, 15, 17)] == [set(), {"red"}, {"red", ""}]
