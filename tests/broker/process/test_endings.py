"""Why a connection ends, and what is written meanwhile: decisions."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pollux.process.endings import Due, Seen, due, who_ended
from pollux.process.holds import Holds

DUE = {
    "a farewell takes too long": (Seen(closing=True, logged_in=False, blocked=True, took=True), Due.CUT_OFF),
    "nobody has logged in": (Seen(logged_in=False, blocked=True, took=True, heard=True), Due.NO_LOGIN),
    "nothing is taken, whatever was heard": (Seen(blocked=True, ttl=5.0, heard=True), Due.TAKES_NOTHING),
    "it has more time to take something": (Seen(blocked=True, early=True), Due.EARLY),
    "some is taken": (Seen(blocked=True, took=True), Due.TAKES),
    "no time to live": (Seen(ttl=0.0), Due.NEVER),
    "heard of": (Seen(ttl=5.0, heard=True), Due.LIVES),
    "silent": (Seen(ttl=5.0), Due.SILENT),
}


@pytest.mark.parametrize("case", DUE)
def test_what_a_passed_deadline_means(case: str) -> None:
    seen, expected = DUE[case]
    assert due(seen) is expected


def test_who_ended_a_connection() -> None:
    session: Any = SimpleNamespace(ended=("client", "DISCONNECT"))
    going: Any = SimpleNamespace(ended=None)
    reset = OSError("reset by peer")
    assert who_ended("too slow", session, reset, closing=True) == ("broker", "too slow")
    assert who_ended("", session, reset, closing=True) == ("client", "DISCONNECT")
    assert who_ended("", going, reset, closing=True) == ("broker", "it was closed")
    assert who_ended("", None, reset, closing=False) == ("network", "reset by peer")
    assert who_ended("", going, None, closing=False) == ("client", "without a farewell")


def test_what_was_written_before_the_next_hold_goes_when_one_ends() -> None:
    holds = Holds([0, 2, 2, 5])
    assert holds.end_first(7) == 2
    assert list(holds) == [0, 0, 3]
    assert holds.end_first(5) == 0
    assert holds.end_first(5) == 3
    assert list(holds) == [0]
    assert holds.end_first(2) == 2, "the last one lets all go"
    assert not holds
