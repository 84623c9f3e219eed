"""Tokens to a syntax tree: the selector grammar of JMS 2.0 section 3.8.1 by recursive descent.

Precedence from loose to tight: OR; AND; NOT; = <> IS; < <= > >= LIKE BETWEEN IN; + -; * / %; unary + -.
Chains of one operator are flat, so that only parentheses, NOT and signs nest; their depth is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.routing.selector.errors import SelectorError
from pollux.routing.selector.lexer import LONG_LIMIT, Token, tokenize
from pollux.routing.selector.nodes import (
    Arithmetic,
    Between,
    Comparison,
    In,
    IsNull,
    Like,
    Literal,
    Logic,
    Name,
    Negative,
    Node,
    Not,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    _Rule = Callable[[], Node]

#: Characters of one selector.
MAX_LENGTH = 32_768
#: Parentheses, NOTs and signs inside each other.
MAX_DEPTH = 32
#: Height of the tree: nesting, and arithmetic in a row (evaluated one inside the other).
MAX_HEIGHT = 100

_CONDITIONS = (Not, Logic, Comparison, Between, In, Like, IsNull)


def parse_tree(text: str, *, hyphens: bool = False, start: int = 0, strict: bool = True) -> Node:
    """The tree of the selector that begins at ``start`` of ``text``. Raises SelectorError.

    Not ``strict``: constants that cannot be ordered are let through; such comparisons are never true.
    """
    if len(text) > MAX_LENGTH:
        raise SelectorError(f"it has {len(text)} characters, {MAX_LENGTH} are allowed", text[:60], 0)
    tree = _Parser(text, tokenize(text, hyphens=hyphens, start=start), strict=strict).selector()
    if _height(tree) > MAX_HEIGHT:
        raise SelectorError(f"more than {MAX_HEIGHT} operations depend on each other", text, start)
    return tree


def _height(tree: Node) -> int:
    """The height of the tree, without recursion."""
    height = 0
    level: list[Node] = [tree]
    while level:
        height += 1
        following: list[Node] = []
        for node in level:
            if isinstance(node, Logic):
                following.extend(node.operands)
            elif isinstance(node, Comparison | Arithmetic):
                following += (node.left, node.right)
            elif isinstance(node, Between):
                following += (node.operand, node.low, node.high)
            elif isinstance(node, Not | Negative):
                following.append(node.operand)
        level = following
    return height


def is_condition(node: Node) -> bool:
    """Can the node be true or false?"""
    return isinstance(node, (*_CONDITIONS, Name)) or (isinstance(node, Literal) and isinstance(node.value, bool))


class _Parser:
    def __init__(self, text: str, tokens: list[Token], *, strict: bool) -> None:
        self._text = text
        self._strict = strict
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    # -- tokens

    @property
    def _token(self) -> Token:
        return self._tokens[self._at]

    def _error(self, problem: str, token: Token | None = None) -> SelectorError:
        return SelectorError(problem, self._text, (token or self._token).position)

    def _is(self, value: str) -> bool:
        token = self._token
        return token.kind in ("symbol", "keyword") and token.value == value

    def _accept(self, value: str) -> bool:
        if self._is(value):
            self._at += 1
            return True
        return False

    def _expect(self, value: str, where: str) -> None:
        if not self._accept(value):
            raise self._error(f"expected {value} {where}, found {self._token}")

    def _deeper(self) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise self._error(f"nested more than {MAX_DEPTH} levels deep")

    # -- grammar

    def selector(self) -> Node:
        first = self._token
        node = self._condition(self._or(), first)
        if self._token.kind != "end":
            raise self._error(f"expected AND, OR or the end, found {self._token}")
        return node

    def _condition(self, node: Node, token: Token) -> Node:
        if not is_condition(node):
            raise self._error("expected a condition, found a value (nothing is compared with it)", token)
        return node

    def _or(self) -> Node:
        return self._chain("OR", lambda: self._chain("AND", self._not))

    def _chain(self, operator: str, operand: _Rule) -> Node:
        first = self._token
        node = operand()
        if not self._is(operator):
            return node
        operands = [self._condition(node, first)]
        while self._accept(operator):
            token = self._token
            operands.append(self._condition(operand(), token))
        return Logic(operator, tuple(operands))

    def _not(self) -> Node:
        if not self._accept("NOT"):
            return self._equality()
        self._deeper()
        token = self._token
        node = Not(self._condition(self._not(), token))
        self._depth -= 1
        return node

    def _equality(self) -> Node:
        first = self._token
        node = self._relation()
        while True:
            token = self._token
            if self._is("=") or self._is("<>"):
                self._at += 1
                node = Comparison(str(token.value), node, self._relation())
            elif self._accept("IS"):
                negative = self._accept("NOT")
                self._expect("NULL", "after IS" + (" NOT" if negative else ""))
                if not isinstance(node, Name):
                    raise self._error("IS NULL asks for a property, found something else on its left", first)
                node = Not(IsNull(node)) if negative else IsNull(node)
            else:
                return node

    def _relation(self) -> Node:
        first = self._token
        node = self._sum()
        token = self._token
        if token.kind == "symbol" and token.value in ("<", "<=", ">", ">="):
            self._at += 1
            sign = str(token.value)
            node = self._ordered(node, sign, first)
            return Comparison(sign, node, self._ordered_sum(sign))
        negative = False
        if self._is("NOT"):
            following = self._tokens[self._at + 1]
            if following.kind != "keyword" or following.value not in ("LIKE", "BETWEEN", "IN"):
                raise self._error(f"expected LIKE, BETWEEN or IN after NOT, found {following}", following)
            self._at += 1
            negative = True
        if self._accept("LIKE"):
            node = self._like(self._property(node, "LIKE", first))
        elif self._accept("BETWEEN"):
            node = self._ordered(node, "BETWEEN", first)
            low = self._ordered_sum("BETWEEN")
            self._expect("AND", "between the bounds of BETWEEN")
            node = Between(node, low, self._ordered_sum("BETWEEN"))
        elif self._accept("IN"):
            node = self._in(self._property(node, "IN", first))
        return Not(node) if negative else node

    def _ordered_sum(self, operator: str) -> Node:
        token = self._token
        return self._ordered(self._sum(), operator, token)

    def _ordered(self, node: Node, operator: str, token: Token) -> Node:
        """An operand of an operator that asks which is larger: JMS orders numbers only."""
        constant = isinstance(node, Literal) and isinstance(node.value, str | bool)
        if self._strict and (constant or isinstance(node, _CONDITIONS)):
            raise self._error(
                f"{operator} compares numbers; strings and booleans are compared with = and <> only", token
            )
        return node

    def _property(self, node: Node, operator: str, token: Token) -> Name:
        if not isinstance(node, Name):
            raise self._error(f"{operator} asks for a property on its left", token)
        return node

    def _like(self, operand: Name) -> Node:
        pattern = self._string("after LIKE")
        escape: str | None = None
        if self._accept("ESCAPE"):
            token = self._token
            escape = self._string("after ESCAPE")
            if len(escape) != 1:
                raise self._error("ESCAPE takes a string of one character", token)
        return Like(operand, pattern, escape)

    def _string(self, where: str) -> str:
        token = self._token
        if token.kind != "string":
            raise self._error(f"expected a string {where}, found {token}")
        self._at += 1
        return str(token.value)

    def _in(self, operand: Name) -> Node:
        self._expect("(", "after IN")
        values: list[str | int | float | bool] = []
        while True:
            token = self._token
            node = self._unary()
            if not isinstance(node, Literal):
                raise self._error(f"expected a string or number in the list of IN, found {token}", token)
            values.append(node.value)
            if not self._accept(","):
                break
        self._expect(")", "after the list of IN")
        return In(operand, tuple(values))

    def _sum(self) -> Node:
        return self._arithmetic(("+", "-"), lambda: self._arithmetic(("*", "/", "%"), self._unary))

    def _arithmetic(self, operators: tuple[str, ...], operand: _Rule) -> Node:
        first = self._token
        node = operand()
        while self._token.kind == "symbol" and self._token.value in operators:
            operator = str(self._token.value)
            self._at += 1
            token = self._token
            node = Arithmetic(operator, self._numeric(node, first), self._numeric(operand(), token))
        return node

    def _numeric(self, node: Node, token: Token) -> Node:
        if isinstance(node, Name | Arithmetic | Negative):
            return node
        if isinstance(node, Literal) and not isinstance(node.value, str | bool):
            return node
        raise self._error("expected a number or a property to calculate with", token)

    def _unary(self) -> Node:
        if self._is("+") or self._is("-"):
            negative = self._token.value == "-"
            self._at += 1
            self._deeper()
            token = self._token
            if negative and token.kind == "number" and isinstance(token.value, int):
                self._at += 1
                node: Node = Literal(-token.value)  # here 2**63 is in range
            else:
                node = self._numeric(self._unary(), token)
                if negative:
                    node = Literal(-node.value) if isinstance(node, Literal) else Negative(node)  # type: ignore[operator]  # numeric
            self._depth -= 1
            return node
        return self._primary()

    def _primary(self) -> Node:
        token = self._token
        if token.kind == "number" and token.value == LONG_LIMIT and isinstance(token.value, int):
            raise self._error("an integer has at most 64 bits")
        if token.kind in ("number", "string"):
            self._at += 1
            return Literal(token.value)
        if token.kind == "name":
            self._at += 1
            return Name(str(token.value))
        if self._accept("TRUE"):
            return Literal(True)
        if self._accept("FALSE"):
            return Literal(False)
        if self._accept("("):
            self._deeper()
            node = self._or()
            self._expect(")", f"to close the parenthesis of character {token.position + 1}")
            self._depth -= 1
            return node
        raise self._error(f"expected a property, a value or '(', found {token}")
