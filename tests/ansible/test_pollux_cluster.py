"""The module that speaks with pacemaker, with stand-ins for pacemaker's programs."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from harness.modules import results

if TYPE_CHECKING:
    from pathlib import Path

#: As pacemaker's do right after its start: the controller, and a moment later the cluster's state, are not there.
NODE = """#!/bin/sh
echo >> {asked}
[ "$(wc -l < {asked})" -gt 2 ] && echo passive-1 && exit
echo 'crm_node: error: Could not connect to controller: Connection refused' >&2
exit 102
"""
STATE = """#!/bin/sh
echo >> {asked}
[ "$(wc -l < {asked})" -gt 1 ] || {{ echo '<pacemaker-result><status code="102"/></pacemaker-result>'; exit 102; }}
echo '<pacemaker-result><nodes><node name="passive-1" online="true" standby="false"/></nodes></pacemaker-result>'
"""


#: Of a node whose pacemaker is up, and that answers nothing about the cluster.
NAME = """#!/bin/sh
echo passive-1
"""
SILENT = """#!/bin/sh
echo >> {asked}
exit 102
"""
UNIT = """#!/bin/sh
echo {unit}
[ {unit} = active ] || exit 3
"""


def call(tmp: Path, *, unit: str = "active", node: str = NODE, seen: str = STATE, **arguments: Any) -> dict[str, Any]:
    """Run the module with the stand-ins first in PATH; `unit`: what systemd says of pacemaker."""
    programs = tmp / "programs"
    programs.mkdir()
    for name, text in (("crm_node", node), ("crm_mon", seen), ("systemctl", UNIT)):
        (programs / name).write_text(text.format(asked=tmp / f"{name}.asked", unit=unit))
        (programs / name).chmod(0o755)
    command = ["ansible", "localhost", "-i", "localhost,", "-m", "pollux_cluster", "-a", json.dumps(arguments)]
    return results(tmp / "ansible", *command, PATH=f"{programs}:{os.environ['PATH']}")["localhost"]


def test_a_node_whose_pacemaker_was_just_started_is_waited_for(tmp_path: Path) -> None:
    """Breaks when its first answer counts: a machine that had just come back was a failure of a drill."""
    found = call(tmp_path, state="allowed", wait=60)
    assert not found.get("failed"), found["printed"]
    assert not found["changed"]


def test_one_that_does_not_answer_is_told_with_its_own_words(tmp_path: Path) -> None:
    found = call(tmp_path, state="allowed", wait=0)
    assert found["failed"]
    assert found["msg"] == "crm_node --name: crm_node: error: Could not connect to controller: Connection refused"


@pytest.mark.parametrize("unit", ["inactive", "failed", "deactivating"])
def test_one_whose_pacemaker_is_down_is_told_at_once(tmp_path: Path, unit: str) -> None:
    """Breaks when it is waited for: nobody starts it meanwhile."""
    found = call(tmp_path, unit=unit, state="standby", wait=60)
    assert found["failed"]
    assert found["msg"].startswith(f"pacemaker is {unit} on this node: see systemctl status pacemaker")
    assert len((tmp_path / "crm_node.asked").read_text().splitlines()) == 1


@pytest.mark.parametrize("state", ["allowed", "standby", "moved", "promoted"])
def test_one_that_goes_down_meanwhile_is_told_at_once(tmp_path: Path, state: str) -> None:
    found = call(tmp_path, unit="inactive", node=NAME, seen=SILENT, state=state, wait=60)
    assert found["failed"]
    assert "pacemaker is inactive" in found["msg"]
    assert len((tmp_path / "crm_mon.asked").read_text().splitlines()) == 1


def test_one_whose_pacemaker_is_starting_is_waited_for(tmp_path: Path) -> None:
    assert not call(tmp_path, unit="activating", state="allowed", wait=60).get("failed")
