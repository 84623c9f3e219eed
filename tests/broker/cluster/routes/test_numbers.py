"""The numbers of a link: what was taken in is known, and how much is remembered does not grow."""

from __future__ import annotations

from pollux.cluster.routes.numbers import LANES, Number, Numbering, Taken
from pollux.formats.records import LINK_LIVES

ONE, TWO = b"1" * 8, b"2" * 8


def test_numbers_follow_each_other() -> None:
    numbering = Numbering(ONE)
    assert [numbering.next() for _ in range(2)] == [Number(ONE, 1), Number(ONE, 2)]


def test_what_is_sent_again_is_not_new() -> None:
    taken = Taken()
    assert taken.is_new(Number(ONE, 1))
    taken.take(Number(ONE, 3))
    assert not taken.is_new(Number(ONE, 3))
    assert not taken.is_new(Number(ONE, 1))
    assert taken.is_new(Number(ONE, 4))


def test_another_life_counts_for_itself() -> None:
    """Also that of a store that was restored from a copy: what it numbers anew is not taken for what was there."""
    taken = Taken([Number(ONE, 9)])
    assert taken.is_new(Number(TWO, 1))
    taken.take(Number(TWO, 1))
    assert not taken.is_new(Number(ONE, 9))


def test_the_oldest_lives_are_forgotten() -> None:
    taken = Taken(Number(bytes([at]) * 8, 1) for at in range(LINK_LIVES + 10))
    assert len(taken.numbers) == LINK_LIVES
    assert not taken.is_new(Number(bytes([LINK_LIVES + 9]) * 8, 1))
    assert taken.is_new(Number(bytes([9]) * 8, 1))


def test_several_processes_with_all_their_lanes_are_remembered() -> None:
    assert LINK_LIVES >= 4 * (LANES + 1)


def test_it_survives_being_written_down() -> None:
    taken = Taken([Number(ONE, 9), Number(TWO, 4)])
    assert Taken(taken.numbers).numbers == taken.numbers
