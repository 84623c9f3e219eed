"""The reasons for which an inventory is refused."""

from __future__ import annotations

import re
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


#: Stands for each host's own name where several share a line.
HOST = "HOST"


def merged(problems: Iterable[Problem]) -> list[str]:
    """Return a line for each problem; the same one on several hosts is said once, with all of them.

    It is the same, too, where only the hosts' own names differ in it, as in the paths of files that each host has.
    """
    same: dict[tuple[str, str, str], dict[str, None]] = {}
    for problem in problems:
        same.setdefault((problem.variable, problem.what, problem.remedy), {})[problem.host] = None
    alike: dict[tuple[str, str, str], list[Problem]] = {}
    for rest, hosts in same.items():
        key = rest if len(hosts) > 1 else _without(next(iter(hosts)), rest)
        alike.setdefault(key, []).extend(Problem(host, *rest) for host in hosts)
    return [_line(key, found) for key, found in alike.items()]


def _without(host: str, rest: tuple[str, str, str]) -> tuple[str, str, str]:
    name = re.compile(rf"(?<![\w.-]){re.escape(host)}(?![\w-])")
    variable, what, remedy = rest
    return variable, name.sub(HOST, what), name.sub(HOST, remedy)


def _line(rest: tuple[str, str, str], problems: list[Problem]) -> str:
    hosts = ", ".join(problem.host for problem in problems)
    if all(problem[1:] == problems[0][1:] for problem in problems):
        return str(problems[0]._replace(host=hosts))
    variable, what, remedy = rest
    return str(Problem(hosts, variable, f"{what} ({HOST}: the name of each)", remedy))
