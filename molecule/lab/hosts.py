"""Finds hosts that can be broken by their names, and has the containers among them; the others are lab.machines."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING, Any

from lab import machines
from lab.engine import Engine, find
from lab.host import HOST_TIMEOUT
from lab.places import LabError
from lab.processes import run

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lab.host import Host

#: So often a container is frozen at most, until it is.
_FREEZES = 20
#: Tells the time and becomes the command, so that no more than that lies between.
_STRIKE = "import os, sys, time; print(time.monotonic() * 1000, flush=True); os.execvp(sys.argv[1], sys.argv[1:])"


class Container:
    """A container with systemd as a host."""

    def __init__(self, name: str, engine: Engine) -> None:
        self._name = name
        self._engine = engine

    @property
    def name(self) -> str:
        """As in the inventory."""
        return self._name

    def _docker(self, *words: str, check: bool = True) -> str:
        return run(["docker", *words], check=check, environment=self._engine.environment).stdout

    def _state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._docker("inspect", "--format", "{{json .State}}", self._name))
        return found

    def run(self, *words: str, stdin: str | None = None, check: bool = True, timeout: float = HOST_TIMEOUT) -> str:
        """Run a command as root in it."""
        command = ["docker", "exec", *(["--interactive"] if stdin is not None else []), self._name, *words]
        return run(command, check=check, stdin=stdin, timeout=timeout, environment=self._engine.environment).stdout

    def strike(self, *words: str, timeout: float = HOST_TIMEOUT) -> float | None:
        """Run a command and tell when it began; a container has the clock of the kernel that this machine has too."""
        told = self.run("python3", "-c", _STRIKE, *words, timeout=timeout).split("\n", 1)[0]
        at = float(told)
        # On Docker Desktop that is the virtual machine's kernel, whose clock is another one.
        return at if abs(at - time.monotonic() * 1000) < (timeout + HOST_TIMEOUT) * 1000 else None

    def address(self) -> str:
        """Its address in the (one) network that it is attached to."""
        networks = json.loads(self._docker("inspect", "--format", "{{json .NetworkSettings.Networks}}", self._name))
        found = [str(one["IPAddress"]) for one in networks.values() if one.get("IPAddress")]
        if not found:
            raise LabError(f"{self._name} has no address: is it running?")
        return found[0]

    def published(self, port: int) -> str:
        """HOST:PORT of this machine that leads to a port of it, where its own address cannot be reached."""
        found = self._docker("port", self._name, f"{port}/tcp", check=False).split()
        if not found:
            raise LabError(f"{self._name} does not publish port {port}")
        return found[0].replace("0.0.0.0:", "127.0.0.1:")

    def reach(self, port: int) -> str:
        """HOST:PORT that leads from this machine to a port of it: its address, or what Docker Desktop publishes."""
        if os.environ.get("POLLUX_LAB_REACH") == "published" or self._engine.hides_addresses:
            return self.published(port)
        return f"{self.address()}:{port}"

    def cut_power(self) -> float | None:
        """Take its network away first: the kernel says goodbye for processes that are killed, a power cut does not."""
        at = self.strike("sh", "-c", "for i in /sys/class/net/eth*; do ip link set dev ${i##*/} down; done")
        self.switch_off()
        return at

    def switch_off(self) -> None:
        """End all of its processes, whatever state they are in: what a fence agent's device does."""
        if self.stunned():
            self.unstun()
        self._docker("kill", "--signal", "KILL", self._name)

    def restore_power(self) -> None:
        """Start it again, with the disk it had."""
        self._docker("start", self._name)

    def ended(self) -> str:
        """When it lost its power for the last time, as the engine writes it."""
        return str(self._state()["FinishedAt"])

    def powered(self) -> bool:
        """Whether it runs."""
        return bool(self._state()["Running"])

    def stun(self) -> None:
        """Freeze its control group."""
        # A process that waits for the disk is not frozen, and the engine gives up after half a second of that.
        for tries in reversed(range(_FREEZES)):
            try:
                self._docker("pause", self._name)
            except LabError as error:
                if not tries or "unable to freeze" not in str(error):
                    raise
            else:
                return

    def unstun(self) -> None:
        """Thaw it."""
        self._docker("unpause", self._name)

    def stunned(self) -> bool:
        """Whether it is frozen."""
        return bool(self._state()["Paused"])


def find_hosts(names: Sequence[str]) -> dict[str, Host]:
    """The hosts of these names, which must exist: all containers or all virtual machines."""
    if set(names) <= set(made := machines.existing()):
        return {name: made[name] for name in names}
    engine = find()
    if engine is None:
        raise LabError("no Docker engine answers: .venv/bin/python molecule/lab up")
    listed = run(["docker", "ps", "--all", "--format", "{{.Names}}"], environment=engine.environment).stdout.split()
    missing = [name for name in names if name not in listed]
    if missing:
        raise LabError(f"there is no host {', '.join(missing)}; there are: {', '.join(listed) or 'none'}")
    return {name: Container(name, engine) for name in names}
