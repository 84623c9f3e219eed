"""Asks brokers on hosts about themselves, for the tests of scenarios."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testinfra.host import Host

PROGRAM = "/opt/pollux/bin/pollux"


def status(host: Host) -> dict[str, Any]:
    """Return what `pollux status` says."""
    # The exit status tells whether it serves; a backup that waits does not.
    answer = host.run(f"sudo -u pollux {PROGRAM} status --json")
    assert answer.rc in (0, 3), answer.stderr
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


def statuses(*names: str) -> dict[str, dict[str, Any]]:
    """Return what the brokers of some containers say, by the container's name."""
    import testinfra

    return {name: status(testinfra.get_host(f"docker://{name}")) for name in names}
