"""Whom a step of a drill hits, and which image a scenario gets."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from harness.drills import client_options
from lab import drill, image, scenarios, targets
from lab.places import LabError
from pollux.client.url import parse_url

if TYPE_CHECKING:
    from pathlib import Path


class Listening:
    """A host that listens on one port."""

    def __init__(self, port: int) -> None:
        self.port = port

    def run(self, *words: str) -> str:
        return f"LISTEN 0 50 *:{self.port} *:*\n" if words[-1] == f"sport = :{self.port}" else ""


@pytest.mark.parametrize(("host", "hit"), [("", "castor"), ("live", "castor"), ("backup", "pollux"), ("zk1", "zk1")])
def test_a_step_hits_the_live_its_backup_or_whom_it_names(host: str, hit: str) -> None:
    assert targets.first(host, "castor", ["castor", "pollux"]) == hit


def test_the_backup_is_whoever_is_not_live() -> None:
    assert targets.first("backup", "pollux", ["castor", "pollux"]) == "castor"
    with pytest.raises(LabError, match="pollux has no backup"):
        targets.first("backup", "pollux", ["pollux"])


@pytest.mark.parametrize(
    ("takeover", "castor", "pollux"),
    [("yes", True, True), ("any", True, True), ("no", True, False), ("nobody", False, False)],
)
def test_who_may_serve_while_a_fault_lasts(takeover: str, castor: bool, pollux: bool) -> None:
    assert drill.may_serve(takeover, found="castor", before="castor") == castor
    assert drill.may_serve(takeover, found="pollux", before="castor") == pollux


@pytest.mark.parametrize("watch_seconds", [0.05, 0.5])
def test_clients_of_a_drill_outlast_every_fault(watch_seconds: float) -> None:
    """A transaction that gave up after a minute would be taken for a broker that does not serve."""
    options = parse_url(f"tcp://a?{client_options(watch_seconds)}").options
    assert (options.reconnect_attempts, options.call_failover_timeout) == (-1, -1)
    assert options.connect_timeout == parse_url("tcp://a").options.connect_timeout
    short = parse_url(f"tcp://a?{client_options(watch_seconds, 1000)}").options
    assert short.use_topology
    assert not parse_url(f"tcp://a?{client_options(watch_seconds, one_node=True)}").options.use_topology
    assert (short.reconnect_attempts, short.connect_timeout) == (-1, 1000)


def test_the_leader_is_the_only_one_that_listens() -> None:
    hosts = {"zk1": Listening(2181), "zk2": Listening(2888), "zk3": Listening(2181)}
    assert targets.who_listens(2888, list(hosts), hosts) == "zk2"  # type: ignore[arg-type]
    with pytest.raises(LabError, match="0 of zk1, zk3 listen on 2888"):
        targets.who_listens(2888, ["zk1", "zk3"], hosts)  # type: ignore[arg-type]
    with pytest.raises(LabError, match="2 of zk1, zk3 listen on 2181"):
        targets.who_listens(2181, ["zk1", "zk3"], hosts)  # type: ignore[arg-type]


def test_a_step_says_which_hosts_it_needs() -> None:
    """They may be no members of the pair, and have to be found before the drill begins."""
    step = drill.Step.parse({"fault": "kill", "listens": 2888, "among": ["zk1", "zk2"], "also": ["zk3"]})
    assert step.hosts == {"zk1", "zk2", "zk3"}
    assert drill.Step.parse({"fault": "kill", "host": "backup"}).hosts == set()
    assert drill.Step.parse({"fault": "kill", "host": "nfs"}).hosts == {"nfs"}
    said = {"live": "outvoted", "backup": "lost", "voter": "yes"}
    assert drill.Step.parse({"fault": "kill", "says": said}).hosts == {"voter"}


async def test_more_hosts_are_hit_before_the_one_that_is_judged(tmp_path: Path) -> None:
    """A pair that is missing is missing before another one loses a member."""
    hosts: Any = {name: name for name in ("castor", "pollux", "b", "c")}
    members = [SimpleNamespace(name=name) for name in ("castor", "pollux")]
    manifest: Any = SimpleNamespace(members=members)
    live: Any = members[0]
    step = drill.Step.parse({"fault": "kill", "also": ["c", "b"]})
    hit: Any = await drill.Breaker(step, manifest, hosts, tmp_path)._targets(live)
    assert hit == ["c", "b", "castor"]


def test_only_scenarios_that_name_it_get_the_larger_image() -> None:
    assert scenarios.images_of("default") == ["POLLUX_LAB_IMAGE"]
    assert scenarios.images_of("replication_zookeeper") == ["POLLUX_LAB_IMAGE", "POLLUX_LAB_IMAGE_ZOOKEEPER"]
    assert image.name() != image.name("POLLUX_LAB_IMAGE_ZOOKEEPER")
    assert "openjdk-17-jre-headless" in image.dockerfile("POLLUX_LAB_IMAGE_ZOOKEEPER")
    assert "openjdk" not in image.dockerfile()
