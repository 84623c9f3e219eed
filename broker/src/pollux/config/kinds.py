"""Kinds of values in broker.xml: how each is written, parsed and described in the documentation.

A kind is attached to a field of a record with ``typing.Annotated``; the loader, the validators and
the reference table of ``docs/configuration.md`` all read it from there. Kinds know nothing of XML
and do no I/O: they turn text into a value or raise :class:`ValueError` with what is allowed.
"""

from __future__ import annotations

import re
from enum import Enum
from pathlib import Path
from typing import ClassVar

from msgspec import Struct

from pollux.config.nearest import did_you_mean

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB


class Kind(Struct, frozen=True):
    """Text as it is written, after substitution. Base of all kinds."""

    label: ClassVar[str] = "text"

    def parse(self, text: str) -> object:
        """Return the value ``text`` stands for, or raise ValueError saying what is allowed."""
        return text

    def describe(self) -> str:
        """Type, unit and range for the reference table."""
        return self.label

    def render(self, value: object) -> str:
        """Write a value as it would stand in broker.xml."""
        if value is None:
            return ""
        return str(value).lower() if isinstance(value, bool) else str(value)


class Text(Kind, frozen=True):
    """Any text; ``required`` refuses the empty one."""

    required: bool = False

    def parse(self, text: str) -> str:
        if self.required and not text.strip():
            raise ValueError("must not be empty")
        return text


class Boolean(Kind, frozen=True):
    """``true`` or ``false`` (XML Schema also allows 1 and 0)."""

    label: ClassVar[str] = "true | false"
    _values: ClassVar[dict[str, bool]] = {"true": True, "1": True, "false": False, "0": False}

    def parse(self, text: str) -> bool:
        try:
            return self._values[text.strip().lower()]
        except KeyError:
            raise ValueError(f"{text.strip()!r} is not a boolean: allowed are true and false") from None


_INTEGER = re.compile(r"[+-]?[0-9]{1,19}", re.ASCII)


def _integer(text: str) -> int:
    text = text.strip()
    if not _INTEGER.fullmatch(text):
        raise ValueError(f"{text[:60]!r} is not an integer")
    return int(text)


class Integer(Kind, frozen=True):
    """An integer from ``minimum`` to ``maximum``; ``special`` lists values outside the range with their meaning."""

    minimum: int = 0
    maximum: int = INT_MAX
    unit: str = ""
    special: tuple[tuple[int, str], ...] = ()

    label: ClassVar[str] = "integer"

    def parse(self, text: str) -> int:
        try:
            value = _integer(text)
        except ValueError as error:
            raise ValueError(f"{error}{f' number of {self.unit}' if self.unit else ''}: {self._allowed()}") from None
        if self.minimum <= value <= self.maximum or any(value == allowed for allowed, _ in self.special):
            return value
        raise ValueError(f"{value} is out of range: {self._allowed()}")

    def _allowed(self) -> str:
        special = "".join(f", or {value} ({meaning})" for value, meaning in self.special)
        if self.maximum >= INT_MAX:
            return f"allowed is {self.minimum} or more{special}"
        return f"allowed is {self.minimum} to {self.maximum}{special}"

    def describe(self) -> str:
        return f"{self.label}{f', {self.unit}' if self.unit else ''}; {self._allowed().removeprefix('allowed is ')}"


class Duration(Integer, frozen=True):
    """A length of time as an integer in the schema's unit (milliseconds unless it says otherwise)."""

    maximum: int = LONG_MAX
    unit: str = "milliseconds"


class Decimal(Kind, frozen=True):
    """Read a decimal number."""

    minimum: float = 0.0
    maximum: float = 1e9

    label: ClassVar[str] = "number"

    def parse(self, text: str) -> float:
        try:
            value = float(text.strip())
        except ValueError:
            raise ValueError(f"{text.strip()[:60]!r} is not a number") from None
        if not self.minimum <= value <= self.maximum:  # also false for NaN
            raise ValueError(f"{text.strip()} is out of range: allowed is {self.minimum:g} to {self.maximum:g}")
        return value

    def describe(self) -> str:
        return f"{self.label}; {self.minimum:g} to {self.maximum:g}"


_SIZE = re.compile(r"([+-]?[0-9]{1,19})\s*([a-zA-Z]*)", re.ASCII)
#: As Artemis reads them: K, M and G are powers of two, and so are KiB, MiB, GiB; KB, MB, GB as well.
_SIZE_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmg", start=1):
    for _suffix in ("", "b", "ib"):
        _SIZE_UNITS[_letter + _suffix] = KIB**_power


class Size(Kind, frozen=True):
    """A number of bytes with an optional suffix: K, KB, KiB, M, MB, MiB, G, GB, GiB (all powers of two)."""

    minimum: int = 0
    maximum: int = LONG_MAX
    special: tuple[tuple[int, str], ...] = ()

    label: ClassVar[str] = "size in bytes (K, M, G suffixes)"

    def parse(self, text: str) -> int:
        found = _SIZE.fullmatch(text.strip())
        factor = _SIZE_UNITS.get(found[2].lower()) if found else None
        if found is None or factor is None:
            raise ValueError(
                f"{text.strip()[:60]!r} is not a size: write a number of bytes,"
                " or one with K, KB, KiB, M, MB, MiB, G, GB or GiB"
            )
        value = int(found[1]) * factor
        if self.minimum <= value <= self.maximum or any(value == allowed for allowed, _ in self.special):
            return value
        special = "".join(f", or {allowed} ({meaning})" for allowed, meaning in self.special)
        limit = f" to {self.maximum}" if self.maximum < LONG_MAX else " or more"
        raise ValueError(f"{value} bytes is out of range: allowed is {self.minimum}{limit}{special}")

    def describe(self) -> str:
        special = "".join(f", or {allowed} ({meaning})" for allowed, meaning in self.special)
        limit = f" to {self.maximum}" if self.maximum < LONG_MAX else " or more"
        return f"{self.label}; {self.minimum}{limit}{special}"


class Enumeration(Kind, frozen=True):
    """One of the names of an enumeration, in the schema's spelling (member names, not values)."""

    values: type[Enum] = Enum

    label: ClassVar[str] = "one of"

    def parse(self, text: str) -> Enum:
        text = text.strip()
        allowed = list(self.values.__members__)
        if text not in allowed:
            raise ValueError(f"{text[:60]!r} is not allowed: use {', '.join(allowed)}{did_you_mean(text, allowed)}")
        return self.values.__members__[text]

    def describe(self) -> str:
        return " | ".join(self.values.__members__)

    def render(self, value: object) -> str:
        return value.name if isinstance(value, Enum) else ""


class Base(Enum):
    """Say what a relative path is relative to."""

    INSTANCE = "the instance directory"
    ETC = "the directory of broker.xml"


class Directory(Kind, frozen=True):
    """A path of a directory or file; the loader makes it absolute."""

    base: Base = Base.INSTANCE

    label: ClassVar[str] = "path"

    def parse(self, text: str) -> Path:
        text = text.strip()
        if not text:
            raise ValueError("must not be empty: write a path")
        if "\0" in text:
            raise ValueError("a path cannot contain NUL")
        return Path(text)


class File(Directory, frozen=True):
    """A path taken from the directory of broker.xml."""

    base: Base = Base.ETC


class Files(Kind, frozen=True):
    """Paths separated by commas, taken from the directory of broker.xml."""

    base: Base = Base.ETC

    label: ClassVar[str] = "paths, comma separated"

    def parse(self, text: str) -> tuple[Path, ...]:
        return tuple(File().parse(part) for part in text.split(","))

    def render(self, value: object) -> str:
        return ",".join(map(str, value)) if isinstance(value, tuple) else ""


class Words(Kind, frozen=True):
    """A list of words separated by commas."""

    label: ClassVar[str] = "list, comma separated"

    def parse(self, text: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))

    def render(self, value: object) -> str:
        return ",".join(map(str, value)) if isinstance(value, (tuple, frozenset)) else ""


def _listed(words: list[str]) -> str:
    return f"{', '.join(map(repr, words))} {'is' if len(words) == 1 else 'are'}"


class Choices(Words, frozen=True):
    """A list of words out of ``allowed``; ``refused`` are known but not supported, ``beside`` only alone.

    What is ``beside`` is in the value: whoever uses it says that it is left out.
    """

    allowed: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    beside: tuple[str, ...] = ()

    def parse(self, text: str) -> tuple[str, ...]:
        words = Words.parse(self, text)
        served = any(word in self.allowed for word in words)
        refused = [word for word in words if word in self.refused or (word in self.beside and not served)]
        unknown = [word for word in words if word not in (*self.allowed, *self.refused, *self.beside)]
        problems = []
        if refused:
            problems.append(f"{_listed(refused)} not supported")
        if unknown:
            problems.append(f"{_listed([word[:60] for word in unknown])} not allowed")
        if problems:
            near = "".join(dict.fromkeys(did_you_mean(word, self.allowed) for word in unknown))
            raise ValueError(f"{' and '.join(problems)}: use {', '.join(self.allowed)}{near}")
        return words

    def describe(self) -> str:
        return f"{self.label}: {', '.join(self.allowed)}"


class Password(Kind, frozen=True):
    """A password, in clear text or masked as ``ENC(...)``; the loader unmasks it."""

    label: ClassVar[str] = "password, may be ENC(...)"
