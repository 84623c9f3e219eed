"""Clusters of an inventory: who is linked to whom, what is refused, and what the broker makes of the rendered file."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import pytest

from harness.bundle import write_private
from harness.renderer import HOSTS, Rendering, example
from harness.topology import PASSWORD, broker, chain, cluster, model
from pollux.config import loads
from pollux.config.clusters import MessageLoadBalancing

if TYPE_CHECKING:
    from pathlib import Path


def links(found: dict[str, Any]) -> dict[str, list[str]]:
    assert found["problems"] == []
    return {name: one["peers"] for name, one in found["brokers"].items()}


def test_a_cluster_is_symmetric_from_the_name_alone() -> None:
    found = cluster(3)
    assert links(found) == {"n1": ["n2", "n3"], "n2": ["n1", "n3"], "n3": ["n1", "n2"]}
    own = found["brokers"]["n2"]["cluster"]
    assert (own["direct"], own["hops"], own["multicast"], own["members"]) == (False, 1, False, ["n1", "n2", "n3"])
    assert found["brokers"]["n2"]["acceptors"][0]["protocols"][-1] == "CORE"


def test_a_chain_is_named_once_and_reaches_its_ends() -> None:
    found = cluster(4, **chain(4))
    assert links(found) == {"n1": ["n2"], "n2": ["n1", "n3"], "n3": ["n2", "n4"], "n4": ["n3"]}
    assert {(one["cluster"]["direct"], one["cluster"]["hops"]) for one in found["brokers"].values()} == {(True, 3)}
    assert cluster(4, everybody={"broker_max_hops": 2}, **chain(4))["brokers"]["n1"]["cluster"]["hops"] == 2


@pytest.mark.parametrize(("count", "hops"), [(4, 2), (5, 2), (6, 3)])
def test_a_ring_has_two_ways_and_half_as_many_hops(count: int, hops: int) -> None:
    found = cluster(count, **chain(count, ring=True))
    assert all(len(peers) == 2 for peers in links(found).values())
    assert {one["cluster"]["hops"] for one in found["brokers"].values()} == {hops}


def test_the_members_of_pairs_name_each_other_and_all_of_the_pairs_they_are_linked_to() -> None:
    hosts: dict[str, Any] = {
        f"{member}{pair}": broker(
            "live" if member == "a" else "backup",
            broker_group=f"p{pair}",
            broker_cluster="c",
            **({"broker_links": [f"p{pair + 1}"]} if pair < 3 else {}),
        )
        for pair, member in itertools.product((1, 2, 3), "ab")
    }
    found = model(**hosts)
    assert links(found)["b1"] == ["a1", "a2", "b2"]
    assert links(found)["a2"] == ["b2", "a1", "b1", "a3", "b3"]
    assert found["groups"]["p2"]["client_url"] == "(tcp://a2:61616,tcp://b2:61616)?reconnectAttempts=-1"


def test_clusters_of_one_inventory_do_not_know_each_other() -> None:
    found = cluster(4, n3={"broker_cluster": "d"}, n4={"broker_cluster": "d"})
    assert links(found) == {"n1": ["n2"], "n2": ["n1"], "n3": ["n4"], "n4": ["n3"]}
    assert cluster(2, n2={"broker_cluster": ""})["brokers"]["n2"]["cluster"] == {}


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (lambda: cluster(n1={"broker_links": ["g9"]}), "n1: broker_links: group 'g9' is not in the cluster 'c', whose"),
        (lambda: cluster(n1={"broker_links": ["g1"]}), "n1: broker_links: links group 'g1' to itself"),
        (
            lambda: cluster(n1={"broker_links": ["g2"]}, n3={"broker_links": ["g4"]}),
            "n3: broker_links: no links lead from group 'g1' to g3, g4 of the cluster 'c'",
        ),
        (
            lambda: cluster(n4={"broker_cluster": "", "broker_links": ["g1"]}),
            "n4: broker_links: is set, but broker_cluster is not",
        ),
        (
            lambda: cluster(n2={"broker_cluster": "d"}, n1={"broker_links": ["g2"]}),
            "n1: broker_links: group 'g2' is not in the cluster 'c'",
        ),
        (
            lambda: cluster(N1={"broker_group": "g9", "broker_ha_policy": "none", "broker_cluster": "c"}),
            "N1: inventory",
        ),
        (
            lambda: cluster(n2={"broker_address": "10.0.0.1"}, n3={"broker_address": "10.0.0.1"}),
            "n3: broker_address: 10.0.0.1:61616 is where n2 of the cluster 'c' is, too",
        ),
        (lambda: cluster(n2={"broker_group": "g1"}), "n2: broker_group: group 'g1' has 2 members but broker_ha_policy"),
        (
            lambda: cluster(n2={"broker_cluster_password": "another-password-0815"}),
            "n2: broker_cluster_password: differs from that of n1, and both are of the cluster 'c'",
        ),
        (
            lambda: cluster(n2={"broker_cluster_user": "other"}),
            "n2: broker_cluster_user: differs from that of n1, and both are of the cluster 'c'",
        ),
        (
            lambda: cluster(everybody={"broker_cluster_password": "CHANGE ME!!"}),
            "n1, n2, n3, n4: broker_cluster_password: is a default password",
        ),
        (
            lambda: cluster(everybody={"broker_secrets_generate": False, "broker_users_key": PASSWORD}),
            "n1, n2, n3, n4: broker_secrets_file: /inventory/secrets.yml lacks cluster_password",
        ),
        (
            lambda: cluster(everybody={"broker_cluster_discovery": "multicast"}, **chain(4)),
            "n1, n2, n3: broker_cluster_discovery: multicast finds every broker, but broker_links says",
        ),
        (
            lambda: cluster(n2={"broker_cluster_discovery": "multicast"}),
            "n2: broker_cluster_discovery: differs from that of n1",
        ),
        (
            lambda: cluster(everybody={"broker_multicast_address": "10.0.0.1"}),
            "n1, n2, n3, n4: broker_multicast_address: '10.0.0.1' is not an IPv4 multicast address",
        ),
        (
            lambda: cluster(everybody={"broker_multicast_port": 0}),
            "n1, n2, n3, n4: broker_multicast_port: port 0 is outside",
        ),
        (
            lambda: cluster(n1={"broker_multicast_bind_address": "eth0"}),
            "n1: broker_multicast_bind_address: 'eth0' is not an IPv4 address",
        ),
        (
            lambda: cluster(n1={"broker_cluster_settings": {"max-hops": 7}}),
            "n1: broker_cluster_settings: 'max-hops' is derived by this bundle. Remedy: remove it and set broker_max",
        ),
        (lambda: cluster(n1={"broker_load_balancing": "ON DEMAND"}), "n1: broker_load_balancing: 'ON DEMAND' is not"),
        (lambda: cluster(n1={"broker_cluster_addresses": ["a,b"]}), "n1: broker_cluster_addresses: 'a,b' is no prefix"),
        (
            lambda: cluster(everybody={"broker_cluster_duplicate_ids": ["!"]}),
            "n1, n2, n3, n4: broker_cluster_duplicate_ids: '!' is no prefix of addresses",
        ),
        (
            lambda: cluster(n2={"broker_cluster_duplicate_ids": ["orders"]}),
            "n2: broker_cluster_duplicate_ids: differs from that of n1, and both are of the cluster 'c'",
        ),
        (
            lambda: cluster(
                everybody={"broker_cluster_duplicate_ids": ["orders"], "broker_load_balancing": "OFF"},
            ),
            "n1, n2, n3, n4: broker_cluster_duplicate_ids: needs messages that leave the node that looks at",
        ),
        (
            lambda: cluster(n4={"broker_cluster": "", "broker_cluster_duplicate_ids": ["orders"]}),
            "n4: broker_cluster_duplicate_ids: is set, but broker_cluster is not",
        ),
        (
            lambda: model(
                a=broker("live", broker_cluster="c"), b=broker("backup", broker_cluster="c", broker_links=["x"])
            ),
            "b: broker_links: differs from that of a in the same group 'pair1'",
        ),
    ],
)
def test_a_cluster_that_cannot_work_is_refused(found: Any, problem: str) -> None:
    told = found()["problems"]
    assert any(line.startswith(problem) for line in told), told
    assert all("Remedy: " in line for line in told)


ROUTER = {"name": "r", "policy": "ROUND_ROBIN"}


def routed(*routers: dict[str, Any], cluster_name: str = "c") -> dict[str, Any]:
    everybody = {
        "broker_connection_routers": list(routers),
        "broker_acceptors": [
            {"name": "all", "port": 61616},
            {"name": "routed", "port": 61617, "parameters": {"router": "r"}},
        ],
    }
    named: dict[str, Any] = {f"n{one}": {"broker_cluster": cluster_name} for one in (1, 2, 3)}
    return cluster(3, everybody=everybody, **named)


def test_routers_choose_from_the_cluster_or_from_the_groups_they_name() -> None:
    (of_cluster,) = routed(ROUTER)["brokers"]["n1"]["routers"]
    assert (of_cluster["cluster"], of_cluster["local"], of_cluster["pool"]) == ("c", True, True)
    found = routed({**ROUTER, "groups": ["g1", "g2"]}, cluster_name="")
    assert found["problems"] == []
    first, third = (found["brokers"][name] for name in ("n1", "n3"))
    assert [(one["routers"][0]["groups"], one["routers"][0]["local"]) for one in (first, third)] == [
        (["g2"], True),
        (["g1", "g2"], False),
    ]
    assert [one["name"] for one in third["connectors"]] == ["n3", "pool-g1", "pool-g2"]


@pytest.mark.parametrize(
    ("routers", "problem"),
    [
        (
            ({"name": "other", "policy": "ROUND_ROBIN"},),
            "parameters.router: there is no router 'r' in broker_connection",
        ),
        ((ROUTER, ROUTER), "broker_connection_routers: there are two routers called 'r'"),
        (({"name": "r"},), "broker_connection_routers[r]: has no policy and no local_target_filter"),
        (({**ROUTER, "key_filter": "("},), "broker_connection_routers[r].key_filter: is no regular expression"),
        (({**ROUTER, "groups": ["g9"]},), "broker_connection_routers[r].groups: there is no group 'g9'; there are: g1"),
        (({**ROUTER, "groups": ["g1"]},), "broker_connection_routers[r].groups: only this broker's own group is named"),
        (({**ROUTER, "groups": ["g1", "g2"], "quorum_size": 3},), "[r].quorum_size: 3 is more than the 2 groups"),
        (({**ROUTER, "policy": "RANDOM"},), "broker_connection_routers[r].policy: 'RANDOM' is not one of"),
    ],
)
def test_a_router_that_chooses_nobody_is_refused(routers: tuple[dict[str, Any], ...], problem: str) -> None:
    told = routed(*routers)["problems"]
    assert any(problem in line for line in told), told


def test_a_router_without_groups_needs_a_cluster() -> None:
    (problem,) = routed(ROUTER, cluster_name="")["problems"]
    assert "broker_connection_routers[r].groups: is empty, but there is no cluster to choose from" in problem


def rendered(directory: Path, *more: str) -> Rendering:
    """The example, with a vault, and lines that its variables get besides."""
    inventory = example(directory, "example-cluster")
    variables = inventory / "group_vars" / "brokers"
    write_private(variables / "vault.yml", f"vault_cluster_password: {PASSWORD}\n")
    (variables / "more.yml").write_text("\n".join(("---", *more, "")))
    return Rendering(directory, inventory)


def test_the_broker_takes_the_example_as_a_cluster_of_three_pairs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("POLLUX_CLUSTER_PASSWORD", PASSWORD)
    rendering = rendered(tmp_path)
    assert sorted(rendering.render("cluster")) == HOSTS
    for host in HOSTS:
        files = rendering.files("cluster", host)
        assert PASSWORD not in files["/opt/pollux/etc/broker.xml"]
        configuration = loads(files["/opt/pollux/etc/broker.xml"])
        assert configuration.warnings == ()
        (own,) = configuration.cluster_connections
        assert (own.name, own.connector_ref, own.max_hops, own.retry_interval) == ("orders", host, 1, 200)
        assert own.message_load_balancing is MessageLoadBalancing.ON_DEMAND
        assert own.static_connectors is not None
        assert sorted(own.static_connectors.connector_refs) == [name for name in HOSTS if name != host]
        assert not own.static_connectors.allow_direct_connections_only
        (everything,) = [one for one in configuration.address_settings if one.match == "#"]
        assert everything.values["redistribution_delay"] == 0
        assert configuration.cluster.duplicate_ids == ""
        (router,) = configuration.connection_routers
        assert router.pool is not None
        assert (router.pool.cluster_connection, router.pool.local_target_enabled) == ("orders", True)
        rules = files["/opt/pollux/firewall.nft"]
        assert "tcp dport { 61616, 61617 } ip saddr { 192.0.2.0/24 } accept" in rules
        assert "udp" not in rules


def test_the_broker_takes_a_chain_that_chooses_by_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLLUX_CLUSTER_PASSWORD", PASSWORD)
    rendering = rendered(
        tmp_path,
        "broker_links: \"{{ {'pair1': ['pair2'], 'pair2': ['pair3'], 'pair3': []}[broker_group] }}\"",
        "broker_connection_routers: [{name: by-user, policy: CONSISTENT_HASH, groups: [pair1, pair3]}]",
        "broker_cluster_addresses: [orders, '!orders.local']",
        "broker_cluster_duplicate_ids: [orders.paid, '!orders.paid.local']",
    )
    rendering.render("chain")
    for host in HOSTS:
        configuration = loads(rendering.files("chain", host)["/opt/pollux/etc/broker.xml"])
        (own,) = configuration.cluster_connections
        assert own.static_connectors is not None
        assert own.static_connectors.allow_direct_connections_only
        assert (own.max_hops, own.address) == (2, "orders,!orders.local")
        assert configuration.cluster.duplicate_ids == "orders.paid,!orders.paid.local"
        reached = {int(name[len("broker")]) for name in own.static_connectors.connector_refs}
        pair = int(host[len("broker")])
        assert reached == {each for each in (1, 2, 3) if abs(each - pair) <= 1}
        (router,) = configuration.connection_routers
        assert router.pool is not None
        assert router.pool.static_connectors is not None
        others = [each for each in (1, 3) if each != pair]
        assert router.pool.static_connectors.connector_refs == tuple(f"pool-pair{each}" for each in others)
        assert router.pool.local_target_enabled is (pair != 2)
        (pool,) = [one for one in configuration.connectors if one.name == f"pool-pair{others[-1]}"]
        assert [one.host for one in pool.endpoints] == [f"broker{others[-1]}{member}.example.com" for member in "ab"]


def test_nodes_that_find_each_other_by_datagrams_let_them_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLLUX_CLUSTER_PASSWORD", PASSWORD)
    rendering = rendered(tmp_path, "broker_cluster_discovery: multicast", "broker_multicast_bind_address: 192.0.2.11")
    rendering.render("multicast")
    files = rendering.files("multicast", HOSTS[0])
    configuration = loads(files["/opt/pollux/etc/broker.xml"])
    assert configuration.warnings == ()
    (own,) = configuration.cluster_connections
    assert own.static_connectors is None
    assert own.discovery_group_ref is not None
    (broadcast,), (discovery,) = configuration.broadcast_groups, configuration.discovery_groups
    assert broadcast.connector_refs == (HOSTS[0],)
    assert own.discovery_group_ref.discovery_group_name == discovery.name
    for group in (broadcast, discovery):
        assert (group.group_address, group.group_port) == ("239.77.77.77", 9876)
        assert group.local_bind_address == "192.0.2.11"
    assert "udp dport { 9876 } ip saddr { 192.0.2.0/24 } accept" in files["/opt/pollux/firewall.nft"]
    assert "udp dport { 9876 } drop" in files["/opt/pollux/firewall.nft"]
