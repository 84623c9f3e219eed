"""Asserts all that holds of every table of phases (:mod:`pollux.transitions`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pollux.transitions import IllegalTransitionError, follow

if TYPE_CHECKING:
    from collections.abc import Mapping
    from collections.abc import Set as AbstractSet
    from enum import Enum


def reached(table: Mapping[Any, frozenset[Any]], first: Enum) -> set[Enum]:
    """Return the phases that ``first`` leads to, itself included."""
    found, ahead = {first}, [first]
    while ahead:
        new = table[ahead.pop()] - found
        found |= new
        ahead += new
    return found


def assert_whole(table: Mapping[Any, frozenset[Any]], first: Enum, ends: AbstractSet[Enum] = frozenset()) -> None:
    """Assert that a table is one of all phases of ``first``'s kind, which begins with ``first``.

    Every phase is reached from there; nothing follows ``ends``, and every phase leads to one, or, without ends, back to
    ``first``. What the table has may follow, and nothing else.
    """
    phases = {*type(first)}
    assert {*table} == phases, f"not in the table: {phases ^ {*table}}"
    named = {after for following in table.values() for after in following}
    assert named <= phases, f"of another kind: {named - phases}"
    assert reached(table, first) == phases, f"never reached: {phases - reached(table, first)}"
    assert {phase for phase, following in table.items() if not following} == ends
    for phase in phases:
        assert reached(table, phase) & (ends or {first}), f"{phase} leads nowhere"
    for before in phases:
        for after in phases:
            if after in table[before]:
                assert follow(table, before, after) is after
            else:
                with pytest.raises(IllegalTransitionError, match=f"{before.value} cannot become {after.value}"):
                    follow(table, before, after)
