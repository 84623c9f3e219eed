"""Runs molecule scenarios in the lab and does not believe them: the guard judges what they did."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import ansible_mitogen
import yaml

from harness import bytecode, started
from lab import disks, guard, hypervisor, image, inside, machines, power, wheels
from lab.engine import Engine, ensure
from lab.places import PLACES, ROOT, SCENARIOS, LabError, Places
from lab.processes import run
from lab.reason import reason
from lab.record import VARIABLE
from lab.steps import Steps

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    #: What makes each part unless it is there; all parts may be made at the same time.
    Parts = Mapping[str, Callable[[], object]]

#: One scenario never takes longer than this unless it hangs (seconds); on machines it waits for all others, too.
SCENARIO_TIMEOUT = 3600
BASE = SCENARIOS / "lab" / "base.yml"


#: A part that scenarios of all kinds need.
WHEELHOUSE = "wheelhouse"


def names() -> list[str]:
    """All scenarios."""
    return sorted(path.parent.name for path in SCENARIOS.glob("*/molecule.yml"))


class Containers:
    """Hold what a scenario on containers stands on: an engine, started if none answers."""

    def __init__(self, places: Places = PLACES, images: Sequence[str] = (image.BASE,)) -> None:
        """`images`: those that the scenario names (:data:`lab.image.IMAGES`)."""
        self._places = places
        self._images = images
        self._engine = ensure(places)

    def parts(self) -> Parts:
        """Return what it takes long to make, by name."""
        images = {each: partial(image.ensure, self._engine, self._places, each) for each in self._images}
        return {**images, WHEELHOUSE: partial(wheels.ensure, self._places)}

    def settings(self) -> dict[str, str]:
        """The environment that base.yml and the scenarios refer to."""
        environment = self._engine.environment
        version = run(["docker", "info", "--format", "{{.CgroupVersion}}"], environment=environment).stdout.strip()
        settings = _settings(self._places)
        if self._engine.own:
            settings["PATH"] = f"{inside.path_in(self._places)}:{settings['PATH']}"
        return {
            **settings,
            **environment,
            **{variable: image.ensure(self._engine, self._places, variable) for variable in self._images},
            "POLLUX_LAB_CGROUPS": "/sys/fs/cgroup/systemd:/sys/fs/cgroup/systemd:rw"
            if version == "1"
            else "/sys/fs/cgroup:/sys/fs/cgroup:rw",
        }

    def enter(self, command: list[str]) -> list[str]:
        """Molecule talks to the engine, so it runs where the lab does."""
        return command

    def forget(self, name: str) -> None:
        """Remove what a scenario leaves."""
        forget(name, self._engine)


class Nothing:
    """Hold what a scenario without hosts stands on: it only needs what others install."""

    def __init__(self, places: Places = PLACES) -> None:
        self._places = places

    def parts(self) -> Parts:
        """Return what it takes long to make, by name."""
        return {WHEELHOUSE: partial(wheels.ensure, self._places)}

    def settings(self) -> dict[str, str]:
        """The environment that base.yml and the scenarios refer to."""
        return _settings(self._places)

    def enter(self, command: list[str]) -> list[str]:
        """Molecule runs right here."""
        return command

    def forget(self, name: str) -> None:
        """Nothing: no scenario leaves anything here."""


class Machines:
    """Hold what a scenario on virtual machines stands on: their network namespace, in which molecule runs."""

    def __init__(self, places: Places = PLACES) -> None:
        disks.needs()
        self._places = places
        hypervisor.prepare(places)

    def parts(self) -> Parts:
        """Return what it takes long to make, by name."""
        return {"disk": partial(disks.ensure, self._places), WHEELHOUSE: partial(wheels.ensure, self._places)}

    def settings(self) -> dict[str, str]:
        """The environment that base.yml and the scenarios refer to."""
        disks.ensure(self._places)
        return {
            **_settings(self._places),
            "POLLUX_LAB_SSH": f"-F {machines.ssh_config(self._places)}",
            "POLLUX_LAB_INSIDE": "1",
        }

    def enter(self, command: list[str]) -> list[str]:
        """Molecule and everything it starts reach the machines by their addresses."""
        return hypervisor.enter(command, self._places)

    def forget(self, name: str) -> None:
        """Remove what a scenario leaves."""
        machines.down(name, self._places)


def has_hosts(name: str) -> bool:
    """Whether a scenario needs hosts that the lab makes."""
    settings = yaml.safe_load((SCENARIOS / name / "molecule.yml").read_text(encoding="utf-8")) or {}
    driver = settings.get("driver") or {}
    return bool((driver.get("options") or {}).get("managed", True))


def ground_of(name: str, places: Places = PLACES) -> Containers | Machines | Nothing:
    """Return what the scenario of this name stands on. Raises LabError when it is not there."""
    if name not in names():
        raise LabError(f"there is no scenario {name!r}; there are: {', '.join(names())}")
    if not has_hosts(name):
        return Nothing(places)
    return Machines(places) if machines.on_machines(name) else Containers(places, images_of(name))


def images_of(name: str) -> list[str]:
    """The variables of the images that a scenario's file names."""
    text = (SCENARIOS / name / "molecule.yml").read_text(encoding="utf-8")
    return [variable for variable in image.IMAGES if f"${{{variable}}}" in text]


def _settings(places: Places) -> dict[str, str]:
    """Return what scenarios of both kinds refer to."""
    return {
        "POLLUX_ROOT": str(ROOT),
        "POLLUX_LAB_PYTHON": sys.executable,
        # Molecule judges the files of all scenarios before it runs one: each name has a value, if only one that fits.
        **dict.fromkeys((*image.IMAGES, "POLLUX_LAB_CGROUPS", "POLLUX_LAB_SSH"), "none"),
        "POLLUX_LAB_CGROUPNS": "host",
        "POLLUX_LAB_WHEELHOUSE": str(wheels.ensure(places)),
        "POLLUX_LAB_STRATEGIES": str(Path(*ansible_mitogen.__path__) / "plugins" / "strategy"),
        "PYTHONPATH": os.pathsep.join(
            (bytecode.path_in(places.state / "bytecode"), *filter(None, [os.environ.get("PYTHONPATH")]))
        ),
        "POLLUX_LAB_THRIFT": str(places.state / "thrift"),
        # Testinfra and molecule look for ansible's programs in the path.
        "PATH": f"{os.path.dirname(sys.executable)}:{os.environ.get('PATH', '')}",  # noqa: PTH120
        # A user's own settings must not change what a scenario does.
        "ANSIBLE_HOME": str(places.state / "ansible"),
        "ANSIBLE_FORCE_COLOR": "0",
        "PY_COLORS": "0",
        "NO_COLOR": "1",
    }


def molecule(words: Sequence[str]) -> list[str]:
    """The command line of molecule."""
    return [sys.executable, "-m", "molecule", "-c", str(BASE), *words]


def run_whole(name: str, *, keep: bool = False, places: Places = PLACES) -> float:
    """Run one scenario whole; returns seconds. Raises LabError when it failed, or only seemed to work."""
    ground = ground_of(name, places)
    scenario = guard.read(SCENARIOS / name, yaml.safe_load(BASE.read_text(encoding="utf-8")))
    record = places.state / name / "record.jsonl"
    record.parent.mkdir(parents=True, exist_ok=True)
    for left in (record, *record.parent.glob("*.log")):  # what an earlier run said must not be taken for this one's
        left.unlink(missing_ok=True)
    environment = {**os.environ, **ground.settings(), VARIABLE: str(record)}
    if keep:  # `--destroy never` keeps what an earlier run left, too: begin with nothing
        run(ground.enter(molecule(["destroy", "-s", name])), timeout=SCENARIO_TIMEOUT, environment=environment)
    command = ground.enter(molecule(["test", "-s", name, *(["--destroy", "never"] if keep else [])]))
    log = record.with_name("molecule.log")
    began = time.monotonic()
    steps = Steps(scenario)
    try:
        status = _run(command, environment, log, steps)
    finally:
        if not keep:
            ground.forget(name)
    seconds = time.monotonic() - began
    output = log.read_text(encoding="utf-8", errors="replace")
    if status != 0:
        why = reason(output) or f"molecule ended with {status}"
        raise LabError(
            f"scenario {name} failed after {seconds:.0f} s, in {steps.failed or 'no step'}: {why}; log: {log}"
        )
    if trouble := guard.problems(scenario, output, guard.records_in(record)):
        raise LabError(f"scenario {name} ended well but did not do what it should:\n  " + "\n  ".join(trouble))
    return seconds


def _run(command: list[str], environment: dict[str, str], log: Path, steps: Steps) -> int:
    """Run molecule with its output shown and kept, and the seconds of each step; its exit status."""
    with (
        log.open("wb") as kept,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        # Molecule has a process group of its own; it ends with this program when that is interrupted, with all it has
        # started: playbooks, their drill, and what that has begun in sessions of its own.
        all_of_it = f"{VARIABLE}={environment[VARIABLE]}"
        end = threading.Timer(SCENARIO_TIMEOUT, started.end, (all_of_it,))
        end.start()
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        try:
            for line in process.stdout or ():
                ended = steps.read(line.decode(errors="replace"))
                text = line + f"lab: {ended}\n".encode() if ended else line
                for output in (kept, sys.stdout.buffer):
                    output.write(text)
                    output.flush()
            return process.wait()
        except BaseException:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
            started.end(all_of_it)
            raise
        finally:
            end.cancel()
            signal.signal(signal.SIGTERM, before)


def forget(name: str, engine: Engine) -> None:
    """Remove a scenario's containers, network and volume, those that are there, and end its power supply."""
    power.down(name)
    prefix = f"pollux-lab-{name}"
    found = run(["docker", "ps", "--all", "--quiet", "--filter", f"network={prefix}"], environment=engine.environment)
    if containers := found.stdout.split():
        command = ["docker", "rm", "--force", "--volumes", *containers]
        run(command, check=False, timeout=SCENARIO_TIMEOUT, environment=engine.environment)
    for kind in ("volume", "network"):
        run(["docker", kind, "rm", prefix], check=False, environment=engine.environment)
