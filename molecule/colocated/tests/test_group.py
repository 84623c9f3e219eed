"""All hosts as one: each node has one life that serves it, and one that waits on another host."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from lab.asked import statuses
from lab.faults import wait_for
from lab.places import LabError

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["local://"]
HOSTS = ("colocated-a", "colocated-b", "colocated-c")


#: Seconds for what a slow host still hands back; that no node has two lives meanwhile, the drill watches.
LIMIT = 60.0


def places() -> dict[str, list[tuple[str, str]]]:
    """Return the lives of each node: state and host, as the supervisors heard of them last."""
    found = defaultdict(list)
    for name, told in statuses(*HOSTS).items():
        for life in told["lives"]:
            found[life["nodeId"]].append((life["state"], name))
    return found


def test_each_node_is_served_once_and_has_one_backup(host: Host) -> None:
    """Hosts are asked one after the other: while a node is handed back, both seem to serve it."""
    del host
    seen: list[dict[str, list[tuple[str, str]]]] = []

    def settled() -> bool:
        seen.append(places())
        return all(sorted(state for state, _ in lives) == ["live", "ready"] for lives in seen[-1].values())

    try:
        wait_for(settled, "each node has one life that serves and one that waits", LIMIT)
    except LabError as error:
        raise AssertionError(f"{error}: {dict(seen[-1])}") from error
    assert len(seen[-1]) == len(HOSTS)
    for lives in seen[-1].values():
        assert len({name for _, name in lives}) == 2
