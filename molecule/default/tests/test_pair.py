"""Asserts the state of a pair's hosts after deployment and after every fault: asked of the hosts and of the brokers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.asked import status
from lab.checks import (  # noqa: F401  (tests)
    test_nothing_failed,
    test_the_broker_is_live_or_can_take_over,
    test_the_unit_runs_and_starts_at_boot,
)

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://brokers"]


def test_it_runs_as_its_own_user(host: Host) -> None:
    pid = host.check_output("systemctl show --property=MainPID --value pollux")
    assert host.check_output(f"stat -c %U /proc/{pid}") == "pollux"
    user = host.user("pollux")
    assert user.shell == "/usr/sbin/nologin"
    assert user.uid < 1000


def test_the_installed_version_is_the_one_that_runs(host: Host) -> None:
    installed = host.check_output(f"cat {host.check_output('readlink -f /opt/pollux/current')}/complete")
    assert status(host)["version"] == installed


def test_the_store_is_the_shared_volume(host: Host) -> None:
    mount = host.mount_point("/srv/pollux")
    assert mount.exists
    assert mount.filesystem == "tmpfs"
    assert host.file("/srv/pollux/twins/journal").is_directory


def test_only_the_live_listens_for_clients(host: Host) -> None:
    live = status(host)["activation"]["state"] == "live"
    assert host.socket("tcp://0.0.0.0:61616").is_listening == live


def test_checkpoints_are_written(host: Host) -> None:
    # By a process of its own, in the unit's sandbox; also at each clean stop. On a full disk there is no room for one.
    text = host.check_output("journalctl --unit=pollux --no-pager --output=cat")
    failed = [line for line in text.splitlines() if "checkpointer ended" in line]
    assert [line for line in failed if "No space left on device" not in line] == []
