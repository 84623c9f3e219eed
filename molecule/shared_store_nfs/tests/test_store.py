"""The store as the brokers' machines see it, and what keeps a broker from starting without it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lab.asked import status

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://brokers"]


def test_the_mount_has_the_options_that_failover_needs(host: Host) -> None:
    mount = host.mount_point("/srv/pollux")
    assert mount.filesystem == "nfs4"
    assert mount.device == "10.231.9.10:/srv/export"
    wanted = {"vers=4.1", "proto=tcp", "soft", "timeo=20", "retrans=2", "noac", "lookupcache=none", "sync"}
    assert wanted <= set(mount.options)


def test_fstab_mounts_it_at_boot_and_never_gives_up(host: Host) -> None:
    line = next(line for line in host.file("/etc/fstab").content_string.splitlines() if "/srv/pollux" in line.split())
    options = set(line.split()[3].split(","))
    assert {"_netdev", "nofail", "retry=10000", "x-systemd.mount-timeout=infinity"} <= options
    assert host.check_output("systemctl show --property=TimeoutUSec --value srv-pollux.mount") == "infinity"


def test_the_broker_does_not_start_without_the_mount(host: Host) -> None:
    for kind in ("Requires", "After"):
        assert "srv-pollux.mount" in host.check_output(f"systemctl show --property={kind} --value pollux").split()
    assert "AssertPathIsMountPoint=/srv/pollux" in host.check_output("systemctl cat pollux")


def test_the_locks_of_the_store_were_proved(host: Host) -> None:
    proof = json.loads(host.check_output("sudo -u pollux cat /srv/pollux/twins/.lock-probe.json"))
    assert "10.231.9.10:/srv/export" in proof["key"]
    # The machine that waits begins to a little after the other one vanished.
    assert 0 <= proof["released_seconds"] <= 30
    assert not host.file("/run/pollux-lock-probe.py").exists
    assert "pollux_lock_probe" not in host.check_output("nft list tables")


def test_the_directory_is_the_brokers_alone(host: Host) -> None:
    found = host.check_output("sudo -u pollux stat --format='%u %g %a' /srv/pollux/twins")
    assert found == "901 901 700"


def test_the_unit_runs_as_its_own_user_and_starts_at_boot(host: Host) -> None:
    unit = host.service("pollux")
    assert unit.is_running
    assert unit.is_enabled
    pid = host.check_output("systemctl show --property=MainPID --value pollux")
    assert host.check_output(f"stat --format='%U %u' /proc/{pid}") == "pollux 901"


def test_the_installed_version_is_the_one_that_runs(host: Host) -> None:
    installed = host.check_output(f"cat {host.check_output('readlink -f /opt/pollux/current')}/complete")
    assert status(host)["version"] == installed


def test_only_the_live_listens_for_clients(host: Host) -> None:
    state = status(host)["activation"]["state"]
    assert state in ("live", "ready")
    assert host.socket("tcp://0.0.0.0:61616").is_listening == (state == "live")
