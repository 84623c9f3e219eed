"""`make test`, its last step: all tests, in lanes side by side, and then the scenarios of molecule/.

    .venv/bin/python tools/run_tests.py [--json] [--lanes bundle,e2e,broker,lab] [-- PYTEST OPTIONS]

Each lane is one pytest; their lines are shown with the lane's name before them, and what failed is told in full at its
end. Where all this ran on another machine only the end may be left to read: so what the failed tests said comes once
more at the end of all, cut to the lines that matter, and then their names. Playbooks mostly wait for processes that
they start, brokers under load mostly for the disk and for deadlines: one lane more than the smallest machine has cores
keeps these busy. Whatever is in tests/ is in one of the lanes: the last takes what no other one has.

The scenarios (lane "lab") come when the tests are over: they run side by side themselves, and on a machine
that is busy with something else the brokers' own limits (a session, a lease) pass because of that and not because of
what was broken. What they stand on (images, a disk) is made beside the tests.

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
from collections import Counter, deque
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from collections.abc import Sequence

ROOT = Path(__file__).resolve().parent.parent
#: What each lane of pytest's runs, about as long as the others; the last one has the rest of tests/.
LANES = {
    "bundle": (
        *("tests/ansible", "tests/benchmarks", "tests/tooling"),
        *("tests/e2e/test_failover_random.py", "tests/e2e/test_raising.py", "tests/e2e/test_slow_readers.py"),
        "tests/broker/process",
    ),
    "e2e": ("tests/e2e", "tests/hostile", "tests/pipeline", "tests/conformance", "tests/broker/cli", "tests/broker/ha"),
    "broker": (),
}
#: Lanes that are programs of their own, after those: what Python is told.
PROGRAMS = {"lab": ("molecule/lab", "suite", "--down")}
#: What those need, made while the tests run, and what takes it away again when they never begin.
AHEAD = {"lab": ("molecule/lab", "suite", "--prepare")}
UNDO = {"lab": ("molecule/lab", "down")}
#: Seconds a lane gets to end its brokers when it is interrupted.
PATIENCE = 60
EXAMPLES = """\
examples:
  make test                                     everything, after set-up and lint
  tools/run_tests.py                            the tests, and then the scenarios
  tools/run_tests.py --lanes bundle,e2e,broker  the tests without the scenarios
  tools/run_tests.py -- --durations=20          with the slowest of each lane
  .venv/bin/python -m pytest tests/broker/ha    some of them, in one process
"""
#: Lines of a lane that name something that failed: pytest's summary, and the suite's of the scenarios.
_FAILED = re.compile(r"(?:FAILED|ERROR) \S+\.py\b.*|scenario \S+: failed.*")
#: So many of a lane are named again at the end.
NAMED = 20
#: Of so many the own words are told again; of each at most and at least so many lines, of all about so many together.
TOLD, MOST, LEAST, TOGETHER = 5, 40, 12, 60
#: Characters of such a line.
WIDTH = 1000
_COUNT = re.compile(r"(\d+) (passed|failed|skipped|errors?|xfailed|xpassed)")
_OUTCOME = {"errors": "failed", "error": "failed", "xpassed": "failed", "xfailed": "skipped"}


class Outcome(NamedTuple):
    """How a lane ended: pytest's exit status, its counts ("passed", "failed", "skipped"), its seconds, what failed, and
    what that said: names and texts, the first :data:`TOLD`.
    """

    status: int
    counts: Counter[str]
    seconds: float
    failed: list[str]
    said: list[tuple[str, str]]


def arguments(lane: str) -> list[str]:
    """What pytest is told of a lane."""
    own = LANES[lane] or ("tests",)
    others = [path for name, paths in LANES.items() if name != lane for path in paths]
    return [*own, *(f"--ignore={path}" for path in others if any(Path(path).is_relative_to(one) for one in own))]


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


def failures_in(report: Path) -> list[tuple[str, str]]:
    """Name and text of what failed by pytest's report in JUnit's form; nothing where there is none, or half of one."""
    try:
        cases = ET.parse(report).iter("testcase")  # noqa: S314  (our own pytest wrote it)
    except (OSError, ET.ParseError):
        return []
    return [
        (f"{case.get('classname')}::{case.get('name')}", found.text or "")
        for case in cases
        for found in case
        if found.tag in ("failure", "error")
    ]


def ends(lines: Sequence[str], most: int) -> list[str]:
    """The lines; of more than ``most`` the beginning and the end. Lines that are too long likewise."""
    if len(lines) > most:
        lines = [*lines[: most // 3], "...", *lines[len(lines) - most + most // 3 + 1 :]]
    half = WIDTH // 2
    return [line if len(line) <= WIDTH else f"{line[:half]} ... {line[-half:]}" for line in lines]


def essence(text: str, most: int) -> list[str]:
    """At most so many lines of what a failed test said: with the error's words (after "E") and what follows on them."""
    lines = text.splitlines()
    words = next((number for number, line in enumerate(lines) if line.startswith("E ")), 0)
    return ends(lines[min(words, max(0, len(lines) - most)) :], most)


def last_words(outcomes: dict[str, Outcome]) -> list[str]:
    """What the first that failed said, so that the end of a long output tells what went wrong."""
    said = [(f"{lane}: {name}", text) for lane, outcome in outcomes.items() for name, text in outcome.said][:TOLD]
    most = max(LEAST, min(MOST, TOGETHER // max(1, len(said))))
    return [line for name, text in said for line in ("", f"--- {name}", *essence(text, most))]


def report_of(lane: str, scratch: Path) -> Path:
    """Where a lane's pytest says what became of each test, when all are done."""
    return scratch / f"{lane}.xml"


def command(lane: str, options: list[str], scratch: Path) -> list[str]:
    """The command line of a lane."""
    if lane in PROGRAMS:
        return [sys.executable, *PROGRAMS[lane]]
    pytest = [sys.executable, "-m", "pytest", f"--basetemp={scratch / lane}", "-p", "no:cacheprovider"]
    return [*pytest, f"--junitxml={report_of(lane, scratch)}", *arguments(lane), *options]


class Lane(threading.Thread):
    """One program, in a process group of its own, and its output."""

    def __init__(self, name: str, words: list[str], show: threading.Lock | None, report: Path) -> None:
        super().__init__(name=name)
        self._report = report
        self.began = time.monotonic()
        self.outcome: Outcome | None = None
        self._show = show
        self.process = subprocess.Popen(
            words,
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
        end: deque[str] = deque(maxlen=MOST)
        failed: dict[str, None] = {}
        assert self.process.stdout is not None  # noqa: S101  (asked for above)
        with self.process.stdout as lines:
            for line in lines:
                last = line.strip() or last
                end.append(line.rstrip())
                if len(failed) < NAMED and _FAILED.fullmatch(line.rstrip()):
                    failed[line.rstrip()] = None
                if self._show is not None:
                    with self._show:
                        sys.stdout.write(f"{self.name:<7}| {line.rstrip()}\n")
                        sys.stdout.flush()
        status = self.process.wait()
        said = failures_in(self._report)[:TOLD]
        if status and not said:
            said = [("the last lines", "\n".join(end))]  # a program of its own, or pytest itself died
        self.outcome = Outcome(status, counts_of(last), time.monotonic() - self.began, list(failed), said)

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
    parser.add_argument("--lanes", default=",".join(known), help=f"of {', '.join(known)}")
    given = parser.parse_args()
    chosen = given.lanes.split(",")
    if unknown := sorted(set(chosen) - set(known)):
        parser.error(f"there is no lane {', '.join(unknown)}; there are: {', '.join(known)}")
    scratch = Path(tempfile.mkdtemp(prefix="pollux-tests-"))
    show = None if given.json else threading.Lock()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever ends us ends what we have started
    lanes: list[Lane] = []
    ahead: list[Lane] = []
    try:
        for together in (LANES, PROGRAMS):
            begun = [
                Lane(name, command(name, given.options, scratch), show, report_of(name, scratch))
                for name in together
                if name in chosen
            ]
            lanes += begun
            if together is LANES:
                # Whether that works is not asked: what needs it does it again, and tells why it cannot.
                ahead = [
                    Lane(name, [sys.executable, *words], show, report_of(f"{name}-ahead", scratch))
                    for name, words in AHEAD.items()
                    if name in chosen
                ]
                begun = [*begun, *ahead]
            for lane in begun:
                lane.start()
            for lane in begun:
                lane.join()
    except KeyboardInterrupt:
        for lane in [*lanes, *ahead]:
            lane.interrupt()
        for lane in ahead:
            subprocess.run([sys.executable, *UNDO[lane.name]], cwd=ROOT, timeout=PATIENCE, check=False)
        shutil.rmtree(scratch, ignore_errors=True)
        return 130
    outcomes = {lane.name: lane.outcome for lane in lanes if lane.outcome is not None}
    failed = len(outcomes) < len(lanes) or any(outcome.status for outcome in outcomes.values())
    if given.json:
        print(json.dumps({name: outcome._asdict() for name, outcome in outcomes.items()}))
    else:
        for name, outcome in outcomes.items():
            told = ", ".join(f"{number} {what}" for what, number in sorted(outcome.counts.items())) or "no tests"
            sys.stdout.write(f"{name}: {told} in {outcome.seconds:.0f} s, exit status {outcome.status}\n")
        named = [f"{name}: {line}" for name, outcome in outcomes.items() for line in outcome.failed]
        sys.stdout.write("\n".join([*last_words(outcomes), "", *named, closing(outcomes)]) + "\n")
    if failed:
        sys.stdout.flush()
        sys.stderr.write(f"what the failed tests left is in {scratch}\n")
        return 1
    shutil.rmtree(scratch, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
