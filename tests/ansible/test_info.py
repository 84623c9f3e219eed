"""A broker that does not answer, as pollux_info sees it: stopped is only who certainly has no process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.modules import load, results

ROOT = Path(__file__).resolve().parents[2]
info = load("roles/broker/library/pollux_info.py")


@pytest.fixture
def silent(tmp_path: Path) -> Path:
    """A program pollux that says that nobody answers."""
    program = tmp_path / "pollux"
    program.write_text("#!/bin/sh\necho 'no broker answers' >&2\nexit 3\n")
    program.chmod(0o755)
    return program


def seen(program: Path, *, unit: str | None = None, pid_file: Path | None = None) -> tuple[str, bool, str]:
    found = info.observe({"program": str(program), "unit": unit, "pid_file": pid_file and str(pid_file)}, 30.0)
    return found["state"], found["running"], found["reason"]


@pytest.mark.parametrize(
    ("said", "state", "why"),
    [
        ("inactive dead 0 18446744073709551615", "stopped", ""),
        ("failed failed 0 [not set]", "stopped", ""),
        ("inactive dead 0", "stopped", ""),
        ("activating auto-restart 0 [not set]", "stopped", "systemd starts castor again, as it ended"),
        ("active running 7 9", "unreachable", "systemd says that castor is active"),
        ("activating start 7 1", "unreachable", "castor is activating"),
        ("activating start-pre 0 [not set]", "unreachable", "castor is activating"),
        ("deactivating stop-sigterm 7 1", "unreachable", "castor is deactivating"),
        # It hangs in its store: not even SIGKILL ended it.
        ("failed failed 0 1", "unreachable", "castor is failed, with 1 tasks"),
        ("", "unknown", "systemctl does not tell whether castor runs (it ended with 0): see on the host"),
    ],
)
def test_a_silent_broker_is_what_systemd_says(
    tmp_path: Path, silent: Path, monkeypatch: pytest.MonkeyPatch, *, said: str, state: str, why: str
) -> None:
    names = ("ActiveState", "SubState", "MainPID", "TasksCurrent")
    lines = [f"{name}={value}" for name, value in zip(names, said.split(" ", 3), strict=False) if said]
    systemctl(tmp_path, f"printf '{'|'.join(lines)}' | tr '|' '\\n'")
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    found, running, reason = seen(silent, unit="castor")
    assert (found, running) == (state, state == "unreachable")
    assert reason.startswith("no broker answers")
    assert why in reason


def systemctl(place: Path, does: str) -> None:
    (place / "systemctl").write_text(f"#!/bin/sh\n{does}\n")
    (place / "systemctl").chmod(0o755)


@pytest.mark.parametrize("does", ["echo 'Failed to connect to bus' >&2; exit 1", "echo MainPID=0; exit 1"])
def test_what_systemd_does_not_say_is_not_known(
    tmp_path: Path, silent: Path, monkeypatch: pytest.MonkeyPatch, does: str
) -> None:
    systemctl(tmp_path, does)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert seen(silent, unit="castor")[:2] == ("unknown", False)
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    (tmp_path / "empty").mkdir()
    silent.write_text(f"#!{sys.executable}\nraise SystemExit('no broker answers')\n")
    found, _, reason = seen(silent, unit="castor")
    assert (found, "systemctl does not tell whether castor runs" in reason) == ("unknown", True)


def test_a_silent_broker_is_what_its_pid_file_says(tmp_path: Path, silent: Path) -> None:
    pid_file = tmp_path / "pollux.pid"
    assert seen(silent, pid_file=pid_file) == ("stopped", False, "no broker answers"), "who stops it takes it away"
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        pid_file.write_text(f"{process.pid}\n")
        assert seen(silent, pid_file=pid_file)[:2] == ("unreachable", True)
    assert seen(silent, pid_file=pid_file)[0] == "stopped"
    for damaged in ("", "castor", "9" * 30):
        pid_file.write_text(damaged)
        found, running, reason = seen(silent, pid_file=pid_file)
        assert (found, running) == ("unknown", False)
        assert "see on the host whether it runs, and delete it" in reason


def test_a_process_of_another_user_runs(tmp_path: Path, silent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when it counts as gone because no signal may be sent to it."""
    pid_file = tmp_path / "pollux.pid"
    pid_file.write_text("1\n")

    def refuse(_number: int, _signal: int) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "kill", refuse)
    assert seen(silent, pid_file=pid_file)[0] == "unreachable"


def test_a_gate_for_stopped_brokers_refuses_one_that_nobody_knows_of(tmp_path: Path, silent: Path) -> None:
    """Breaks when a recovery copies the journal of a broker that lives and cannot be asked."""
    arguments: dict[str, Any] = {"program": str(silent), "expect": ["stopped"]}
    command = ["ansible", "localhost", "-i", "localhost,", "-m", "pollux_info", "-a", info.json.dumps(arguments)]
    found = results(tmp_path / "ansible", *command)["localhost"]
    assert found["failed"]
    assert found["msg"] == (
        "expected the broker to be stopped within 0 s, but it is unknown"
        " (no broker answers; nothing tells whether it has a process: see on the host)"
    )
