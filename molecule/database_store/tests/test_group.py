"""The pair as one: exactly one life, one node, agreed upon by its members."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.asked import statuses

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["local://"]
HOSTS = ("database-castor", "database-pollux")


def test_exactly_one_is_live(host: Host) -> None:
    del host
    states = sorted(each["activation"]["state"] for each in statuses(*HOSTS).values())
    assert states == ["live", "ready"]


def test_they_are_one_node(host: Host) -> None:
    del host
    assert len({each["activation"]["node_id"] for each in statuses(*HOSTS).values()}) == 1
