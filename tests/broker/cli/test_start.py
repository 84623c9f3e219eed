"""The short way of ``pollux run`` understands what the full parser does, and leaves everything else to it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pollux.cli.start import Plain, parse, run_plain
from pollux.process.exits import EXIT_USAGE


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "a.xml"], Plain(Path("a.xml"))),
        (["run", "a.xml", "-D", "x=1", "-Dy=2", "--define", "z=3=4"], Plain(Path("a.xml"), ("x=1", "y=2", "z=3=4"))),
        (["run", "--define=x=1", "a.xml"], Plain(Path("a.xml"), ("x=1",))),
        (
            ["run", "--ports-file=p", "--log-level", "DEBUG", "--log-json", "a.xml"],
            Plain(Path("a.xml"), (), Path("p"), "DEBUG", log_json=True),
        ),
        (["run", "--log-text", "a.xml"], Plain(Path("a.xml"), log_json=False)),
        (["run"], None),
        (["run", "--help"], None),
        (["run", "a.xml", "b.xml"], None),
        (["run", "a.xml", "--nonsense"], None),
        (["run", "a.xml", "-D"], None),
        (["check", "a.xml"], None),
        ([], None),
    ],
)
def test_parse(arguments: list[str], expected: Plain | None) -> None:
    assert parse(arguments) == expected


def test_a_bad_definition(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plain(Plain(Path("a.xml"), ("x",))) == EXIT_USAGE
    assert "-D x: expected NAME=VALUE" in capsys.readouterr().err
