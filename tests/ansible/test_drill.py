"""A drill's manifest, what may be broken in which group, and whence the traffic comes. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.modules import load
from pollux.drill.manifest import parse

ROOT = Path(__file__).resolve().parents[2]
LOOPBACK = "http://127.0.0.1:8161"


drill = load("filter_plugins/drill.py")


def site(manager: str = "pacemaker", *, fencing: bool = True, management: str = "") -> dict[str, Any]:
    """The model of a trio."""
    hosts = {name: number for number, name in enumerate("abc", 11)}
    return {
        "groups": {
            "trio": {"members": list(hosts), "cluster": {"manager": manager, "fencing": fencing} if manager else {}}
        },
        "brokers": {
            host: {
                "connector": {"uri": f"tcp://10.0.0.{number}:61616"},
                "management": {"url": management or f"http://10.0.0.{number}:8161"},
                "run": f"/run/{host}",
                "root": "/opt/pollux",
            }
            for host, number in hosts.items()
        },
    }


def test_under_pacemaker_members_are_broken_by_what_it_is_told(tmp_path: Path) -> None:
    """And the program that reads the manifest takes it."""
    found = drill.manifest(site(), "trio", "operator")
    del found["password_file"]
    members = parse(found, tmp_path / "manifest.json").members
    assert [member.pid_file for member in members] == [None] * 3
    assert members[1].kill == ("stonith_admin", "--reboot=b")
    assert members[1].switchover == ("crm_resource", "--move", "--resource=pollux-clone", "--promoted")
    assert members[1].start[-1] == "--delete"
    assert "--node=b --name=standby" in members[1].stop[-1]


def test_processes_of_this_machine_are_broken_by_signals(tmp_path: Path) -> None:
    found = drill.manifest(site(""), "trio", "operator")
    del found["password_file"]
    (first, *_) = parse(found, tmp_path / "manifest.json").members
    assert (first.pid_file, first.kill, first.switchover) == (Path("/run/a/pollux.pid"), (), ())
    assert first.stop == ("/opt/pollux/bin/stop",)


@pytest.mark.parametrize(
    ("model", "asked", "why"),
    [
        (site(), "", ""),
        (site(), "kill", ""),
        (site(), "pause", "drill_fault pause: under pacemaker it is one of switchover, stop, restart, kill, none"),
        (site(fencing=False), "kill", "cuts the power of the primary's machine, and has no fencing"),
        (site(fencing=False), "stop", ""),
        (site("rgmanager"), "", "group trio is under rgmanager, which is not on this bundle's machines"),
        (site(management=LOOPBACK), "", "set broker_management_address"),
        (site(""), "", "a drill kills and starts processes of this machine; a, b, c is run by systemd"),
    ],
)
def test_what_cannot_be_broken_is_refused_before_anything_is(model: dict[str, Any], asked: str, why: str) -> None:
    said = drill.refusal(model, {host: {} for host in "abc"}, "trio", asked)
    assert why in said
    assert bool(said) == bool(why)


def test_a_group_that_does_not_exist_and_processes_of_this_machine() -> None:
    assert drill.refusal(site(), {}, "duo", "") == "drill_group names duo; the groups are trio"
    own = {host: {"broker_service_manager": "none"} for host in "abc"}
    assert drill.refusal(site("", management=LOOPBACK), own, "trio", "pause") == ""


@pytest.mark.parametrize(
    ("asked", "manager", "fault"), [("", "pacemaker", "switchover"), ("", "", "kill"), ("stop", "", "stop")]
)
def test_no_power_is_cut_that_nobody_asked_for(asked: str, manager: str, fault: str) -> None:
    assert drill.fault(site(manager), "trio", asked) == fault


@pytest.mark.parametrize(("live", "node"), [("a", "c"), ("c", "b")])
def test_traffic_comes_from_a_backups_machine(live: str, node: str) -> None:
    said = {host: {"answer": {"state": "live" if host == live else "ready"}} for host in "abc"}
    assert drill.node(site(), said, "answer", "trio") == node
    assert drill.node(site(""), said, "answer", "trio") == "", "or from the controller"
