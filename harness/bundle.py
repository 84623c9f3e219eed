"""The Ansible bundle, run for real: an inventory like inventories/local in a directory of its own.

Needs no root. Brokers are plain processes on free ports of the loopback interface; `Site.stop` ends what was started,
by process id. What a run did is known from a callback that records results (tests/ansible/callbacks), never from the
screen.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ansible_mitogen
import yaml

from harness import bytecode, local_inventory
from harness.ports import is_free
from harness.process_sessions import end_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

ROOT = Path(__file__).resolve().parents[1]
PLAYBOOK = Path(sys.executable).parent / "ansible-playbook"
#: The bundle's own callbacks, those of tests, and those of the lab.
CALLBACKS = [ROOT / path for path in ("callback_plugins", "tests/ansible/callbacks", "molecule/lab/callback_plugins")]
#: Through Mitogen (docs/decisions/0040): one interpreter a host for a playbook, in the place of one for each task.
MITOGEN = {
    "ANSIBLE_STRATEGY_PLUGINS": str(Path(*ansible_mitogen.__path__) / "plugins" / "strategy"),
    "ANSIBLE_STRATEGY": "mitogen_linear",
}
MEMBERS = local_inventory.MEMBERS
#: The ports of inventories/local, and those of a second acceptor.
PORTS = (*local_inventory.PORTS, 61617, 61717)
#: A playbook may take this long on a very busy machine (seconds). Only a playbook that hangs takes it.
LIMIT = 600.0
#: What watches a playbook looks again after so many seconds: always, it would need a processor for itself.
_BETWEEN_LOOKS = 0.02
_RECAP = re.compile(r"^(\S+)\s+: ok=\d+", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Result:
    """Hold what one task did on one host."""

    play: str
    task: str
    action: str
    host: str
    changed: bool
    failed: bool
    skipped: bool
    items: int
    message: list[str]


@dataclass(frozen=True, slots=True)
class Run:
    """A playbook that has ended: exit code, everything it printed and logged, each task's result on each host."""

    code: int
    output: str
    results: tuple[Result, ...]
    seconds: float

    @property
    def changed(self) -> list[Result]:
        """Return what was changed."""
        return [result for result in self.results if result.changed]

    @property
    def failures(self) -> list[Result]:
        """Return what failed."""
        return [result for result in self.results if result.failed]

    @property
    def done(self) -> list[tuple[str, str]]:
        """Host and task of everything that was executed, in order of hosts and names."""
        return sorted((result.host, result.task) for result in self.results if not result.skipped)

    def succeeded(self) -> Run:
        """This run, once it is known that it reached the end on every host and failed nowhere."""
        assert self.code == 0, self.output[-8000:]
        assert self.failures == []
        assert _RECAP.search(self.output), self.output[-8000:]
        return self


class Site:
    """Two brokers, castor (preferred live) and pollux, on a shared directory."""

    def __init__(self, directory: Path, variables: Mapping[str, Any] | None = None) -> None:
        """``variables`` are group variables beside those of inventories/local; they may hold secrets."""
        self.directory = directory
        #: How Ansible brings its modules to hosts; empty: its own way, an operator's.
        self.strategy: Mapping[str, str] = MITOGEN
        self.local = directory / "local"
        self.inventory = directory / "checkout" / "inventories" / "local"
        shutil.copytree(ROOT / "inventories" / "local", self.inventory)
        # What the inventory calls its checkout is a copy that has nothing but the broker's sources.
        (directory / "checkout" / "broker").symlink_to(ROOT / "broker")
        (directory / "checkout" / "pipeline").symlink_to(ROOT / "pipeline")
        group = self.inventory / "group_vars" / "brokers"
        group.mkdir()
        (self.inventory / "group_vars" / "brokers.yml").rename(group / "main.yml")
        self._variables = group / "site.yml"
        self.set(variables or {})
        self.offset = free_offset()
        self._runs = 0

    def set(self, variables: Mapping[str, Any]) -> None:
        """Replace the group variables."""
        write_private(self._variables, yaml.safe_dump(dict(variables)))

    # -- playbooks

    def run(
        self,
        name: str,
        *flags: str,
        extra: Mapping[str, Any] | None = None,
        watch: Callable[[], None] | None = None,
        limit: float = LIMIT,
    ) -> Run:
        """Run a playbook of the bundle, or one by its absolute path; ``watch`` is called again and again meanwhile.

        ``limit`` is in seconds, for one that has more to do than others.
        """
        self._runs += 1
        record = self.directory / f"results.{self._runs}"
        log = self.directory / f"ansible.{self._runs}.log"
        shown = self.directory / f"output.{self._runs}"
        command = [str(PLAYBOOK), str(ROOT / "playbooks" / name), "-i", str(self.inventory), *flags]
        if extra:
            given = self.directory / f"extra.{self._runs}.yml"
            write_private(given, yaml.safe_dump(dict(extra)))
            command += ["-e", f"@{given}"]
        began = time.monotonic()
        with shown.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=self.environment(record, log),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                self._wait(process, watch, limit)
            finally:
                if process.poll() is None:
                    end_session(process)
        lines = record.read_text().splitlines() if record.exists() else []
        logged = log.read_text() if log.exists() else ""
        return Run(
            process.returncode,
            shown.read_text() + logged,
            tuple(Result(**json.loads(line)) for line in lines),
            time.monotonic() - began,
        )

    def _wait(self, process: subprocess.Popen[bytes], watch: Callable[[], None] | None, limit: float) -> None:
        if watch is None:
            process.wait(limit)
            return
        deadline = time.monotonic() + limit
        while process.poll() is None:
            assert time.monotonic() < deadline, f"the playbook takes longer than {limit:.0f} s"
            watch()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_BETWEEN_LOOKS)

    def environment(self, record: Path, log: Path) -> dict[str, str]:
        """The environment of a playbook, without a user's Ansible settings.

        Nor with the PYTHONPATH that tools/mutants.py sets: a broker that is deployed here runs what was installed.
        """
        foreign = ("ANSIBLE_", "POLLUX_", "PYTHONPATH")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(foreign)}
        home = self.directory / "ansible"
        return {
            **kept,
            "PYTHONPATH": bytecode.path_in(ROOT / ".pollux" / "bytecode"),
            "LC_ALL": "C.UTF-8",
            "COLUMNS": "4000",
            "POLLUX_LOCAL": str(self.local),
            "POLLUX_LOCAL_PORT_OFFSET": str(self.offset),
            **self.strategy,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "ANSIBLE_HOME": str(home),
            "ANSIBLE_REMOTE_TEMP": str(home / "tmp"),
            "ANSIBLE_LOG_PATH": str(log),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_CALLBACK_PLUGINS": ":".join(map(str, CALLBACKS)),
            "ANSIBLE_CALLBACKS_ENABLED": "record_results,lab_thrift",
            "POLLUX_LAB_THRIFT": str(ROOT / ".pollux" / "thrift"),
            "RECORD_RESULTS": str(record),
        }

    # -- brokers

    def pollux(self, member: str, *words: str) -> Any:
        """Return what a member's `pollux ... --json` says (`status` of one that is not ready to serve ends with 3)."""
        program = self.local / member / "bin" / "pollux"
        done = subprocess.run(
            [str(program), *words, "--json"], capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0 or (words == ("status",) and done.stdout), done.stdout + done.stderr
        return json.loads(done.stdout)

    def states(self) -> dict[str, str]:
        """Return what each member says it is."""
        return {member: self.pollux(member, "status")["activation"]["state"] for member in MEMBERS}

    def live(self) -> str:
        """The member that serves; fails when it is none or both, or when the other one could not take over."""
        states = self.states()
        assert sorted(states.values()) == ["live", "ready"], states
        return next(member for member, state in states.items() if state == "live")

    def settled_live(self) -> str:
        """The member that serves, once the members are one live and one that could take over."""
        deadline = time.monotonic() + LIMIT
        while sorted(self.states().values()) != ["live", "ready"] and time.monotonic() < deadline:
            pass  # asking takes a while
        return self.live()

    def history(self) -> list[dict[str, Any]]:
        """The activations of the store, oldest first."""
        found: list[dict[str, Any]] = self.pollux(self.live(), "history")
        return found

    def pids(self) -> dict[str, int]:
        """The members' process ids."""
        return {member: int(self.pollux(member, "status")["pid"]) for member in MEMBERS}

    def stop(self) -> None:
        """End the brokers: with their own programs, the waiting one first, and then whatever is left of this site."""
        for member in reversed(MEMBERS):
            program = self.local / member / "bin" / "stop"
            if program.exists():
                subprocess.run([str(program)], capture_output=True, check=False, timeout=180)
        for pid in self._left():
            os.kill(pid, signal.SIGKILL)

    def _left(self) -> Iterable[int]:
        for pid, command in command_lines():
            if any(f"{self.local / member}/".encode() in command for member in MEMBERS):
                yield pid


def prod_inventory(directory: Path, *, certificates: bool = True) -> Path:
    """A copy of inventories/prod with what it needs from outside, but without its vault (and ``certificates``)."""
    checkout = directory / "checkout"
    inventory = checkout / "inventories" / "prod"
    shutil.copytree(ROOT / "inventories" / "prod", inventory)
    for name in ("wheelhouse", "wheelhouse-pipeline"):
        (checkout / ".pollux" / name).mkdir(parents=True)
        (checkout / ".pollux" / name / "requirements.txt").touch()
    if not certificates:
        return inventory
    tls = inventory / "files" / "tls"
    tls.mkdir(parents=True)
    for group in "123":
        for member in "ab":
            for end in ("crt", "key"):
                (tls / f"broker{group}{member}.example.com.{end}").touch()
    return inventory


def command_lines() -> Iterable[tuple[int, bytes]]:
    """Process id and command line of every process of this machine."""
    for directory in Path("/proc").iterdir():
        if directory.name.isdecimal():
            try:
                yield int(directory.name), (directory / "cmdline").read_bytes()
            except OSError:
                continue  # it has ended meanwhile


def write_private(path: Path, text: str) -> None:
    """Write a file that nobody else can read."""
    path.touch(mode=0o600)
    path.write_text(text)


def free_offset() -> int:
    """An offset with which no port of a site is taken; by chance, so that two sites seldom want the same."""
    for offset in random.sample(range(0, 3000, 10), 300):
        if all(is_free(port + offset) for port in PORTS):
            return offset
    raise AssertionError("no free ports")


def tree(directory: Path) -> dict[str, tuple[int, str]]:
    """Everything below a directory: mode, and content or target."""
    found = {}
    for path in sorted(directory.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            what = f"-> {path.readlink()}"
        elif stat.S_ISREG(mode):
            what = path.read_bytes().hex()
        else:
            what = ""
        found[str(path.relative_to(directory))] = (mode, what)
    return found
