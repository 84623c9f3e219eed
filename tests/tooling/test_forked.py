"""A fork of the nursery is what the program started by itself would be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import forked
from harness.broker import POLLUX, BrokerProcess


def start(directory: Path, *words: str, **environment: str) -> tuple[forked.Forked, Path]:
    said = directory / "said"
    with said.open("wb") as output:
        process = forked.spawn([POLLUX, *words], cwd=directory, output=output.fileno(), environment=environment)
    return process, said


def test_it_says_and_ends_as_the_program_does(tmp_path: Path) -> None:
    """Breaks when words, directory or environment are the nursery's, or the status is not the fork's."""
    (tmp_path / "broken.xml").write_text("<configuration>")
    for words in (("run", "broken.xml"), ("run", "missing.xml"), ("--version",), ("run", "--no-such-option")):
        process, said = start(tmp_path, *words, NO_COLOR="1")
        status = process.wait(60)
        alone = subprocess.run([POLLUX, *words], cwd=tmp_path, capture_output=True, check=False, env={"NO_COLOR": "1"})
        assert (status, said.read_bytes()) == (alone.returncode, alone.stdout + alone.stderr)
        assert process.poll() == status


def test_signals_reach_it_and_waiting_has_a_limit(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path).start()
    process = broker.process
    assert isinstance(process, forked.Forked)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0)
    process.kill()
    assert process.wait(60) == -signal.SIGKILL
    process.terminate()  # nobody is there any more
    broker.process = None
    assert broker.start().stop() in (0, -signal.SIGTERM)


def test_another_program_is_a_process_of_its_own(tmp_path: Path) -> None:
    broker = BrokerProcess(tmp_path)
    broker.program = [sys.executable, "-c", "raise SystemExit(7)"]
    broker.spawn()
    assert isinstance(broker.process, subprocess.Popen)
    assert broker.wait_until_ended() == 7


def test_what_a_broker_imports_late_is_imported_before_it_forks() -> None:
    """Breaks when a protocol is imported in each fork anew: that is most of the processor time of a start."""
    code = (
        "import importlib, sys; from harness import forked\n"
        "for name in forked._IMPORTED: importlib.import_module(name)\n"
        "from pollux.process.acceptor import SESSIONS\n"
        "late = {module for module, _ in SESSIONS.values()} | {'pollux.management.routes', 'aiohttp.web'}\n"
        "sys.exit(' '.join(sorted(late - set(sys.modules))) or None)"
    )
    path = str(Path(forked.__file__).parent.parent)
    found = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (found.returncode, found.stderr.strip()) == (0, "")
