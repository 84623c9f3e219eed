"""Filters that Spark hands to the source: evaluated before a file is read where its name and header decide, else on
its records' numbers before any column is made.

Only comparisons with constants on the columns of `PUSHED`; Spark evaluates the rest. Nulls compare to nothing, as in
SQL.
"""

from __future__ import annotations

import json
import operator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)

from pollux.formats.records import RecordType
from pollux_pipeline.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from pollux_pipeline.sources.files import Part
    from pollux_pipeline.sources.records import Mask, Records

#: Rows that are not records of a file.
DAMAGE = "DAMAGE"
CHECKPOINT = "CHECKPOINT"
FOLDED = "FOLDED"
LIFE = "LIFE"
_OF_FILES = ("kind", "node_id", "epoch", "segment")
PUSHED = (*_OF_FILES, "record_type", "timestamp")
_NAMES = [RecordType(n).name if n in {int(t) for t in RecordType} else f"UNKNOWN({n})" for n in range(256)]
_COMPARE: dict[type[Filter], Any] = {
    EqualTo: operator.eq,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
}


@dataclass(frozen=True, slots=True)
class Condition:
    """One comparison of a column with constants."""

    column: str
    #: The filter's class name, for tests and plans.
    operation: str
    value: Any
    negated: bool = False

    def holds(self, value: Any) -> bool:
        """Whether a row with this value passes."""
        if value is None:
            return False
        if self.operation == "IsNotNull":
            return not self.negated
        if self.operation == "In":
            if None in self.value:  # SQL's three-valued logic: `x NOT IN (..., NULL)` is never true
                return not self.negated and value in self.value
            return (value in self.value) != self.negated
        if self.value is None:
            return False
        compare = next(function for kind, function in _COMPARE.items() if kind.__name__ == self.operation)
        return bool(compare(value, self.value)) != self.negated


def split(filters: Iterable[Filter]) -> tuple[list[Condition], list[Filter]]:
    """Return what the source can evaluate exactly, and what Spark has to."""
    taken: list[Condition] = []
    left: list[Filter] = []
    for one in filters:
        inner = one.child if isinstance(one, Not) else one
        known = isinstance(inner, (In, IsNotNull, *_COMPARE))
        attribute: tuple[str, ...] = getattr(inner, "attribute", ())
        column = attribute[0] if len(attribute) == 1 else ""
        if known and column in PUSHED:
            value = getattr(inner, "value", None)
            taken.append(Condition(column, type(inner).__name__, value, negated=isinstance(one, Not)))
        else:
            left.append(one)
    return taken, left


_WORDS = {
    "=": "EqualTo",
    ">": "GreaterThan",
    ">=": "GreaterThanOrEqual",
    "<": "LessThan",
    "<=": "LessThanOrEqual",
    "in": "In",
}


def parse_conditions(text: str) -> tuple[Condition, ...]:
    """Conditions from JSON: a list of [column, operator, value]. Raises InputError."""
    try:
        given = json.loads(text)
        found = [(str(column), str(word), value) for column, word, value in given]
    except (ValueError, TypeError):
        raise InputError(f'where: {text!r} is not a list like [["epoch", ">=", 5]]') from None
    for column, word, value in found:
        if column not in PUSHED:
            raise InputError(f"where: {column!r} is not one of {', '.join(PUSHED)}")
        if word not in _WORDS:
            raise InputError(f"where: {word!r} is not one of {', '.join(_WORDS)}")
        if (word == "in") != isinstance(value, list):
            raise InputError(f"where: {value!r} does not go with {word!r}")
    return tuple(Condition(column, _WORDS[word], value) for column, word, value in found)


class Conditions:
    """All that must hold for a row."""

    def __init__(self, conditions: Iterable[Condition] = ()) -> None:
        self._all = tuple(conditions)
        self._types = tuple(one for one in self._all if one.column == "record_type")
        self._times = tuple(one for one in self._all if one.column == "timestamp")
        self._files = tuple(one for one in self._all if one.column in _OF_FILES)

    def wants_file(self, part: Part) -> bool:
        """Whether any row of the file can pass."""
        if not all(one.holds(getattr(part, one.column)) for one in self._files):
            return False
        if part.kind == "checkpoint" or self.wants_type(DAMAGE):
            return True
        return any(self.wants_type(name) for name in _NAMES)

    def wants_type(self, name: str) -> bool:
        """Whether rows of this type can pass."""
        return all(one.holds(name) for one in self._types)

    def wants_row(self, row: dict[str, Any]) -> bool:
        """Whether a single row passes."""
        return all(one.holds(row.get(one.column)) for one in self._all)

    def select(self, records: Records) -> Records:
        """The records that pass; conditions on files are taken as decided."""
        if self._types:
            wanted = np.array([self.wants_type(name) for name in _NAMES])
            if not wanted.all():
                records = records.narrow(wanted[records.types])
        for condition in self._times:
            records = records.narrow(_passing(records, condition))
        return records


def _passing(records: Records, condition: Condition) -> Mask:
    values, valid = records.times()
    if condition.operation == "In":
        found = np.isin(values, [one for one in condition.value if one is not None])
        if condition.negated and None in condition.value:
            return np.zeros(len(values), np.bool_)
    elif condition.operation == "IsNotNull":
        found = np.ones(len(values), np.bool_)
    elif condition.value is None:
        return np.zeros(len(values), np.bool_)
    else:
        compare = next(function for kind, function in _COMPARE.items() if kind.__name__ == condition.operation)
        found = compare(values, condition.value)
    return cast("Mask", valid & (found != condition.negated))
