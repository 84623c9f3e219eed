"""Docstrings begin with what is done or held; a first word that only points elsewhere tells a reader nothing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DIRECTORIES = (
    *("broker", "pipeline", "harness", "tests", "benchmarks", "tools", "molecule", "roles", "collections"),
    *("filter_plugins", "callback_plugins", "examples"),
)
#: "What a link needs", "It works.", "See the module", and single words ("Serve."), with or without a dot.
EMPTY = re.compile(r"What\b|It works\b|See (the )?(module|class|base)\b|[\w-]+\.?\Z")
#: A test's name says who "it" is; with anything else the docstring has to.
OF_TESTS = re.compile(r"It\b")


def empty_beginnings(source: str) -> list[tuple[int, str]]:
    """Return the line and the first line of each docstring of a module, class or function that tells nothing."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            first = (ast.get_docstring(node) or "").partition("\n")[0].strip()
            of_test = not isinstance(node, ast.Module) and node.name.startswith("test_")
            if first and (EMPTY.match(first) or (OF_TESTS.match(first) and not of_test)):
                found.append((node.body[0].lineno, first))
    return found


@pytest.mark.parametrize(
    "text", ["What a link needs.", "Serve.", "It works.", "It is back.", "See the module.", "See class Link."]
)
def test_an_empty_beginning_is_noticed(text: str) -> None:
    source = f'def one():\n    """{text}"""\n\n\ndef other():\n    """Return what a link needs."""\n'
    assert empty_beginnings(source) == [(2, text)]


def test_a_test_may_say_it_of_what_its_name_says() -> None:
    assert empty_beginnings('def test_a_live_that_waits():\n    """It has its node id."""\n') == []


def test_every_directory_with_programs_is_read() -> None:
    """Hidden ones (environments, caches) are not the tree's, and what was built there is not written by anybody."""
    directories = {each.name for each in ROOT.glob("[!.]*") if next(each.rglob("*.py"), None)}
    assert directories - {"build", "dist", "node_modules"} <= {*DIRECTORIES}


@pytest.mark.parametrize("directory", DIRECTORIES)
def test_docstrings_say_what_is_done_or_held(directory: str) -> None:
    files = list((ROOT / directory).rglob("*.py"))
    assert files
    found = [(str(each.relative_to(ROOT)), *one) for each in files for one in empty_beginnings(each.read_text())]
    assert found == []
