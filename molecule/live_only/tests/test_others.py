"""Those that stay: two nodes that reach each other and know nothing of the one that left."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from lab.checks import test_the_unit_runs_and_starts_at_boot  # noqa: F401  (a test)

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["docker://live-pollux", "docker://live-helen"]


def test_it_reaches_the_other_one_and_nobody_else(host: Host) -> None:
    found = json.loads(host.check_output("sudo -u pollux /opt/pollux/bin/pollux cluster status --json"))
    reached = [link["node"] for link in found["links"] if link["connected"]]
    assert reached == [{"live-pollux": "live-helen", "live-helen": "live-pollux"}[host.check_output("hostname")]]
