"""Collects problems while a file is read, up to a bound, each with its position."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pollux.config.problems import Problem, Severity

if TYPE_CHECKING:
    from lxml import etree

    from pollux.config.address_settings import AddressSetting
    from pollux.config.document import Position

MAX_PROBLEMS = 200


class TooManyProblemsError(Exception):
    """The bound is reached: reading stops."""


class Report:
    """Collect the problems of one file."""

    def __init__(self, file: str, positions: dict[etree._Element, Position]) -> None:
        self.file = file
        self.positions = positions
        self.problems: list[Problem] = []
        #: Where each field of the configuration was given; see :meth:`line`.
        self.lines: dict[str, int] = {}
        #: The same for the values of each address-setting, by its match.
        self.setting_lines: dict[str, dict[str, int]] = {}
        #: Names that are defined but whose definition is wrong, by kind of thing: references to them are not wrong.
        self.broken: dict[str, set[str]] = {}

    def line_of(self, element: etree._Element) -> int:
        """Return the line on which an element starts; of an included one, the line on which its file is included."""
        position = self.positions[element]
        return position.included_on or position.line

    def line(self, *fields: str) -> int:
        """Return the line of the first of these fields of the configuration that the file gives, or 0."""
        return next((self.lines[field] for field in fields if field in self.lines), 0)

    def setting_line(self, setting: AddressSetting, *fields: str) -> int:
        """Return the line of the first of these values that the address-setting gives, else its own."""
        lines = self.setting_lines.get(setting.match, {})
        return next((lines[field] for field in fields if field in lines), setting.line)

    def error(self, element: etree._Element, message: str) -> None:
        """Note an error at an element."""
        position = self.positions[element]
        self.add(Problem(position.file or self.file, position.line, Severity.ERROR, message, position.column))

    def warning(self, element: etree._Element, message: str) -> None:
        """Note at an element something that is allowed but probably not meant."""
        position = self.positions[element]
        self.add(Problem(position.file or self.file, position.line, Severity.WARNING, message, position.column))

    def error_at(self, line: int, message: str) -> None:
        """Note an error of which only the line is known (0: not even that)."""
        self.add(Problem(self.file, line, Severity.ERROR, message))

    def warning_at(self, line: int, message: str) -> None:
        """Note something that is allowed but probably not meant."""
        self.add(Problem(self.file, line, Severity.WARNING, message))

    def break_off(self, what: str, name: str) -> None:
        """Note that something of this name is defined, though wrongly."""
        self.broken.setdefault(what, set()).add(name)

    def add(self, problem: Problem) -> None:
        """Note a problem; stops the reading when there are too many."""
        self.problems.append(problem)
        if len(self.problems) >= MAX_PROBLEMS:
            self.problems.append(
                Problem(self.file, 0, Severity.ERROR, f"more than {MAX_PROBLEMS} problems: the rest was not checked")
            )
            raise TooManyProblemsError

    @property
    def errors(self) -> list[Problem]:
        """The problems that keep a broker from starting."""
        return [problem for problem in self.problems if problem.severity is Severity.ERROR]
