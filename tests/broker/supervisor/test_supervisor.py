"""The supervisor's parts without processes of brokers: what follows an end, what is on disk, what a life is told."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pollux.config import loads
from pollux.config.colocated_ports import colocated_of
from pollux.errors import PolluxError
from pollux.ha.colocated.life import Life
from pollux.ha.colocated.placement import Host
from pollux.process.exits import (
    EXIT_FAILED,
    EXIT_FENCED,
    EXIT_LISTEN,
    EXIT_OK,
    EXIT_STORE,
    EXIT_STORE_REFUSED,
    EXIT_UNDRAINED,
    EXIT_USAGE,
)
from pollux.store.data_lock import DirectoryLockedError
from pollux.supervisor import hosted, views
from pollux.supervisor.child import Child
from pollux.supervisor.policy import Then, after, exit_code, other_policy, stands_still, takes_none_in
from pollux.supervisor.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable

NODE = "0123456789abcdef" * 2


@pytest.mark.parametrize("code", [EXIT_FAILED, EXIT_STORE, EXIT_FENCED, EXIT_UNDRAINED, -signal.SIGKILL])
def test_a_live_that_failed_starts_again(code: int) -> None:
    for others in (False, True):
        assert after(code, wanted=True, hosted=False, was_ready=True, others=others) is Then.AGAIN


@pytest.mark.parametrize("code", [EXIT_OK, EXIT_USAGE, EXIT_LISTEN])
def test_a_live_that_cannot_start_ends_the_host_unless_it_has_others(code: int) -> None:
    assert after(code, wanted=True, hosted=False, was_ready=False, others=False) is Then.END
    assert after(code, wanted=True, hosted=False, was_ready=True, others=True) is Then.STAYS


@pytest.mark.parametrize("code", [EXIT_USAGE, EXIT_LISTEN, EXIT_STORE_REFUSED])
def test_a_backup_that_never_was_one_gives_up_its_slot(code: int) -> None:
    assert after(code, wanted=True, hosted=True, was_ready=False, others=True) is Then.DROP
    assert after(code, wanted=True, hosted=True, was_ready=True, others=True) is Then.AGAIN
    assert after(EXIT_OK, wanted=True, hosted=True, was_ready=True, others=True) is Then.AGAIN
    assert after(-signal.SIGKILL, wanted=True, hosted=True, was_ready=False, others=True) is Then.AGAIN


def test_an_end_that_was_asked_for_has_no_consequence() -> None:
    assert after(EXIT_USAGE, wanted=False, hosted=False, was_ready=True, others=True) is Then.NOTHING
    assert after(EXIT_USAGE, wanted=False, hosted=True, was_ready=False, others=True) is Then.NOTHING


def test_the_hosts_exit_code_is_that_of_its_own_live() -> None:
    assert exit_code(EXIT_OK, Then.END, EXIT_USAGE, hosted=False) == EXIT_USAGE
    assert exit_code(EXIT_OK, Then.STAYS, EXIT_USAGE, hosted=False) == EXIT_USAGE
    assert exit_code(EXIT_OK, Then.AGAIN, EXIT_USAGE, hosted=False) == EXIT_OK
    assert exit_code(EXIT_OK, Then.NOTHING, EXIT_USAGE, hosted=False) == EXIT_USAGE
    assert exit_code(EXIT_OK, Then.NOTHING, -signal.SIGTERM, hosted=False) == EXIT_OK, "a signal's end is no failure"
    assert exit_code(EXIT_LISTEN, Then.NOTHING, EXIT_USAGE, hosted=False) == EXIT_LISTEN, "the first one counts"
    assert exit_code(EXIT_OK, Then.NOTHING, EXIT_USAGE, hosted=True) == EXIT_OK


def test_a_life_stands_still_that_missed_two_feedings() -> None:
    assert not stands_still(None, 1000.0, 5.0)
    assert not stands_still(90.0, 100.0, 5.0)
    assert stands_still(89.9, 100.0, 5.0)


def test_a_host_takes_nobody_in_while_it_knows_better() -> None:
    assert takes_none_in(ready=True, stops=False, removed=False) == ""
    assert takes_none_in(ready=False, stops=True, removed=True) == "this host is not ready yet"
    assert takes_none_in(ready=True, stops=True, removed=True) == "this host stops"
    assert "removed by an operator" in takes_none_in(ready=True, stops=False, removed=True)


@pytest.mark.parametrize(
    ("shared", "copies", "reason"),
    [(True, False, ""), (False, True, ""), (False, False, "has a shared store"), (True, True, "takes in copies")],
)
def test_a_backup_is_of_the_same_policy(shared: bool, copies: bool, reason: str) -> None:
    found = other_policy("host2", shared=shared, copies=copies)
    assert reason in found
    assert bool(found) is bool(reason)


def test_what_is_remembered_is_read_again(tmp_path: Path) -> None:
    place = tmp_path / "journal.colocated"
    assert hosted.read(place) == hosted.Hosted()
    known = hosted.Hosted(NODE, (Life(2, NODE, "a", {"journal_directory": "/srv/a"}),))
    hosted.write(place, known)
    assert hosted.read(place) == known
    (place / hosted.FILE).write_text("{")
    with pytest.raises(PolluxError, match=r"hosted\.json: which backups this host has cannot be read.*delete"):
        hosted.read(place)


def test_one_supervisor_has_the_lock_and_so_have_its_lives(tmp_path: Path) -> None:
    descriptor = hosted.lock(tmp_path)
    of_a_life = os.dup(descriptor)
    os.close(descriptor)
    with pytest.raises(DirectoryLockedError, match="or a life of it"):
        hosted.lock(tmp_path)
    os.close(of_a_life)
    os.close(hosted.lock(tmp_path))


def test_a_host_is_told_and_read() -> None:
    host = Host(bytes.fromhex(NODE), "m", 3, "rack", frozenset({b"a", b"b"}), alone=True)
    assert views.host_of(json.loads(json.dumps(views.of_host(host)))) == host
    for wrong in (None, {}, {**views.of_host(host), "node": "x"}, {**views.of_host(host), "room": "many"}):
        assert views.host_of(wrong) is None


def test_a_live_that_waits_at_home_has_its_node_id() -> None:
    """It handed over, or is served elsewhere, and says none itself as its store is not open."""
    own = child("")[0]
    own.life, own.told = Life(), {"name": "b", "state": "ready", "node": ""}
    hosted = child("")[0]
    hosted.told = {"name": "a@b", "state": "ready", "node": ""}
    assert [one["nodeId"] for one in views.lives([own, hosted], "f" * 32)] == ["f" * 32, NODE]


# -- a life's process

HEAD = """
import json, os, signal, socket, sys, time
def notify(*lines):
    with socket.socket(fileno=os.dup(int(os.environ["POLLUX_NOTIFY_DESCRIPTOR"]))) as one:
        one.send("\\n".join(lines).encode())
line = socket.socket(fileno=int(os.environ["POLLUX_SUPERVISOR_LINE"])).makefile("rw")
"""


def child(program: str, answer: Any = None, lock: int | None = None) -> tuple[Child, list[str]]:
    heard: list[str] = []
    made = Child(
        Life(1, NODE, "a"),
        [sys.executable, "-c", HEAD + textwrap.dedent(program)],
        os.environ,
        lock if lock is not None else os.open("/dev/null", os.O_RDONLY),
        answer=answer,
        changed=lambda _child, word: heard.append(word),
    )
    return made, heard


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  (other processes do it)
            await asyncio.sleep(0.01)


async def test_a_life_is_heard_by_its_words_to_the_service_manager() -> None:
    made, heard = child(
        """
        assert json.loads(os.environ["POLLUX_LIFE"])["slot"] == 1
        notify("STATUS=waits")
        notify("READY=1", "STATUS=ready: follows", "MAINPID=1")
        notify("WATCHDOG=1")
        time.sleep(60)
        """
    )
    running = asyncio.create_task(made.run())
    await until(lambda: made.ready and made.fed is not None)
    assert (made.status, made.was_ready) == ("ready: follows", True)
    assert heard == ["STATUS", "READY"]
    made.signal(signal.SIGKILL)
    assert await running == -signal.SIGKILL
    assert (made.ready, made.was_ready, made.pid) == (False, True, None)


async def test_a_life_that_is_just_being_started_is_signalled_too() -> None:
    """A backup that is given up at once would run on, without a slot, and nobody would know of it."""
    made, _ = child("time.sleep(600)")
    running = asyncio.create_task(made.run())
    await asyncio.sleep(0)
    assert (made.starts, made.pid) == (1, None)
    made.signal(signal.SIGTERM)
    async with asyncio.timeout(60):
        assert await running == -signal.SIGTERM


async def test_a_life_that_is_just_being_started_reloads_when_it_can() -> None:
    """Breaks when a reload of the host ends it: until it listens to the signal, it dies of it."""
    made, heard = child(
        """
        time.sleep(0.2)  # it has much to do before it listens
        signal.signal(signal.SIGHUP, lambda *_: notify("READY=1"))
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        time.sleep(600)
        """
    )
    running = asyncio.create_task(made.run())
    await asyncio.sleep(0)
    made.signal(signal.SIGHUP)
    await until(lambda: heard or running.done())
    assert heard == ["READY"]
    assert signal.SIGHUP not in signal.pthread_sigmask(signal.SIG_BLOCK, ()), "the supervisor listens itself"
    made.signal(signal.SIGKILL)
    await running


async def test_nobody_else_can_speak_in_a_life_s_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no address, and the real service manager's is kept from it; what it executes itself as is heard, too."""
    monkeypatch.setenv("NOTIFY_SOCKET", "@the-real-one")
    before = named_sockets()
    made, heard = child(
        """
        assert "NOTIFY_SOCKET" not in os.environ
        again = "import sys, time; from pollux.process.notify import Notifier; Notifier().ready('anew'); time.sleep(60)"
        os.execv(sys.executable, [sys.executable, "-c", again])
        """
    )
    running = asyncio.create_task(made.run())
    await until(lambda: made.ready)
    assert (made.status, heard) == ("anew", ["READY"])
    assert named_sockets(made.pid) | named_sockets(os.getpid()) <= before
    made.signal(signal.SIGKILL)
    await running


def named_sockets(pid: int | None = None) -> set[str]:
    """The names of the Unix sockets of a process, those of the abstract name space too."""
    own = {link.readlink().name for link in Path(f"/proc/{pid or os.getpid()}/fd").iterdir() if link.is_symlink()}
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
    return {fields[7] for fields in lines if len(fields) > 7 and f"socket:[{fields[6]}]" in own}


async def test_a_life_asks_and_is_answered_whatever_fails() -> None:
    async def answer(of: Child, asked: dict[str, Any]) -> dict[str, Any]:
        if asked["do"] == "fail":
            raise ValueError("not that")
        return {"life": of.life.key, "twice": asked["value"] * 2}

    made, _ = child(
        """
        def ask(**content):
            line.write(json.dumps(content) + "\\n")
            line.flush()
            return json.loads(line.readline())
        assert ask(id=1, do="x", value=21) == {"id": 1, "life": "0123456789abcdef" * 2, "twice": 42}
        assert "not that" in ask(id=2, do="fail")["error"]
        sys.exit(7)
        """,
        answer,
    )
    assert await made.run() == 7


def test_a_life_dies_with_its_supervisor(tmp_path: Path) -> None:
    """Also one that has just begun: whoever was its parent is another one by then."""
    program = tmp_path / "supervisor.py"
    program.write_text(
        textwrap.dedent(
            """
            import os, subprocess, sys, time
            life = "import time; from pollux.supervisor.line import bind_to_supervisor as bind; bind();" \\
                "print('bound', flush=True); time.sleep(600)"
            environment = {**os.environ, "POLLUX_SUPERVISOR": sys.argv[1] if len(sys.argv) > 1 else str(os.getpid())}
            done = subprocess.Popen([sys.executable, "-c", life], env=environment, stdout=subprocess.PIPE, text=True)
            print(done.pid, done.stdout.readline().strip(), flush=True)
            time.sleep(600)
            """
        )
    )

    async def run() -> None:
        supervisor = await asyncio.create_subprocess_exec(sys.executable, str(program), stdout=asyncio.subprocess.PIPE)
        assert supervisor.stdout is not None
        pid, word = (await supervisor.stdout.readline()).decode().split()
        assert word == "bound"
        supervisor.kill()
        await supervisor.wait()
        await until(lambda: not Path(f"/proc/{pid}/cmdline").exists() or not Path(f"/proc/{pid}/cmdline").read_bytes())
        late = await asyncio.create_subprocess_exec(sys.executable, str(program), "1", stdout=asyncio.subprocess.PIPE)
        assert late.stdout is not None
        assert len((await late.stdout.readline()).split()) == 1, "a life whose supervisor is gone began"
        late.kill()
        await late.wait()

    asyncio.run(run())


# -- what a host answers


def a_host(directory: Path, port: int, room: int, kind: str = "shared-store") -> Supervisor:
    text = f"""<configuration xmlns="urn:activemq" xmlns:px="urn:pollux:1">
    <core xmlns="urn:activemq:core"><name>b</name>
    <journal-directory>{directory}/journal</journal-directory>
    <connectors><connector name="me">tcp://127.0.0.1:{port}</connector></connectors>
    <acceptors><acceptor name="x">tcp://127.0.0.1:{port}</acceptor></acceptors>
    <cluster-password>secret</cluster-password><cluster-connections><cluster-connection name="c">
    <connector-ref>me</connector-ref><static-connectors/></cluster-connection></cluster-connections>
    <ha-policy><{kind}><colocated><max-backups>{room}</max-backups><backup-port-offset>1</backup-port-offset>
    </colocated></{kind}></ha-policy></core><px:management><px:enabled>false</px:enabled></px:management></configuration>"""
    configuration = loads(text)
    colocated = colocated_of(configuration)
    assert colocated is not None
    return Supervisor(configuration, colocated, [sys.executable, "-c", "import time; time.sleep(60)"])


def asked(node: str, directory: Path, machine: str = "elsewhere") -> dict[str, Any]:
    return {
        "do": "host",
        "node": node,
        "name": "a",
        "machine": machine,
        "domain": "",
        "directories": {"journal_directory": str(directory)},
    }


async def test_a_host_takes_in_what_it_can_and_says_why_not(tmp_path: Path) -> None:
    own = child("")[0]
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        host = a_host(tmp_path, taken.getsockname()[1] - 1, 1)
        host._lock = os.open("/dev/null", os.O_RDONLY)
        # Its own live runs, and goes on: without any life the host would end.
        host._tasks["live"] = running = asyncio.create_task(asyncio.sleep(600))
        early = await host._answer(own, asked(NODE, tmp_path))
        assert early == {"slot": 0, "reason": "this host is not ready yet"}
        own.life = Life()
        await host._answer(own, {"do": "tell", "node": "f" * 32, "state": "live"})
        refused = await host._answer(own, asked(NODE, tmp_path))
        assert "is not free" in refused["reason"], "the port of the slot is somebody else's"
        assert host.children == {}
    refused = await host._answer(own, asked(NODE, tmp_path / "not"))
    assert "a shared store has the same path on all hosts" in refused["reason"]
    assert "the live's own machine" in (await host._answer(own, asked(NODE, tmp_path, host.machine)))["reason"]
    for _ in range(2):
        assert await host._answer(own, asked(NODE, tmp_path)) == {"slot": 1, "reason": ""}
    place = tmp_path / "journal.colocated"
    assert [life.node for life in hosted.read(place).lives] == [NODE]
    assert "it has 1 backups of max-backups 1" in (await host._answer(own, asked("e" * 32, tmp_path)))["reason"]
    await until(lambda: host.children[NODE].pid)
    elsewhere = {"do": "tell", "node": "f" * 32, "state": "live", "elsewhere": {NODE: "d" * 32}}
    told = await host._answer(own, {**elsewhere, "heard": 0.0})
    assert told["host"]["backups"] == [NODE], "it said so before it asked for its slot"
    told = await host._answer(own, elsewhere)
    assert told["host"]["backups"] == []
    await until(lambda: len(host._tasks) == 1)
    assert hosted.read(place) == hosted.Hosted("f" * 32, ())
    # A node that is removed for good comes back with its own live alone.
    assert "no backup of" in (await host._answer(own, {"do": "remove", "node": NODE}))["refused"]
    assert "no backup of" in (await host._answer(own, {"do": "remove", "node": "live"}))["refused"]
    assert (await host._answer(own, asked(NODE, tmp_path)))["slot"] == 1
    assert await host._answer(own, {"do": "remove", "node": NODE}) == {"node": NODE, "name": "a"}
    await until(lambda: len(host._tasks) == 1)
    assert hosted.read(place) == hosted.Hosted("f" * 32, (), (NODE,))
    assert "was removed by an operator" in (await host._answer(own, asked(NODE, tmp_path)))["reason"]
    assert (await host._answer(own, {**asked(NODE, tmp_path), "home": True}))["slot"] == 1
    host.drop(NODE, "the test ends")
    await until(lambda: len(host._tasks) == 1)
    running.cancel()


@pytest.mark.parametrize(
    ("kind", "directories", "reason"),
    [
        ("shared-store", {}, "has a shared store, and the live is replicated: give both the same ha-policy"),
        ("replication", {"journal_directory": "/"}, "takes in copies, and the live has a shared store"),
    ],
)
async def test_a_live_with_another_kind_of_store_is_refused(
    tmp_path: Path, kind: str, directories: dict[str, str], reason: str
) -> None:
    host = a_host(tmp_path, 1, 1, kind)
    own = child("")[0]
    own.life = Life()
    await host._answer(own, {"do": "tell", "node": "f" * 32, "state": "live"})
    refused = await host._answer(own, {**asked(NODE, tmp_path), "directories": directories})
    assert refused["slot"] == 0
    assert reason in refused["reason"]
    assert host.children == {}


async def test_a_live_of_another_group_is_refused(tmp_path: Path) -> None:
    host = a_host(tmp_path, 1, 1, "replication")
    own = child("")[0]
    own.life = Life()
    await host._answer(own, {"do": "tell", "node": "f" * 32, "state": "live"})
    refused = await host._answer(own, {**asked(NODE, tmp_path), "group": "other", "directories": {}})
    assert "its group-name is '', not 'other'" in refused["reason"]
