"""The playbooks of a pair's every day, on brokers that run: who serves afterwards, since which epoch, what was lost.

No test here depends on who is live when it begins, nor on the one before it.
"""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING

import pytest

import demo
from harness.bundle import MEMBERS

if TYPE_CHECKING:
    from pathlib import Path

    from harness.deployment import Deployment

pytestmark = [pytest.mark.timeout(1200), pytest.mark.processes]


def other_of(member: str) -> str:
    """The other member."""
    return next(name for name in MEMBERS if name != member)


def program(pair: Deployment, member: str, name: str) -> str:
    """Run a member's start or stop program; returns what it prints."""
    done = subprocess.run(
        [str(pair.site.local / member / "bin" / name)], capture_output=True, text=True, timeout=180, check=True
    )
    return done.stdout.strip()


def test_status_shows_who_is_what_and_changes_nothing(pair: Deployment) -> None:
    live = pair.site.live()
    epoch = pair.site.history()[-1]["epoch"]
    run = pair.site.run("status.yml").succeeded()
    assert f"{live}: live, epoch {epoch}," in run.output
    assert f"{other_of(live)}: ready, epoch {epoch}," in run.output
    assert run.changed == []


def test_without_its_backup_status_fails_switchover_refuses_and_failback_starts_it(pair: Deployment) -> None:
    live = pair.site.live()
    backup = other_of(live)
    pair.unsettle()
    assert program(pair, backup, "stop") == "stopped"
    trouble = f"{backup} of group twins cannot take over: it is stopped"
    status = pair.site.run("status.yml")
    assert status.code != 0
    assert status.failures[0].message == [trouble]
    for playbook in ("switchover.yml", "drill.yml"):
        run = pair.site.run(playbook)
        assert run.code != 0
        assert run.failures[0].message == ["It is not safe to begin; nothing was changed.", trouble]
        assert run.changed == []
    assert pair.site.pollux(live, "status")["activation"]["state"] == "live"
    started = pair.site.run("failback.yml").succeeded()
    assert backup in {result.host for result in started.changed}
    assert pair.site.live() == "castor"


def test_switchover_hands_over_once(pair: Deployment) -> None:
    former = pair.site.live()
    before = pair.site.history()
    run = pair.site.run("switchover.yml").succeeded()
    assert pair.site.live() == other_of(former)
    after = pair.site.history()
    assert after[:-1] == before
    assert (after[-1]["from"], after[-1]["to"]) == (former, other_of(former))
    assert after[-1]["epoch"] == before[-1]["epoch"] + 1
    assert f"{other_of(former)} is live instead of {former}; nobody served for " in run.output
    assert {result.host for result in run.changed} == {former}


def test_a_group_that_does_not_exist_is_not_switched_over(pair: Deployment) -> None:
    before = pair.site.history()
    run = pair.site.run("switchover.yml", "-e", "switchover_groups=twins,triplets")
    assert run.code != 0
    assert run.failures[0].message == ["switchover_groups names triplets; the groups are twins"]
    assert pair.site.history() == before


def test_failback_makes_the_preferred_live_serve_again_and_then_has_nothing_to_do(pair: Deployment) -> None:
    if pair.site.live() == "castor":
        pair.site.pollux("castor", "switchover")
        assert pair.site.settled_live() == "pollux"
    before = pair.site.history()
    pair.site.run("failback.yml").succeeded()
    assert pair.site.live() == "castor"
    after = pair.site.history()
    assert (after[-1]["to"], len(after)) == ("castor", len(before) + 1)
    again = pair.site.run("failback.yml").succeeded()
    assert again.changed == []
    assert pair.site.history() == after


def test_rolling_restart_restarts_only_who_needs_it(pair: Deployment) -> None:
    if any((pair.site.local / member / "run" / "restart-needed").exists() for member in MEMBERS):
        pair.site.run("rolling_restart.yml").succeeded()  # what an earlier test's change has left to do
    live, pids, before = pair.site.live(), pair.site.pids(), pair.site.history()
    backup = other_of(live)
    pair.reconfigure({"broker_addresses": [{"name": "later", "anycast": ["later"]}]})
    assert (pair.site.pids(), pair.site.history()) == (pids, before), "nobody was restarted by site.yml"
    status = pair.site.run("status.yml").succeeded()
    said = " ".join(status.output.split())  # long lines are wrapped
    assert "needs a restart: the configuration was changed while it waited as a backup" in said
    run = pair.site.run("rolling_restart.yml").succeeded()
    assert f"restart, in this order: {backup}" in run.output
    assert {result.host for result in run.changed} == {backup}
    after = pair.site.pids()
    assert after[live] == pids[live], "the live was left alone"
    assert after[backup] != pids[backup]
    assert pair.site.history() == before, "nobody handed over"
    assert "needs a restart" not in pair.site.run("status.yml").succeeded().output


def test_rolling_restart_of_all_hands_over_once(pair: Deployment) -> None:
    live, pids, before = pair.site.live(), pair.site.pids(), pair.site.history()
    run = pair.site.run("rolling_restart.yml", "-e", "rolling_restart_all=true").succeeded()
    assert f"restart, in this order: {other_of(live)}, {live}" in run.output
    after = pair.site.pids()
    assert {member for member in MEMBERS if after[member] != pids[member]} == set(MEMBERS)
    assert pair.site.live() == other_of(live)
    assert len(pair.site.history()) == len(before) + 1


def test_a_drill_loses_nothing_and_leaves_a_pair(pair: Deployment, tmp_path: Path) -> None:
    live, before = pair.site.live(), pair.site.history()
    extra = {"drill_seconds": 8, "drill_rate": 100, "drill_directory": str(tmp_path / "drill")}
    run = pair.site.run("drill.yml", extra=extra).succeeded()
    report = json.loads((tmp_path / "drill" / "report.json").read_text())
    assert demo.verdict(report) == ""
    assert set(report["per_protocol"]) >= {"amqp", "stomp", "mqtt"}
    assert all(row["confirmed"] > 0 for row in report["per_protocol"].values())
    assert all(report["rto_ms"][name] is not None for name in ("amqp", "stomp", "mqtt"))
    assert (tmp_path / "drill" / "report.html").stat().st_size > 0
    assert pair.site.live() == other_of(live)
    after = pair.site.history()
    assert after[:-1] == before
    assert after[-1]["to"] == other_of(live)
    password = (pair.site.local / "secrets.yml").read_text().partition("drill: ")[2].split()[0]
    assert not (tmp_path / "drill" / "password").exists()
    assert password not in run.output
