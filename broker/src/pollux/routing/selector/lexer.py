"""Selector text to tokens. Positions are kept for error messages."""

from __future__ import annotations

import re
from typing import NamedTuple

from pollux.routing.selector.errors import SelectorError

KEYWORDS = frozenset({"AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"})

#: 2**63 is only valid behind a minus; the parser sees to that.
LONG_LIMIT = 2**63


class Token(NamedTuple):
    """``kind``: keyword, name, string, number, symbol or end. ``value``: its meaning (keywords in capitals)."""

    kind: str
    value: str | int | float
    position: int

    def __str__(self) -> str:
        if self.kind == "end":
            return "the end"
        return repr(self.value) if self.kind in ("string", "name") else str(self.value)


_TOKEN = re.compile(
    r"""
    (?P<space>\s+)
    |(?P<float>(?:\d+\.\d*|\.\d+)(?:[eE][+-]?\d+)?[fFdD]?|\d+[eE][+-]?\d+[fFdD]?|\d+[fFdD](?![\w$]))
    |(?P<hex>0[xX][0-9a-fA-F]+)[lL]?
    |(?P<integer>\d+)[lL]?
    |(?P<string>'(?:[^']|'')*')
    |(?P<quoted>"(?:[^"]|"")*")
    |(?P<name>[^\W\d][\w$.]*|\$[\w$.]*)
    |(?P<wrong>==|!=)
    |(?P<symbol><>|<=|>=|[=<>()+\-*/%,])
    """,
    re.VERBOSE,
)
_HYPHENATED = re.compile(r"[^\W\d][\w$.]*(?:-[^\W\d][\w$.]*)*|\$[\w$.]*")
_AFTER_NUMBER = re.compile(r"[\w$.]")


def tokenize(text: str, *, hyphens: bool = False, start: int = 0) -> list[Token]:
    """All tokens from ``start``, an "end" last. ``hyphens``: names may contain ``-`` between words."""
    tokens: list[Token] = []
    position = start
    while position < len(text):
        found = _TOKEN.match(text, position)
        if found is None or found.lastgroup == "wrong":
            raise SelectorError(_unexpected(text, position), text, position)
        kind = found.lastgroup
        if kind != "space":
            if kind == "name" and hyphens and (longer := _HYPHENATED.match(text, position)) is not None:
                found = longer
                tokens.append(_word(longer.group(), position))
            else:
                tokens.append(_token(kind or "", found, text, position))
        position = found.end()
        if kind in ("float", "hex", "integer") and _AFTER_NUMBER.match(text, position):
            raise SelectorError(f"a number ends here, {text[position]!r} cannot follow it", text, position)
    tokens.append(Token("end", "", len(text)))
    return tokens


def _unexpected(text: str, position: int) -> str:
    character = text[position]
    if character in "'\"":
        return f"the {'string' if character == chr(39) else 'name'} that begins here has no closing {character}"
    if text.startswith("!=", position):
        return "'!=' is not an operator; unequal is '<>'"
    if text.startswith("==", position):
        return "'==' is not an operator; equal is '='"
    return f"{character!r} is not part of any selector"


def _word(word: str, position: int) -> Token:
    capitals = word.upper()
    return Token("keyword", capitals, position) if capitals in KEYWORDS else Token("name", word, position)


def _token(kind: str, found: re.Match[str], text: str, position: int) -> Token:
    written = found.group(kind)
    if kind == "name":
        return _word(written, position)
    if kind == "string":
        return Token("string", written[1:-1].replace("''", "'"), position)
    if kind == "quoted":
        name = written[1:-1].replace('""', '"')
        if not name:
            raise SelectorError("a name cannot be empty", text, position)
        return Token("name", name, position)
    if kind == "symbol":
        return Token("symbol", written, position)
    return Token("number", _number(kind, written, text, position), position)


def _number(kind: str, written: str, text: str, position: int) -> int | float:
    if kind == "float":
        value = float(written.rstrip("fFdD"))
        if value in (float("inf"), float("-inf")):
            raise SelectorError(f"{written} is too large for a number", text, position)
        return value
    if len(written) > 25:
        raise SelectorError("an integer has at most 64 bits", text, position)
    try:
        # Java's notation: 0x is hexadecimal, another leading 0 is octal
        base = 16 if kind == "hex" else 8 if written.startswith("0") else 10
        number = int(written, base)
    except ValueError:
        raise SelectorError(f"{written} is not an octal number (a leading 0 makes it one)", text, position) from None
    if kind == "hex" and LONG_LIMIT <= number < 2 * LONG_LIMIT:
        number -= 2 * LONG_LIMIT  # 0xFFFFFFFFFFFFFFFF is -1, as in Java
    if not -LONG_LIMIT <= number <= LONG_LIMIT:
        raise SelectorError("an integer has at most 64 bits", text, position)
    return number
