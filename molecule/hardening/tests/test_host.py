"""Asserts how little is open on a host: the unit's sandbox, file modes, processes, the journal, the packet filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://brokers"]
CANARY = "canary-"
#: path, owner, group, mode.
FILES = [
    ("/opt/pollux", "root", "root", 0o755),
    ("/opt/pollux/bin/pollux", "root", "root", 0o755),
    ("/opt/pollux/releases", "root", "root", 0o755),
    ("/opt/pollux/etc", "pollux", "pollux", 0o750),
    ("/opt/pollux/etc/broker.xml", "pollux", "pollux", 0o640),
    ("/opt/pollux/etc/secrets.env", "pollux", "pollux", 0o600),
    ("/opt/pollux/etc/artemis-users.properties", "pollux", "pollux", 0o600),
    ("/opt/pollux/etc/artemis-roles.properties", "pollux", "pollux", 0o600),
    ("/opt/pollux/data", "pollux", "pollux", 0o700),
    ("/opt/pollux/run", "pollux", "pollux", 0o750),
    ("/opt/pollux/run/pollux.token", "pollux", "pollux", 0o600),
    ("/srv/pollux/twins", "pollux", "pollux", 0o700),
    ("/etc/systemd/system/pollux.service", "root", "root", 0o644),
]


@pytest.mark.parametrize(("path", "owner", "group", "mode"), FILES, ids=[each[0] for each in FILES])
def test_files_belong_to_whom_they_should(host: Host, path: str, owner: str, group: str, mode: int) -> None:
    found = host.file(path)
    assert found.exists
    assert (found.user, found.group, oct(found.mode)) == (owner, group, oct(mode))


def test_nothing_of_the_store_is_readable_by_others(host: Host) -> None:
    assert host.check_output("find /srv/pollux/twins /opt/pollux/etc /opt/pollux/run -perm /007") == ""


def test_the_broker_cannot_change_what_it_runs(host: Host) -> None:
    # As the user, outside of the sandbox too.
    wrong = host.run("sudo -u pollux find -L /opt/pollux/bin /opt/pollux/current /opt/pollux/releases -writable")
    assert [line for line in wrong.stdout.splitlines() if "/dev/" not in line] == []


def test_systemd_finds_little_exposure(host: Host) -> None:
    found = host.run("systemd-analyze security --no-pager --threshold=25 pollux.service")
    assert found.rc == 0, found.stdout
    assert "Overall exposure level for pollux.service" in found.stdout


def test_the_sandbox_allows_what_checkpoints_need(host: Host) -> None:
    allowed = host.check_output("systemctl show --property=SystemCallFilter --value pollux").split()
    assert "setpriority" in allowed
    assert "setrlimit" not in allowed


def test_no_secret_is_in_a_command_line(host: Host) -> None:
    words = host.check_output("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert "pollux" in words
    assert CANARY not in words


def test_no_secret_is_in_the_journal(host: Host) -> None:
    text = host.check_output("journalctl --no-pager --output=export --all")
    assert "pollux.service" in text
    assert CANARY not in text


def test_the_cluster_password_is_in_one_file_only(host: Host) -> None:
    found = host.run(
        f"grep -rl --binary-files=text {CANARY} /opt/pollux /etc /srv/pollux /var/log /root /tmp /run 2>/dev/null"
    ).stdout.split()
    assert found == ["/opt/pollux/etc/secrets.env"]


def test_the_packet_filter_lets_clients_in_and_nobody_else(host: Host) -> None:
    rules = host.check_output("nft list table inet pollux")
    assert "61616" in rules
    assert "10.231.2.0/24" in rules
    assert "8161" in rules
    assert host.service("pollux-firewall").is_enabled
