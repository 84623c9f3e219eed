"""The list of the reference's cluster tests (reference.tsv) names tests that are there."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("reference.tsv")
TESTS = Path(__file__).resolve().parents[2]
ROWS = [line.split("\t") for line in LIST.read_text().splitlines() if not line.startswith("#")]


@cache
def names_in(file: str) -> frozenset[str]:
    tree = ast.parse((TESTS / file).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return frozenset(node.name for node in tree.body if isinstance(node, functions) and node.name.startswith("test_"))


@pytest.mark.parametrize(("name", "file", "listed"), ROWS, ids=[f"{row[0]} {row[1]}" for row in ROWS])
def test_each_case_has_a_test_or_a_reason(name: str, file: str, listed: str) -> None:
    assert name
    assert listed
    if file != "-":
        assert set(listed.split(", ")) <= names_in(file)


def test_no_case_is_listed_twice() -> None:
    assert len({(name, file) for name, file, _ in ROWS}) == len(ROWS)
