"""Active-passive groups in the inventory: what one means, what it costs at most, and what is refused. Pure."""

from __future__ import annotations

from typing import Any

import pytest

from harness.topology import OPTIONS, topology

DEVICE = {"name": "power", "agent": "fence_ipmilan", "options": {"ip": "198.51.100.1"}}


def member(number: int, **variables: Any) -> dict[str, Any]:
    return {
        "inventory_dir": "/inventory",
        "broker_group": "trio",
        "broker_ha_policy": "active_passive",
        "broker_wheelhouse": "/wheels",
        "broker_address": f"192.0.2.{number}",
        "virtual_ip_address": "192.0.2.100",
        "pacemaker_fencing_devices": [DEVICE],
        **variables,
    }


def model(count: int = 3, *, more: dict[str, dict[str, Any]] | None = None, **variables: Any) -> dict[str, Any]:
    hosts = {f"node{number}": member(number, **variables) for number in range(1, count + 1)} | (more or {})
    found: dict[str, Any] = topology.topology(hosts, {"brokers": list(hosts)}, OPTIONS, {}, lambda _: True)
    return found


def test_three_brokers_and_a_virtual_address() -> None:
    found = model()
    assert found["problems"] == []
    group = found["groups"]["trio"]
    assert group["client_url"] == "(tcp://192.0.2.100:61616)?reconnectAttempts=-1"
    cluster = group["cluster"]
    assert cluster["brokers_url"] == "192.0.2.1:61616,192.0.2.2:61616,192.0.2.3:61616"
    assert cluster["public_url"] == "192.0.2.100:61616"
    assert cluster["cluster"] == "trio"
    assert [(node["id"], node["name"], node["broker"]) for node in cluster["nodes"]] == [
        (number, f"node{number}", f"192.0.2.{number}:61616") for number in (1, 2, 3)
    ]
    assert found["brokers"]["node1"]["acceptors"][0]["protocols"] == ["AMQP", "STOMP", "MQTT", "CORE"]
    assert found["brokers"]["node1"]["connected"] is False
    assert "manager_key" in found["secrets"]["names"]


def test_the_plan_says_what_a_failover_costs_at_most() -> None:
    plan = model(pacemaker_token_ms=1000, pacemaker_consensus_ms=2000, pacemaker_fencing_seconds=5)["groups"]["trio"]
    ended = "monitor 2000, controller 2000, promotion 1500, virtual address 500, clients 1000"
    hangs = "monitor 2000, answer 5000, controller 2000, end 3000, promotion 1500, virtual address 500, clients 1000"
    off = "token 1000, consensus 2000, controller 2000, fencing 5000, promotion 1500, virtual address 500, clients 1000"
    assert plan["cluster"]["plan"] == [
        "pacemaker decides who serves; nodes node1, node2, node3",
        "virtual address 192.0.2.100/24",
        f"the primary's process ends: 7000 ms at most ({ended})",
        f"it hangs: 15000 ms at most ({hangs})",
        f"its machine loses its power: 13000 ms at most ({off})",
    ]


def test_the_plan_says_what_a_grant_costs_where_nobody_fences() -> None:
    given: dict[str, Any] = {"broker_grant_lease_ms": 6000, "pacemaker_consensus_ms": 2000}
    none: dict[str, Any] = {
        "pacemaker_fencing": "none",
        "pacemaker_fencing_reason": "a test",
        "pacemaker_fencing_devices": [],
    }
    alone = "cut off, and not fenced, it ends by itself: 9000 ms at most (token 1000, consensus 2000, grant 6000)"
    assert alone in model(**given)["groups"]["trio"]["cluster"]["plan"]
    plan = model(**given, **none)["groups"]["trio"]["cluster"]["plan"]
    assert alone in plan
    off = "token 1000, consensus 2000, controller 2000, grant 6300, monitor 2000, promotion 1500, virtual address 500"
    assert f"its machine loses its power: 16300 ms at most ({off}, clients 1000)" in plan


def test_consensus_follows_the_token() -> None:
    assert model(pacemaker_token_ms=1500)["groups"]["trio"]["cluster"]["consensus_ms"] == 1800


@pytest.mark.parametrize(
    ("count", "variables", "said"),
    [
        (2, {}, "node1: broker_group: group 'trio' has 2 members, of which none may fail: no majority would be left."),
        (1, {}, "node1: broker_group: group 'trio' has 1 members"),
        (1, {"pacemaker_qnetd": "q"}, "node1: broker_group: group 'trio' has 1 members"),
        (
            2,
            {"pacemaker_qnetd": "node2"},
            "node1: pacemaker_qnetd: node2 is a member of the group: its vote and its own",
        ),
        (3, {"pacemaker_fencing_devices": []}, "node1: pacemaker_fencing_devices: is empty, and without a device"),
        (3, {"pacemaker_fencing": "none"}, "node1: pacemaker_fencing: is none: a primary that does not answer could"),
        (3, {"pacemaker_fencing_devices": [DEVICE, DEVICE]}, "node1: pacemaker_fencing_devices: listed twice: power"),
        (3, {"broker_heartbeat_ms": 0}, "node1: broker_heartbeat_ms: 0: without heartbeats a broker that hangs"),
        (3, {"broker_heartbeat_ms": 3000}, "a backup is ready for 5250 ms after its primary's machine lost its power"),
        (3, {"pacemaker_answer_seconds": 25}, "29000 ms after its primary hangs, and it may take 32000 ms until"),
        (3, {"pacemaker_token_ms": 100}, "node1: pacemaker_token_ms: 100 is a silence that a busy machine has"),
        (3, {"pacemaker_consensus_ms": 1100}, "node1: pacemaker_consensus_ms: 1100 is less than corosync takes"),
        (3, {"broker_grant_lease_ms": 3999}, "broker_grant_lease_ms: 3999 is shorter than two looks at the primary"),
        (3, {"broker_grant_lease_ms": 1, "broker_resource_manager": "rgmanager"}, "nobody says a primary's word again"),
        (3, {"pacemaker_monitor_seconds": 0}, "node1: pacemaker_monitor_seconds: 0 is no interval"),
        (3, {"pacemaker_backup_monitor_seconds": 2}, "is that of the primary, and pacemaker tells monitors apart"),
        (3, {"broker_service_manager": "none"}, "broker_service_manager: is none, and a resource manager works with"),
        (3, {"virtual_ip_address": "192.0.2.2"}, "192.0.2.2 is the address of node2: it would be in ha-brokers-url"),
        (3, {"virtual_ip_address": "198.51.100.9"}, "node1: virtual_ip_address: 198.51.100.9/24 is outside"),
        (3, {"virtual_ip_address": "vip"}, "virtual_ip_address: vip/24 is no address"),
        (3, {"broker_bind_address": "10.0.0.1"}, "its own address would be missing in ha-brokers-url"),
        (3, {"broker_address": "127.0.0.1"}, "broker_address: 127.0.0.1 leads every member to itself"),
        (3, {"broker_resource_manager": "rgmanager"}, "node1: rgmanager_fencing_devices: is empty: rgmanager waits"),
    ],
)
def test_what_could_have_no_primary_or_two_is_refused(count: int, variables: dict[str, Any], said: str) -> None:
    problems = model(count, **variables)["problems"]
    assert any(said in line for line in problems), problems


def test_a_third_vote_is_enough_for_two() -> None:
    assert model(2, pacemaker_qnetd="q.example.com")["problems"] == []


def test_no_fencing_needs_a_reason_which_the_plan_repeats() -> None:
    found = model(pacemaker_fencing="none", pacemaker_fencing_reason="a test", pacemaker_fencing_devices=[])
    assert found["problems"] == []
    assert found["groups"]["trio"]["cluster"]["plan"][-1] == "NO FENCING, so two lives may be: a test"


def test_two_clusters_with_one_name_are_refused() -> None:
    other = {f"other{number}": member(number + 10, broker_group="other") for number in (1, 2, 3)}
    assert model(more=other)["problems"] == []
    for variables in other.values():
        variables["pacemaker_cluster_name"] = "trio"
    assert any("are two clusters with the name 'trio'" in line for line in model(more=other)["problems"])


def test_members_that_differ_are_refused() -> None:
    one = {"node3": member(3, broker_heartbeat_ms=20_000)}
    (problem,) = model(2, more=one)["problems"]
    assert "node3: broker_heartbeat_ms: differs from that of node1 in the same group 'trio'" in problem


def test_the_first_acceptor_is_for_brokers_too() -> None:
    tls = [{"name": "tls", "port": 5671, "tls": True}]
    files: dict[str, Any] = {f"broker_tls_{kind}": f"/tls/{kind}" for kind in ("certificate", "key")}
    assert any("put an acceptor without TLS first" in line for line in model(broker_acceptors=tls, **files)["problems"])
