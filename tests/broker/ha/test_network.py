"""The network check: what it forbids, and the check itself on loopback."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from broker.cluster.test_votes import NODE, answer
from broker.ha.test_member import One
from pollux.cluster.votes import HANDED_OVER, Candidacy, count
from pollux.ha.machine import Phase
from pollux.ha.replication.activation import ReplicatedActivation
from pollux.ha.replication.handover import HandOver
from pollux.ha.replication.network import Checked, NetworkSettings, current, judge
from pollux.ha.replication.network_check import NetworkCheck
from pollux.ha.replication.replicas import Replicas
from pollux.store.mirror import Link

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable
    from pathlib import Path

#: Generous: a machine under load.
TIMEOUT = 60.0
CUT_OFF = "cut off from the network: no answer within 1 s from 10.0.0.1"


# -- the decision


def test_any_answer_is_enough() -> None:
    assert judge(["10.0.0.1", "http://a/"], answered=True, failures={"10.0.0.1": "no"}, timeout=1.0) == ""
    assert judge([], answered=False, failures={}, timeout=1.0) == "", "nobody was to be asked"
    assert judge(["10.0.0.1"], answered=False, failures={}, timeout=1.0) == CUT_OFF
    found = judge(["10.0.0.1", "b"], answered=False, failures={"b": "ping: not there"}, timeout=0.5)
    assert found.endswith("within 0.5 s from 10.0.0.1, b (ping: not there)")


def test_a_check_from_before_the_loss_says_nothing_about_it() -> None:
    checked = Checked(10.0, "")
    assert current(checked, 10.0) is checked
    assert current(checked, 10.1) is None
    assert current(None, 0.0) is None


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_copy_that_loses_its_live_while_cut_off_has_to_be_in_sync_anew(when: str) -> None:
    """The live may be well, and go on alone: a pair without voters would have two."""
    one = Candidacy(own=False, retries=5, wait=1.0)
    one.synced()
    if when == "before":
        one.cut_off(CUT_OFF)
    one.live_lost("failed", 10.0)
    if when == "after":
        one.cut_off(CUT_OFF)
    assert not one.may_ask(1e9)
    one.cut_off("")
    assert not one.may_ask(1e9), "an answer of the network is no right to serve"
    one.followed()
    one.synced()
    one.live_lost("failed", 20.0)
    assert one.may_ask(20.0)


def test_what_was_handed_over_is_kept_until_the_network_is_back() -> None:
    one = Candidacy(own=False, retries=0, wait=1.0)
    one.synced()
    one.cut_off(CUT_OFF)
    one.live_lost(HANDED_OVER, 0.0)
    assert one.may_ask(0.0)
    one.cut_off(CUT_OFF)
    assert one.may_ask(0.0)


def test_a_copy_that_still_follows_stays_one() -> None:
    one = Candidacy(own=False, retries=0, wait=1.0)
    one.synced()
    one.cut_off(CUT_OFF)
    one.cut_off("")
    one.live_lost("failed", 0.0)
    assert one.may_ask(0.0)


def test_an_answer_of_the_network_does_not_replace_a_lost_vote() -> None:
    one = Candidacy(own=False, retries=0, wait=1.0)
    one.synced()
    one.live_lost("failed", 0.0)
    lost = [answer("b", yes=False)]
    assert not one.judge(count(lost, NODE, 3), lost, 0.0)
    one.cut_off("")
    assert not one.may_ask(1e9)


# -- who is cut off does not serve


def test_who_is_cut_off_does_not_ask_for_the_right_to_serve(tmp_path: Path) -> None:
    """It asks nobody; when the network is back it does."""
    one = One(tmp_path)
    asked = threading.Event()
    problems = [CUT_OFF, CUT_OFF, ""]

    def cut_off() -> str:
        asked.set()
        return problems.pop(0) if len(problems) > 1 else problems[0]

    one.member._cut_off = cut_off
    try:
        one.member._look()
        assert asked.is_set()
        assert (one.machine.phase, one.machine.position.reason) == (Phase.CATCHING_UP, CUT_OFF)
        assert not (tmp_path / "locks").exists(), "the coordination service was not asked"
        one.member._look()
        assert one.listener.right is None
        one.member._look()
        assert one.listener.right is not None
    finally:
        one.member.stop(release=False)


class Live:
    """A member that serves, and whose sequence is raised without a problem."""

    def __init__(self) -> None:
        self.marking = threading.RLock()
        self.lease = SimpleNamespace(held=lambda: True)
        self.fenced: list[str] = []
        self.raised = 0

    def raise_sequence(self, tell: object) -> int:
        self.raised += 1
        return self.raised

    def fence(self, reason: str) -> None:
        self.fenced.append(reason)


@pytest.mark.parametrize(
    ("problem", "copies", "goes_on"),
    [("", 0, True), (CUT_OFF, 0, False), (CUT_OFF, 1, True)],
    ids=["reached", "cut off", "cut off, with another backup"],
)
def test_a_live_that_lost_its_backup_confirms_nothing_alone_when_it_is_cut_off(
    tmp_path: Path, problem: str, copies: int, *, goes_on: bool
) -> None:
    member: Any = Live()
    settings: Any = SimpleNamespace(patience=1.0)
    roots = dict.fromkeys(("journal", "bindings", "large", "paging"), tmp_path)
    replicas = Replicas(
        roots,
        settings,
        member,
        about=dict,
        on_synced=lambda _: None,
        on_following=lambda _: None,
        cut_off=lambda: problem,
    )
    for number in range(copies):
        other = Link(f"helena{number}", lambda: None)
        replicas.mirror.attach(other)
        assert replicas.mirror.admit(other, b"in sync")
    assert replicas._lost(Link("pollux", lambda: None), "gone") is goes_on
    assert member.raised == goes_on, "the sequence is raised, and a vote asked for, only by who is not"
    assert member.fenced == ([] if goes_on else [f"backup pollux is lost, and this host is {CUT_OFF}"])


@pytest.mark.parametrize(("phase", "stops"), [(Phase.LIVE, True), (Phase.READY, False), (Phase.ACTIVATING, False)])
def test_a_live_that_is_cut_off_stops_in_order_and_waits_again(phase: Phase, *, stops: bool) -> None:
    given: list[HandOver] = []
    woken: list[bool] = []
    activation: Any = SimpleNamespace(
        _voting=None,
        machine=SimpleNamespace(phase=phase),
        member=SimpleNamespace(wake=lambda: woken.append(True)),
        _begin_hand_over=given.append,
    )
    ReplicatedActivation._network_changed(activation, CUT_OFF)
    assert given == ([HandOver(CUT_OFF, restart=True)] if stops else [])
    ReplicatedActivation._network_changed(activation, "")
    assert len(given) == stops
    assert woken == [True, True]


# -- the check itself


class Web:
    """A web server on loopback."""

    def __init__(self) -> None:
        self.asked: list[bytes] = []
        self.port = 0
        self.server: asyncio.Server

    async def serve(self) -> str:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            self.asked.append(await reader.readuntil(b"\r\n\r\n"))
            writer.write(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            writer.close()

        self.server = await asyncio.start_server(answer, "127.0.0.1", self.port)
        self.port = self.server.sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{self.port}/alive"


@pytest.fixture
async def check() -> AsyncIterator[Callable[..., NetworkCheck]]:
    made: list[NetworkCheck] = []

    def make(*, urls: tuple[str, ...] = (), ping: tuple[str, ...] = (), timeout: float = TIMEOUT) -> NetworkCheck:
        hosts = ("127.0.0.1",) if ping else ()
        changes: list[str] = []
        found = NetworkCheck(NetworkSettings(hosts, urls, 0.05, timeout, ping, ping), changes.append)
        found.changes = changes  # type: ignore[attr-defined]  # for the test
        made.append(found)
        return found

    yield make
    for one in made:
        await one.stop()


async def test_a_web_server_that_answers_and_one_that_does_not(check: Callable[..., NetworkCheck]) -> None:
    """Any answer counts; the first one is enough. Without one it is told, once, and again when it is back."""
    web = Web()
    url = await web.serve()
    nobody = socket.socket()
    nobody.bind(("127.0.0.1", 0))
    closed = f"http://127.0.0.1:{nobody.getsockname()[1]}/"
    one: Any = check(urls=(closed, url))
    assert await one.checked(one.loop.time()) == ""
    assert web.asked[0].startswith(b"GET /alive HTTP/1.1")
    assert one.changes == []
    web.server.close()
    one.start()
    async with asyncio.timeout(TIMEOUT):
        while not one.problem:  # noqa: ASYNC110  (a socket)
            await asyncio.sleep(0.01)
    assert f"{closed} (" in one.problem
    assert url in one.problem
    # Known: a thread is answered without another check; one about later is made first.
    assert await asyncio.to_thread(one.ask, 0.0) == one.problem
    assert url in await asyncio.to_thread(one.ask, one.loop.time())
    await web.serve()
    async with asyncio.timeout(TIMEOUT):
        while one.problem:  # noqa: ASYNC110  (a socket)
            await asyncio.sleep(0.01)
    assert [bool(change) for change in one.changes] == [True, False]
    web.server.close()
    nobody.close()


@pytest.mark.parametrize(("code", "answers"), [(0, True), (1, False)])
async def test_a_ping_is_a_program_with_words(
    check: Callable[..., NetworkCheck], tmp_path: Path, code: int, *, answers: bool
) -> None:
    """No shell, no input, no environment of the broker's."""
    program = "import os,sys;open(sys.argv[1],'w').write(repr((sys.argv[2:],sys.stdin.read(),sorted(os.environ))))"
    words = (sys.executable, "-I", "-c", f"{program};sys.exit({code})", str(tmp_path / "said"), "%d", "%s", "$(id) ;*")
    one = check(ping=words)
    assert (await one.checked(0.0) == "") is answers
    said = (tmp_path / "said").read_text()
    assert said.startswith("(['60', '127.0.0.1', '$(id) ;*'], '', ")
    assert "POLLUX" not in said
    assert "HOME" not in said


async def test_a_ping_that_hangs_is_killed_with_all_it_has_started(
    check: Callable[..., NetworkCheck], tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    lock.touch()
    # The child holds the lock as long as it lives.
    child = f"flock {lock} sleep 600"
    one = check(ping=("sh", "-c", f"{child} & wait"), timeout=0.3)
    assert "no answer within 0.3 s from 127.0.0.1" in await one.checked(0.0)
    free = await asyncio.create_subprocess_exec("flock", lock, "true")
    async with asyncio.timeout(TIMEOUT):
        assert await free.wait() == 0


async def test_a_ping_that_cannot_be_run_is_named(check: Callable[..., NetworkCheck]) -> None:
    one = check(ping=("/nowhere/ping", "%s"))
    assert "127.0.0.1 (/nowhere/ping: [Errno 2]" in await one.checked(0.0)
