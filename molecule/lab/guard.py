"""Whether a molecule run that ended well also did anything: the guard against silent green. Pure but for reading files.

Molecule ends with success when a side effect's file is missing, when there is nothing to verify and when testinfra
finds no hosts. So the guard looks at three things: what the run said, which steps it went through, and which tests
ran in each verify step (written by lab.record), compared with the tests that the scenario's files hold.
"""

from __future__ import annotations

import ast
import json
import re
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: What a run says when it did less than it was asked to.
SILENT = (
    ("Missing playbook", "a playbook that the scenario names is not there"),
    ("no tests found", "there was nothing to verify"),
    ("no tests ran", "there was nothing to verify"),
    ("collected 0 items", "there was nothing to verify"),
    ("No inventory", "testinfra found no hosts"),
    ("no hosts matched", "a play ran on no host"),
    ("Could not match supplied host pattern", "a play ran on no host"),
    ("provided hosts list is empty", "a play ran on no host"),
)
#: Groups of site.yml that a site needs not have: a play on one that is not there runs on no host, as it should.
OPTIONAL = ("pollux_pipeline",)
_OPTIONAL = re.compile(
    rf"\[WARNING\]: Could not match supplied host pattern, ignoring: (?:{'|'.join(OPTIONAL)})\n"
    r"(?:\nPLAY \[.*\] \**\nskipping: no hosts matched\n)?"
)
_ESCAPES = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Scenario:
    """Hold what a scenario holds."""

    name: str
    sequence: tuple[str, ...]
    #: Names of test functions by file (relative to the scenario).
    tests: Mapping[str, frozenset[str]]
    #: Playbooks that the sequence names and that do not exist.
    missing: tuple[str, ...]

    @property
    def verifies(self) -> int:
        """How often the sequence verifies."""
        return sum(step.split()[0] == "verify" for step in self.sequence)


#: Steps that run a playbook of the scenario's, and the name it has when none is given.
_PLAYBOOKS = {
    "converge": "converge.yml",
    "side_effect": "side_effect.yml",
    "prepare": "prepare.yml",
    "cleanup": "cleanup.yml",
}


def read(directory: Path, base: Mapping[str, Any]) -> Scenario:
    """The scenario in a directory; `base` is the configuration that all have in common."""
    settings = yaml.safe_load((directory / "molecule.yml").read_text(encoding="utf-8")) or {}
    sequence = (settings.get("scenario") or {}).get("test_sequence") or base["scenario"]["test_sequence"]
    playbooks = (settings.get("provisioner") or {}).get("playbooks") or {}
    missing = []
    for step in sequence:
        words = step.split()
        if words[0] in _PLAYBOOKS:
            named = words[1:] or [playbooks.get(words[0], _PLAYBOOKS[words[0]])]
            missing += [name for name in named if not (directory / name).is_file()]
    tests = {
        str(path.relative_to(directory)): found
        for path in sorted(directory.glob("tests/**/test_*.py"))
        if (found := functions(path.read_text(encoding="utf-8")))
    }
    return Scenario(directory.name, tuple(sequence), tests, tuple(missing))


def functions(source: str) -> frozenset[str]:
    """The names of the test functions in a file: those that it holds, and those that it imports."""
    names: list[str] = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names.append(node.name)
        elif isinstance(node, ast.ImportFrom):
            names += [alias.asname or alias.name for alias in node.names]
    return frozenset(name for name in names if name.startswith("test_"))


def plain(text: str) -> str:
    """Without the escapes that colour it."""
    return _ESCAPES.sub("", text)


def problems(scenario: Scenario, output: str, records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Why a run that ended with 0 is no success; empty when it is one."""
    text = _OPTIONAL.sub("", plain(output))
    found = [f"{scenario.name}: there is no {name}" for name in scenario.missing]
    found += [f"{scenario.name}: {why} ({said!r})" for said, why in SILENT if said in text]
    if scenario.verifies == 0:
        found.append(f"{scenario.name}: its sequence verifies nothing")
    if not scenario.tests:
        found.append(f"{scenario.name}: it has no tests")
    found += _steps(scenario, text)
    runs = [record["tests"] for record in records if "tests" in record]
    if len(runs) != scenario.verifies:
        found.append(f"{scenario.name}: {scenario.verifies} verify steps, {len(runs)} ran")
    for number, run in enumerate(runs, start=1):
        found += [f"{scenario.name}: verify {number}: {trouble}" for trouble in _compare(scenario, run)]
    return found


def _steps(scenario: Scenario, text: str) -> list[str]:
    """Steps of the sequence that the run does not show as carried out."""
    wanted = Counter(step.split()[0] for step in scenario.sequence)
    shown = Counter(re.findall(rf"\[{re.escape(scenario.name)} > (\w+)\] Executing", text))
    return [
        f"{scenario.name}: {name} is {count} times in its sequence and was executed {shown[name]} times"
        for name, count in wanted.items()
        if shown[name] < count
    ]


def _compare(scenario: Scenario, run: Mapping[str, str]) -> list[str]:
    """Tests of the scenario's that did not run and pass."""
    passed: set[tuple[str, str]] = set()
    troubles = []
    for node, outcome in run.items():
        path, _, name = node.partition("::")
        name = name.split("[")[0].split("::")[-1]
        if outcome == "passed":
            passed.add((path.rsplit("/", 1)[-1], name))
        else:
            troubles.append(f"{node} {outcome}")
    for path, names in scenario.tests.items():
        absent = sorted(name for name in names if (path.rsplit("/", 1)[-1], name) not in passed)
        if absent:
            troubles.append(f"{path}: not run: {', '.join(absent)}")
    return troubles


def records_in(path: Path) -> list[dict[str, Any]]:
    """The lines that lab.record wrote."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
