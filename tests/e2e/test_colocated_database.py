"""Hosts with a colocated policy whose stores are tables of one database, each live's with names of its own.

POLLUX_COLOCATED_ROUNDS=20 .venv/bin/python -m pytest tests/e2e/test_colocated_database.py -k whatever
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from harness.colocated import Hosts, judge, kill_life, traffic_of
from harness.failover import wait_until
from harness.postgresql import running

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.timeout(3600 if "POLLUX_COLOCATED_ROUNDS" in os.environ else 600)
ROUNDS = int(os.environ.get("POLLUX_COLOCATED_ROUNDS", "1"))


def test_whatever_is_killed_goes_on_elsewhere_in_its_own_tables_and_comes_home(tmp_path: Path) -> None:
    with running() as server, Hosts(tmp_path, server=server) as hosts:
        traffic = traffic_of(hosts, tmp_path)
        first, second, _ = hosts.all
        for _ in range(ROUNDS):
            (backup,) = hosts.backups(first.name)
            traffic.flows(wait_until, "kill -9 of a life")
            kill_life(first.own)
            wait_until(lambda at=backup: hosts.serving(first.name) == [at], "the backup serves")  # type: ignore[misc]
            hosts.wait_until_whole()
            traffic.flows(wait_until, "kill -9 of a host")
            second.kill()
            wait_until(lambda: len(hosts.serving(second.name)) == 1, "its live is served elsewhere")
            wait_until(lambda: all(len(hosts.backups(each.name)) == 1 for each in hosts.all), "all have a backup again")
            traffic.flows(wait_until, "the host is back")
            second.spawn()
            hosts.wait_until_whole()
        judge(traffic, hosts)
        for host in hosts.all:
            assert "Traceback" not in host.text(), host.log_tail(20_000)
