"""The short way of ``pollux status`` understands what the full parser does, and leaves everything else to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pollux.cli.status import Plain, parse


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], Plain()),
        (["--json"], Plain(as_json=True)),
        (["--expect", "live,ready", "--wait", "2.5"], Plain("live,ready", 2.5)),
        (["--expect=backup", "--wait=1", "--json"], Plain("backup", 1.0, as_json=True)),
        (["-c", "a.xml"], Plain(config=Path("a.xml"))),
        (["--config=a.xml", "--data", "d"], Plain(data=Path("d"), config=Path("a.xml"))),
        (["--help"], None),
        (["--wait"], None),
        (["--wait", "soon"], None),
        (["--wait", "-1"], None),
        (["--wait", "nan"], None),
        (["--data", ""], None),
        (["--url", "http://castor"], None),
        (["-u", "ada"], None),
        (["castor"], None),
    ],
)
def test_parse(arguments: list[str], expected: Plain | None) -> None:
    assert parse(["status", *arguments], {}) == expected


def test_other_commands_and_brokers_elsewhere_are_the_full_parsers() -> None:
    assert parse(["reload"], {}) is None
    assert parse([], {}) is None
    assert parse(["status"], {"POLLUX_URL": "http://castor"}) is None
    assert parse(["status"], {"POLLUX_USER": "ada"}) is None


def test_the_environment_names_the_broker_unless_the_command_line_does() -> None:
    environment = {"POLLUX_CONFIG": "a.xml", "POLLUX_DATA": "d"}
    assert parse(["status"], environment) == Plain(data=Path("d"), config=Path("a.xml"))
    assert parse(["status", "-c", "b.xml"], environment) == Plain(data=Path("d"), config=Path("b.xml"))
    assert parse(["status"], {"POLLUX_CONFIG": ""}) is None


def test_a_question_imports_neither_the_parser_of_all_commands_nor_the_store() -> None:
    """Breaks when a question costs what all commands cost: playbooks ask each broker dozens of times."""
    program = "import sys, pollux.cli.status; print(*sorted(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "pollux.cli.client" in loaded
    assert not loaded & {"typer", "pydantic", "rich", "pollux.config", "pollux.store.segments", "asyncio"}
