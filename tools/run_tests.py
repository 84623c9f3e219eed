"""`make test`, its last step: all tests, in two lanes side by side; if asked for, then the scenarios of molecule/.

    .venv/bin/python tools/run_tests.py [--json] [--lanes bundle,broker,lab] [-- PYTEST OPTIONS]

Each lane is one pytest, one for each core that the smallest machine has; their lines are shown with the lane's name
before them, and what failed is told in full at its end. Playbooks mostly wait for processes that they start, brokers
under load mostly for the disk and for deadlines: together they take little longer than either alone. Whatever is in
tests/ is in one of the lanes: the last takes what no other one has.

The scenarios (lane "lab", on request) come when the tests are over: they run side by side themselves, and on a machine
that is busy with something else the brokers' own limits (a session, a lease) pass because of that and not because of
what was broken.

Exit status: 0 all passed, 1 a test failed or a lane could not run, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
#: What each lane of pytest's runs; the last one has the rest of tests/.
LANES = {"bundle": ("tests/ansible", "tests/pipeline"), "broker": ()}
#: Lanes that are programs of their own, after those: what Python is told.
PROGRAMS = {"lab": ("molecule/lab", "suite", "--down")}
#: Seconds a lane gets to end its brokers when it is interrupted.
PATIENCE = 60
EXAMPLES = """\
examples:
  make test                                     everything, after set-up and lint
  tools/run_tests.py                            the tests alone
  tools/run_tests.py --lanes bundle,broker,lab  and then the scenarios on containers
  tools/run_tests.py -- --durations=20          with the slowest of each lane
  .venv/bin/python -m pytest tests/broker/ha    some of them, in one process
"""
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|xpassed)")
_OUTCOME = {"errors": "failed", "error": "failed", "xpassed": "failed", "xfailed": "skipped"}


class Outcome(NamedTuple):
    """How a lane ended: pytest's exit status, its counts ("passed", "failed", "skipped"), and its seconds."""

    status: int
    counts: Counter[str]
    seconds: float


def arguments(lane: str) -> list[str]:
    """What pytest is told of a lane."""
    if LANES[lane]:
        return list(LANES[lane])
    return ["tests", *(f"--ignore={path}" for paths in LANES.values() for path in paths)]


def counts_of(line: str) -> Counter[str]:
    """The numbers in pytest's closing line."""
    found: Counter[str] = Counter()
    for number, name in _COUNT.findall(line):
        found[_OUTCOME.get(name, name)] += int(number)
    return found


def closing(outcomes: dict[str, Outcome]) -> str:
    """One line for all lanes. A lane that ended badly without a failed test counts as one."""
    total: Counter[str] = Counter()
    for outcome in outcomes.values():
        total += outcome.counts
        total["failed"] += bool(outcome.status) and not outcome.counts["failed"]
    return f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped"


def command(lane: str, options: list[str], scratch: Path) -> list[str]:
    """The command line of a lane."""
    if lane in PROGRAMS:
        return [sys.executable, *PROGRAMS[lane]]
    pytest = [sys.executable, "-m", "pytest", f"--basetemp={scratch / lane}", "-p", "no:cacheprovider"]
    return [*pytest, *arguments(lane), *options]


class Lane(threading.Thread):
    """One program, in a process group of its own, and its output."""

    def __init__(self, name: str, options: list[str], scratch: Path, show: threading.Lock | None) -> None:
        super().__init__(name=name)
        self.began = time.monotonic()
        self.outcome: Outcome | None = None
        self._show = show
        self.process = subprocess.Popen(
            command(name, options, scratch),
            cwd=ROOT,
            env={**os.environ, "COLUMNS": "110"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )

    def run(self) -> None:
        """Show its lines until it ends."""
        last = ""
        assert self.process.stdout is not None  # noqa: S101  (asked for above)
        with self.process.stdout as lines:
            for line in lines:
                last = line.strip() or last
                if self._show is not None:
                    with self._show:
                        sys.stdout.write(f"{self.name:<7}| {line.rstrip()}\n")
                        sys.stdout.flush()
        self.outcome = Outcome(self.process.wait(), counts_of(last), time.monotonic() - self.began)

    def interrupt(self) -> None:
        """End it as Ctrl-C would, so that it stops what it started; after a while at once."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
            try:
                self.process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)


def main() -> int:
    """Run the lanes, tell what came out."""
    parser = argparse.ArgumentParser(
        description="All tests, in lanes side by side; and the scenarios.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--json", action="store_true", help="print the outcome for a program and nothing else")
    parser.add_argument("options", nargs="*", metavar="-- OPTIONS", help="what each pytest is told besides")
    known = [*LANES, *PROGRAMS]
    parser.add_argument("--lanes", default=",".join(LANES), help=f"of {', '.join(known)}")
    given = parser.parse_args()
    chosen = given.lanes.split(",")
    if unknown := sorted(set(chosen) - set(known)):
        parser.error(f"there is no lane {', '.join(unknown)}; there are: {', '.join(known)}")
    scratch = Path(tempfile.mkdtemp(prefix="pollux-tests-"))
    show = None if given.json else threading.Lock()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us ends what we have started
    lanes: list[Lane] = []
    try:
        for together in (LANES, PROGRAMS):
            begun = [Lane(name, given.options, scratch, show) for name in together if name in chosen]
            lanes += begun
            for lane in begun:
                lane.start()
            for lane in begun:
                lane.join()
    except KeyboardInterrupt:
        for lane in lanes:
            lane.interrupt()
        return 130
    outcomes = {lane.name: lane.outcome for lane in lanes if lane.outcome is not None}
    failed = len(outcomes) < len(lanes) or any(outcome.status for outcome in outcomes.values())
    if given.json:
        print(json.dumps({name: outcome._asdict() for name, outcome in outcomes.items()}))
    else:
        for name, outcome in outcomes.items():
            told = ", ".join(f"{number} {what}" for what, number in sorted(outcome.counts.items())) or "no tests"
            sys.stdout.write(f"{name}: {told} in {outcome.seconds:.0f} s, exit status {outcome.status}\n")
        sys.stdout.write(f"\n{closing(outcomes)}\n")
    if failed:
        sys.stdout.flush()
        sys.stderr.write(f"what the failed tests left is in {scratch}\n")
        return 1
    shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
