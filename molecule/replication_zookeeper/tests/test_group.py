"""The pair as one: exactly one life, the other one with a complete copy, agreed upon by both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lab.asked import statuses

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["local://"]
HOSTS = ("replica-castor", "replica-pollux")


def test_one_is_live_and_the_other_can_take_over(host: Host) -> None:
    states = sorted(each["activation"]["state"] for each in statuses(*HOSTS).values())
    assert states == ["live", "ready"]


def test_they_are_one_node(host: Host) -> None:
    assert len({each["activation"]["node_id"] for each in statuses(*HOSTS).values()}) == 1
