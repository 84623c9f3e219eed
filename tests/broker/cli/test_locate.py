"""Which broker of this machine a command is for."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

from pollux.cli import locate
from pollux.cli.output import CommandError
from pollux.ha.runtime import STATUS_FILE, TOKEN_FILE

if TYPE_CHECKING:
    from pathlib import Path

#: No process has it.
GONE = 2**22 + 1


def status_in(directory: Path, pid: int) -> Path:
    """A directory with what a running broker leaves there."""
    directory.mkdir()
    (directory / STATUS_FILE).write_text(json.dumps({"name": directory.name, "pid": pid}))
    (directory / TOKEN_FILE).write_text("token\n")
    return directory


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A broker.xml that cannot be read: whoever tries fails."""
    path = tmp_path / "broker.xml"
    path.write_text("no XML")
    monkeypatch.setenv("POLLUX_CONFIG", str(path))
    return path


def test_the_broker_that_says_it_runs_is_found_without_its_configuration(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when each question of a playbook or a monitor reads a broker.xml: a third of what it costs."""
    monkeypatch.setenv("POLLUX_RUN", str(status_in(tmp_path / "castor", os.getpid())))
    for asked in (None, config):
        found, token = locate.find_status(None, asked)
        assert (found["name"], token) == ("castor", "token")


def test_what_a_broker_left_that_is_gone_decides_nothing(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when a file of a former life hides that broker.xml names another place since."""
    monkeypatch.setenv("POLLUX_RUN", str(status_in(tmp_path / "castor", GONE)))
    with pytest.raises(CommandError):
        locate.find_status(None, config)


def test_a_directory_that_nobody_named_decides_nothing(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Breaks when no POLLUX_RUN is taken for the directory that the shell is in."""
    monkeypatch.delenv("POLLUX_RUN", raising=False)
    monkeypatch.chdir(status_in(tmp_path / "castor", os.getpid()))
    with pytest.raises(CommandError):
        locate.find_status(None, config)


def test_whoever_names_another_broker_is_not_given_that_of_the_environment(
    tmp_path: Path, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLLUX_RUN", str(status_in(tmp_path / "castor", os.getpid())))
    other = tmp_path / "other.xml"
    other.write_text("no XML either")
    with pytest.raises(CommandError, match=r"other\.xml"):
        locate.find_status(None, other)
    found, _ = locate.find_status(status_in(tmp_path / "pollux", os.getpid()), config)
    assert found["name"] == "pollux"
