"""The pair as one: exactly one life, one node, agreed upon by its members."""

from __future__ import annotations

from typing import TYPE_CHECKING

import testinfra

from lab.asked import statuses

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["local://"]
HOSTS = ("default-castor", "default-pollux")
ADDRESS = "10.231.1.100"


def test_exactly_one_is_live(host: Host) -> None:
    states = sorted(each["activation"]["state"] for each in statuses(*HOSTS).values())
    assert states == ["live", "ready"]


def test_they_are_one_node(host: Host) -> None:
    assert len({each["activation"]["node_id"] for each in statuses(*HOSTS).values()}) == 1


def test_the_address_is_where_the_live_is(host: Host) -> None:
    for name, status in statuses(*HOSTS).items():
        has = ADDRESS in testinfra.get_host(f"docker://{name}").check_output("ip -brief address")
        assert has == (status["activation"]["state"] == "live"), name
