"""The syntax tree of a selector."""

from __future__ import annotations

from typing import NamedTuple, Union

Value = str | int | float | bool | None


class Literal(NamedTuple):
    """A constant. NULL is not one: it appears only in IS NULL."""

    value: str | int | float | bool


class Name(NamedTuple):
    """A property or header."""

    name: str


class Not(NamedTuple):
    """Negate a condition: NOT."""

    operand: Node


class Logic(NamedTuple):
    """``operator`` "AND" or "OR" of two or more."""

    operator: str
    operands: tuple[Node, ...]


class Comparison(NamedTuple):
    """``operator``: = <> < <= > >=."""

    operator: str
    left: Node
    right: Node


class Arithmetic(NamedTuple):
    """``operator``: + - * / %."""

    operator: str
    left: Node
    right: Node


class Negative(NamedTuple):
    """Negate a number: unary minus."""

    operand: Node


class Between(NamedTuple):
    """``low`` and ``high`` included."""

    operand: Node
    low: Node
    high: Node


class In(NamedTuple):
    """Is it one of these?"""

    operand: Node
    values: tuple[str | int | float | bool, ...]


class Like(NamedTuple):
    """``pattern``: ``%`` any characters, ``_`` one, ``escape`` before either (or itself) takes it literally."""

    operand: Node
    pattern: str
    escape: str | None


class IsNull(NamedTuple):
    """Ask whether there is no such property: IS NULL."""

    operand: Name


Node = Union[Literal, Name, Not, Logic, Comparison, Arithmetic, Negative, Between, In, Like, IsNull]  # noqa: UP007  (recursive)
