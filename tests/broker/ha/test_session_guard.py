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

from pollux.config.tls import TlsError
from pollux.ha.replication import session_guard
from pollux.ha.replication.coordination import CoordinationError
from pollux.ha.replication.session_guard import LONGEST, Duty, SessionGuard, end_session, is_noted, wait_until_gone

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


class Clock:
    """A clock that only sleeping moves."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_a_key_store_that_cannot_be_read_at_that_moment_is_tried_again(tmp_path: Path) -> None:
    """And a ZooKeeper that does not answer; breaks when the guard ends with a traceback instead."""
    record = tmp_path / "session"
    note(record, "mine")
    answers = [TlsError("zookeeper.pem: no such file"), CoordinationError("no answer"), None]
    clock = Clock()

    def close() -> None:
        answer = answers.pop(0)
        if answer is not None:
            raise answer

    assert end_session(Duty(1, record, "mine", 30.0), close, clock=clock, sleep=clock.sleep)
    assert answers == []


@pytest.mark.parametrize(("session", "longest"), [(7.0, 7.0), (3600.0, LONGEST)])
def test_it_gives_up_when_the_session_has_ended_and_after_a_minute(
    tmp_path: Path, session: float, longest: float
) -> None:
    """Where ZooKeeper is gone too nobody can be told: breaks when the guard stays as long as an hour's session."""
    record = tmp_path / "session"
    note(record, "mine")
    clock = Clock()

    def close() -> None:
        raise CoordinationError("no answer")

    assert not end_session(Duty(1, record, "mine", session), close, clock=clock, sleep=clock.sleep)
    assert clock.now - Clock.now == pytest.approx(longest, abs=2 * session_guard.PAUSE)


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


def test_a_broker_that_ends_in_order_takes_its_guard_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And one that was killed is replaced. On a busy machine a guard that has just begun takes longer to end."""
    monkeypatch.setattr(session_guard, "ENDING", 60.0)
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
