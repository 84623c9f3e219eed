"""The broker's systemd unit: what depends on how its group is kept available."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import jinja2
import pytest
from typer.testing import CliRunner

from harness.bundle import ROOT
from pollux.cli.app import app

if TYPE_CHECKING:
    from pathlib import Path

VARIABLES: dict[str, Any] = {
    "broker_root": "/opt/pollux",
    "broker_etc": "/opt/pollux/etc",
    "broker_run": "/run/pollux",
    "broker_data": "/var/lib/pollux",
    "broker_system_user": "pollux",
    "broker_system_group": "pollux",
    "broker_watchdog_seconds": 30,
    "broker_start_timeout": 900,
    "broker_stop_timeout": 120,
    "broker_open_files": 65536,
    "broker_group_readable": False,
    "__topology": {"groups": {"one": {"store": {"type": "nfs4", "mount": "/var/lib/pollux/shared"}}}},
}


def rendered(policy: str, zookeeper: str = "") -> list[str]:
    """The lines of the unit, rendered as Ansible does; a variable that is not given is an error."""
    environment = jinja2.Environment(undefined=jinja2.StrictUndefined, trim_blocks=True, autoescape=False)  # noqa: S701
    source = (ROOT / "roles" / "broker" / "templates" / "pollux.service.j2").read_text()
    me = {
        "name": "castor",
        "group": "one",
        "policy": policy,
        "shared": policy == "shared_store",
        "writes": "/srv/pollux/g" if policy == "shared_store" else "",
        "colocated": {},
        "database": {},
        "zookeeper": zookeeper,
        "store": "/var/lib/pollux/shared/one",
    }
    return (
        environment.from_string(source)
        .render(VARIABLES, __broker_me=me, __broker_managed=policy == "active_passive")
        .splitlines()
    )


def test_a_replicated_broker_s_session_is_closed_when_its_process_is_gone() -> None:
    (line,) = [line for line in rendered("replication", "zk1:2181") if line.startswith("ExecStopPost=")]
    found = re.fullmatch(r"ExecStopPost=-/opt/pollux/current/bin/pollux (.+) --config /opt/pollux/etc/broker.xml", line)
    assert found is not None, "its failure must not make the unit fail"
    # The words are a command that there is.
    shown = CliRunner().invoke(app, [*found[1].split(), "--help"])
    assert shown.exit_code == 0
    assert "ZooKeeper" in shown.output


@pytest.mark.parametrize("policy", ["live_only", "shared_store", "replication"])
def test_nothing_of_it_where_there_is_no_session(policy: str) -> None:
    """A shared store that hangs must not hold up the stop; who is voted for has no session."""
    assert not [line for line in rendered(policy) if line.startswith("ExecStopPost")]


@pytest.mark.parametrize("policy", ["live_only", "shared_store", "replication"])
def test_a_crash_writes_no_passwords_and_messages_to_a_core_file(policy: str) -> None:
    assert "LimitCORE=0" in rendered(policy)


@pytest.mark.parametrize("unit", sorted(ROOT.glob("roles/*/templates/*.service.j2")), ids=lambda unit: unit.stem)
def test_no_unit_that_holds_secrets_may_dump_its_memory(unit: Path) -> None:
    """All but those that load a packet filter's rules."""
    if unit.name != "firewall.service.j2":
        assert "LimitCORE=0" in unit.read_text().splitlines()


@pytest.mark.parametrize("policy", ["live_only", "shared_store", "replication"])
def test_systemd_never_gives_up_a_broker_but_one_that_needs_somebody(policy: str) -> None:
    """A store that is away for an hour ends the broker again and again; no configuration mends itself."""
    lines = rendered(policy)
    assert "Restart=on-failure" in lines
    assert "StartLimitIntervalSec=0" in lines
    assert not [line for line in lines if line.startswith("StartLimitBurst")]
    (prevented,) = [line.split("=")[1].split() for line in lines if line.startswith("RestartPreventExitStatus=")]
    assert prevented == ["2", "4", "5", "7"]
