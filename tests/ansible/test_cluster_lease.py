"""The agent of active-passive clusters has a primary serve on, as long as a majority is known; and only that one."""

from __future__ import annotations

import os
import signal
import time

import pytest

from .test_cluster_scripts import AGENT, Machine, machine, under_pacemaker

__all__ = ["machine"]


#: As pacemaker repeats it on the one that it promoted.
REPEATED = {"OCF_RESKEY_CRM_meta_interval": "2000", "OCF_RESKEY_CRM_meta_role": "Promoted"}


def granting(machine: Machine, status: str = "active") -> None:
    """A broker with grant-lease, whose clock says 41."""
    under_pacemaker(machine, ("a", "true", "false"))
    assert machine(AGENT, "start") == 0
    machine.becomes(status)
    (machine.directory / "more").write_text(', "grant_left_ms": 5, "clock_ms": 41')


def grants(machine: Machine) -> int:
    """How often the primary was told to serve on."""
    path = machine.directory / "asked"
    lines = path.read_text().splitlines() if path.exists() else []
    assert {line.partition(" --json")[0] for line in lines if line.startswith("ha grant")} <= {
        "ha grant --cluster-manager --asked 41"
    }
    return sum(line.startswith("ha grant") for line in lines)


@pytest.mark.parametrize("status", ["recovering", "active"])
def test_each_look_at_the_promoted_one_has_it_serve_on_from_its_clock_before(machine: Machine, status: str) -> None:
    granting(machine, status)
    assert machine(AGENT, "monitor", **REPEATED) == 8
    assert grants(machine) == 1
    assert machine(AGENT, "monitor", **REPEATED | {"OCF_RESKEY_CRM_meta_role": "Master"}) == 8
    assert grants(machine) == 2


def test_without_grant_lease_nobody_is_told_to_serve_on(machine: Machine) -> None:
    granting(machine)
    (machine.directory / "more").write_text(', "grant_left_ms": null, "clock_ms": 41')
    assert machine(AGENT, "monitor", **REPEATED) == 8
    assert grants(machine) == 0


@pytest.mark.parametrize(
    ("file", "said"), [("quorum", "0"), ("quorum", ""), ("quorate", "Quorate:          No"), ("quorate", "")]
)
def test_without_a_majority_by_both_programs_it_is_not_told_to_serve_on(machine: Machine, file: str, said: str) -> None:
    """The look itself goes well: it serves, and ends by itself."""
    granting(machine)
    (machine.directory / file).write_text(said)
    assert machine(AGENT, "monitor", **REPEATED) == 8
    assert grants(machine) == 0
    assert "no majority here" in machine.said


def test_a_cluster_that_does_not_answer_is_no_failure_of_the_primary(machine: Machine) -> None:
    """It is looked at in less than a monitor's time-out (15 s of the role's), and ends by itself."""
    granting(machine)
    for name in ("crm_node", "corosync-quorumtool"):
        (machine.directory / name).write_text("#!/bin/sh\nexec sleep 600\n")
    began = time.monotonic()
    assert machine(AGENT, "monitor", **REPEATED) == 8
    assert time.monotonic() - began < 12
    assert grants(machine) == 0


@pytest.mark.parametrize(
    "environment",
    [{}, {**REPEATED, "OCF_RESKEY_CRM_meta_role": "Unpromoted"}, {**REPEATED, "OCF_RESKEY_CRM_meta_interval": "0"}],
)
def test_who_serves_and_was_not_promoted_is_not_told_to_serve_on(machine: Machine, environment: dict[str, str]) -> None:
    """A probe, and the look at a backup, find a primary that the cluster does not know of."""
    granting(machine)
    assert machine(AGENT, "monitor", **environment) == 8
    assert grants(machine) == 0


def test_a_primary_that_hangs_is_ended_when_it_is_to_be_demoted(machine: Machine) -> None:
    """It may serve, and cannot be asked; it has nothing to put in order, so it is killed at once."""
    assert machine(AGENT, "start") == 0
    assert machine(AGENT, "promote") == 0
    machine.flag("deaf")
    os.killpg(machine.number, signal.SIGSTOP)
    machine.flag("hung")
    assert machine(AGENT, "monitor") == 9
    assert machine(AGENT, "demote", OCF_RESKEY_CRM_meta_timeout="600000") == 0
    assert not machine.runs()
