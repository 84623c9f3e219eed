"""Which scenarios `make test` runs, which it may leave out, and what it says of them."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest
import yaml

from lab import cli, machines, quiet, scenarios, suite
from lab.places import SCENARIOS, LabError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.mark.parametrize(
    ("hosts", "linux", "root", "engine", "runs"),
    [
        (True, True, True, False, True),  # the lab starts an engine of its own
        (True, True, False, True, True),
        (True, False, False, True, True),
        (True, True, False, False, False),
        (True, False, True, False, False),
        (False, False, False, False, True),
    ],
)
def test_a_scenario_that_could_run_must(*, hosts: bool, linux: bool, root: bool, engine: bool, runs: bool) -> None:
    why = suite.excuse(hosts=hosts, linux=linux, root=root, answers=lambda: engine)
    assert (why == "") == runs
    assert runs or "Docker" in why


def test_every_scenario_is_in_the_suite() -> None:
    """Breaks when a scenario is written and nobody runs it, or when one is removed and the suite silently shrinks."""
    assert len(set(suite.SUITE)) == len(suite.SUITE)
    assert set(scenarios.names()) == {*suite.SUITE}
    having = {name for name in scenarios.names() if scenarios.has_hosts(name)}
    assert having == set(scenarios.names()) - {"validation"}


def test_a_scenario_without_hosts_needs_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when `validation` cannot run on a machine without Docker."""

    def none(*_: object) -> None:
        raise LabError("no Docker engine answers")

    monkeypatch.setattr(scenarios, "ensure", none)
    assert isinstance(scenarios.ground_of("validation"), scenarios.Nothing)
    with pytest.raises(LabError):
        scenarios.ground_of("default")


def test_scenarios_on_containers_share_nothing_that_has_a_name() -> None:
    """Breaks when two that may run at the same time have the same subnet, network, volume or container."""
    taken: dict[str, str] = {}
    for name in scenarios.names():
        settings = yaml.safe_load((SCENARIOS / name / "molecule.yml").read_text())
        if machines.on_machines(name) or not scenarios.has_hosts(name):
            continue
        for platform in settings["platforms"]:
            mine = {platform["name"], *(each["source"] for each in platform.get("mounts", ()))}
            for network in platform.get("docker_networks", ()):
                mine |= {network["name"], *(each["subnet"] for each in network["ipam_config"])}
            assert {taken.setdefault(each, name) for each in mine} == {name}


def test_the_reason_is_what_was_said_last() -> None:
    """Breaks when a line of an earlier step is taken for the reason, or a reason of several lines is cut."""
    steps = "TASK [x]\nlab: one: verify: failed after 3.0 s\n"
    said = "lab: scenario one failed after 9 s, in verify: it broke\n  twice\n"
    assert suite.last_words(steps + said) == "in verify: it broke twice"
    assert suite.last_words("lab: the machine does not boot\n") == "the machine does not boot"


# -- what the suite does with scenarios that pass and fail: programs in their place


GOOD = "print('TASK [x]'); print('lab: one: create: successful after 1.0 s')"
BAD = "import sys; print('TASK [y]\\nlab: two: create: failed after 1.0 s', flush=True); sys.exit('it broke')"


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, str]:
    """Python programs by scenario: the suite's scenarios, and where its logs are."""
    found: dict[str, str] = {}
    monkeypatch.setattr(suite, "command", lambda name: [sys.executable, "-c", found[name]])
    monkeypatch.setattr(suite, "why_not", lambda name: "" if found[name] else "it cannot run here")
    monkeypatch.setattr(suite, "_prepare", lambda _: None)
    monkeypatch.setattr(machines, "on_machines", lambda name: name == "machine")
    monkeypatch.setattr(suite, "LOGS", tmp_path)
    return found


def run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], found: dict[str, str], **options: object
) -> tuple[int, str]:
    """Run the suite of these; exit status and standard output."""
    monkeypatch.setattr(suite, "SUITE", tuple(found))
    status = suite.run(**options)  # type: ignore[arg-type]
    return status, capfd.readouterr().out


def test_one_that_fails_ends_no_other_and_is_told_whole(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], programs: dict[str, str], tmp_path: Path
) -> None:
    programs.update(two=BAD, one=GOOD, three="", machine=GOOD)
    status, said = run(monkeypatch, capfd, programs)
    assert status == 1
    lines = said.splitlines()
    assert "one: create: successful after 1.0 s" in lines
    assert said.count("TASK [x]") == 0  # those that pass are not told whole
    failed = lines.index("TASK [y]")
    assert lines[failed : failed + 3] == ["TASK [y]", "lab: two: create: failed after 1.0 s", "it broke"]
    assert [re.sub(r" in \d+ s", "", line) for line in lines[-5:]] == [
        "scenario three: SKIPPED: it cannot run here",
        f"scenario two: failed: two: create: failed after 1.0 s it broke; its output: {tmp_path}/two.log",
        "scenario one: passed",
        "scenario machine: passed",
        "scenarios: 2 passed, 1 failed, 1 skipped",
    ]


def test_all_that_pass_are_told_to_a_program(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], programs: dict[str, str]
) -> None:
    programs.update(one=GOOD, other=GOOD)
    status, said = run(monkeypatch, capfd, programs, as_json=True)
    assert status == 0
    found = json.loads(said)
    assert [(each["scenario"], each["result"]) for each in found["scenarios"]] == [
        ("one", "passed"),
        ("other", "passed"),
    ]
    assert round(found["seconds"], 1) >= max(each["seconds"] for each in found["scenarios"])


def test_some_of_them_can_be_named(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], programs: dict[str, str]
) -> None:
    programs.update(one=GOOD, other=BAD)
    status, said = run(monkeypatch, capfd, programs, only=["one"])
    assert (status, "scenario one: passed" in said, "other" in said) == (0, True, False)
    with pytest.raises(LabError, match="the suite has no none; it has: one, other"):
        suite.run(["none"])


MEETS = """
import os, sys, time
mine, other = sys.argv[1:] if len(sys.argv) > 1 else ({mine!r}, {other!r})
open(mine, "w").close()
end = time.monotonic() + {patience}
while not os.path.exists(other):
    if time.monotonic() > end:
        sys.exit("the other one does not run")
    time.sleep(0.01)
"""


@pytest.mark.parametrize(("lanes", "second", "status"), [(2, "b", 0), (1, "b", 1), (1, "machine", 0)])
def test_scenarios_run_side_by_side(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    programs: dict[str, str],
    tmp_path: Path,
    *,
    lanes: int,
    second: str,
    status: int,
) -> None:
    """Each waits for the other to run; the one that has to come first gives up."""
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    patience = 20 if status == 0 else 0.3
    programs.update(
        a=MEETS.format(mine=here, other=there, patience=patience),
        **{second: MEETS.format(mine=there, other=here, patience=patience)},
    )
    assert run(monkeypatch, capfd, programs, lanes=lanes)[0] == status


BREAKS = """
import os, sys
from lab import quiet
began, ended = {began!r}, {ended!r}
open(began, "w").close()
quiet.wait()
sys.exit(None if os.path.exists(ended) else "the other one still runs")
"""
ENDS = """
import os, sys, time
began, ended = {began!r}, {ended!r}
end = time.monotonic() + 20
while not os.path.exists(began):
    if time.monotonic() > end:
        sys.exit("the one on machines does not begin")
    time.sleep(0.01)
time.sleep(0.3)
open(ended, "w").close()
"""


def test_on_machines_nothing_is_broken_before_all_others_have_ended(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], programs: dict[str, str], tmp_path: Path
) -> None:
    """Breaks when a drill on machines does not wait, or when such a scenario begins only when the others have ended."""
    monkeypatch.setenv("PYTHONPATH", str(SCENARIOS))
    files = {"began": str(tmp_path / "began"), "ended": str(tmp_path / "ended")}
    programs.update(machine=BREAKS.format(**files), one=ENDS.format(**files))
    status, said = run(monkeypatch, capfd, programs)
    assert status == 0, said
    assert said.index("scenario one: passed") < said.index("scenario machine: passed")


def test_where_no_suite_says_so_nobody_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A scenario that is run alone; breaks when a drill waits for a file that nobody made."""
    monkeypatch.delenv(quiet.VARIABLE, raising=False)
    with quiet.noise(tmp_path / "lock"):
        quiet.wait()


def test_scenarios_on_machines_run_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], programs: dict[str, str], tmp_path: Path
) -> None:
    monkeypatch.setattr(machines, "on_machines", lambda _: True)
    here, there = str(tmp_path / "here"), str(tmp_path / "there")
    programs.update(
        a=MEETS.format(mine=here, other=there, patience=0.3), b=MEETS.format(mine=there, other=here, patience=0.3)
    )
    assert run(monkeypatch, capfd, programs, lanes=2)[0] == 1


def test_when_it_is_interrupted_what_runs_is_ended(programs: dict[str, str], tmp_path: Path) -> None:
    """Breaks when a scenario survives the suite."""
    programs["one"] = "import time; print('lab: it runs', flush=True); time.sleep(100)"

    def interrupt(line: str) -> None:
        raise KeyboardInterrupt(line)

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt, match="it runs"):
        suite.Suite(interrupt, tmp_path).run(["one"], 1)
    assert time.monotonic() - began < 20


@pytest.mark.parametrize(("words", "stops"), [(["suite"], 0), (["suite", "--down"], 1)])
def test_the_lab_is_stopped_at_the_end_also_of_a_suite_that_is_interrupted(
    monkeypatch: pytest.MonkeyPatch, words: list[str], stops: int
) -> None:
    def interrupted(*_: object, **__: object) -> int:
        raise KeyboardInterrupt

    stopped: list[None] = []
    monkeypatch.setattr(suite, "run", interrupted)
    monkeypatch.setattr(cli, "_stop", lambda: stopped.append(None))
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert cli.main(words) == 130
    assert len(stopped) == stops


def test_what_they_stand_on_can_be_made_without_running_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when it is made for scenarios that this machine cannot run, or one of them runs."""
    made: list[str] = []
    monkeypatch.setattr(suite, "why_not", lambda name: "no engine" if name == "default" else "")
    monkeypatch.setattr(suite, "_prepare", made.extend)
    monkeypatch.setattr(suite, "run", None)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    assert cli.main(["suite", "--prepare"]) == 0
    assert made == [name for name in suite.SUITE if name != "default"]
    assert cli.main(["suite", "--prepare", "nowhere"]) == 1


def test_what_scenarios_stand_on_is_made_once_and_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    """Breaks when two images are made one after the other, or one of them twice."""
    together = threading.Barrier(2, timeout=30)
    made: list[str] = []

    class Ground:
        def __init__(self, image: str) -> None:
            self._image = image

        def parts(self) -> dict[str, Callable[[], object]]:
            def make() -> None:
                together.wait()
                made.append(self._image)

            return {self._image: make}

    monkeypatch.setattr(scenarios, "ground_of", {"a": Ground("base"), "b": Ground("other"), "c": Ground("base")}.get)
    suite._prepare(["a", "b", "c"])
    assert sorted(made) == ["base", "other"]
