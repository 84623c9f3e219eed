"""Log lines: one per event, nothing secret, nothing forged."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING

import pytest

from pollux import logs
from pollux.logs import event, failure

if TYPE_CHECKING:
    from collections.abc import Iterator

logger = logging.getLogger("pollux.test")


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, ours = list(root.handlers), root.level, logging.getLogger("pollux").level
    found = io.StringIO()
    logs.configure(stream=found)
    yield found
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.getLogger("pollux").setLevel(ours)


def test_text(stream: io.StringIO) -> None:
    event(
        logger, logging.INFO, "something happened", number=7, name="a b", flag=True, ratio=0.25, none=None, many={"x"}
    )
    line = stream.getvalue()
    assert line.endswith('INFO pollux.test something happened number=7 name="a b" flag=true ratio=0.25 many=x\n')
    assert line[10] == "T"
    assert line[23] == "Z"


def test_json_lines(stream: io.StringIO) -> None:
    logs.configure(json_lines=True, stream=stream)
    event(logger, logging.WARNING, "something happened", number=7, name='quo"te')
    try:
        raise ValueError("broken")  # noqa: TRY301
    except ValueError:
        failure(logger, logging.ERROR, "failed", step="last")
    first, second = (json.loads(line) for line in stream.getvalue().splitlines())
    assert (first["level"], first["message"], first["number"], first["name"]) == (
        "WARNING",
        "something happened",
        7,
        'quo"te',
    )
    assert (second["level"], second["message"], second["step"]) == ("ERROR", "failed", "last")
    assert "ValueError: broken" in second["traceback"]


@pytest.mark.parametrize("error", [None, OSError("gone")])
def test_a_failure_has_the_traceback_of_what_is_given_or_none(stream: io.StringIO, error: Exception | None) -> None:
    failure(logger, logging.WARNING, "it broke off", error, connection=7)
    first, *rest = stream.getvalue().splitlines()
    assert first.endswith("WARNING pollux.test it broke off connection=7")
    assert [line.split("  ", 1)[1] for line in rest] == ([] if error is None else ["OSError: gone"])


@pytest.mark.parametrize("name", ["password", "passcode", "newPassword", "token", "client_secret"])
def test_secrets_are_never_written(stream: io.StringIO, name: str) -> None:
    event(logger, logging.INFO, "log-in", **{name: "hunter2"})
    assert "hunter2" not in stream.getvalue()
    assert f"{name}=***" in stream.getvalue()


def test_clients_cannot_forge_lines(stream: io.StringIO) -> None:
    event(logger, logging.INFO, "client\nERROR forged", user="eve\n2026-01-01 ERROR forged\x1b[2J", long="x" * 5000)
    assert stream.getvalue().count("\n") == 1
    assert "\x1b" not in stream.getvalue()
    assert len(stream.getvalue()) < 2000


def test_levels(stream: io.StringIO) -> None:
    event(logger, logging.DEBUG, "quiet")
    logs.configure("DEBUG", stream=stream)
    event(logger, logging.DEBUG, "loud")
    logging.getLogger("somebody.else").info("not ours")
    assert "quiet" not in stream.getvalue()
    assert "loud" in stream.getvalue()
    assert "not ours" not in stream.getvalue()
    with pytest.raises(ValueError, match="'LOUD' is not a log level: allowed are DEBUG, INFO, WARNING, ERROR"):
        logs.parse_level("LOUD")


def test_journald_gets_the_priority_and_no_time() -> None:
    formatter = logs.TextFormatter(journald=True)
    record = logging.LogRecord("pollux.x", logging.ERROR, "", 0, "broken", (), None)
    assert formatter.format(record) == "<3>ERROR pollux.x broken"
