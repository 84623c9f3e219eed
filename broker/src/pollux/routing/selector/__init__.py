"""Message selectors: the conditional expressions of JMS (SQL-92), compiled to functions.

``parse(text).matches(message)``. Text is never evaluated as code; its length, depth and the time to
match it are bounded. See ``parser`` for the grammar, ``values`` for the names of headers and
``compiler`` for the meaning.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from pollux.routing.selector.compiler import Compiler, Condition
from pollux.routing.selector.errors import SelectorError
from pollux.routing.selector.parser import parse_tree

if TYPE_CHECKING:
    from pollux.message import Message

__all__ = ["Selector", "SelectorError", "parse"]

#: Only shorter texts are kept parsed.
_CACHED_LENGTH = 2048
_CONVERT = "convert_string_expressions:"
_HYPHENS = "hyphenated_props:"
_PREFIXES = {
    _CONVERT: ("convert", True),
    "no_" + _CONVERT: ("convert", False),
    _HYPHENS: ("hyphens", True),
    "no_" + _HYPHENS: ("hyphens", False),
}


class Selector:
    """A condition on messages; ``text`` is what it was parsed from."""

    __slots__ = ("_condition", "text")

    def __init__(self, text: str, condition: Condition) -> None:
        self.text = text
        self._condition = condition

    def matches(self, message: Message) -> bool:
        """Is the condition true (not false and not unknown) for this message?"""
        return self._condition(message) is True

    def __repr__(self) -> str:
        return f"<Selector {self.text!r}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selector) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


def parse(text: str, *, strict: bool = True) -> Selector:
    """The selector ``text`` says. Raises SelectorError with the position and what was expected there.

    Not ``strict``, for what was stored when more was accepted: comparisons that ask for an order of strings or
    booleans are let through and are never true.
    """
    return _parse_cached(text, strict) if len(text) <= _CACHED_LENGTH else _parse(text, strict)


def _parse(text: str, strict: bool) -> Selector:
    options = {"convert": False, "hyphens": False}
    start = 0
    while True:
        prefix = next((prefix for prefix in _PREFIXES if text.startswith(prefix, start)), None)
        if prefix is None:
            break
        option, value = _PREFIXES[prefix]
        options[option] = value
        start += len(prefix)
    tree = parse_tree(text, hyphens=options["hyphens"], start=start, strict=strict)
    return Selector(text, Compiler(convert=options["convert"]).condition(tree))


_parse_cached = lru_cache(maxsize=1024)(_parse)
