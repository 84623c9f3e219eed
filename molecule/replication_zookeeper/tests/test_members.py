"""What is on the brokers' hosts after deployment and after every fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.asked import status

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://brokers"]


def test_the_unit_runs_and_starts_at_boot(host: Host) -> None:
    unit = host.service("pollux")
    assert unit.is_running
    assert unit.is_enabled


def test_the_broker_is_live_or_can_take_over(host: Host) -> None:
    assert status(host)["activation"]["state"] in ("live", "ready")


def test_each_has_a_journal_of_its_own(host: Host) -> None:
    state = host.file("/opt/pollux/data/journal/replication.state")
    assert state.size > 0
    assert (state.user, state.mode & 0o077) == ("pollux", 0)


def test_nothing_failed(host: Host) -> None:
    assert host.check_output("systemctl --failed --no-legend --plain") == ""
