"""LIKE patterns, matched without backtracking: the time is bounded by text times pattern."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def split_pattern(pattern: str, escape: str | None) -> list[list[str | None]]:
    """The parts between the ``%`` of a pattern; each a list of characters, None for ``_`` (any one)."""
    parts: list[list[str | None]] = [[]]
    literal = False
    for character in pattern:
        if literal:
            parts[-1].append(character)
            literal = False
        elif character == escape:
            literal = True
        elif character == "%":
            parts.append([])
        else:
            parts[-1].append(None if character == "_" else character)
    if literal and escape is not None:
        parts[-1].append(escape)  # nothing follows it: it stands for itself
    return parts


def compile_like(pattern: str, escape: str | None) -> Callable[[str], bool]:
    """A function that says whether a text matches the pattern as a whole."""
    parts = split_pattern(pattern, escape)
    first, last = parts[0], parts[-1]
    if len(parts) == 1:
        return _whole(first)
    if all(None not in part for part in parts):
        return _plain(["".join(filter(None, part)) for part in parts])
    return _general(parts, len(first), len(last))


def _expression(part: list[str | None]) -> re.Pattern[str]:
    return re.compile("".join("." if character is None else re.escape(character) for character in part), re.DOTALL)


def _whole(part: list[str | None]) -> Callable[[str], bool]:
    if None not in part:
        text = "".join(filter(None, part))
        return lambda value: value == text
    matches = _expression(part).fullmatch
    return lambda value: matches(value) is not None


def _plain(parts: list[str]) -> Callable[[str], bool]:
    """Only ``%``: prefix, suffix and parts that must follow each other between."""
    prefix, *between, suffix = parts
    between = [part for part in between if part]
    least = len(prefix) + len(suffix)

    def matches(value: str) -> bool:
        if len(value) < least or not value.startswith(prefix) or not value.endswith(suffix):
            return False
        at = len(prefix)
        end = len(value) - len(suffix)
        for part in between:
            at = value.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True

    return matches


def _general(parts: list[list[str | None]], prefix_length: int, suffix_length: int) -> Callable[[str], bool]:
    """As ``_plain`` with ``_`` in the parts; each part has a fixed length, so leftmost is best."""
    prefix, *between, suffix = [_expression(part) for part in parts]
    least = prefix_length + suffix_length
    searches = [expression.search for expression in between if expression.pattern]

    def matches(value: str) -> bool:
        if len(value) < least or prefix.match(value) is None:
            return False
        end = len(value) - suffix_length
        if suffix.match(value, end) is None:
            return False
        at = prefix_length
        for search in searches:
            found = search(value, at, end)
            if found is None:
                return False
            at = found.end()
        return True

    return matches
