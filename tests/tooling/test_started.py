"""Programs that a scenario started end with it, wherever they have gone to."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from harness import drill_program, started
from lab import guard, scenarios
from lab.record import VARIABLE
from lab.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Callable

#: Deaf to what asks it to end; writes its number, then says so.
DEAF = """
import os, pathlib, signal, sys, time
for each in (signal.SIGINT, signal.SIGTERM):
    signal.signal(each, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
print("begun", flush=True)
time.sleep(600)
"""
#: Has such a one in a session of its own, and may go before it does; `bare`: without this program's environment.
LEAVES = """
import subprocess, sys
words, kind = [sys.executable, "-c", sys.argv[1], sys.argv[2]], sys.argv[3]
child = subprocess.Popen(words, start_new_session=True, env={} if kind == "bare" else None)
sys.exit(0 if kind == "orphan" else child.wait())
"""


def runs(number: Path) -> bool:
    """Whether it is still there."""
    try:
        return bool(Path("/proc", number.read_text() or "none", "cmdline").read_bytes())
    except FileNotFoundError:
        return False


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until it holds, for a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def leaving(kind: str, number: Path) -> list[str]:
    """Return the command that starts a deaf one."""
    return [sys.executable, "-c", LEAVES, DEAF, str(number), kind]


@pytest.mark.parametrize("kind", ["orphan", "bare"])
def test_what_left_its_session_and_its_parent_is_found_and_ended(tmp_path: Path, kind: str) -> None:
    word, number = f"POLLUX_STARTED={tmp_path}", tmp_path / "number"
    environment = {**os.environ, "POLLUX_STARTED": str(tmp_path)}
    with subprocess.Popen(leaving(kind, number), env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        assert int(number.read_text()) in {each.pid for each in started.carrying(word)}
        started.end(word, patience=0)
    assert not runs(number)
    assert not started.carrying(word)


def test_an_interrupted_scenario_leaves_no_drill(tmp_path: Path) -> None:
    """Breaks when only molecule's process group ends: the drill's programs have sessions of their own."""
    number = tmp_path / "number"

    class Interrupting(Steps):
        def read(self, line: str) -> str:
            raise KeyboardInterrupt(line)

    environment = {**os.environ, VARIABLE: str(tmp_path / "record")}
    steps = Interrupting(guard.Scenario("default", (), {}, ()))
    try:
        with pytest.raises(KeyboardInterrupt, match="begun"):
            scenarios._run(leaving("orphan", number), environment, tmp_path / "log", steps)
        assert not runs(number)
    finally:
        if runs(number):
            os.kill(int(number.read_text()), signal.SIGKILL)


async def test_a_program_ends_with_the_drill_that_started_it(tmp_path: Path) -> None:
    """Breaks when it outlives a drill that is interrupted while it runs."""
    number = tmp_path / "number"
    command = (sys.executable, "-c", DEAF, str(number))
    running = asyncio.create_task(drill_program.Program(command).run(tmp_path / "log"))
    try:
        await asyncio.to_thread(wait_until, lambda: runs(number))
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.to_thread(wait_until, lambda: not runs(number))  # it is killed, and then it ends
    finally:
        if runs(number):
            os.kill(int(number.read_text()), signal.SIGKILL)
