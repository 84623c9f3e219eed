"""`make test`, its last step: all tests side by side, and then the scenarios of molecule/.

    .venv/bin/python tools/run_tests.py [--without-scenarios] [-- PYTEST OPTIONS]

The tests are one pytest with several workers (pytest-xdist), one more than there are processors: playbooks mostly wait
for processes that they start, brokers under load mostly for the disk and for deadlines. tests/conftest.py says what
stays together in one worker and what is begun first.

The scenarios come when the tests are over: they run side by side themselves, and on a machine that is busy with
something else the brokers' own limits (a session, a lease) pass because of that and not because of what was broken.
What they stand on (images, a disk) is made beside the tests.

Where all this ran on another machine only the end may be left to read: so the last lines of what failed, in which
pytest and the suite name it, come once more at the end of all, before the counts.

Interrupted (Ctrl-C, SIGTERM) it has the tests and the lab tidy up, and then ends whatever is left of what they have
started; interrupted again it does that at once.

Exit status: 0 all passed, 1 a test or a scenario failed or could not run, 130 interrupted.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(1, str(ROOT))

from harness import started  # noqa: E402

#: Names the run in the environment of all that it starts.
VARIABLE = "POLLUX_TEST_RUN"
TESTS = ("tests",)
#: Python programs: the scenarios, what makes that which they stand on, and what takes it away when they never begin.
SCENARIOS: tuple[str, ...] = ("molecule/lab", "suite", "--down")
AHEAD: tuple[str, ...] = ("molecule/lab", "suite", "--prepare")
UNDO: tuple[str, ...] = ("molecule/lab", "down")
#: Seconds that pytest or the suite gets to end its brokers when it is interrupted.
PATIENCE = 60
#: Lines of something that failed that are shown once more.
TOLD = 60
#: Bytes that the tests have on a disk at once, and how full it may be, of 1: brokers refuse messages on a fuller one.
WRITTEN, FULL = 4 << 30, 0.9
EXAMPLES = """\
examples:
  make test                                     everything, after set-up and lint
  tools/run_tests.py --without-scenarios        the tests
  tools/run_tests.py -- --durations=20          with the slowest of them
  .venv/bin/python -m pytest tests/broker/ha    some of them, in one process
"""


class Program(threading.Thread):
    """A program in a session of its own, whose lines are shown with its name before them."""

    def __init__(self, name: str, words: tuple[str, ...], run: str) -> None:
        """`run`: what its environment says it belongs to."""
        super().__init__(name=name)
        self.last: deque[str] = deque(maxlen=TOLD)
        self.status: int | None = None
        self.process = subprocess.Popen(
            [sys.executable, *words],
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "110", VARIABLE: run},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.start()

    def run(self) -> None:
        """Show its lines until it ends."""
        assert self.process.stdout is not None  # noqa: S101  (asked for above)
        with self.process.stdout as lines:
            for line in lines:
                self.last.append(line.rstrip())
                sys.stdout.write(f"{self.name:<6}| {line.rstrip()}\n")
                sys.stdout.flush()
        self.status = self.process.wait()

    def interrupt(self) -> None:
        """End it as Ctrl-C would, so that it stops what it started; after a while at once."""
        for how in (signal.SIGINT, signal.SIGKILL):
            if self.process.poll() is None:
                os.killpg(self.process.pid, how)
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self.process.wait(PATIENCE)  # a join that was interrupted says that the thread has ended


def pytest(options: list[str], scratch: Path) -> tuple[str, ...]:
    """The words of pytest's command."""
    workers = ("-n", str((os.cpu_count() or 1) + 1), "--no-loadscope-reorder", "--dist", "loadscope")
    return ("-m", "pytest", "-q", f"--basetemp={scratch}", "-p", "no:cacheprovider", *workers, *TESTS, *options)


def short_of_room(directory: Path) -> str:
    """Say what will be wrong where a disk has too little room; empty: it has enough."""
    disk = shutil.disk_usage(directory)
    missing = WRITTEN - (disk.free - round(disk.total * (1 - FULL)))
    if missing <= 0:
        return ""
    return (
        f"{directory}: tests will fail when the disk is {FULL:.0%} full, for brokers refuse messages then: free"
        f" {missing / (1 << 30):.1f} GiB (runs that failed keep files in pollux-tests-*)"
    )


def main() -> int:
    """Run everything and tell what came out."""
    parser = argparse.ArgumentParser(
        description="All tests, side by side; and the scenarios.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--without-scenarios", action="store_true", help="the tests alone")
    parser.add_argument("options", nargs="*", metavar="-- OPTIONS", help="what pytest is told besides")
    given = parser.parse_args()
    # Whoever ends us ends what we have started; so also where a shell has begun us in the background, deaf to SIGINT.
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.default_int_handler)
    scratch = Path(tempfile.mkdtemp(prefix="pollux-tests-"))
    if words := short_of_room(scratch.parent):
        sys.stderr.write(f"warning: {words}\n")
    begun: list[Program] = []
    try:
        begun.append(Program("tests", pytest(given.options, scratch / "tests"), str(scratch)))
        if not given.without_scenarios:
            # Whether that works is not asked: what needs it does it again, and tells why it cannot.
            begun.append(Program("ahead", AHEAD, str(scratch)))
            for program in begun:
                program.join()
            begun[1:] = [Program("lab", SCENARIOS, str(scratch))]
        for program in begun:
            program.join()
    except KeyboardInterrupt:
        with contextlib.suppress(KeyboardInterrupt, subprocess.TimeoutExpired):  # a second one: at once
            for program in begun:
                program.interrupt()
            if not given.without_scenarios:
                named = {**os.environ, VARIABLE: str(scratch)}
                subprocess.run([sys.executable, *UNDO], cwd=ROOT, env=named, timeout=PATIENCE, check=False)
        for each in (signal.SIGINT, signal.SIGTERM):
            signal.signal(each, signal.SIG_IGN)
        started.end(f"{VARIABLE}={scratch}", patience=0)
        shutil.rmtree(scratch, ignore_errors=True)
        return 130
    failed = [program for program in begun if program.status != 0]
    for program in failed:
        sys.stdout.write("\n".join(["", f"--- {program.name}: exit status {program.status}", *program.last]) + "\n")
    sys.stdout.write("\n".join(["", *(program.last[-1] if program.last else "" for program in reversed(begun))]) + "\n")
    if failed:
        sys.stderr.write(f"what the failed tests left is in {scratch}; remove it when you have seen it\n")
        return 1
    shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
