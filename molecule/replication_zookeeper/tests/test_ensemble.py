"""Asserts the state of the ZooKeeper nodes' hosts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://zookeeper"]
ADDRESSES = ("10.231.4.21", "10.231.4.22", "10.231.4.23")


def test_the_unit_runs_and_starts_at_boot(host: Host) -> None:
    unit = host.service("pollux-zookeeper")
    assert unit.is_running
    assert unit.is_enabled


def test_it_runs_as_its_own_user(host: Host) -> None:
    pid = host.check_output("systemctl show --property=MainPID --value pollux-zookeeper")
    assert host.check_output(f"stat -c %U /proc/{pid}") == "pollux-zookeeper"


def test_nobody_else_reads_its_passwords(host: Host) -> None:
    jaas = host.file("/opt/pollux-zookeeper/jaas.conf")
    assert (jaas.user, jaas.mode) == ("pollux-zookeeper", 0o600)
    assert host.file("/var/lib/pollux-zookeeper").mode == 0o700


def test_each_node_knows_all_three(host: Host) -> None:
    lines = host.file("/opt/pollux-zookeeper/zoo.cfg").content_string.splitlines()
    servers = [line.partition("=")[2] for line in lines if line.startswith("server.")]
    assert servers == [f"{address}:2888:3888" for address in ADDRESSES]


def test_it_answers_no_four_letter_words(host: Host) -> None:
    asked = host.run("bash -c 'exec 3<>/dev/tcp/127.0.0.1/2181 && printf stat >&3 && timeout 30 cat <&3'")
    assert "is not executed because it is not in the whitelist" in asked.stdout


def test_nothing_failed(host: Host) -> None:
    assert host.check_output("systemctl --failed --no-legend --plain") == ""
