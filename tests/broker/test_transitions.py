"""The check of a table of phases finds what is wrong with it."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from harness.transitions import assert_whole


class Light(Enum):
    RED = "red"
    GREEN = "green"
    OFF = "off"


class Other(Enum):
    LOUD = "loud"


RED, GREEN, OFF = Light
WHOLE: dict[Any, set[Any]] = {RED: {GREEN, OFF}, GREEN: {RED, OFF}, OFF: set()}


def test_a_whole_table_is_accepted() -> None:
    assert_whole({phase: frozenset(following) for phase, following in WHOLE.items()}, RED, {OFF})
    assert_whole({RED: frozenset({GREEN}), GREEN: frozenset({OFF}), OFF: frozenset({RED})}, RED)


@pytest.mark.parametrize(
    "wrong",
    [
        {RED: {OFF}},
        {RED: {OFF}, GREEN: {OFF}, OFF: set()},
        {**WHOLE, GREEN: {Other.LOUD}},
        {**WHOLE, OFF: {RED}},
        {**WHOLE, GREEN: set()},
        {**WHOLE, GREEN: {GREEN}},
        {**WHOLE, Other.LOUD: {RED}},
    ],
    ids=["missing", "never reached", "of another kind", "no end", "another end", "leads nowhere", "no phase"],
)
def test_a_table_that_is_not_whole_is_refused(wrong: dict[Any, set[Any]]) -> None:
    with pytest.raises(AssertionError):
        assert_whole({phase: frozenset(following) for phase, following in wrong.items()}, RED, {OFF})
