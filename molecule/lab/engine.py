"""The Docker engine: the user's when one answers, else one of the lab's own, which shares nothing with the machine.

The own engine has its own data root, socket and process id, and lives in a network namespace of its own, so that its
bridges, addresses and packet filters are not the machine's. It is started by hand (no service is enabled or touched),
stopped by its process id, and what a crash left of it (process id files, mounts, the namespace) is removed before the
next start. What must hold for it: Linux, root, and the packages in :data:`PACKAGES`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from lab.places import PLACES, LabError, Places
from lab.processes import processes_with, read_pid, run, stop

#: Debian packages with what the own engine and the base image need; tools/setup_environment.py --lab installs them.
PACKAGES = ("docker.io", "iproute2", "iptables", "mmdebstrap", "nftables")
_START_LIMIT = 60.0


@dataclass(frozen=True)
class Engine:
    """An engine that answers."""

    host: str
    own: bool

    @property
    def environment(self) -> dict[str, str]:
        """Return what programs need in their environment to use it."""
        return {"DOCKER_HOST": self.host} if self.host else {}

    @property
    def hides_addresses(self) -> bool:
        """Whether it is in a virtual machine (Docker Desktop): the addresses of containers lead nowhere from here."""
        if self.own:
            return False
        told = run(["docker", "info", "--format", "{{.OperatingSystem}}"], environment=self.environment).stdout
        return sys.platform != "linux" or "Docker Desktop" in told


def answers(host: str) -> bool:
    """Whether an engine answers at an address (empty: where the docker command looks by itself)."""
    if shutil.which("docker") is None:
        return False
    command = ["docker", *(["--host", host] if host else []), "version", "--format", "{{.Server.Version}}"]
    try:
        return run(command, timeout=15, check=False).returncode == 0
    except LabError:
        return False


def find(places: Places = PLACES) -> Engine | None:
    """The engine that answers now: the lab's own if it was started, else the user's; starts nothing."""
    own = f"unix://{places.socket}"
    if places.socket.exists() and answers(own):
        return Engine(own, own=True)
    given = os.environ.get("DOCKER_HOST", "")
    return Engine(given, own=False) if answers(given) else None


def ensure(places: Places = PLACES) -> Engine:
    """The engine that answers, started if there is none. Raises LabError that says what to install or to start."""
    found = find(places)
    if found is not None:
        return found
    if sys.platform != "linux" or os.geteuid() != 0:
        raise LabError("no Docker engine answers: start Docker (Docker Desktop, or: sudo systemctl start docker)")
    missing = [program for program in ("dockerd", "ip", "nsenter", "iptables") if shutil.which(program) is None]
    if missing:
        raise LabError(
            f"no Docker engine answers and {', '.join(missing)} is missing for one of the lab's own: "
            f"run tools/setup_environment.py --lab, or: apt-get install {' '.join(PACKAGES)}"
        )
    clean(places)
    return _start(places)


def _start(places: Places) -> Engine:
    for directory in (places.data, places.runtime):
        directory.mkdir(parents=True, exist_ok=True)
    run(["ip", "netns", "add", places.namespace])
    run(["ip", "-n", places.namespace, "link", "set", "lo", "up"])
    # `ip netns exec` would mount a /sys of its own, without the control groups that the engine needs.
    command = ["nsenter", f"--net={places.namespace_path}", "dockerd", f"--data-root={places.data}"]
    command += [
        f"--exec-root={places.runtime}/exec",
        f"--pidfile={_pid_file(places)}",
        f"--host=unix://{places.socket}",
    ]
    log = places.state / "dockerd.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    deadline = time.monotonic() + _START_LIMIT
    host = f"unix://{places.socket}"
    while not answers(host):
        if process.poll() is not None or time.monotonic() > deadline:
            told = "\n".join(log.read_text(errors="replace").splitlines()[-12:])
            clean(places)
            raise LabError(f"dockerd does not start; the end of {log}:\n{told}")
        time.sleep(0.1)
    return Engine(host, own=True)


def _pid_file(places: Places) -> Path:
    return places.runtime / "dockerd.pid"


def clean(places: Places = PLACES, *, everything: bool = False) -> None:
    """Stop the own engine if it runs, and remove what it or a crash left; `everything`: its images too."""
    pid, mark = read_pid(_pid_file(places)), f"--data-root={places.data}"
    if pid is not None:
        stop(pid, mark)
    for orphan in processes_with(str(places.runtime / "exec")):
        stop(*orphan)
    for mount in sorted(_mounts_below(places.runtime, places.data), reverse=True):
        run(["umount", "--lazy", mount], check=False)
    if places.namespace_path.exists():
        run(["ip", "netns", "delete", places.namespace], check=False)
    shutil.rmtree(places.runtime, ignore_errors=True)
    if everything:
        shutil.rmtree(places.data, ignore_errors=True)


def _mounts_below(*directories: Path) -> list[str]:
    """Mount points below directories of ours."""
    below = tuple(f"{directory}/" for directory in directories)
    try:
        lines = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [fields[1] for line in lines if len(fields := line.split(" ")) > 1 and fields[1].startswith(below)]


def enter(engine: Engine, command: list[str], places: Places = PLACES) -> list[str]:
    """The command as it has to be run to reach the hosts' addresses: inside of the own engine's network namespace."""
    return ["nsenter", f"--net={places.namespace_path}", *command] if engine.own else command
