"""The pure parts of faults and drills, and that a fault which took no effect is noticed."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import pytest

from harness.releases import VERSION_FILE, raised
from lab import drill, faults, image, journals, packets, wheels
from lab.hosts import Container
from lab.journals import Journal
from lab.places import ROOT, LabError
from pollux.drill.manifest import Manifest, Member
from pollux.drill.members import Seen

if TYPE_CHECKING:
    from collections.abc import Callable


class FakeHost:
    """Answers commands from a table of (part of the command, answer); remembers them."""

    def __init__(self, answers: dict[str, str] | None = None) -> None:
        self.name = "castor"
        self.answers = answers or {}
        self.commands: list[str] = []
        self.power = True
        self.frozen = False

    def run(self, *words: str, stdin: str | None = None, check: bool = True, timeout: float = 0) -> str:
        self.commands.append(" ".join(words))
        return next((said for part, said in self.answers.items() if part in self.commands[-1]), "")

    def strike(self, *words: str, timeout: float = 0) -> float | None:
        self.run(*words)
        return 1.0

    def address(self) -> str:
        return "10.0.0.1"

    def reach(self, port: int) -> str:
        return f"10.0.0.1:{port}"

    def cut_power(self) -> float | None:
        self.power = False
        return 1.0

    def restore_power(self) -> None:
        self.power = True

    def powered(self) -> bool:
        return self.power

    def stun(self) -> None:
        self.frozen = True

    def unstun(self) -> None:
        self.frozen = False

    def stunned(self) -> bool:
        return self.frozen


def test_a_partition_drops_in_both_directions_and_leaves_loopback() -> None:
    text = packets.partition([], "both")
    assert "hook input" in text
    assert "hook output" in text
    assert 'iif != "lo" drop' in text
    assert 'oif != "lo" drop' in text


def test_a_one_way_partition_from_chosen_peers_drops_nothing_else() -> None:
    text = packets.partition(["10.0.0.2", "fd00::2"], "in")
    assert "ip saddr { 10.0.0.2 } drop" in text
    assert "ip6 saddr { fd00::2 } drop" in text
    assert "output" not in text
    assert "lo" not in text.replace("policy", "")


@pytest.mark.parametrize("peers", [["nfs"], ["10.0.0.2; flush ruleset"]])
def test_peers_are_addresses(peers: list[str]) -> None:
    with pytest.raises(LabError, match="addresses"):
        packets.partition(peers, "both")


def test_delay_and_loss_as_tc_writes_them() -> None:
    assert packets.netem(50, 5, 1.5) == ["netem", "delay", "50ms", "5ms", "loss", "1.5%"]
    for wrong in ((0, 0, 0), (-1, 0, 0), (0, 0, 101)):
        with pytest.raises(LabError):
            packets.netem(*wrong)


def test_a_partition_that_loaded_no_rules_is_noticed() -> None:
    fault = faults.make("partition", FakeHost())
    fault.apply()
    with pytest.raises(LabError, match="no rules"):
        fault.check()


class Fenced(FakeHost):
    """Answers nothing until it was asked a few times: the others have cut its power for its silence."""

    off = 3

    def run(self, *words: str, stdin: str | None = None, check: bool = True, timeout: float = 0) -> str:
        self.off -= 1
        if self.off >= 0:
            if check:
                raise LabError("no such container")
            return ""
        return super().run(*words, stdin=stdin, check=check, timeout=timeout)


@pytest.mark.parametrize("still", [False, True])
def test_a_partition_of_a_host_that_is_fenced_meanwhile_is_over_when_it_is_back(still: bool) -> None:
    """Breaks when a host without power counts as one that still drops packets, or as one that does not."""
    fault = faults.make("partition", Fenced({"list tables": f"table inet {packets.TABLE}" if still else ""}))
    fault.undo()
    if still:
        with pytest.raises(LabError, match="still drops"):
            fault.check_undone()
    else:
        fault.check_undone()


def test_a_stop_that_had_to_kill_is_not_clean() -> None:
    answers = {"MainPID": "MainPID=7", "ActiveState": "ActiveState=inactive\nResult=timeout"}
    fault = faults.make("stop", FakeHost(answers))
    fault.prepare()
    with pytest.raises(LabError, match="cleanly"):
        fault.check()


def test_nothing_is_broken_that_does_not_run() -> None:
    for name in ("kill", "stop", "pause"):
        with pytest.raises(LabError, match="does not run"):
            faults.make(name, FakeHost({"MainPID": "MainPID=0"})).prepare()


def test_a_power_cut_that_left_the_power_on_is_noticed() -> None:
    host = FakeHost({"is-system-running": "running"})
    fault = faults.make("power-cut", host)
    with fault.applied():
        assert not host.power
    assert host.power
    with pytest.raises(LabError, match="still has power"):
        fault.check()


def test_what_is_broken_is_repaired_when_a_test_fails_meanwhile() -> None:
    host = FakeHost()
    with pytest.raises(KeyError), faults.make("freeze", host).applied():
        raise KeyError
    assert not host.frozen


def test_only_a_small_file_system_is_filled() -> None:
    fault = faults.make("full-disk", FakeHost({"--output=size": "1M-blocks\n  9000\n"}))
    with pytest.raises(LabError, match="not a small one"):
        fault.prepare()


def test_a_disk_that_is_not_full_is_noticed() -> None:
    fault = faults.make("full-disk", FakeHost({"--output=avail": "Avail\n 70000\n"}))
    with pytest.raises(LabError, match="still free"):
        fault.check()


def test_a_standby_is_promoted_only_where_there_is_one_and_is_asked_who_writes_to_it() -> None:
    host = FakeHost(
        {"pg_lsclusters": "15 main 5432 online postgres /m /l\n15 standby 5433 online,recovery postgres /s /l\n"}
    )
    fault = faults.make("promote", host)
    fault.prepare()
    fault.apply()
    assert host.commands[-2:] == [
        "systemctl kill --signal=KILL postgresql@15-main.service",
        "pg_ctlcluster 15 standby promote",
    ]
    host.answers["pg_lsclusters"] = "15 main 5432 down postgres /m /l\n15 standby 5433 online postgres /s /l\n"
    host.answers["pg_stat_activity"] = "2"
    fault.check()
    fault.check_undone()
    with pytest.raises(LabError, match="no server main with a standby"):
        fault.prepare()


def test_the_clock_of_a_container_is_left_alone() -> None:
    with pytest.raises(LabError, match="container"):
        faults.make("clock-jump", FakeHost({"detect-virt": "docker"})).prepare()


def test_an_unknown_fault_or_option_names_what_there_is() -> None:
    with pytest.raises(LabError, match="power-cut"):
        faults.make("powercut", FakeHost())
    with pytest.raises(LabError, match="partition"):
        faults.make("partition", FakeHost(), peer=())
    with pytest.raises(LabError, match="hold"):
        drill.Step.parse({"fault": "kill", "holds": 3})
    with pytest.raises(LabError, match="there is no fault"):
        drill.Step.parse({"fault": "kil"})


def test_a_measurement_repeats_faults_and_no_program() -> None:
    """Breaks when a failback is asked for again of those who have failed back: that scenario could not be measured."""
    steps = [drill.Step("kill"), drill.Step("run", options={"command": ["x"]}), drill.Step("pause", repeat=2)]
    steps += [drill.Step("promote")]
    found = [step.fault for step in drill.repeated(steps, 3)]
    assert found == ["kill"] * 3 + ["run"] + ["pause"] * 6 + ["promote"]


def test_a_journal_is_read_from_a_moment_of_the_hosts_own_clock() -> None:
    host = FakeHost({"date": "1700000000.5\n", "journalctl": "the vote was lost for good\n"})
    journal = Journal.from_now(host)
    assert journal.says("lost for good")
    assert not journal.says("won")
    assert host.commands[-1].endswith("--since=@1700000000.5")


def test_the_manifest_names_ports_as_this_machine_reaches_them() -> None:
    given: dict[str, Any] = {
        "members": [
            {"name": "a", "url": "tcp://10.0.0.1:61616?x=y", "management": "http://10.0.0.1:8161", "pid_file": "/p"}
        ],
        "user": "operator",
    }
    reached: dict[str, Callable[[int], str]] = {"a": lambda port: f"127.0.0.1:{port + 1}"}
    found = drill.adapted(given, reached)
    assert found["user"] == "operator"
    assert found["members"][0]["url"] == "tcp://127.0.0.1:61617"
    assert found["members"][0]["management"] == "http://127.0.0.1:8162"
    with pytest.raises(LabError, match="no host"):
        drill.adapted(given, {})


def test_a_member_that_keeps_silent_has_not_stopped_until_it_refuses_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        member = Member("a", url, (), "http://127.0.0.1:1", Path("a.pid"), ("true",))
        assert asyncio.run(drill.accepts(member))
    assert not asyncio.run(drill.accepts(member))


class Silent:
    """A member's management that takes connections and never answers."""

    async def look(self, _: Member) -> None:
        await asyncio.Event().wait()


def test_a_refused_connection_is_seen_while_the_management_keeps_silent() -> None:
    """Breaks when a fail-stop is measured with the time that the question to a stopped broker took."""
    with socket.create_server(("127.0.0.1", 0)) as closed:
        url = f"tcp://127.0.0.1:{closed.getsockname()[1]}"
    live = Member("a", url, (), "http://127.0.0.1:1", Path("a.pid"), ("true",))
    breaker = drill.Breaker(drill.Step("none"), Manifest((live,), "operator", ""), {}, Path())

    async def asked() -> bool:
        async with asyncio.timeout(30):
            return await breaker._may_serve(Silent(), live)  # type: ignore[arg-type]

    assert not asyncio.run(asked())


class Turns:
    """Members of whom `a` is live until its service is stopped."""

    def __init__(self, hosts: dict[str, Any], every: tuple[Member, ...]) -> None:
        self._hosts = hosts
        self.members = every

    async def wait_for_live(self, _: float, **__: object) -> Member:
        stopped = any("systemctl stop" in command for command in self._hosts["a"].commands)
        return self.members[stopped]

    async def live(self) -> Member:
        return await self.wait_for_live(0)

    async def look(self, member: Member) -> Seen:
        return Seen("live" if member is await self.live() else "ready")


@pytest.mark.parametrize(("away", "stops"), [("a", True), ("b", False)])
def test_who_must_not_be_live_is_stopped_before_the_program(tmp_path: Path, away: str, *, stops: bool) -> None:
    """Breaks when a failback is asked for of those who have changed places by themselves, and has nothing to do."""
    every = tuple(Member(name, "tcp://x:1", (), "http://x:2", Path("p"), ("true",)) for name in "ab")
    answers = {"MainPID": "MainPID=7", "ActiveState": "ActiveState=inactive\nResult=success"}
    hosts: dict[str, Any] = {name: FakeHost(answers) for name in "ab"}
    program = {"command": [sys.executable, "-c", "print('done')"], "says": ["done"]}
    step = drill.Step.parse({"fault": "run", "away": away, "options": program})
    breaker = drill.Breaker(step, Manifest(every, "operator", ""), hosts, tmp_path)
    told: list[str] = []

    async def served() -> None:
        told.append("served")

    members: Any = Turns(hosts, every)
    asyncio.run(breaker._run(members, lambda *_: None, told.append, served))
    assert (any(word.startswith("a is live already") for word in told), "served" in told) == (stops, stops)
    assert [command for command in hosts["a"].commands if "start" in command] == (
        ["systemctl start --no-block pollux.service"] if stops else []
    )
    assert not hosts["b"].commands
    with pytest.raises(LabError, match="for a program"):
        drill.Step.parse({"fault": "kill", "away": "a"})


def test_the_next_version() -> None:
    assert raised("0.1.0") == "0.1.1"
    assert raised("1.9") == "1.10"
    with pytest.raises(ValueError, match="does not end with a number"):
        raised("1.0.dev")


def test_a_raised_wheel_is_the_next_version_in_all_that_it_says(tmp_path: Path) -> None:
    info = "pollux_broker-1.2.3.dist-info"
    with zipfile.ZipFile(tmp_path / "old.whl", "w") as wheel:
        wheel.writestr(VERSION_FILE, 'VERSION = "1.2.3"\n')
        wheel.writestr("pollux/cli/__init__.py", "pass\n")
        wheel.writestr(f"{info}/METADATA", "Name: pollux-broker\nVersion: 1.2.3\nDescription: 1.2.3\n")
        wheel.writestr(f"{info}/RECORD", "")
    wheels.rewrite(tmp_path / "old.whl", tmp_path / "new.whl", "1.2.3", "1.2.4", broken=False)
    with zipfile.ZipFile(tmp_path / "new.whl") as wheel:
        info = info.replace("1.2.3", "1.2.4")
        assert wheel.read(VERSION_FILE) == b'VERSION = "1.2.4"\n'
        assert b"\nVersion: 1.2.4\n" in wheel.read(f"{info}/METADATA")
        record = wheel.read(f"{info}/RECORD").decode().splitlines()
        assert {line.split(",")[0] for line in record} == set(wheel.namelist())
    # The broker has its version where this looks for it.
    assert 'VERSION = "' in (ROOT / "broker" / "src" / VERSION_FILE).read_text()


def test_of_a_step_that_is_not_clean_the_brokers_own_words_are_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Breaks when nobody can say why: the scenario's hosts are removed right after it."""
    lines = [f"line {number}" for number in range(drill.SHOWN + 1)]
    drill.keep_journals({"castor": FakeHost({"journalctl": "\n".join(lines) + "\n"})}, tmp_path)
    assert (tmp_path / "castor.journal").read_text().splitlines() == lines
    assert capsys.readouterr().out.splitlines() == [f"  castor: {line}" for line in lines[1:]]


def test_what_a_host_without_power_has_written_is_kept_too(tmp_path: Path) -> None:
    """Breaks when the files are empty after a power cut: nobody answers, and that was taken for nothing to say."""
    cut, stunned, broken = FakeHost({"journalctl": "before\n"}), FakeHost({"journalctl": "too\n"}), FakeHost()
    cut.cut_power()
    stunned.stun()
    answer = cut.run

    def run(*words: str, stdin: str | None = None, check: bool = True, timeout: float = 0) -> str:
        if not cut.powered():
            raise LabError("it is not running")
        return answer(*words, stdin=stdin, check=check, timeout=timeout)

    cut.run = run  # type: ignore[method-assign]
    drill.keep_journals({"cut": cut, "stunned": stunned, "broken": broken}, tmp_path)
    found = {path.stem: path.read_text() for path in tmp_path.glob("*.journal")}
    assert found == {"cut": "before\n", "stunned": "too\n", "broken": "nothing is in its journal\n"}
    assert not stunned.stunned()


def test_a_host_keeps_its_journal_on_disk(tmp_path: Path) -> None:
    """Breaks when it is in memory: what was written before a power cut is what explains it."""
    (tmp_path / "etc").mkdir()
    subprocess.run(["sh", "-ec", journals.keep(str(tmp_path))], check=True)
    assert (tmp_path / "var" / "log" / "journal").is_dir()
    (path,) = (tmp_path / "etc").rglob("*.conf")
    assert path.read_text() == "[Journal]\nStorage=persistent\nSyncIntervalSec=1s\n"
    assert journals.keep() in image.dockerfile()


def test_a_container_that_waits_for_its_disk_is_frozen_a_little_later(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [LabError("unable to freeze: unknown"), LabError("unable to freeze: unknown"), LabError("no such container")]

    def docker(_container: Container, *words: str, check: bool = True) -> str:
        assert (words, check) == (("pause", "castor"), True)
        if said:
            raise said.pop(0)
        return ""

    monkeypatch.setattr(Container, "_docker", docker)
    castor = Container("castor", Mock())
    with pytest.raises(LabError, match="no such container"):
        castor.stun()
    assert not said
    castor.stun()
