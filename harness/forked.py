"""Programs of the venv as forks of one process that has imported what a broker imports.

Half of the processor time of a test's broker is importing (0.25 s), and tests start hundreds. One process for each test
run, the nursery, imports once, without threads, and forks on demand: the fork takes over the directory, environment,
standard streams and words that it is given, and calls the program's entry point as its script would. A broker that
replaces itself executes its script anew. What is about starting itself - an interpreter's options, a program in the
place of `pollux` - is a process of its own as before; a Python program of the tests that only changes what `pollux`
finds (:mod:`harness.bad_disk`) may be a fork too: its words begin with the interpreter's name.

A fork is the nursery's child, not the test's: `Forked` does what tests want of a `subprocess.Popen`.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: The longest request: an environment, and words.
_LIMIT = 1 << 20
#: What a broker has imported by the time that it serves all protocols, shared stores and replication, and was asked how
#: it is: what it imports late itself (protocols, and what answers HTTP) is half of it. And the
#: parser of all commands.
_IMPORTED = (
    *("pollux.cli.start", "pollux.process.main"),
    *("pollux.ha.shared_store.activation", "pollux.ha.replication.activation", "pollux.ha.replication.zookeeper"),
    *("pollux.ha.active_passive.activation", "pollux.cluster.connection.service", "pollux.process.websocket"),
    *("pollux.protocols.amqp", "pollux.cluster.link", "pollux.protocols.mqtt", "pollux.protocols.stomp"),
    *("pollux.management.server", "pollux.management.routes", "pollux.process.tls"),
    "pollux.cli.app",
)


class Forked:
    """A program that runs as a fork of the nursery."""

    def __init__(self, nursery: Nursery, args: list[str], pid: int) -> None:
        self.args = args
        self.pid = pid
        self.returncode: int | None = None
        self._nursery = nursery
        # Readable once it has ended. Its number is not given away again before the nursery was asked how it ended.
        self._ended = os.pidfd_open(pid)
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        """How it ended: the exit status, or minus the signal's number; None while it runs."""
        with self._lock:
            if self.returncode is None and self._has_ended(0):
                os.close(self._ended)
                self.returncode = self._nursery.status(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until it has ended; subprocess.TimeoutExpired."""
        if self.returncode is None and not self._has_ended(timeout):
            raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
        status = self.poll()
        assert status is not None
        return status

    def _has_ended(self, timeout: float | None) -> bool:
        waiting = select.poll()
        waiting.register(self._ended, select.POLLIN)
        return bool(waiting.poll(None if timeout is None else timeout * 1000))

    def send_signal(self, number: int) -> None:
        """Send a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The process that forks, and the socket to it."""

    def __init__(self) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._lock = threading.Lock()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _LIMIT)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(theirs.fileno())], pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL
            )
        self._made_by = os.getpid()
        atexit.register(self.close)

    def spawn(self, words: Sequence[str], files: Sequence[int], *, cwd: Path, environment: Mapping[str, str]) -> Forked:
        """Start a script of the venv, or the interpreter with one; `files`: its standard output, error, and input."""
        asked = {"words": list(words), "cwd": str(cwd), "environment": dict(environment)}
        return Forked(self, list(words), self._ask(asked, files)["pid"])

    def status(self, pid: int) -> int:
        """How a fork that has ended did so."""
        status: int = self._ask({"wait": pid})["status"]
        return status

    def close(self) -> None:
        """End the nursery; its forks go on."""
        if os.getpid() == self._made_by:
            self._socket.close()
            self._process.wait()

    def _ask(self, asked: Mapping[str, object], files: Sequence[int] = ()) -> dict[str, Any]:
        with self._lock:
            socket.send_fds(self._socket, [json.dumps(asked).encode()], list(files))
            answer = self._socket.recv(_LIMIT)
        assert answer, "the nursery has ended"
        found: dict[str, Any] = json.loads(answer)
        return found


_nurseries: list[Nursery] = []
_first = threading.Lock()


def spawn(words: Sequence[str], *, cwd: Path, output: int, environment: Mapping[str, str]) -> Forked:
    """Start a script of the venv as a fork of this test run's nursery; `output` is the file for all that it says."""
    return _nursery().spawn(words, [output, output], cwd=cwd, environment=environment)


def run(
    words: Sequence[str],
    *,
    cwd: Path | None = None,
    environment: Mapping[str, str] | None = None,
    given: str = "",
    timeout: float = 60,
) -> subprocess.CompletedProcess[str]:
    """Run a script of the venv as a fork to its end, as `subprocess.run` does with captured text."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as errors, tempfile.TemporaryFile() as read:
        read.write(given.encode())
        read.seek(0)
        files = [output.fileno(), errors.fileno(), read.fileno()]
        process = _nursery().spawn(words, files, cwd=cwd or Path.cwd(), environment=environment or os.environ)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        texts = [os.pread(file, os.fstat(file).st_size, 0).decode() for file in files[:2]]
    return subprocess.CompletedProcess(list(words), status, *texts)


def _nursery() -> Nursery:
    with _first:
        if not _nurseries:
            _nurseries.append(Nursery())
    return _nurseries[0]


# -- within the nursery ------------------------------------------------------------------------------------------------


def serve(connection: socket.socket) -> dict[str, Any] | None:
    """Fork for each request until nobody can ask any more (None); returns in each fork what it is to become."""
    while True:
        data, files, _, _ = socket.recv_fds(connection, _LIMIT, 3)
        if not data:
            return None
        asked: dict[str, Any] = json.loads(data)
        if "wait" in asked:
            answer = {"status": os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])}
        else:
            pid = os.fork()
            if not pid:
                connection.close()
                for target, file in zip((1, 2, 0), files, strict=False):  # it need not be given something to read
                    os.dup2(file, target)
                for file in files:
                    os.close(file)
                return asked
            for file in files:
                os.close(file)
            answer = {"pid": pid}
        connection.send(json.dumps(answer).encode())


def become(asked: dict[str, Any]) -> None:
    """Do what an interpreter and the script `pollux` do before its entry point."""
    import faulthandler

    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["environment"])
    time.tzset()
    if os.environ.get("PYTHONFAULTHANDLER"):
        faulthandler.enable()
    words = asked["words"]
    sys.argv = words[1:] if words[0] == sys.executable else words
    sys.orig_argv = [sys.executable, *sys.argv]
    # A script's first directory is its own, not this file's.
    sys.path[0] = str(Path(sys.argv[0]).parent)


def main_program(descriptor: int) -> None:
    """The nursery's main program, and then that of each fork."""
    import gc
    import importlib

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the test run ends it, also when it is interrupted
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()  # forks share what there is
    asked = serve(socket.socket(fileno=descriptor))
    if asked is not None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        become(asked)
        if sys.argv is not asked["words"]:
            import runpy

            runpy.run_path(sys.argv[0], run_name="__main__")
            return
        from pollux.cli import main

        main()


if __name__ == "__main__":
    main_program(int(sys.argv[1]))
