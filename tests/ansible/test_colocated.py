"""Brokers that have each other's backups: what is refused, what is rendered, and when a host may be touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from harness.bundle import write_private
from harness.modules import load
from harness.renderer import Rendering, example
from harness.topology import model
from pollux.config import loads
from pollux.config.colocated_ports import colocated_of

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = [f"broker{number}.example.com" for number in (1, 2, 3)]
PASSWORD = "cluster-password-0815"


gates = load("filter_plugins/gates.py")
report = load("filter_plugins/report.py")
drill = load("filter_plugins/drill.py")
recovery = load("filter_plugins/recovery.py")
info = load("roles/broker/library/pollux_info.py")
links = load("roles/broker/library/pollux_links.py")


def three(*, everybody: dict[str, Any] | None = None, **some: dict[str, Any]) -> dict[str, Any]:
    """Hosts a, b and c, each with a group of its own; ``some`` are the variables of some of them."""
    given = {
        "inventory_dir": "/inventory",
        "broker_wheelhouse": "/wheels",
        "broker_ha_policy": "colocated",
        "broker_cluster": "c",
    }
    hosts: dict[str, Any] = {host: {**given, **(everybody or {}), **some.get(host, {})} for host in "abc"}
    return model(**hosts)


def test_each_host_is_a_group_and_knows_all_places_of_its_backups() -> None:
    found = three(b={"broker_max_backups": 1})
    assert found["problems"] == []
    assert {name: group["members"] for name, group in found["groups"].items()} == {host: [host] for host in "abc"}
    one = found["brokers"]["a"]
    assert one["colocated"]["members"] == ["a", "b", "c"]
    assert (one["store"], one["writes"], one["peers"]) == ("/srv/pollux/a", "/srv/pollux", ["b", "c"])
    assert one["colocated"]["shifts"] == [100, 200]
    assert found["brokers"]["b"]["colocated"]["shifts"] == [100]
    plan = report.plan(found)
    assert "group a (colocated), journal in /srv/pollux/a" in plan
    assert "    backups that it takes in have its ports +100, +200" in plan


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (lambda: three(everybody={"broker_cluster": ""}), "a, b, c: broker_cluster: is not set, and by the links of"),
        (lambda: three(a={"broker_group": "b"}), "a, b: broker_group: group 'b' has 2 members, and each colocated"),
        (lambda: three(a={"broker_preferred": "live"}), "a: broker_preferred: means nothing for a colocated broker"),
        (
            lambda: three(everybody={"broker_max_backups": 0}),
            "a, b, c: broker_cluster: no other machine of the cluster 'c' takes backups in",
        ),
        (
            lambda: three(b={"broker_max_backups": 0}, c={"broker_max_backups": 0}),
            "a: broker_cluster: no other machine of the cluster 'c' takes backups in",
        ),
        (lambda: three(a={"broker_max_backups": -1}), "a: broker_max_backups: -1 is less than 0"),
        (lambda: three(a={"broker_backup_port_offset": 0}), "a: broker_backup_port_offset: 0 is less than 1"),
        (
            lambda: three(a={"broker_backup_request_retries": -2}),
            "a: broker_backup_request_retries: -2 is less than -1",
        ),
        (
            lambda: three(a={"broker_backup_request_retry_interval_ms": 0}),
            "a: broker_backup_request_retry_interval_ms: 0 is less than 1",
        ),
        (
            lambda: three(a={"broker_max_backups": 40}),
            "a: broker_backup_port_offset (backup 40, broker_acceptors[all]): port 65616 (with broker_port_offset) is",
        ),
        (
            lambda: three(a={"broker_acceptors": [{"name": "x", "port": 5000}, {"name": "y", "port": 5100}]}),
            "a: broker_backup_port_offset (backup 1, broker_acceptors[x]): port 5100 is taken by broker_acceptors[y]",
        ),
        (
            lambda: three(
                a={"broker_machine": "m"},
                b={
                    "broker_machine": "m",
                    "broker_port_offset": 100,
                    "broker_service_name": "pollux-b",
                    **{name: f"/b/{name}" for name in ("broker_root", "broker_data", "broker_run")},
                },
            ),
            "is taken by broker_backup_port_offset (backup 1, broker_acceptors[all]) of a on the same machine",
        ),
        (
            lambda: three(
                everybody={
                    "shared_store_type": "database",
                    "database_store_hosts": ["db"],
                    "database_store_authorities": "/a",
                }
            ),
            "a, b, c: shared_store_type: is database, and a backup opens the directories of its live",
        ),
        (lambda: three(a={"virtual_ip_address": "10.0.0.9"}), "a: virtual_ip_address: follows who serves in a group"),
        (
            lambda: three(c={"shared_store_path": "/other"}),
            "c: shared_store_path: differs from that of a, and each may",
        ),
        (lambda: three(b={"broker_addresses": [{"name": "x"}]}), "b: broker_addresses: differs from that of a"),
        (
            lambda: three(everybody={"shared_store_lease_seconds": 5}),
            "shared_store_lease_seconds: the lease of 5000 ms",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(found: Any, problem: str) -> None:
    problems = found()["problems"]
    assert any(problem in line for line in problems), problems


def test_a_host_that_only_takes_others_in_needs_nobody() -> None:
    """And a broker with another policy in the same cluster is none of them."""
    found = three(b={"broker_request_backup": False}, c={"broker_ha_policy": "none"})
    assert any(line.startswith("b: ") for line in three(b={"broker_max_backups": -1})["problems"])
    assert found["problems"] == []
    assert found["brokers"]["a"]["colocated"]["members"] == ["a", "b"]
    assert found["brokers"]["c"]["colocated"] == {}


def test_the_example_is_rendered_and_the_broker_accepts_it(tmp_path: Path) -> None:
    inventory = example(tmp_path, "example-colocated")
    write_private(inventory / "group_vars" / "brokers" / "vault.yml", f"vault_cluster_password: {PASSWORD}\n")
    rendering = Rendering(tmp_path, inventory)
    assert sorted(rendering.render("brokers")) == HOSTS
    for number, host in enumerate(HOSTS, 1):
        files = rendering.files("brokers", host)
        document = files["/opt/pollux/etc/broker.xml"]
        found = loads(document, {"pollux.cluster.password": PASSWORD}, file="/opt/pollux/etc/broker.xml")
        assert found.warnings == ()
        colocated = colocated_of(found)
        assert colocated is not None
        assert (colocated.request_backup, colocated.max_backups, colocated.backup_port_offset) == (True, 2, 100)
        assert (colocated.backup_request_retries, colocated.backup_request_retry_interval) == (-1, 5000)
        assert set(colocated.excludes) == set(HOSTS) - {host}
        assert found.high_availability.failure_domain == f"rack-{number}"
        assert str(found.journal_directory) == f"/srv/pollux/{host}/journal"
        unit = files["/etc/systemd/system/pollux.service"].splitlines()
        assert f'Environment="POLLUX_MACHINE={host}"' in unit
        assert "ReadWritePaths=/opt/pollux/data /opt/pollux/run /srv/pollux" in unit
        assert "AssertPathIsMountPoint=/srv/pollux" in unit
        rules = files["/opt/pollux/firewall.nft"]
        assert "{ 61616, 61716, 61816 }" in rules
        assert "{ 8161, 8261, 8361 }" in rules


# -- what hosts say


def life(name: str, slot: int, state: str, backup: dict[str, Any] | None = None) -> dict[str, Any]:
    node = name.partition("@")[0]
    return {"name": name, "nodeId": f"id-{node}", "slot": slot, "state": state, "backup": backup}


def has(at: str, *, ready: bool = True, what: str = "keep") -> dict[str, Any]:
    return {"at": at, "node": "", "ready": ready, "what": what, "reason": "because"}


def answers(**lives: list[dict[str, Any]]) -> dict[str, Any]:
    """The word of each host's own live; its own life is the first."""
    return {
        host: {"answer": {"state": found[0]["state"], "node_id": f"id-{host}", "status": {"lives": found}}}
        for host, found in lives.items()
    }


WHOLE = {
    "a": [life("a", 0, "live", has("b")), life("c@a", 1, "ready")],
    "b": [life("b", 0, "live", has("c")), life("a@b", 1, "ready")],
    "c": [life("c", 0, "live", has("a")), life("b@c", 1, "ready")],
}


def problems(**changed: list[dict[str, Any]]) -> list[str]:
    found: list[str] = gates.group_problems(three(), answers(**{**WHOLE, **changed}), "answer", list("abc"))
    return found


def test_hosts_are_whole_when_each_node_is_served_once_and_has_a_backup() -> None:
    assert problems() == []
    # A switchover: it waits at home.
    away = problems(a=[life("a", 0, "ready"), WHOLE["a"][1]], b=[WHOLE["b"][0], life("a@b", 1, "live")])
    assert away == []
    assert problems(b=[WHOLE["b"][0]]) == ["the node of a has no backup that can take over"]
    assert problems(b=[WHOLE["b"][0], life("a@b", 1, "silent")]) == ["the node of a has no backup that can take over"]
    assert problems(b=[WHOLE["b"][0], life("a@b", 1, "live")]) == [
        "the node of a is served on 2 hosts (a, b), expected one",
        "the node of a has no backup that can take over",
    ]
    assert problems(a=[life("a", 0, "ready"), WHOLE["a"][1]]) == [
        "the node of a is served on 0 hosts (none), expected one"
    ]
    assert problems(a=[life("a", 0, "failed")]) == [
        "a does not do its part: it is failed",
        "the node of c has no backup that can take over",
    ]
    some = gates.group_problems(three(), answers(**WHOLE), "answer", ["a"])
    assert some == [], "those who were not asked may have its backup"


def test_a_node_is_handed_back_by_the_host_that_serves_it() -> None:
    found = three()
    said = answers(**{**WHOLE, "a": [life("a", 0, "ready")], "b": [WHOLE["b"][0], life("a@b", 1, "live")]})
    assert gates.served_at(found, "a", said, "answer") == {"host": "b", "node": "id-a"}
    assert gates.served_at(found, "b", said, "answer") == {}
    assert "a does not serve its own node (ready): run failback.yml" in gates.away_refusal(
        found, "a", {"state": "ready"}
    )
    assert gates.away_refusal(found, "a", {"state": "live"}) == ""
    shown = report.report(found, said, "answer")
    assert "    a@b: live, backup 1 of this host" in shown
    assert "    b: live, backup on c" in shown


@pytest.mark.parametrize(
    ("lives", "why"),
    [
        (WHOLE["a"], ""),
        ([life("a", 0, "ready"), life("c@a", 1, "live")], ""),
        ([life("a", 0, "live", {**has(""), "at": None, "ready": False, "what": ""})], ""),
        ([life("a", 0, "live", has("b", ready=False))], "its backup on b is not ready yet (keep: because)"),
        (
            [life("a", 0, "live", {**has(""), "at": None, "ready": False, "what": "wait"})],
            "it has no backup (wait: because)",
        ),
        ([WHOLE["a"][0], life("c@a", 1, "ended")], "c@a is ended"),
        ([life("a", 0, "live")], "it has no backup (None: None)"),
        ([], "it shows no lives"),
    ],
)
def test_a_host_is_touched_when_its_lives_do_their_part_and_its_own_has_a_backup(
    lives: list[dict[str, Any]], why: str
) -> None:
    found = {"state": "live", "status": {"lives": lives}}
    assert info.incomplete(found) == why
    params = {"expect": ["live"], "whole": True, "release": "", "group_epoch": None}
    assert info.passes(found, params) is (why == "")


def test_a_link_to_a_node_that_is_served_elsewhere_is_a_link_to_it() -> None:
    link = {"node": "b@c", "connected": True, "reason": "", "connector": "b"}
    found = {"links": [link], "incoming": [{"node": "b@c"}]}
    assert links.unreached(found, {"b": ["b"]}) == []
    assert links.unreached(found, {"c": ["c"]}) == ["c is not reached"]


def test_what_follows_one_group_alone_is_refused_by_name() -> None:
    found = three()
    assert "group a is colocated: its backup is a life of another group's host, and a drill" in drill.refusal(
        found, {}, "a", ""
    )
    asked = {"confirm": "a", "sides": {}, "keep": "auto"}
    (problem,) = recovery.recovery(found, asked, ["analyst"])["problems"]
    assert "group a is colocated" in problem
    assert gates.rebuild_asked(found, "a", ["a"]) == ["group a has colocated, so a has no copy of its own"]
