"""Three hosts with a colocated policy: three lives, three backups, each a process; what is killed goes on elsewhere.

    POLLUX_COLOCATED_ROUNDS=20 .venv/bin/python -m pytest tests/e2e/test_colocated.py -k again_and_again

POLLUX_COLOCATED_SEED=... kills the same lives again.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from harness.broker import POLLUX
from harness.colocated import Hosts, judge, kill_life, traffic_of
from harness.failover import wait_until
from pollux.process.exits import EXIT_LOCKED

if TYPE_CHECKING:
    from collections.abc import Iterator

    from harness.colocated import Host

pytestmark = pytest.mark.timeout(3600 if "POLLUX_COLOCATED_ROUNDS" in os.environ else 600)
ROUNDS = int(os.environ.get("POLLUX_COLOCATED_ROUNDS", "2"))
SEED = int(os.environ.get("POLLUX_COLOCATED_SEED", random.randrange(1 << 30)))  # noqa: S311  (no secret)


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    """Three of them, each with room for two backups."""
    with Hosts(tmp_path) as hosts:
        yield hosts


def gone(pids: list[int]) -> bool:
    """Whether none of these processes runs."""
    return not any(Path(f"/proc/{pid}/cmdline").exists() and Path(f"/proc/{pid}/cmdline").read_bytes() for pid in pids)


def pids_of(host: Host) -> list[int]:
    return [life["pid"] for life in host.lives if life["pid"]]


def test_whatever_is_killed_goes_on_elsewhere_and_comes_home(hosts: Hosts, tmp_path: Path) -> None:
    traffic = traffic_of(hosts, tmp_path)
    first, second, third = hosts.all
    # A life: its backup serves, and hands back when the life's process is there again.
    (backup,) = hosts.backups(first.name)
    traffic.flows(wait_until, "kill -9 of a life")
    victim = first.own
    # Of other nodes: where its process takes long to start, a third host gets its backup meanwhile.
    others = [one["pid"] for host in hosts.all for one in host.lives if one["nodeId"] != victim["nodeId"]]
    kill_life(victim)
    wait_until(lambda: hosts.serving(first.name) == [backup], "the backup serves")
    hosts.wait_until_whole()
    assert not any(gone([pid]) for pid in others), "another life ended, too"
    # A supervisor: its lives go with it, and go on elsewhere; its backup's live gets another one.
    orphans = list(second.hosted)
    traffic.flows(wait_until, "kill -9 of a supervisor")
    before = pids_of(second)
    second.kill()
    wait_until(lambda: gone(before), "its lives are gone", 5)
    wait_until(lambda: len(hosts.serving(second.name)) == 1, "its live is served elsewhere")
    for name in orphans:
        wait_until(lambda name=name: len(hosts.backups(name)) == 1, "the orphan has another backup")  # type: ignore[misc]
    traffic.flows(wait_until, "the host is back")
    second.spawn()
    hosts.wait_until_whole()
    # Two hosts, one after the other: the last one serves all three.
    for lost in (first, second):
        traffic.flows(wait_until, f"kill -9 of {lost.name}")
        lost.kill()
        wait_until(lambda: all(hosts.serving(host.name) for host in hosts.all), "every node is served")
        if lost is first:
            wait_until(
                lambda: all(hosts.backups(host.name) for host in hosts.all), "every node has a backup with two hosts"
            )
    assert all(hosts.serving(host.name) == [third] for host in hosts.all)
    traffic.flows(wait_until, "both are back")
    first.spawn()
    second.spawn()
    hosts.wait_until_whole()
    judge(traffic, hosts)
    for host in hosts.all:
        assert "Traceback" not in host.text(), host.log_tail(20_000)


def kill_and_wait(hosts: Hosts, victim: Host) -> None:
    """Kill a life, see its backup serve, and wait until all are at home and have one backup each."""
    hosts.wait_until_whole()  # on a busy machine a backup is lost, and placed again, while messages flow
    (backup,) = hosts.backups(victim.name)
    kill_life(victim.own)
    wait_until(lambda: hosts.serving(victim.name) == [backup], "the backup serves")
    hosts.wait_until_whole()


def test_lives_fail_over_and_come_home_again_and_again_with_one_backup_each(hosts: Hosts, tmp_path: Path) -> None:
    """Breaks when a place of a backup that came home is not free again: a later round finds no host for one."""
    chance = random.Random(SEED)  # noqa: S311  (no secret)
    traffic = traffic_of(hosts, tmp_path)
    for number in range(ROUNDS):
        victim = chance.choice(hosts.all)
        traffic.flows(wait_until, f"round {number}, seed {SEED}: kill -9 of the life of {victim.name}")
        kill_and_wait(hosts, victim)
    judge(traffic, hosts)
    for host in hosts.all:
        assert "Traceback" not in host.text(), host.log_tail(20_000)


def test_every_life_is_named_and_a_host_has_one_supervisor(hosts: Hosts) -> None:
    host = next(one for one in hosts.all if one.hosted)
    ((name, backup),) = list(host.hosted.items())[:1]
    life = f"{name}@{host.name}"
    shown = host.command("status", "--config", str(host.configuration))
    assert life in shown
    assert host.own["nodeId"] in shown

    def told() -> dict[str, dict[str, Any]]:
        return {one["name"]: one for one in host.api("/api/v1/status")["lives"]}

    # What a live shows is what the supervisor told it at its last look, a second ago or more.
    wait_until(lambda: (told()[life]["state"], told()[life]["ready"]) == ("ready", True), "the live knows of it")
    others = {one.machine for one in hosts.all if one is not host}
    wait_until(lambda: (told()[host.name]["backup"] or {}).get("at") in others, "the live shows its own backup")
    assert told()[life]["pid"] == backup["pid"]
    metrics = host.api("/metrics")
    assert f'name="{life}",node="{backup["nodeId"]}",state="ready"}} 1.0' in metrics
    place = host.etc / "run" / "lives" / backup["nodeId"]
    found = json.loads(host.command("status", "--data", str(place), "--json", "--expect", "ready"))
    assert (found["name"], found["pid"]) == (life, backup["pid"])
    # A second supervisor waits for the first one's end, and then gives up.
    second = subprocess.run(
        [POLLUX, "run", str(host.configuration)], check=False, capture_output=True, text=True, timeout=90
    )
    assert second.returncode == EXIT_LOCKED, second.stderr
    assert "a supervisor with this configuration runs already" in second.stderr
    # The own live is down: the question is answered all the same.
    os.kill(host.own["pid"], signal.SIGSTOP)
    os.kill(backup["pid"], signal.SIGKILL)
    wait_until(lambda: host.hosted[name]["pid"] not in (None, backup["pid"]), "the backup's process is another one")
    wait_until(lambda: hosts.serving(host.name) != [host], "a live that stands still is replaced")


def test_a_host_that_stops_leaves_what_it_served_and_its_exit_is_clean(hosts: Hosts) -> None:
    first = hosts.all[0]
    before = pids_of(first)
    assert first.stop() == 0
    assert gone(before)
    assert first.lives == []
    wait_until(lambda: all(len(hosts.serving(host.name)) == 1 for host in hosts.all), "every node is served")
    first.spawn()
    hosts.wait_until_whole()
    first.signal(signal.SIGHUP)
    wait_until(lambda: first.text().count("configuration reloaded") == len(first.lives), "every life reloads")
    words = [f"life=backup-of-{name}" for name in first.hosted]
    assert all(word in first.text() for word in ["life=live", *words])
    # Removed for good, it is served nowhere any more; its own live brings it back.
    node = first.own["nodeId"]
    assert first.stop() == 0
    others = hosts.all[1:]
    wait_until(lambda: hosts.serving(first.name) and hosts.backups(first.name), "it is served, and has a backup again")
    for at in (*hosts.backups(first.name), *hosts.serving(first.name)):
        assert first.name in at.command("cluster", "remove-backup", node, "--config", str(at.configuration))
    wait_until(lambda: not any(first.name in host.hosted for host in others), "nobody has its backup")
    assert hosts.serving(first.name) == []
    first.spawn()
    hosts.wait_until_whole()
