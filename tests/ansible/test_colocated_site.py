"""site.yml with three hosts that have each other's backups, as processes of this machine, and what operators do."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml

from harness.bundle import Site, command_lines
from harness.colocated import free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.timeout(1200), pytest.mark.processes]
HOSTS = ("ca", "cb", "cc")
#: Between the ports of a host, and its slots.
OFFSET = 7


class ColocatedSite(Site):
    """Three hosts, each a machine of its own as the inventory says."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory,
            {
                "broker_ha_policy": "colocated",
                "broker_cluster": "three",
                "broker_group": "",
                "broker_backup_port_offset": OFFSET,
                "broker_allow_failback": True,
                "broker_start_timeout": 300,
            },
        )
        hosts = {}
        for host in HOSTS:
            clients, management = free_ports(2, OFFSET, 2)
            hosts[host] = {
                "broker_machine": f"machine of {host}",
                "broker_acceptors": [{"name": "all", "port": clients}],
                "broker_management_port": management,
            }
        (self.inventory / "hosts.yml").write_text(yaml.safe_dump({"brokers": {"hosts": hosts}}))

    def served(self) -> dict[str, str]:
        """Return on which host each host's live is served, as the supervisors show it."""
        return {
            life["name"].partition("@")[0]: host
            for host in HOSTS
            for life in json.loads((self.local / host / "run" / "pollux.lives.json").read_text())
            if life["state"] == "live"
        }

    def stop(self) -> None:
        """End the supervisors with their own programs, and then whatever is left of this site."""
        for host in HOSTS:
            program = self.local / host / "bin" / "stop"
            if program.exists():
                subprocess.run([str(program)], capture_output=True, check=False, timeout=180)
        for pid, command in command_lines():
            if f"{self.local}/".encode() in command:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ColocatedSite]:
    made = ColocatedSite(tmp_path_factory.mktemp("colocated"))
    try:
        made.run("site.yml").succeeded()
        yield made
    finally:
        made.stop()


def test_a_second_run_changes_nothing_and_every_life_is_shown(site: ColocatedSite) -> None:
    assert site.served() == {host: host for host in HOSTS}
    assert site.run("site.yml").succeeded().changed == []
    shown = site.run("status.yml").succeeded().output
    assert all(f"{host}: live, backup on machine of " in shown for host in HOSTS)


def test_a_live_hands_over_to_its_backup_and_comes_home(site: ColocatedSite) -> None:
    site.run("switchover.yml", extra={"switchover_groups": "cb"}).succeeded()
    away = site.served()
    assert away.pop("cb") in ("ca", "cc")
    assert away == {"ca": "ca", "cc": "cc"}
    refused = site.run("rolling_restart.yml", extra={"rolling_restart_all": True})
    assert refused.code != 0
    assert "cb does not serve its own node (ready): run failback.yml first" in " ".join(refused.output.split())
    site.run("failback.yml").succeeded()
    assert site.served() == {host: host for host in HOSTS}
