"""Faults of hosts under pacemaker, whom they hit, and the power supply that their fence agent asks."""

from __future__ import annotations

import subprocess
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lab import faults, packets, power, targets
from lab.places import LabError

if TYPE_CHECKING:
    from collections.abc import Iterator

AGENT = Path(__file__).resolve().parents[2] / "molecule/lab/playbooks/files/fence_lab"


class Node:
    """A host that answers commands from a table of (part of the command, answers one after the other)."""

    def __init__(self, name: str, answers: dict[str, list[str]] | None = None, *, on: bool = True) -> None:
        self.name, self.on = name, on
        self.answers = answers or {}
        self.commands: list[str] = []

    def run(self, *words: str, stdin: str | None = None, check: bool = True, timeout: float = 0) -> str:
        self.commands.append(" ".join(words))
        for part, said in self.answers.items():
            if part in self.commands[-1]:
                return said.pop(0) if len(said) > 1 else said[0]
        return ""

    def strike(self, *words: str, timeout: float = 0) -> float | None:
        self.run(*words)
        return 1.0

    def powered(self) -> bool:
        return self.on


def of(kind: str, node: Node, **options: Any) -> faults.Fault:
    return faults.make(kind, node, **options)  # type: ignore[arg-type]


def test_a_node_that_leaves_takes_its_broker_with_it() -> None:
    node = Node("a", {"is-active pacemaker": ["active", "inactive"], "is-active pollux": ["inactive", "active"]})
    leave = of("leave", node)
    leave.prepare()
    leave.apply()
    leave.check()
    leave.undo()
    leave.check_undone()
    assert node.commands[1] == "systemctl stop pacemaker.service"
    with pytest.raises(LabError, match="pacemaker does not run on a"):
        of("leave", Node("a")).prepare()
    with pytest.raises(LabError, match=r"pollux\.service of a still run"):
        of("leave", Node("a", {"is-active pollux": ["active"]})).check()


def test_an_address_that_is_not_there_cannot_be_removed() -> None:
    there = Node("a", {"-brief": ["eth0 UP 10.0.0.1/24 10.0.0.9/24"]})
    gone = of("address-gone", there, address="10.0.0.9")
    gone.prepare()
    gone.apply()
    gone.check_undone()
    assert "ip address del 10.0.0.9/24 dev eth0" in there.commands
    with pytest.raises(LabError, match=r"a does not have 10\.0\.0\.9"):
        of("address-gone", Node("a", {"-brief": ["eth0 UP 10.0.0.99/24"]}), address="10.0.0.9").prepare()


REFUSED = "Refused: b:61616 may have newer data and cannot be asked"


class Addressed(Node):
    """A node with an address."""

    def address(self) -> str:
        """Its own."""
        return "10.0.0.1"


def stale(promoted: str, statuses: list[str]) -> tuple[Addressed, faults.Fault]:
    """A backup that was away; what its promotion says, and its status each time it is asked."""
    answers = {"is-active pollux": ["inactive", "active"], "ha status": statuses, "ha promote": [promoted]}
    node = Addressed("a", answers)
    return node, of("stale", node, peers=("10.0.0.1", "10.0.0.2"))


def test_a_stale_backup_comes_back_alone_and_refuses_to_be_promoted() -> None:
    node, fault = stale(REFUSED, ["ready", "joining"])
    fault.prepare()
    fault.apply()
    fault.check()
    fault.undo()
    fault.check_undone()
    order = ["--update on", "nft -f -", "--delete", "ha promote", "nft delete table"]
    places = [next(at for at, said in enumerate(node.commands) if word in said) for word in order]
    assert places == sorted(places), "away, cut off, started by its resource manager, asked, let in again"


@pytest.mark.parametrize(
    ("promoted", "statuses", "why"),
    [
        ("", ["joining"], "was not refused for data that others may have: it serves"),
        ("ConnectionError: x", ["joining"], "was not refused for data that others may have: ConnectionError: x"),
        (REFUSED, ["joining", "active"], "is not joining any more"),
    ],
)
def test_a_stale_backup_that_does_otherwise_is_found(promoted: str, statuses: list[str], why: str) -> None:
    with pytest.raises(LabError, match=why):
        stale(promoted, statuses)[1].check()
    with pytest.raises(LabError, match="no backup that is ready"):
        stale(promoted, ["active"])[1].prepare()


def test_brokers_are_kept_apart_and_nothing_else() -> None:
    rules = packets.apart(["10.0.0.2", "10.0.0.3"], 61616)
    assert "ip saddr { 10.0.0.2, 10.0.0.3 } tcp dport 61616 drop" in rules
    assert "ip daddr { 10.0.0.2, 10.0.0.3 } tcp dport 61616 reject" in rules
    assert rules.count("tcp") == 2


def test_a_resource_managers_broker_is_not_started_behind_its_back() -> None:
    for state, starts in (("static", False), ("enabled", True)):
        node = Node("a", {"is-enabled": [state]})
        of("kill", node).undo()
        assert any("systemctl start" in command for command in node.commands) == starts


def test_who_coordinates_is_asked_of_whoever_has_power() -> None:
    said = {"crmadmin": ["Designated Controller is: b 2.1.5-a3f44794f94\n"]}
    hosts = {"a": Node("a", said, on=False), "b": Node("b"), "c": Node("c", said)}
    assert targets.who_coordinates(hosts) == "b"  # type: ignore[arg-type]
    with pytest.raises(LabError, match="none of a, b knows"):
        targets.who_coordinates({name: hosts[name] for name in "ab"})  # type: ignore[misc]


class Supply(power.Supply):
    """Switches hosts that are only names."""

    def __init__(self) -> None:
        self.firmware, self.started = threading.Event(), threading.Event()
        super().__init__("trio", None, "secret", lambda _: self.firmware.wait(30))  # type: ignore[arg-type]
        self.on = {"a": True, "b": False}
        self.sticks = False
        self.ends = 0

    def _hosts(self) -> list[str]:
        return list(self.on)

    def _act(self, host: Any, action: str) -> Any:
        outer = self

        class Switched:
            name = host.name

            def powered(self) -> bool:
                return outer.on[host.name]

            def ended(self) -> str:
                return str(outer.ends)

            def switch_off(self) -> None:
                outer.on[host.name] = outer.sticks

            def restore_power(self) -> None:
                outer.on[host.name] = True
                outer.started.set()

        return super()._act(Switched(), action)  # type: ignore[arg-type]


def test_what_is_asked_is_done_and_only_for_who_knows_the_token() -> None:
    supply = Supply()
    assert supply.answer("wrong off a").startswith("error:")
    assert supply.answer("secret explode a") == "error: there is no action explode"
    assert supply.answer("secret off z") == "error: there is no host z"
    assert supply.on == {"a": True, "b": False}
    assert (supply.answer("secret status a"), supply.answer("secret status b")) == ("on", "off")
    assert (supply.answer("secret off a"), supply.on["a"]) == ("ok", False)
    assert supply.answer("secret reboot b") == "ok"
    assert supply.answer("secret status b") == "off", "a machine needs its time"
    supply.firmware.set()
    assert supply.started.wait(30)
    supply.sticks = True
    assert supply.answer("secret off b") == "error: b still has power"


def boot(supply: Supply) -> None:
    """Have the firmware of all machines be done."""
    booting = [thread for thread in threading.enumerate() if thread.name.endswith("(_boot)")]
    supply.firmware.set()
    for thread in booting:
        thread.join(30)


def test_a_machine_that_is_switched_off_while_it_boots_stays_off() -> None:
    supply = Supply()
    assert supply.answer("secret reboot a") == "ok"
    assert supply.answer("secret off a") == "ok"
    assert supply.answer("secret reboot b") == "ok"
    boot(supply)
    assert supply.on == {"a": False, "b": True}


def test_a_machine_whose_power_a_drill_cuts_while_it_boots_stays_off() -> None:
    """Breaks when a fence of the step before ends a power cut of this one."""
    supply = Supply()
    assert supply.answer("secret reboot a") == "ok"
    supply.ends += 1  # it was started, and cut off again
    boot(supply)
    assert not supply.on["a"]


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a power supply that serves."""
    with power._Server(("127.0.0.1", 0), Supply()) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def test_the_fence_agent_believes_only_the_answer(port: int, tmp_path: Path) -> None:
    agent = tmp_path / "fence_lab"
    agent.write_text(AGENT.read_text().replace("/7777", f"/{port}"))
    agent.chmod(0o755)

    def fence(action: str, plug: str = "a", known: str = "secret") -> int:
        given = f"action={action}\nport={plug}\nip=127.0.0.1\ntoken={known}\n"
        return subprocess.run([agent], input=given, text=True, capture_output=True, timeout=60, check=False).returncode

    assert [fence(one) for one in ("monitor", "status", "off", "status", "metadata", "list")] == [0, 0, 0, 2, 0, 0]
    assert fence("off", "z") == 1
    assert fence("off", known="wrong") == 1
    assert fence("explode") == 1
