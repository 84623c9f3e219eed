"""The process beside a replicated broker that ends the session of one that was killed, and of nobody else.

That a backup takes over at once is shown in tests/e2e/test_replication.py, with a session longer than the test.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from pollux.ha.replication import session_guard
from pollux.ha.replication.session_guard import Duty, SessionGuard, is_noted, wait_until_gone

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

#: Nothing listens there: whoever tries to close this session fails, and has tried.
NOWHERE = "127.0.0.1:1"


def note(record: Path, life: str) -> None:
    record.write_text(json.dumps({"connect_string": NOWHERE, "session": 5, "password": "00", "life": life}))


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    """Somebody who does nothing."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def test_a_process_that_is_stopped_is_not_gone(process: subprocess.Popen[bytes]) -> None:
    """Breaks when a live that hangs, and may go on at any time, loses its lock."""
    handle = os.pidfd_open(process.pid)
    try:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        assert not wait_until_gone(process.pid, handle, 0.1)
        process.kill()
        assert wait_until_gone(process.pid, handle, 30)
    finally:
        os.close(handle)


def test_who_has_no_handle_goes_by_its_parent() -> None:
    assert not wait_until_gone(os.getppid(), None, 0)
    assert wait_until_gone(os.getppid() + 1, None, 0)


def test_the_session_of_a_later_life_is_none_of_its_business(tmp_path: Path) -> None:
    record = tmp_path / "session"
    duty = Duty(1, record, "first", 30.0)
    assert not is_noted(duty), "there is no note"
    note(record, "first")
    assert is_noted(duty)
    note(record, "second")
    assert not is_noted(duty)
    record.write_text("{")
    assert not is_noted(duty)


@pytest.mark.parametrize(("life", "code"), [("mine", 1), ("a later one", 0)], ids=["tries", "leaves it"])
def test_a_killed_life_s_session_is_closed(
    tmp_path: Path, process: subprocess.Popen[bytes], life: str, code: int
) -> None:
    """The broker was gone before the guard could look."""
    record = tmp_path / "session"
    note(record, life)
    process.kill()
    process.wait()
    words = [sys.executable, "-m", session_guard.__name__, str(process.pid), str(record), "mine", "0.2"]
    done = subprocess.run(words, input=b"null\n", timeout=60, check=False)
    assert done.returncode == code
    assert record.exists()


def test_a_broker_that_ends_in_order_takes_its_guard_along(tmp_path: Path) -> None:
    """And signals that were meant for the broker do not end it earlier."""
    guard = SessionGuard(tmp_path / "session", 30.0, None)
    guard.start()
    process = guard._process
    assert process is not None
    guard.start()
    assert guard._process is process, "one is enough"
    guard.close()
    assert process.returncode == 0
    guard.start()
    assert guard._process is not None
    guard._process.kill()
    guard._process.wait()
    guard.start()
    assert guard._process.poll() is None, "a new one, as the first has gone"
    guard.close()
