"""Colocated hosts with a store each, which backups copy: what is killed goes on elsewhere, with every message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from harness.colocated import Hosts, judge, kill_life, traffic_of
from harness.failover import wait_until
from harness.replication import file_manager

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.timeout(600)


@pytest.fixture(params=["lock file", "votes"])
def hosts(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Hosts]:
    """Three of them, each with room for two backups; a lock says which life may serve, or the three lives vote."""
    locks = tmp_path / "locks"
    locks.mkdir()
    agreed = file_manager(locks) if request.param == "lock file" else "<group-name>all</group-name>"
    with Hosts(tmp_path, manager=agreed) as hosts:
        yield hosts


def test_a_life_and_a_host_are_killed_and_come_home(hosts: Hosts, tmp_path: Path) -> None:
    first, second, _ = hosts.all
    # Each store is its host's own; a backup has a copy of it.
    (backup,) = hosts.backups(first.name)
    node = first.own["nodeId"]
    assert list(backup.shared_directory.rglob(f"*.colocated/{node}/journal"))
    traffic = traffic_of(hosts, tmp_path)
    traffic.flows(wait_until, "kill -9 of a life")
    kill_life(first.own)
    wait_until(lambda: hosts.serving(first.name) == [backup], "the backup serves")
    hosts.wait_until_whole()
    orphans = list(second.hosted)
    traffic.flows(wait_until, "kill -9 of a host")
    second.kill()
    wait_until(lambda: len(hosts.serving(second.name)) == 1, "its live is served elsewhere")
    for name in (*orphans, second.name):
        wait_until(lambda name=name: len(hosts.backups(name)) == 1, f"{name} has another backup")  # type: ignore[misc]
    traffic.flows(wait_until, "the host is back")
    second.spawn()
    hosts.wait_until_whole()
    judge(traffic, hosts)
    for host in hosts.all:
        assert "Traceback" not in host.text(), host.log_tail(20_000)
