"""Both brokers run what was deployed, after the upgrade the next version, with the units and files that came with it.

Nothing of the upgrade is left.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lab.asked import status

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://brokers"]
STATE = Path(__file__).resolve().parents[3] / ".pollux"
#: converge.yml removes it, upgrade.yml makes it.
NEXT = STATE / "lab" / "default" / "next"


def version() -> str:
    """The version that was deployed or upgraded to."""
    (wheel,) = (NEXT if NEXT.exists() else STATE / "wheelhouse").glob("pollux_broker-*.whl")
    return wheel.name.split("-")[1]


def test_this_version_runs(host: Host) -> None:
    found = status(host)
    assert found["version"] == version()
    program = host.check_output(f"tr '\\0' '\\n' </proc/{found['pid']}/cmdline").splitlines()[0]
    assert program == host.check_output("readlink -f /opt/pollux/current") + "/bin/python"
    assert f"/{version()}-" in program


def test_the_releases_of_before_are_kept(host: Host) -> None:
    names = sorted(host.check_output("ls /opt/pollux/releases").split())
    assert [name.split("-")[0] for name in names] == sorted({*(name.split("-")[0] for name in names)})
    # The one before, the one that did not become ready, the next.
    assert len(names) == (3 if NEXT.exists() else 1)


def test_nothing_of_the_upgrade_is_left(host: Host) -> None:
    assert not host.file("/opt/pollux/rollback").exists
    assert not host.file("/opt/pollux/run/restart-needed").exists
    assert host.check_output("systemctl --failed --no-legend --plain") == ""
    assert host.service("pollux").is_enabled
