"""The cluster as one: each pair is one node, and each node reaches both others."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import testinfra

from lab.asked import PROGRAM, statuses

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["local://"]
PAIRS = tuple((f"cluster-{number}a", f"cluster-{number}b") for number in (1, 2, 3))


def live(names: tuple[str, ...]) -> str:
    """The one that serves."""
    (found,) = (name for name, status in statuses(*names).items() if status["state"] == "live")
    return found


def cluster(name: str) -> dict[str, Any]:
    """A node's word on its cluster connection."""
    host = testinfra.get_host(f"docker://{name}")
    found: dict[str, Any] = json.loads(host.check_output(f"sudo -u pollux {PROGRAM} cluster status --json"))
    return found


@pytest.mark.parametrize("pair", PAIRS, ids=("pair1", "pair2", "pair3"))
def test_one_is_live_and_the_other_can_take_over(host: Host, pair: tuple[str, str]) -> None:
    found = [each["activation"] for each in statuses(*pair).values()]
    assert sorted(one["state"] for one in found) == ["live", "ready"]
    assert len({one["node_id"] for one in found}) == 1


def test_each_node_reaches_both_others_and_nothing_waits(host: Host) -> None:
    nodes = [live(pair) for pair in PAIRS]
    for name, found in {name: cluster(name) for name in nodes}.items():
        others = sorted(set(nodes) - {name})
        assert sorted(link["node"] for link in found["links"] if link["connected"]) == others
        assert sorted(link["node"] for link in found["incoming"]) == others
        assert [link["waiting"] for link in found["links"]] == [0] * len(found["links"])
