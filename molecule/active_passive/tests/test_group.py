"""The group as one: one primary, which has the virtual address, and the resource manager says the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import testinfra

from lab.asked import statuses

if TYPE_CHECKING:
    from testinfra.host import Host

testinfra_hosts = ["local://"]
HOSTS = ("passive-1", "passive-2", "passive-3")
ADDRESS = "10.231.9.100"


def test_one_is_active_and_the_others_are_ready(host: Host) -> None:
    found = sorted(each["activation"]["active_passive"]["status"] for each in statuses(*HOSTS).values())
    assert found == ["active", "ready", "ready"]
    assert len({each["activation"]["node_id"] for each in statuses(*HOSTS).values()}) == 1


def test_the_primary_serves_by_its_agents_word(host: Host) -> None:
    (live,) = [each for each in statuses(*HOSTS).values() if each["activation"]["state"] == "live"]
    assert 0 < live["activation"]["active_passive"]["grant_left_ms"] <= 30_000


def test_the_address_is_where_the_primary_is(host: Host) -> None:
    for name, status in statuses(*HOSTS).items():
        has = ADDRESS in testinfra.get_host(f"docker://{name}").check_output("ip -brief address")
        assert has == (status["activation"]["state"] == "live"), name


def test_the_cluster_is_whole_and_fences(host: Host) -> None:
    told = testinfra.get_host("docker://passive-1").check_output("crm_mon --one-shot --output-as=xml")
    assert told.count('online="true" standby="false"') == 3
    assert 'stonith-enabled="true"' in told
