"""A supervisor between its service manager and its lives, which are small programs here."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import textwrap
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pollux.config import loads
from pollux.config.colocated_ports import colocated_of
from pollux.ha.colocated.life import Life, place_of
from pollux.process.exits import EXIT_LISTEN, EXIT_LOCKED, EXIT_OK
from pollux.supervisor import hosted
from pollux.supervisor import supervisor as module
from pollux.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pollux.supervisor.child import Child

NODE, OWN = "ab" * 16, "cd" * 16
XML = """<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1"><core xmlns="urn:activemq:core"><name>b</name>
<journal-directory>{directory}/journal</journal-directory>
<connectors><connector name="me">tcp://127.0.0.1:1</connector></connectors>
<acceptors><acceptor name="x">tcp://127.0.0.1:0</acceptor></acceptors>
<cluster-password>secret</cluster-password><cluster-connections><cluster-connection name="c">
<connector-ref>me</connector-ref><static-connectors/></cluster-connection></cluster-connections>
<ha-policy><shared-store><colocated/></shared-store></ha-policy></core></configuration>"""
#: What lives begin with: they say that they are ready, and how, and end with 0 when they are asked to.
HEAD = """
import json, os, signal, socket, sys, time
slot = json.loads(os.environ["POLLUX_LIFE"])["slot"]
def notify(*lines):
    with socket.socket(fileno=os.dup(int(os.environ["POLLUX_NOTIFY_DESCRIPTOR"]))) as one:
        one.send("\\n".join(lines).encode())
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
"""
SERVES = 'notify("STATUS=waits" if slot else "STATUS=live", "READY=1", "MAINPID=1")\ntime.sleep(60)\n'


class Manager:
    """The service manager: what it was told, line by line."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.setblocking(False)
        self.lines: list[str] = []

    def heard(self) -> list[str]:
        while True:
            try:
                self.lines += self.socket.recv(8192).decode().splitlines()
            except BlockingIOError:
                return self.lines


@pytest.fixture
def manager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Manager]:
    made = Manager(tmp_path / "notify")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("POLLUX_RUN", str(tmp_path / "run"))
    monkeypatch.setattr(module, "RESTART_AFTER", 0.05)
    yield made
    made.socket.close()


def a_host(directory: Path, program: str, *, backup: bool = True) -> Supervisor:
    configuration = loads(XML.replace("{directory}", str(directory)), file=str(directory / "broker.xml"))
    colocated = colocated_of(configuration)
    assert colocated is not None
    lives = (Life(1, NODE, "a", {}),) if backup else ()
    hosted.write(place_of(configuration), hosted.Hosted(OWN, lives))
    return Supervisor(configuration, colocated, [sys.executable, "-c", HEAD + textwrap.dedent(program)])


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  (other processes do it)
            await asyncio.sleep(0.01)


def _again(life: Child, starts: int) -> bool:
    return life.ready and life.starts > starts


async def test_it_speaks_for_all_lives_and_stops_them(tmp_path: Path, manager: Manager) -> None:
    host = a_host(tmp_path, SERVES)
    running = asyncio.create_task(host.run())
    await until(lambda: "READY=1" in manager.heard() and all(one.ready for one in host.children.values()))
    assert f"MAINPID={os.getpid()}" in manager.heard(), "the service manager watches the supervisor, not a life"
    await until(lambda: "STATUS=own live: live; a@here: waits" in manager.heard())
    pids = [one.pid for one in host.children.values()]
    os.kill(os.getpid(), signal.SIGTERM)
    assert await running == EXIT_OK
    assert "STOPPING=1" in manager.heard()
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid or 0, 0)


async def test_a_life_that_is_killed_starts_again_and_touches_no_other(tmp_path: Path, manager: Manager) -> None:
    host = a_host(tmp_path, SERVES)
    running = asyncio.create_task(host.run())
    await until(lambda: len(host.children) == 2 and all(one.ready for one in host.children.values()))
    own, backup = host.children["live"], host.children[NODE]
    for victim, other in ((own, backup), (backup, own)):
        before, kept = victim.starts, other.pid
        victim.signal(signal.SIGKILL)
        await until(partial(_again, victim, before))
        assert (other.pid, other.ready) == (kept, True)
    host._stop(signal.SIGTERM)
    assert await running == EXIT_OK


async def test_a_life_that_feeds_its_watchdog_no_more_is_ended(
    tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "400000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    host = a_host(tmp_path, 'assert "WATCHDOG_PID" not in os.environ\nnotify("WATCHDOG=1")\n' + SERVES, backup=False)
    running = asyncio.create_task(host.run())
    await until(lambda: "live" in host.children and host.children["live"].starts >= 2)
    assert "WATCHDOG=1" in manager.heard(), "the supervisor feeds its own"
    host._stop(signal.SIGTERM)
    await running


@pytest.mark.parametrize("code", [EXIT_OK, EXIT_LISTEN])
async def test_a_live_that_is_over_ends_the_host_unless_it_has_others(
    tmp_path: Path, manager: Manager, code: int
) -> None:
    ends = f'if slot == 0: sys.exit({code})\nnotify("READY=1")\ntime.sleep(60)\n'
    assert await a_host(tmp_path, "time.sleep(0.3)\n" + ends, backup=False).run() == code
    host = a_host(tmp_path, "time.sleep(0.3)\n" + ends)
    running = asyncio.create_task(host.run())
    await until(lambda: "live" not in host._tasks and host.children and host.children[NODE].ready)
    assert not running.done()
    host._stop(signal.SIGTERM)
    assert await running == code


async def test_a_second_supervisor_gives_up(tmp_path: Path, manager: Manager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOCK_PATIENCE", 0.1)
    descriptor = hosted.lock(tmp_path / "run")
    assert await a_host(tmp_path, SERVES).run() == EXIT_LOCKED
    os.close(descriptor)
