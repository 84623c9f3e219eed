"""Syntax tree to closures. Conditions give True, False or None (unknown), values give None for unknown.

Types are never mixed: a comparison of a number with a string (or of a boolean with either) is false,
whatever the operator (JMS 2.0 section 3.8.1.2). Only numbers have an order: < <= > >= and BETWEEN are false for
strings and booleans, also among themselves. Numbers compare by value; integers divide as Java's do.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, cast

from pollux.message import Message
from pollux.routing.selector import nodes
from pollux.routing.selector.like import compile_like
from pollux.routing.selector.values import getter

Condition = Callable[[Message], bool | None]
#: Gives str, int, float, bool, bytes or None.
Expression = Callable[[Message], Any]

_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_EQUALITY = ("=", "<>")
#: Beyond this an integer is no longer one of any use (Java's would have wrapped): unknown.
_INTEGER_LIMIT = 2**127


def comparable(left: object, right: object) -> bool:
    """Are both numbers, both strings or both booleans?"""
    if isinstance(left, bool) or isinstance(right, bool):
        return isinstance(left, bool) and isinstance(right, bool)
    if isinstance(left, str):
        return isinstance(right, str)
    return isinstance(left, int | float) and isinstance(right, int | float)


def compare(sign: str, left: object, right: object) -> bool | None:
    """The value of ``left sign right``."""
    if left is None or right is None:
        return None
    if not comparable(left, right) or (isinstance(left, bool | str) and sign not in _EQUALITY):
        return False
    return _COMPARE[sign](left, right)


def calculate(sign: str, left: object, right: object) -> int | float | None:
    """The value of ``left sign right``; unknown for anything but numbers and for a division of integers by zero."""
    if isinstance(left, bool) or isinstance(right, bool):
        return None
    if not isinstance(left, int | float) or not isinstance(right, int | float):
        return None
    try:
        if sign == "+":
            value = left + right
        elif sign == "-":
            value = left - right
        elif sign == "*":
            value = left * right
        else:
            value = _divide(sign, left, right)
    except (ZeroDivisionError, OverflowError, ValueError):
        return None
    return None if isinstance(value, int) and not -_INTEGER_LIMIT < value < _INTEGER_LIMIT else value


def _divide(sign: str, left: float, right: float) -> float:
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        if (left < 0) != (right < 0):
            quotient = -quotient
        return quotient if sign == "/" else left - quotient * right
    if sign == "%":
        return math.fmod(left, right)
    if right == 0:
        return math.nan if left == 0 or math.isnan(left) else math.copysign(math.inf, left) * math.copysign(1, right)
    return left / right


def to_number(value: object) -> object:
    """A string that is a number, as that number (``convert_string_expressions:``); all else as it is."""
    if isinstance(value, str) and len(value) <= 40:
        try:
            return int(value)
        except ValueError:
            try:
                return float(value)
            except ValueError:
                return value
    return value


class Compiler:
    """``convert``: strings are converted to numbers where they are compared with or calculated as one."""

    def __init__(self, *, convert: bool = False) -> None:
        self._convert = convert

    def condition(self, node: nodes.Node) -> Condition:
        """A function for a node that is true, false or unknown."""
        if isinstance(node, nodes.Logic):
            operands = [self.condition(operand) for operand in node.operands]
            return _all(operands) if node.operator == "AND" else _any(operands)
        if isinstance(node, nodes.Not):
            return self._not(node)
        if isinstance(node, nodes.Comparison):
            return self._comparison(node)
        if isinstance(node, nodes.Between):
            return _all(
                [
                    self._comparison(nodes.Comparison(">=", node.operand, node.low)),
                    self._comparison(nodes.Comparison("<=", node.operand, node.high)),
                ]
            )
        if isinstance(node, nodes.In):
            return self._in(node)
        if isinstance(node, nodes.Like):
            return self._like(node)
        if isinstance(node, nodes.IsNull):
            read = getter(node.operand.name)
            return lambda message: read(message) is None
        if isinstance(node, nodes.Literal):
            constant = node.value is True
            return lambda _: constant
        return _boolean(self.expression(node))

    def expression(self, node: nodes.Node) -> Expression:
        """A function for a node that has a value."""
        if isinstance(node, nodes.Name):
            return getter(node.name)
        if isinstance(node, nodes.Literal):
            value = node.value
            return lambda _: value
        if isinstance(node, nodes.Negative):
            return self._arithmetic("-", nodes.Literal(0), node.operand)
        if isinstance(node, nodes.Arithmetic):
            return self._arithmetic(node.operator, node.left, node.right)
        return self.condition(node)

    @staticmethod
    def _truth(operand: Condition) -> Condition:
        def negated(message: Message) -> bool | None:
            value = operand(message)
            return None if value is None else not value

        return negated

    def _not(self, node: nodes.Not) -> Condition:
        if isinstance(node.operand, nodes.IsNull):
            read = getter(node.operand.operand.name)
            return lambda message: read(message) is not None
        return self._truth(self.condition(node.operand))

    def _arithmetic(self, sign: str, left_node: nodes.Node, right_node: nodes.Node) -> Expression:
        left, right = self.expression(left_node), self.expression(right_node)
        if self._convert:
            return lambda message: calculate(sign, to_number(left(message)), to_number(right(message)))
        return lambda message: calculate(sign, left(message), right(message))

    def _comparison(self, node: nodes.Comparison) -> Condition:
        if self._convert:
            return self._converting(node)
        if isinstance(node.left, nodes.Name) and isinstance(node.right, nodes.Literal):
            return _with_literal(node.operator, getter(node.left.name), node.right.value)
        sign, left, right = node.operator, self.expression(node.left), self.expression(node.right)
        return lambda message: compare(sign, left(message), right(message))

    def _converting(self, node: nodes.Comparison) -> Condition:
        sign, left, right = node.operator, self.expression(node.left), self.expression(node.right)

        def compares(message: Message) -> bool | None:
            a, b = left(message), right(message)
            if sign not in _EQUALITY or isinstance(a, str) != isinstance(b, str):
                a, b = to_number(a), to_number(b)
            return compare(sign, a, b)

        return compares

    def _in(self, node: nodes.In) -> Condition:
        read = self.expression(node.operand)
        strings = frozenset(value for value in node.values if isinstance(value, str))
        booleans = frozenset(value for value in node.values if isinstance(value, bool))
        numbers = frozenset(
            value for value in node.values if isinstance(value, int | float) and not isinstance(value, bool)
        )

        def contains(message: Message) -> bool | None:
            value = read(message)
            if value is None:
                return None
            if isinstance(value, str):
                return value in strings
            return value in (booleans if isinstance(value, bool) else numbers)

        return contains

    def _like(self, node: nodes.Like) -> Condition:
        read = self.expression(node.operand)
        matches = compile_like(node.pattern, node.escape)

        def like(message: Message) -> bool | None:
            value = read(message)
            if value is None:
                return None
            return matches(value) if isinstance(value, str) else False

        return like


def _boolean(read: Expression) -> Condition:
    """A property on its own as a condition."""

    def truth(message: Message) -> bool | None:
        value = read(message)
        return None if value is None else value is True

    return truth


def _with_literal(sign: str, read: Expression, literal: str | float | bool) -> Condition:
    """The common case: property, operator, constant."""
    if isinstance(literal, str | bool) and sign not in _EQUALITY:
        return _never(read)
    if isinstance(literal, bool):
        wanted = literal if sign == "=" else not literal

        def boolean(message: Message) -> bool | None:
            value = read(message)
            return None if value is None else value is wanted

        return boolean
    if sign == "=" and isinstance(literal, str):

        def equal(message: Message) -> bool | None:
            value = read(message)
            return None if value is None else cast("bool", value == literal)

        return equal
    operation = _COMPARE[sign]
    classes = (str,) if isinstance(literal, str) else (int, float)

    def compares(message: Message) -> bool | None:
        value = read(message)
        if value.__class__ in classes:
            return operation(value, literal)
        return None if value is None else False

    return compares


def _never(read: Expression) -> Condition:
    """A comparison that no two values can fulfil."""
    return lambda message: None if read(message) is None else False


def _all(operands: list[Condition]) -> Condition:
    if len(operands) == 2:
        first, second = operands

        def both(message: Message) -> bool | None:
            left = first(message)
            if left is False:
                return False
            right = second(message)
            return right if left else (False if right is False else None)

        return both

    def every(message: Message) -> bool | None:
        result: bool | None = True
        for operand in operands:
            value = operand(message)
            if value is False:
                return False
            if value is None:
                result = None
        return result

    return every


def _any(operands: list[Condition]) -> Condition:
    def some(message: Message) -> bool | None:
        result: bool | None = False
        for operand in operands:
            value = operand(message)
            if value:
                return True
            if value is None:
                result = None
        return result

    return some
