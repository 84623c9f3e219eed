"""Asserts the state of each host: the resource manager runs the broker, systemd does not by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.checks import (  # noqa: F401  (tests)
    test_each_has_a_journal_of_its_own,
    test_nothing_failed,
    test_the_broker_is_live_or_can_take_over,
)

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://brokers"]


def test_only_the_resource_manager_starts_the_broker(host: Host) -> None:
    assert host.service("pollux").is_running
    assert host.run("systemctl is-enabled pollux").stdout.strip() == "static", "no boot starts it"
    for name in ("corosync", "pacemaker"):
        assert host.service(name).is_running
        assert host.service(name).is_enabled


def test_the_key_of_the_cluster_is_roots_alone(host: Host) -> None:
    key = host.file("/etc/corosync/authkey")
    assert (key.user, key.mode, key.size) == ("root", 0o400, 128)
