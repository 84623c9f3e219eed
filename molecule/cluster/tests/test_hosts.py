"""Asserts the state of the brokers' hosts after deployment and after everything that happened to them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from lab.asked import status
from lab.checks import test_nothing_failed, test_the_unit_runs_and_starts_at_boot  # noqa: F401  (tests)

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["ansible://brokers"]
STATE = Path(__file__).resolve().parents[3] / ".pollux"
#: converge.yml removes it, upgrade.yml makes it.
NEXT = STATE / "lab" / "cluster" / "next"


def test_the_broker_serves_or_can_take_over(host: Host) -> None:
    assert status(host)["state"] in ("live", "ready")


def test_the_version_that_was_deployed_last_runs(host: Host) -> None:
    (wheel,) = (NEXT if NEXT.exists() else STATE / "wheelhouse").glob("pollux_broker-*.whl")
    assert status(host)["version"] == wheel.name.split("-")[1]
