"""Tests that more than one scenario's brokers have to pass; a scenario's test module imports those that it means.

from lab.checks import test_nothing_failed  # noqa: F401  (a test)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.asked import status

if TYPE_CHECKING:
    from testinfra.host import Host


def test_the_unit_runs_and_starts_at_boot(host: Host) -> None:
    unit = host.service("pollux")
    assert unit.is_running
    assert unit.is_enabled


def test_the_broker_is_live_or_can_take_over(host: Host) -> None:
    assert status(host)["activation"]["state"] in ("live", "ready")


def test_each_has_a_journal_of_its_own(host: Host) -> None:
    """Of a replicated pair."""
    state = host.file("/opt/pollux/data/journal/replication.state")
    assert state.size > 0
    assert (state.user, state.mode & 0o077) == ("pollux", 0)


def test_nothing_failed(host: Host) -> None:
    assert host.check_output("systemctl --failed --no-legend --plain") == ""
