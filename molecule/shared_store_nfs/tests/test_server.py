"""The NFS server: version 4 only, a short lease, and nobody but the brokers gets in."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://nfs_servers"]


def test_it_runs_and_starts_at_boot(host: Host) -> None:
    unit = host.service("nfs-server")
    assert unit.is_running
    assert unit.is_enabled


def test_lease_and_grace_time_are_those_of_the_inventory(host: Host) -> None:
    assert host.file("/proc/fs/nfsd/nfsv4leasetime").content_string.strip() == "20"
    assert host.file("/proc/fs/nfsd/nfsv4gracetime").content_string.strip() == "20"


def test_no_file_is_delegated_now_or_after_a_boot(host: Host) -> None:
    assert host.file("/proc/sys/fs/leases-enable").content_string.strip() == "0"
    assert "fs.leases-enable = 0" in host.file("/etc/sysctl.d/90-pollux-nfs.conf").content_string


def test_older_versions_are_off(host: Host) -> None:
    versions = host.file("/proc/fs/nfsd/versions").content_string.split()
    assert {"-3", "+4", "-4.0", "+4.1", "+4.2"} <= set(versions)


def test_only_the_port_of_version_4_is_open(host: Host) -> None:
    assert host.socket("tcp://2049").is_listening
    assert not host.socket("tcp://111").is_listening
    assert not host.socket("udp://111").is_listening
    for unit in ("rpcbind.socket", "rpcbind.service", "rpc-statd.service"):
        assert host.check_output(f"systemctl show --property=LoadState --value {unit}") == "masked"


def test_the_export_is_for_the_brokers_and_is_written_before_it_is_confirmed(host: Host) -> None:
    exported = host.check_output("exportfs -s")
    for broker in ("10.231.9.11", "10.231.9.12"):
        options = exported.split(f"/srv/export  {broker}(")[1].split(")")[0].split(",")
        assert {"rw", "sync", "root_squash"} <= set(options)
    assert exported.count("/srv/export") == 2


def test_the_packet_filter_is_loaded_and_comes_back_at_boot(host: Host) -> None:
    rules = host.check_output("nft list table inet pollux_nfs")
    assert "ip saddr { 10.231.9.11, 10.231.9.12 } accept" in rules
    assert "tcp dport 2049 drop" in rules
    assert host.service("pollux-nfs-firewall").is_enabled


def test_the_directory_is_the_brokers(host: Host) -> None:
    directory = host.file("/srv/export")
    assert (directory.uid, directory.gid, directory.mode) == (901, 901, 0o755)


def test_nothing_failed(host: Host) -> None:
    assert host.check_output("systemctl --failed --no-legend --plain") == ""
