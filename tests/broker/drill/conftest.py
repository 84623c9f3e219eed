"""Brokers with start scripts and pid files, as the bundle makes them, for drills to break."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from harness import forked
from harness.broker import PASSWORD, POLLUX, USER, BrokerProcess
from harness.failover import BACKUP, PRIMARY, Member

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

START = """#!/bin/sh
# Starts the broker.
rm -f {ports}
{before}
{pollux} run {xml} --ports-file {ports} >>{log} 2>&1 </dev/null &
echo $! >{pid}
"""
WAIT = """until [ -e {ports} ]; do
  kill -0 "$(cat {pid})" || exit 1
  sleep 0.01
done
"""


class DrillMember:
    """A broker that is started by its script, not by the test's process."""

    def __init__(self, broker: BrokerProcess, name: str, *, wait: bool) -> None:
        """`wait`: the script waits until the broker is ready; a backup is not before it takes over."""
        self.broker = broker
        self.name = name
        self.wait = wait
        self.pid_file = broker.directory / "pid"
        self.script = broker.directory / "start"
        self.write_script()

    @property
    def entry(self) -> dict[str, Any]:
        """Its entry in a manifest."""
        return {
            "name": self.name,
            "url": f"tcp://127.0.0.1:{self.broker.port}",
            "management": f"http://127.0.0.1:{self.broker.management_port}",
            "pid_file": str(self.pid_file),
            "start": [str(self.script)],
        }

    def write_script(self, before: str = "") -> None:
        """Write the start script; `before` are shell commands that it runs first."""
        broker = self.broker
        words = {
            "ports": broker.ports_file,
            "pollux": POLLUX,
            "xml": broker.configuration,
            "log": broker.log,
            "pid": self.pid_file,
        }
        quoted = {name: shlex.quote(str(value)) for name, value in words.items()}
        text = START + WAIT if self.wait else START
        self.script.write_text(text.format(before=before, **quoted))
        self.script.chmod(0o755)

    def start(self) -> None:
        """Run the script."""
        done = subprocess.run([str(self.script)], timeout=60, check=False, cwd=self.broker.directory)
        assert done.returncode == 0, self.broker.log_tail()

    def stop(self) -> None:
        """End the process that the pid file names, if it is still ours."""
        try:
            pid = int(self.pid_file.read_text())
            command = f"/proc/{pid}/cmdline"
            with open(command, "rb") as file:  # noqa: PTH123  (not a file)
                ours = str(self.broker.configuration).encode() in file.read()
        except (OSError, ValueError):
            return
        if not ours:
            return
        os.kill(pid, signal.SIGCONT)
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + 20
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:  # noqa: PTH110
            time.sleep(0.02)


class DrillGroup:
    """Brokers with a manifest."""

    def __init__(self, directory: Path, *members: DrillMember) -> None:
        self.members = members
        self.report = directory / "report"
        self.manifest = directory / "manifest.json"
        self.password_file = directory / "password"
        self.password_file.write_text(PASSWORD + "\n")
        content = {"members": [each.entry for each in members], "user": USER, "password_file": "password"}
        self.manifest.write_text(json.dumps(content))

    @property
    def url(self) -> str:
        """The URL that clients connect to."""
        return f"({','.join(each.entry['url'] for each in self.members)})"

    def command(self, *options: str) -> list[str]:
        """The words of a drill of this group."""
        own = ("--brokers", self.url, "--manifest", str(self.manifest), "--report", str(self.report))
        return [POLLUX, "drill", *own, *options]

    def spawn(self, *options: str) -> subprocess.Popen[str]:
        """Begin a drill."""
        return subprocess.Popen(self.command(*options), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def drill(self, *options: str, expect: int = 0) -> tuple[dict[str, Any], str]:
        """Run `pollux drill`; return the report ({} without one) and what it printed."""
        done = forked.run(self.command(*options), timeout=140)
        logs = "\n".join(f"--- {each.name}\n{each.broker.log_tail(2000)}" for each in self.members)
        assert done.returncode == expect, f"{done.returncode}\n{done.stdout}{done.stderr}\n{logs}"
        file = self.report / "report.json"
        return (json.loads(file.read_text()) if file.exists() else {}), done.stdout + done.stderr

    def stop(self) -> None:
        """End every member."""
        for each in self.members:
            each.stop()


class DrillBroker(DrillGroup):
    """One broker alone."""

    def __init__(self, directory: Path) -> None:
        self.member = DrillMember(BrokerProcess(directory), "castor", wait=True)
        super().__init__(directory, self.member)


@pytest.fixture
def drill_broker(tmp_path: Path) -> Iterator[DrillBroker]:
    """A broker that runs; ended afterwards, whoever started it last."""
    broker = DrillBroker(tmp_path)
    broker.member.start()
    try:
        yield broker
    finally:
        broker.stop()


@pytest.fixture
def drill_pair(tmp_path: Path) -> Iterator[DrillGroup]:
    """A live and a backup that is ready, on one shared store."""
    shared = tmp_path / "shared"
    shared.mkdir()
    policy = "<failover-on-shutdown>true</failover-on-shutdown>"
    brokers = [
        Member(tmp_path / "castor", shared, "castor", PRIMARY.format(policy)),
        Member(tmp_path / "pollux", shared, "pollux", BACKUP.format(policy + "<allow-failback>false</allow-failback>")),
    ]
    group = DrillGroup(tmp_path, *(DrillMember(each, each.name, wait=False) for each in brokers))
    try:
        for member, broker, state in zip(group.members, brokers, ("live", "ready"), strict=True):
            member.start()
            broker.wait_for(state)
        yield group
    finally:
        group.stop()
