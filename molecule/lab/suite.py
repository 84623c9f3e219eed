"""The scenarios that are run together: all that this machine can run, three at a time.

A scenario on containers waits half of its time (for leases, for clients that connect again, for playbooks), so three of
them keep two cores busy; each is a process of its own, and has its own hosts, network and reports. Virtual machines
need all cores for themselves when they are broken, but not while they boot and are deployed: their scenarios have a
lane of their own from the beginning, take what processor time the others leave, and break nothing before all others
have ended (:mod:`lab.quiet`). One that fails does not end the others.

A machine that could run a scenario must: on Linux as root the lab brings its own engine; where an engine answers it is
used. Only where neither is so, scenarios with hosts are left out, with one line each that says why; those without hosts
run everywhere. Virtual machines need Linux, root and QEMU, which emulates them where there is no KVM.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from lab import disks, engine, machines, quiet, scenarios
from lab.places import PLACES, SCENARIOS, LabError
from lab.reason import passage, shorten

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

#: The longest first, so that the last ones to end are short: one that begins late and takes long is waited for alone.
SUITE = (
    "cluster",
    "active_passive",
    "default",
    "replication_zookeeper",
    "colocated",
    "replication_quorum",
    "database_store",
    "third_vote",
    "live_only",
    "hardening",
    "validation",
    "shared_store_nfs",
)
#: So many scenarios on containers run at the same time.
LANES = 3
#: What a program on virtual machines is started with: beside the others, whose leases pass, it comes second.
BEHIND = ("nice", "-n", "5")
#: Lines of a scenario that are shown while it runs: what the lab itself says, one for each step.
SHOWN = "lab: "
#: Seconds that a scenario gets to stop what it started when the suite is interrupted.
PATIENCE = 20.0
#: The whole output of each scenario, by its name.
LOGS = PLACES.state / "suite"


@dataclass(frozen=True)
class Result:
    """How a scenario ended. `seconds` of wall clock; `why` skipped or failed; `log`: its output, "" when skipped."""

    scenario: str
    result: Literal["passed", "failed", "skipped"]
    seconds: float = 0.0
    why: str = ""
    log: str = ""

    def __str__(self) -> str:
        if self.result == "skipped":
            return f"scenario {self.scenario}: SKIPPED: {self.why}"
        why = f": {self.why}" if self.why else ""
        told = f"{why}; its output: {self.log}" if self.result == "failed" else ""
        return f"scenario {self.scenario}: {self.result} in {self.seconds:.0f} s{told}"


def excuse(*, hosts: bool, linux: bool, root: bool, answers: Callable[[], bool]) -> str:
    """Why a scenario cannot run on this machine; empty when it must. `answers`: whether a Docker engine does."""
    if not hosts or (linux and root) or answers():
        return ""
    who = "this is not root" if linux else "this is not Linux"
    return f"no Docker engine answers, and the lab cannot start one: {who}; start Docker, or run it on Linux as root"


def why_not(name: str) -> str:
    """Why a scenario of the suite does not run here; empty when it must."""
    if machines.on_machines(name):
        return disks.excuse()
    return excuse(
        hosts=scenarios.has_hosts(name),
        linux=sys.platform == "linux",
        root=os.geteuid() == 0,
        answers=lambda: engine.find() is not None,
    )


def last_words(output: str) -> str:
    """Return what a scenario's program said when it gave up: all that follows its last "lab: ", as one line."""
    said = " ".join(f"\n{output}".rpartition(f"\n{SHOWN}")[2].split())
    return shorten(re.sub(r"^scenario \S+ failed after \d+ s, ", "", said))


def command(name: str) -> list[str]:
    """Return what runs one scenario whole, judged by the guard."""
    return [sys.executable, str(SCENARIOS / "lab"), "test", name]


class Suite:
    """Runs scenarios side by side. `say` is given lines without their end."""

    def __init__(self, say: Callable[[str], None], logs: Path) -> None:
        self._say = say
        self._logs = logs
        self._quiet = logs / "quiet.lock"
        self._speaking = threading.Lock()
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._interrupted = False

    def run(self, names: Sequence[str], lanes: int) -> list[Result]:
        """Run them, `lanes` at a time, and one on machines beside them, begun and told in the order of the names.

        Ends all of them when it is interrupted.
        """
        self._logs.mkdir(parents=True, exist_ok=True)
        with (
            quiet.noise(self._quiet) as noise,
            ThreadPoolExecutor(lanes) as threads,
            ThreadPoolExecutor(1) as beside,
        ):
            try:
                played = {
                    name: (beside if machines.on_machines(name) else threads).submit(self._run, name) for name in names
                }
                wait([done for name, done in played.items() if not machines.on_machines(name)])
                noise.close()
                return [done.result() for done in played.values()]
            except BaseException:
                self._interrupt()
                raise

    def _run(self, name: str) -> Result:
        log, on_machines = self._logs / f"{name}.log", machines.on_machines(name)
        began = time.monotonic()
        with self._speaking:
            if self._interrupted:
                return Result(name, "failed", why="interrupted")
            self._children[name] = subprocess.Popen(
                [*(BEHIND if on_machines else ()), *command(name)],
                env={**os.environ, quiet.VARIABLE: str(self._quiet)} if on_machines else None,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        with self._children[name] as child, log.open("wb") as kept:
            for line in child.stdout or ():
                kept.write(line)
                if (text := line.decode(errors="replace").rstrip()).startswith(SHOWN):
                    self._tell(text.removeprefix(SHOWN))
        seconds = round(time.monotonic() - began, 1)
        if not child.returncode:
            result = Result(name, "passed", seconds, log=str(log))
            self._tell(str(result))
            return result
        output = log.read_text(encoding="utf-8", errors="replace")
        result = Result(name, "failed", seconds, why=last_words(output), log=str(log))
        self._tell(str(result), output)
        return result

    def _tell(self, line: str, output: str = "") -> None:
        """One line, and what a scenario that failed said; never mixed with another lane's."""
        with self._speaking:
            if output:
                self._say(f"{line}\n{output.rstrip()}\n(the end of what it said)")
            self._say(line)

    def _interrupt(self) -> None:
        with self._speaking:
            self._interrupted = True
            running = [child for child in self._children.values() if child.poll() is None]
        for child in running:
            child.send_signal(signal.SIGTERM)
        for child in running:
            try:
                child.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                child.kill()


def run(only: Sequence[str] = (), *, as_json: bool = False, lanes: int = LANES) -> int:
    """Run what can be run here; 1 when a scenario failed. `as_json`: results on standard output, lines on the other.

    `only`: these of the suite, all if none is named. Raises LabError for a name that is not in it.
    """
    wanted = _wanted(only)
    lines = sys.stderr if as_json else sys.stdout

    def say(line: str) -> None:
        lines.write(f"{line}\n")
        lines.flush()

    began = time.monotonic()
    results = [Result(name, "skipped", why=why) for name in wanted if (why := why_not(name))]
    for one in results:
        say(str(one))
    names = [name for name in wanted if name not in {one.scenario for one in results}]
    _prepare(names)
    results += Suite(say, LOGS).run(names, lanes)
    for one in results:
        if one.result == "failed" and one.log:
            say(f"where {one.scenario} failed:")
            for line in passage(Path(one.log).read_text(encoding="utf-8", errors="replace")):
                say(line)
    for one in results:
        say(str(one))
    counts = {each: sum(one.result == each for one in results) for each in ("passed", "failed", "skipped")}
    took = time.monotonic() - began
    say(f"scenarios: {', '.join(f'{count} {each}' for each, count in counts.items())} in {took:.0f} s")
    if as_json:
        sys.stdout.write(json.dumps({"seconds": took, "scenarios": [asdict(one) for one in results]}) + "\n")
    return 1 if counts["failed"] else 0


def prepare(only: Sequence[str] = ()) -> None:
    """Make what those stand on that can be run here, and run none of them. Raises LabError."""
    _prepare([name for name in _wanted(only) if not why_not(name)])


def _wanted(only: Sequence[str]) -> list[str]:
    if unknown := sorted(set(only) - set(SUITE)):
        raise LabError(f"the suite has no {', '.join(unknown)}; it has: {', '.join(SUITE)}")
    return [name for name in SUITE if name in (only or SUITE)]


def _prepare(names: Sequence[str]) -> None:
    """Make what they stand on, so that no two of them make it at the same time. Raises LabError."""
    parts: dict[str, Callable[[], object]] = {}
    for name in names:
        parts |= scenarios.ground_of(name).parts()
    with ThreadPoolExecutor(LANES) as threads:
        for made in [threads.submit(make) for make in parts.values()]:
            made.result()
