"""All hosts as one: each node has one life that serves it, and one that waits on another host."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from lab.asked import statuses

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["local://"]
HOSTS = ("colocated-a", "colocated-b", "colocated-c")


def test_each_node_is_served_once_and_has_one_backup(host: Host) -> None:
    del host
    lives = defaultdict(list)
    for name, found in statuses(*HOSTS).items():
        for life in found["lives"]:
            lives[life["nodeId"]].append((life["state"], name))
    assert len(lives) == len(HOSTS)
    for places in lives.values():
        assert sorted(state for state, _ in places) == ["live", "ready"]
        assert len({name for _, name in places}) == 2
