"""Java properties files, read with the places of their entries so that they can be edited line by line. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass


# The bundle uses this module without what the broker depends on.
@dataclass(frozen=True, slots=True)
class Line:
    """One logical line of a properties file: key and value, and which physical lines it takes (from 0)."""

    key: str
    value: str
    start: int
    end: int


_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(text: str) -> list[Line]:
    """The entries of a Java properties file in order: comments, ``\\`` continuation, escapes, ``=``, ``:`` or blank."""
    lines = text.split("\n")
    entries: list[Line] = []
    index = 0
    while index < len(lines):
        start = index
        logical = lines[index].rstrip("\r").lstrip(" \t\f")
        index += 1
        if not logical or logical[0] in "#!":
            continue
        while _continues(logical) and index < len(lines):
            logical = logical[:-1] + lines[index].rstrip("\r").lstrip(" \t\f")
            index += 1
        key, value = _split(logical)
        entries.append(Line(key, value.rstrip(), start, index))
    return entries


def _continues(line: str) -> bool:
    return (len(line) - len(line.rstrip("\\"))) % 2 == 1


def _split(logical: str) -> tuple[str, str]:
    key: list[str] = []
    position = 0
    while position < len(logical):
        character = logical[position]
        if character == "\\" and position + 1 < len(logical):
            decoded, position = _escape(logical, position)
            key.append(decoded)
            continue
        if character in "=: \t\f":
            break
        key.append(character)
        position += 1
    rest = logical[position:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    value: list[str] = []
    position = 0
    while position < len(rest):
        if rest[position] == "\\" and position + 1 < len(rest):
            decoded, position = _escape(rest, position)
            value.append(decoded)
        else:
            value.append(rest[position])
            position += 1
    return "".join(key), "".join(value)


def _escape(text: str, position: int) -> tuple[str, int]:
    """The character the escape at ``position`` stands for, and where it ends."""
    character = text[position + 1]
    digits = text[position + 2 : position + 6]
    if character == "u" and re.fullmatch(r"[0-9a-fA-F]{4}", digits):
        return chr(int(digits, 16)), position + 6
    return _ESCAPES.get(character, character), position + 2


def escape_key(key: str) -> str:
    """``key`` as a properties file must spell it."""
    escaped = re.sub(r"([\\ =:])", r"\\\1", key)
    return "\\" + escaped if escaped[:1] in ("#", "!") else escaped


def escape_value(value: str) -> str:
    """``value`` as a properties file must spell it."""
    escaped = value.replace("\\", "\\\\")
    return "\\" + escaped if escaped[:1] == " " else escaped
