"""Who may import whom among tests, benchmarks, the lab and the harness that they share."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
#: The packages of each directory as its files would name them, and those that it may not know.
PACKAGES = {"tests": {each.name for each in (ROOT / "tests").iterdir() if each.is_dir()} - {"ansible", "benchmarks"}}
PACKAGES |= {"benchmarks": {"benchmarks"}, "molecule": {"lab"}}
PACKAGES |= {"tools": {"tools", *(each.stem for each in (ROOT / "tools").glob("*.py"))}}
FOREIGN = {
    "harness": ("tests", "benchmarks", "molecule", "tools"),
    "tools": ("tests", "benchmarks", "molecule"),
    "benchmarks": ("tests", "molecule"),
    "molecule": ("tests", "benchmarks"),
}


def imported(file: Path) -> set[str]:
    """Return the first words of what a file imports, types included."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {each.name.split(".")[0] for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add(str(node.module).split(".")[0])
    return found


@pytest.mark.parametrize("directory", FOREIGN)
def test_the_harness_is_below_those_who_use_it(directory: str) -> None:
    foreign = {name for other in FOREIGN[directory] for name in PACKAGES[other]}
    files = list((ROOT / directory).rglob("*.py"))
    assert files
    found = {(str(each.relative_to(ROOT)), name) for each in files for name in imported(each) & foreign}
    assert found == set()


def test_no_test_but_those_of_the_lab_knows_it() -> None:
    """Refuses the others' imports: what both need belongs to the harness."""
    those = (ROOT / "tests" / "tooling", ROOT / "tests" / "benchmarks")
    files = {each for each in (ROOT / "tests").rglob("*.py") if "lab" in imported(each)}
    assert {each for each in files if each.parent not in those} == set()
    assert files


@pytest.mark.parametrize(("program", "option"), [("tests/crash.py", "--again"), ("tools/demo.py", "--keep")])
def test_what_make_runs_finds_its_modules(program: str, option: str, tmp_path: Path) -> None:
    """It is a program, not a test: nobody but pytest puts the tree's root where modules are looked for."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, str(ROOT / program), "--help"]
    result = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert option in result.stdout, result.stderr
