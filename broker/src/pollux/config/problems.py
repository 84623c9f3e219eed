"""Hold what is wrong with a configuration, and where. Pure values."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from msgspec import Struct

from pollux.errors import PolluxError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Severity(StrEnum):
    """An error keeps the broker from starting; a warning does not."""

    ERROR = "error"
    WARNING = "warning"


class Problem(Struct, frozen=True):
    """One problem. ``line`` and ``column`` count from 1; 0 means unknown."""

    file: str
    line: int
    severity: Severity
    message: str
    column: int = 0

    def render(self) -> str:
        """Return ``file:line: message`` as compilers print it (``file:line:column:`` where it is known)."""
        place = self.file
        if self.line:
            place += f":{self.line}"
            if self.column:
                place += f":{self.column}"
        prefix = "warning: " if self.severity is Severity.WARNING else ""
        return f"{place}: {prefix}{self.message}"

    __str__ = render


class ConfigError(PolluxError):
    """The configuration cannot be used; ``problems`` has all that is wrong with it at once."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = list(problems)
        super().__init__("\n".join(problem.render() for problem in self.problems))


class Feature(Struct, frozen=True):
    """Something the file asks for that not every build of the broker provides."""

    name: str
    element: str
    line: int
    #: Another file than broker.xml.
    file: str = ""
