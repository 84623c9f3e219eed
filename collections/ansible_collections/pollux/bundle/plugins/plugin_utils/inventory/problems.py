"""The reasons for which an inventory is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

#: Notes what is wrong with one host: the variable, what, and the remedy.
Add = Callable[[str, str, str], None]


class Problem(NamedTuple):
    """Hold why an inventory is refused: who, which variable, what is wrong and what to do."""

    host: str
    variable: str
    what: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.host}: {self.variable}: {self.what}. Remedy: {self.remedy}."


def merged(problems: Iterable[Problem]) -> list[str]:
    """Return a line for each problem; the same one on several hosts is said once, with all of them."""
    hosts: dict[tuple[str, str, str], dict[str, None]] = {}
    for problem in problems:
        hosts.setdefault((problem.variable, problem.what, problem.remedy), {})[problem.host] = None
    return [str(Problem(", ".join(names), *rest)) for rest, names in hosts.items()]
