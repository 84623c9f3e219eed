"""The demo's own decisions: which ports it takes, what it calls a loss, and that nothing it started is left."""

from __future__ import annotations

import io
import json
import os
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console

import demo
from harness.ports import is_free
from harness.process_sessions import end_session

if TYPE_CHECKING:
    from pathlib import Path

CLEAN = dict.fromkeys(demo.COUNTS, 0) | {"problems": [], "result": "clean"}


@pytest.mark.parametrize("name", demo.COUNTS)
def test_any_count_but_nothing_is_a_failure(name: str) -> None:
    assert demo.verdict({**CLEAN, name: 1, "result": "broken"}) == f"1 {name.replace('_', ' ')}"


def test_a_clean_report_is_no_failure_and_a_problem_or_another_result_is() -> None:
    assert demo.verdict(CLEAN) == ""
    assert demo.verdict({**CLEAN, "problems": ["nobody became live"]}) == "nobody became live"
    assert "broken" in demo.verdict({**CLEAN, "result": "broken"})


def test_every_producer_is_shown_with_its_own_recovery_and_one_that_never_recovered_as_such() -> None:
    row = {"confirmed": 1000, "received": 1001, "rto_ms": 123.4}
    rows = {"amqp": row, "amqp.transactions": {**row, "rto_ms": None}}
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(demo.summary({**CLEAN, "per_protocol": rows, "rto_ms_overall": 99.9}, {"site.yml": 12.3}))
    text = console.export_text()
    assert "1,000 confirmed, 1,001 received, RTO 123 ms" in text
    assert "RTO none" in text
    assert "100 ms until the first confirm" in text


def test_ports_that_somebody_uses_are_left_alone() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        offset = demo.free_offset((port,))
        assert offset > 0
        assert is_free(port + offset)


def test_the_end_of_a_playbook_is_the_end_of_everything_it_started() -> None:
    # The child ignores SIGINT and SIGTERM is what ends it; its own child is in the same session.
    program = (
        "import signal, subprocess, sys, time\n"
        "signal.signal(signal.SIGINT, signal.SIG_IGN)\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        end_session(process, limit=1.0)
        assert process.returncode is not None
        assert not alive(child)


def test_the_pipeline_is_run_by_its_playbook_on_the_ledger_and_the_journals(tmp_path: Path) -> None:
    asked: list[tuple[str, ...]] = []

    class Recorded(demo.Demo):
        def step(self, title: str, playbook: str, *variables: str, may_fail: bool = False) -> None:
            asked.append((playbook, *variables))
            assert may_fail, "the demo's verdict is not the pipeline's"

    run = Recorded(Console(quiet=True), tmp_path, tmp_path / "drill", 20, quiet=False)
    run.reconcile()
    (tmp_path / "shared" / "journal").mkdir(parents=True)
    (tmp_path / "shared" / "journal" / "0001.segment").touch()
    run.reconcile()
    assert [playbook for playbook, _ in asked] == ["pipeline.yml", "pipeline.yml"]
    inputs = [json.loads(variables)["run_inputs"] for _, variables in asked]
    ledger = str(tmp_path / "drill" / "ledger.txt")
    assert inputs == [[ledger], [ledger, str(tmp_path / "shared")]]


def alive(pid: int) -> bool:
    """Whether a process runs (one that nobody has waited for does not)."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:  # noqa: PTH123
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_users_ansible_settings_do_not_reach_the_playbooks(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setenv("ANSIBLE_STDOUT_CALLBACK", "minimal")
    monkeypatch.setenv("ANSIBLE_CHECK_MODE_MARKERS", "1")
    console = Console(quiet=True)
    environment = demo.Demo(console, tmp_path, tmp_path, 20, quiet=True).environment()
    assert environment["ANSIBLE_STDOUT_CALLBACK"] == "pollux_compact"
    assert "ANSIBLE_CHECK_MODE_MARKERS" not in environment
    assert environment["PATH"] == os.environ["PATH"]
