"""Asserts the state of the brokers' hosts after deployment and after every fault."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.checks import (  # noqa: F401  (tests)
    test_the_broker_is_live_or_can_take_over,
    test_the_unit_runs_and_starts_at_boot,
)

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://brokers"]


def test_no_journal_is_on_the_host(host: Host) -> None:
    assert host.check_output("find /opt/pollux /srv /var/lib -name 'journal-*'") == ""


def test_the_password_is_in_one_file_that_only_the_broker_reads(host: Host) -> None:
    password = host.check_output("sed -n \"s/^POLLUX_DATABASE_PASSWORD='\\(.*\\)'$/\\1/p\" /opt/pollux/etc/secrets.env")
    assert len(password) > 11
    found = host.check_output(f"grep -rlF -- '{password}' /opt/pollux/etc /opt/pollux/run /opt/pollux/log /etc/systemd")
    assert found == "/opt/pollux/etc/secrets.env"
    assert host.file("/opt/pollux/etc/secrets.env").mode == 0o600
    assert password not in host.check_output("journalctl --no-pager --output=cat")
