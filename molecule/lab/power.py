"""The power supply of a scenario's hosts: what its fence agent asks to cut the power of one, and that really does.

A process of its own on this machine, at the address that the hosts' network has here. It takes one line for a
connection, ``TOKEN ACTION NAME``, and answers with one: ``ok``, ``on``, ``off``, or ``error: WHY``. ``ok`` follows an
action only when the engine says that it is done; of a reboot the first half, that the host had no power, as devices
that reset a machine answer before it has started. It starts no sooner than a machine can (:data:`FIRMWARE`), and not
any more if something else is asked meanwhile, or a drill had it on and cut its power. Only hosts of the scenario can be
switched. Whoever has the lab's fence agent knows the token.
"""

from __future__ import annotations

import os
import secrets
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from lab.hosts import Container
from lab.places import PLACES, LabError, Places
from lab.processes import is_ours, read_pid, run, stop

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import FrameType

    from lab.engine import Engine

PORT = 7777
ACTIONS = ("off", "on", "reboot", "status", "monitor")
_LINE = 256
#: Seconds that a machine's firmware and boot loader take before anything of its system runs. Who is back before the
#: others have noticed that it was gone (token and consensus of corosync, 6.6 s in the scenarios) is told then that it
#: was fenced: pacemaker takes that for its own end, and stays down.
FIRMWARE = 10.0
_PATIENCE = 15.0


def _pid_file(scenario: str, places: Places) -> Path:
    return places.state / scenario / "power.pid"


def token(scenario: str, places: Places = PLACES) -> str:
    """The secret of a scenario's power supply; made when there is none."""
    path = places.state / scenario / "power.token"
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        path.touch(mode=0o600)
        path.write_text(secrets.token_hex(16), encoding="ascii")
    return path.read_text(encoding="ascii")


class Supply:
    """Switches the containers of one scenario. ``sleep`` is injected by tests."""

    def __init__(
        self, scenario: str, engine: Engine, known: str, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        self._sleep = sleep
        self._network = f"pollux-lab-{scenario}"
        #: Held while a host is being switched.
        self._switching: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        #: How often something was asked of a host.
        self._asked: Counter[str] = Counter()
        self._engine = engine
        self._token = known

    def answer(self, line: str) -> str:
        """Return what a request is answered with; it is carried out before."""
        words = line.split()
        if len(words) != 3 or not secrets.compare_digest(words[0], self._token):
            return "error: not understood, or a wrong token"
        _, action, name = words
        if action not in ACTIONS:
            return f"error: there is no action {action}"
        if action == "monitor":
            return "ok"
        if name not in self._hosts():
            return f"error: there is no host {name}"
        host = Container(name, self._engine)
        with self._switching[name]:
            try:
                return self._act(host, action)
            except LabError as error:
                return f"error: {' '.join(str(error).split())}"

    def _hosts(self) -> list[str]:
        words = ["docker", "ps", "--all", "--format", "{{.Names}}", "--filter", f"network={self._network}"]
        return run(words, environment=self._engine.environment).stdout.split()

    def _act(self, host: Container, action: str) -> str:
        if action == "status":
            return "on" if host.powered() else "off"
        self._asked[host.name] += 1
        if action in ("off", "reboot") and host.powered():
            host.switch_off()
            if host.powered():
                return f"error: {host.name} still has power"
        if action == "on" and not host.powered():
            host.restore_power()
        if action == "reboot":
            at = (self._asked[host.name], host.ended())
            threading.Thread(target=self._boot, args=(host, at), daemon=True).start()
        return "ok"

    def _boot(self, host: Container, at: tuple[int, str]) -> None:
        """Start a host when its firmware is done, unless something else was asked of it since, or a drill had it."""
        self._sleep(FIRMWARE)
        with self._switching[host.name]:
            try:
                if (self._asked[host.name], host.ended()) == at and not host.powered():
                    host.restore_power()
            except LabError as error:
                sys.stdout.write(f"{' '.join(str(error).split())}\n")


class _Handler(socketserver.StreamRequestHandler):
    server: _Server

    def handle(self) -> None:
        """Answer one line."""
        self.connection.settimeout(5)
        line = self.rfile.readline(_LINE).decode(errors="replace")
        began = time.monotonic()
        said = self.server.supply.answer(line)
        shown = " ".join(line.split()[1:])
        sys.stdout.write(
            f"{time.monotonic() * 1000:.0f} {shown}: {said} ({(time.monotonic() - began) * 1000:.0f} ms)\n"
        )
        sys.stdout.flush()
        self.wfile.write(f"{said}\n".encode())


class _Server(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, address: tuple[str, int], supply: Supply) -> None:
        super().__init__(address, _Handler)
        self.supply = supply


def serve(scenario: str, address: str, engine: Engine, places: Places = PLACES) -> None:
    """Switch hosts until a signal ends it."""

    def end(_number: int, _frame: FrameType | None) -> None:
        sys.exit(0)

    signal.signal(signal.SIGTERM, end)
    with _Server((address, PORT), Supply(scenario, engine, token(scenario, places))) as server:
        pid = _pid_file(scenario, places)
        unfinished = pid.with_suffix(".new")
        unfinished.write_text(str(os.getpid()), encoding="ascii")
        unfinished.replace(pid)
        server.serve_forever()


def up(scenario: str, address: str, places: Places = PLACES) -> str:
    """Plug a scenario's hosts in, unless they are; the token. Raises LabError."""
    known = token(scenario, places)
    pid = _pid_file(scenario, places)
    mark = _mark(scenario)
    if (there := read_pid(pid)) is not None and is_ours(there, mark):
        return known
    pid.unlink(missing_ok=True)
    log = pid.with_suffix(".log")
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, sys.argv[0], "power", "serve", scenario, "--address", address, mark],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    deadline = time.monotonic() + _PATIENCE
    while not pid.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            raise LabError(f"the power supply does not start: {log.read_text(errors='replace')[-800:]}")
        time.sleep(0.05)
    return known


def down(scenario: str, places: Places = PLACES) -> None:
    """End the power supply of a scenario, if there is one."""
    pid = _pid_file(scenario, places)
    if (there := read_pid(pid)) is not None:
        stop(there, _mark(scenario))
    pid.unlink(missing_ok=True)


def _mark(scenario: str) -> str:
    """By which a process of ours is known."""
    return f"--supply=pollux-lab-{scenario}-{PLACES.key}"
