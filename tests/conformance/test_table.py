"""The table in README.md names only tests that exist, and every test here is in some file that it names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAME = re.compile(r"`((?:tests/[\w/]+/)?test_\w+\.py)?(::)?(test_\w+)?(?:\[[^`]*\])?`")


def place(name: str) -> Path:
    """Where a file is that the table names."""
    return (ROOT if "/" in name else HERE) / name


def functions(name: str) -> set[str]:
    """The names of the tests in a file: of this directory, or with a path from the repository's root."""
    tree = ast.parse(place(name).read_text())
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}


def named() -> list[tuple[str, str]]:
    """(file, test) of everything README.md names in a table or in the text; a test is "" where a file stands alone.

    `::test` is of the file named last, a `test` without a file of the one in its table's heading.
    """
    found: list[tuple[str, str]] = []
    last = heading = ""
    for line in (HERE / "README.md").read_text().splitlines():
        for file, colons, test in NAME.findall(line):
            if line.startswith("| feature"):
                heading = file
            last = file or last
            if file or test:
                found.append((last if file or colons else heading, test))
    return found


def test_every_test_in_the_table_exists() -> None:
    found = named()
    assert len(found) > 80, "the table was read"
    missing = [f"{file}::{test}" for file, test in found if test and test not in functions(file)]
    assert missing == []
    assert [file for file, _ in found if not place(file).exists()] == []


def test_every_file_is_in_the_table() -> None:
    files = {path.name for path in HERE.glob("test_*.py")} - {Path(__file__).name}
    assert files == {file for file, _ in named() if "/" not in file}
