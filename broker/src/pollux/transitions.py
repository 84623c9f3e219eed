"""Changes of phase by tables, for whatever has phases: sessions of all protocols, the activation. Pure.

A table says what may follow what: ``{phase: frozenset of phases}``, with every phase of its enumeration as a key. It is
beside what it is of; ``harness/transitions.py`` looks at it as a whole.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping

_Phase = TypeVar("_Phase", bound=Enum)


class IllegalTransitionError(RuntimeError):
    """A change of phase that its table does not have: a defect of the broker, whatever was sent or configured."""


def follow(table: Mapping[_Phase, frozenset[_Phase]], before: _Phase, after: _Phase) -> _Phase:
    """Return ``after``. Raises IllegalTransitionError when the table does not let it follow ``before``."""
    if after not in table[before]:
        raise IllegalTransitionError(f"{type(before).__name__}: {before.value} cannot become {after.value}")
    return after
