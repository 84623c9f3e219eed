"""The lab's `docker` command runs commands where the engine would, and leaves to the engine what it does not know."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from lab import inside

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [
    pytest.mark.processes,
    pytest.mark.skipif(
        sys.platform != "linux" or os.geteuid() != 0 or shutil.which("nsenter") is None,
        reason="entering namespaces needs Linux, root and util-linux",
    ),
]
ENGINE = "unix:///nowhere/docker.sock"
#: Stands for docker itself: notes what it is asked, and knows one container.
DOCKER = """#!/bin/sh
echo "$*" >> @ASKED@
case "$*" in
    *inspect*box) cat @TOLD@ ;;
    *inspect*) exit 1 ;;
    *version*) echo 20.10 ;;
    *) echo "docker itself: $*"; exit 3 ;;
esac
"""


class Lab:
    """A process with namespaces of its own that docker says to be the container "box"."""

    def __init__(self, directory: Path) -> None:
        self.asked, self.told = directory / "asked", directory / "told"
        docker = directory / "docker-itself"
        docker.write_text(DOCKER.replace("@ASKED@", str(self.asked)).replace("@TOLD@", str(self.told)))
        kept = directory / "kept"
        kept.mkdir()
        self.groups = directory / "groups"
        self.groups.mkdir()
        self.command = directory / "docker"
        self.command.write_text(inside.script(str(docker), ENGINE, kept, str(self.groups)))
        for program in (docker, self.command):
            program.chmod(0o755)
        self.process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start the container, anew if it runs."""
        self.stop()
        words = ["unshare", "--pid", "--mount", "--uts", "--fork", "--mount-proc", "--kill-child"]
        say = "hostname box; echo ready; exec sleep 600"
        self.process = subprocess.Popen([*words, "sh", "-c", say], stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        self.pid = int(children[0])
        self.tell()
        # Its control groups, as plain directories: the process's own are those of whoever runs the tests.
        self.places = []
        for line in Path(f"/proc/{self.pid}/cgroup").read_text().splitlines():
            number, names, path = line.split(":", 2)
            if path != "/":
                place = self.groups / (names.removeprefix("name=") if number != "0" else "") / path.lstrip("/")
                place.mkdir(parents=True, exist_ok=True)
                (place / "cgroup.procs").touch()
                self.places.append(place)

    def tell(self, user: str = "", directory: str = "", environment: int = 0) -> None:
        """Set docker's word on it from now on, unless it was asked before."""
        self.told.write_text(f"{self.pid} box <{user}> <{directory}> {environment}\n")

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.communicate()

    def run(self, *words: str, given: str = "") -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "DOCKER_HOST": ENGINE, "SECRET": "of this machine"}
        return subprocess.run(
            [str(self.command), *words],
            input=given,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def namespace(self, kind: str) -> str:
        return str(Path(f"/proc/{self.pid}/ns/{kind}").readlink())

    def questions(self) -> list[str]:
        return self.asked.read_text().splitlines() if self.asked.exists() else []


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    made = Lab(tmp_path)
    try:
        yield made
    finally:
        made.stop()


def test_a_command_runs_in_the_containers_namespaces_with_nothing_of_this_machine(lab: Lab) -> None:
    done = lab.run("exec", "box", "sh", "-c", "hostname; readlink /proc/self/ns/mnt; env; cat; echo told >&2; exit 7")
    lines = done.stdout.splitlines()
    assert (done.returncode, done.stderr) == (7, "told\n")
    assert lines[:2] == ["box", lab.namespace("mnt")]
    assert {line.split("=")[0] for line in lines[2:]} == {"PATH", "HOSTNAME", "HOME", "PWD"}


@pytest.mark.parametrize(
    "words",
    [
        ("exec", "-u", "root", "-i"),
        (f"-H={ENGINE}", "exec", "--interactive"),
        ("exec", "--interactive", "--user=root"),
    ],
)
def test_what_is_given_reaches_the_command_when_asked_for(lab: Lab, words: tuple[str, ...]) -> None:
    """As Ansible, testinfra and Mitogen ask; through the engine, it would copy every byte."""
    assert lab.run(*words, "box", "cat", given="some lines\n").stdout == "some lines\n"


def test_the_engine_is_asked_once_and_again_after_a_restart(lab: Lab) -> None:
    """Breaks when a container that began anew is taken for the one before it: nothing could be run in it."""
    before = lab.pid
    for _ in range(2):
        assert lab.run("exec", "box", "hostname").stdout == "box\n"
    assert len(lab.questions()) == 1
    lab.start()
    assert lab.pid != before
    assert lab.run("exec", "box", "readlink", "/proc/self/ns/uts").stdout.strip() == lab.namespace("uts")
    assert len(lab.questions()) == 2


def test_the_command_is_in_the_containers_control_groups_and_has_its_capabilities(lab: Lab) -> None:
    status = lab.run("exec", "box", "grep", "-E", "CapEff|CapInh", "/proc/self/status").stdout.split()
    lines = Path(f"/proc/{lab.pid}/status").read_text().splitlines()
    (bound,) = (line.split()[1] for line in lines if line.startswith("CapBnd:"))
    assert status == ["CapInh:", "0" * 16, "CapEff:", bound]
    assert all((place / "cgroup.procs").read_text().strip().isdigit() for place in lab.places)


@pytest.mark.parametrize(
    "words",
    [
        ("ps",),
        ("exec", "-u", "nobody", "box", "true"),
        ("exec", "--privileged", "box", "true"),
        ("exec", "other", "true"),
        ("exec", "../box", "true"),
        ("exec", "box"),
        ("--host", "unix:///another", "exec", "box", "true"),
    ],
)
def test_what_it_does_not_know_is_left_to_docker(lab: Lab, words: tuple[str, ...]) -> None:
    done = lab.run(*words)
    assert (done.returncode, done.stdout) == (3, f"docker itself: {' '.join(words)}\n")


@pytest.mark.parametrize("settings", [{"user": "nobody"}, {"directory": "/srv"}, {"environment": 2}])
def test_a_container_with_settings_of_its_own_is_left_to_docker(lab: Lab, settings: dict[str, str | int]) -> None:
    lab.tell(**settings)  # type: ignore[arg-type]
    assert lab.run("exec", "box", "true").returncode == 3


@pytest.mark.parametrize(
    ("file", "text"), [("freezer.state", "FROZEN\n"), ("cgroup.events", "populated 1\nfrozen 1\n")]
)
def test_a_paused_container_is_left_to_docker(lab: Lab, file: str, text: str) -> None:
    """Who enters a frozen control group stops there; docker says that the container is paused."""
    if not lab.places:
        pytest.skip("this process is in no control group")
    (lab.places[-1] / file).write_text(text)
    assert lab.run("exec", "box", "true").returncode == 3
    (lab.places[-1] / file).write_text("THAWED\n" if file == "freezer.state" else "populated 1\nfrozen 0\n")
    assert lab.run("exec", "box", "true").returncode == 0


def test_the_engines_version_is_asked_once(lab: Lab) -> None:
    said = [lab.run(f"-H={ENGINE}", "version", "--format", "'{{.Server.Version}}'").stdout for _ in range(2)]
    assert said == ["20.10\n"] * 2
    assert len(lab.questions()) == 1
