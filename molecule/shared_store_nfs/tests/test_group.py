"""The pair as one: exactly one life, one node, agreed upon by its members."""

from __future__ import annotations

import json

from lab.hosts import find_hosts

testinfra_hosts = ["local://"]


def test_exactly_one_is_live_and_they_are_one_node() -> None:
    command = ("sudo", "-u", "pollux", "/opt/pollux/bin/pollux", "status", "--json")
    hosts = find_hosts(["nfs-castor", "nfs-pollux"]).values()
    said = [json.loads(host.run(*command, check=False))["activation"] for host in hosts]
    assert sorted(each["state"] for each in said) == ["live", "ready"]
    assert len({each["node_id"] for each in said}) == 1
