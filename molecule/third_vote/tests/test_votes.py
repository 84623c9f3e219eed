"""Two members and a third vote: each has a certificate of the other's authority, and both count three votes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import testinfra

from lab.asked import statuses
from lab.checks import test_nothing_failed  # noqa: F401  (a test)

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://brokers"]
MEMBERS = ("vote-1", "vote-2")


def wait(host: Host, command: str, pattern: str) -> None:
    """Wait until a command says something, a minute at most; what it says then is judged by who asked."""
    host.run(f"timeout 60 sh -c 'until {command} | grep -q \"{pattern}\"; do sleep 0.2; done'")


def test_three_votes_are_counted(host: Host) -> None:
    # Who votes had its power cut: each member looks for it again after some seconds.
    wait(host, "corosync-quorumtool -s | grep -c A,V,NMW", "2")
    told = host.check_output("corosync-quorumtool -s")
    for line in ("Expected votes:   3", "Total votes:      3", "Quorum:           2"):
        assert line in told
    assert told.count(" A,V,NMW ") == 2, "both members are there, and the third vote is for them"
    assert "Qdevice" in told


def test_the_vote_is_asked_for_with_tls_both_ways(host: Host) -> None:
    wait(host, "corosync-qdevice-tool -s", "Connected$")
    assert re.search(r"^State:\s+Connected$", host.check_output("corosync-qdevice-tool -s"), re.MULTILINE)
    assert "tls: required" in host.file("/etc/corosync/corosync.conf").content_string
    third = testinfra.get_host("docker://vote-only")
    wait(third, "corosync-qnetd-tool -s", "Connected clients:.*2")
    told = " ".join(third.check_output("corosync-qnetd-tool -s").split())
    assert "TLS: Supported (client certificate required)" in told
    assert "Connected clients: 2 Connected clusters: 1" in told


def test_the_key_of_the_certificate_is_roots_alone(host: Host) -> None:
    key = host.file("/etc/corosync/qdevice/net/nssdb/qdevice-net-node.p12")
    assert (key.user, key.mode & 0o077) == ("root", 0)


def test_one_is_active_and_the_other_is_ready() -> None:
    found = sorted(each["activation"]["active_passive"]["status"] for each in statuses(*MEMBERS).values())
    assert found == ["active", "ready"]
