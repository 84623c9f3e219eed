"""Asserts what is left of a broker that has left its cluster."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["docker://live-castor"]


def test_it_does_not_run_and_no_boot_starts_it(host: Host) -> None:
    service = host.service("pollux")
    assert not service.is_running
    assert not service.is_enabled


def test_its_store_has_no_message(host: Host) -> None:
    said = json.loads(host.check_output("sudo -u pollux /opt/pollux/bin/pollux journal stat --json"))
    assert (said["checkpoint"]["messages"], said["to_replay"]["segments"], said["files"]["bodies"]) == (0, 0, 0)
    assert host.check_output("find /opt/pollux/data/paging -type f -name '*.page'") == ""
