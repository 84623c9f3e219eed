"""The topology filter: what an inventory means, and what it is refused for. Pure: no Ansible runs here."""

from __future__ import annotations

from typing import Any

import jinja2
import pytest

from harness.topology import OPTIONS, PASSWORD, broker, model, topology


def test_a_pair() -> None:
    found = model(b=broker("backup"), a=broker("live", broker_port_offset=10))
    assert found["problems"] == []
    assert found["groups"]["pair1"]["members"] == ["a", "b"]
    assert found["groups"]["pair1"]["client_url"] == "(tcp://a:61626,tcp://b:61616)?reconnectAttempts=-1"
    assert found["brokers"]["a"]["part"] == "primary"
    assert found["brokers"]["b"]["part"] == "backup"
    assert found["brokers"]["b"]["peers"] == ["a"]
    assert found["brokers"]["a"]["store"] == found["brokers"]["b"]["store"] == "/srv/pollux/pair1"
    assert found["brokers"]["a"]["etc"] == "/opt/pollux/etc"


def certified(*, files: bool | set[str] = False, **more: Any) -> dict[str, Any]:
    """A pair with TLS, whose files are named after the hosts; ``files`` are those there are."""
    hosts = {
        name: broker(
            role,
            broker_acceptors=[{"name": "tls", "port": 5671, "tls": True}],
            broker_cluster_password=PASSWORD,
            broker_tls_certificate=f"/tls/{name}.crt",
            broker_tls_key=f"/tls/{name}.key",
            **more,
        )
        for name, role in (("one.example", "live"), ("two.example", "backup"))
    }
    exists = (lambda path: path in files or path.startswith("/wheels")) if isinstance(files, set) else (lambda _: files)
    found: dict[str, Any] = topology.topology(hosts, {"brokers": list(hosts)}, OPTIONS, {}, exists)
    return found


def test_what_is_missing_on_each_host_alike_is_one_line() -> None:
    certificate, key = certified(files=set())["problems"]
    assert certificate == (
        "one.example, two.example: broker_tls_certificate: there is no file /tls/HOST.crt on the controller (HOST: the "
        "name of each). Remedy: correct the path or create the file, or have it made by broker_certificates_generate."
    )
    assert key.startswith("one.example, two.example: broker_tls_key: there is no file /tls/HOST.key")
    there = {"/tls/two.example.crt", "/tls/one.example.key", "/tls/two.example.key"}
    (certificate,) = certified(files=there)["problems"]
    assert certificate.startswith("one.example: broker_tls_certificate: there is no file /tls/one.example.crt on")


def test_certificates_that_are_to_be_made_need_not_be_there() -> None:
    making = {"broker_certificates_generate": True}
    authority = {"broker_tls_authorities": "/tls/authority.crt"}
    assert certified(files=set(), **making, **authority)["problems"] == []
    (problem,) = certified(files=set(), **making)["problems"]
    assert "broker_tls_authorities: is not set, but broker_certificates_generate needs a place for it" in problem
    problems = certified(files={"/tls/authority.crt"}, **making, **authority)["problems"]
    assert all("is an authority without its key (/tls/authority.key)" in problem for problem in problems)
    assert problems
    both: dict[str, Any] = {"broker_tls_certificate": "/tls/a.crt", **making, **authority}
    found = model(a=broker("live", broker_tls_key="/tls/a.key", **both), b=broker("backup", **both))
    assert any("b: broker_tls_certificate: /tls/a.crt is to be made for a too" in line for line in found["problems"])


REFUSED = [
    ({"broker_preferred": "live"}, "b: broker_preferred: a is the preferred live of group 'pair1' already."),
    ({"ansible_host": "a"}, "b: ansible_host: is on the same machine (a) as a, and both are in group 'pair1'."),
    (
        {"broker_prefered": "live"},
        "b: broker_prefered: is not a variable of this bundle. Remedy: write broker_preferred.",
    ),
    ({"broker_slave": True}, "b: broker_slave: has another name here. Remedy: use broker_preferred: backup."),
    ({"broker_cluster_password": "CHANGE ME!!"}, "b: broker_cluster_password: is a default password"),
    ({"broker_cluster_password": "short"}, "b: broker_cluster_password: has fewer than 12 characters."),
    (
        {"shared_store_lease_seconds": 4},
        "b: shared_store_lease_seconds: the lease of 4000 ms is shorter than the guard",
    ),
    ({"broker_port_offset": "ten"}, "b: broker_port_offset: must be an integer, is text."),
    ({"broker_ha_policy": "shared-store"}, "b: broker_ha_policy: 'shared-store' is not one of 'none', 'shared_store'"),
    ({"broker_answer_timeout": 0}, "b: broker_answer_timeout: must be at least 1 second."),
    ({"broker_root": "opt"}, "b: broker_root: 'opt' is not an absolute path."),
    ({"broker_core_settings": {"name": "x"}}, "b: broker_core_settings: 'name' is derived by this bundle."),
]


@pytest.mark.parametrize(("variables", "message"), REFUSED)
def test_refused_with_host_variable_and_remedy(variables: dict[str, Any], message: str) -> None:
    found = model(a=broker("live"), b=broker("backup", **variables))
    assert any(problem.startswith(message) for problem in found["problems"]), found["problems"]
    assert all("Remedy: " in problem for problem in found["problems"])


@pytest.mark.parametrize("option", ["vers=3", "nfsvers=3", "nolock", "hard", "async", "proto=udp"])
def test_mount_options_that_no_failover_survives(option: str) -> None:
    options = ["vers=4.1", "soft", "sync", "noac", "lookupcache=none", option]
    store = {"shared_store_type": "nfs4", "shared_store_source": "nfs:/pollux", "shared_store_options": options}
    found = model(a=broker("live", **store), b=broker("backup", **store))
    assert [problem.split(" is refused")[0] for problem in found["problems"]] == [
        f"a, b: shared_store_options: '{option}'"
    ]


def test_every_problem_at_once_and_no_secret_in_any() -> None:
    wrong = {"broker_cluster_password": "canary-1", "shared_store_lease_seconds": 1, "broker_typo": 1}
    found = model(a=broker("live", **wrong), b=broker("live", **wrong))
    # Said once for both hosts, but for the second live, which is b's alone.
    assert {problem.split(": ")[1] for problem in found["problems"]} == {*wrong, "broker_preferred"}
    assert sorted({problem.split(": ")[0] for problem in found["problems"]}) == ["a, b", "b"]
    assert "canary" not in "\n".join(found["problems"])


def test_a_missing_secrets_file_is_refused_where_nothing_may_be_generated() -> None:
    found = model(
        files=False, a=broker("live", broker_secrets_generate=False, broker_wheelhouse="", broker_source="/s")
    )
    assert any(
        problem.startswith("a: broker_secrets_file: there is no file /inventory/secrets.yml")
        for problem in found["problems"]
    )


def test_one_machine_with_a_reason() -> None:
    reason = {"topology_single_machine_reason": "a laptop", "ansible_host": "m"}
    found = model(
        a=broker("live", broker_root="/a", **reason),
        b=broker("backup", broker_root="/b", broker_service_name="pollux-b", broker_port_offset=1, **reason),
    )
    assert found["problems"] == []
    clash = model(a=broker("live", **reason), b=broker("backup", **reason))
    assert any("b: broker_acceptors[all]: port 61616 is taken" in problem for problem in clash["problems"])
    assert any("directory /opt/pollux is taken" in problem for problem in clash["problems"])


def test_a_variable_that_is_undefined_inside_is_named_whatever_ansible_calls_undefined() -> None:
    class UndefinedMarker(jinja2.StrictUndefined):
        """As ansible-core 2.19 hands it to filters."""

    found = model(a=broker("live", broker_cluster_password=UndefinedMarker("'vault_x' is undefined")))
    assert any("cannot be evaluated: 'vault_x' is undefined" in problem for problem in found["problems"])
    assert any("vault file that defines vault_x" in problem for problem in found["problems"])


def replicated(count: int = 3, *, brokers: dict[str, Any] | None = None, **nodes: dict[str, Any]) -> dict[str, Any]:
    """A replicated pair and an ensemble of `count` nodes; `nodes` are the variables of some of them."""
    hosts: dict[str, dict[str, Any]] = {
        "a": broker("live", broker_ha_policy="replication", **(brokers or {})),
        "b": broker("backup", broker_ha_policy="replication", **(brokers or {})),
    }
    names = [f"z{number}" for number in range(1, count + 1)]
    hosts |= {name: {"inventory_dir": "/inventory", **nodes.get(name, {})} for name in names}
    groups = {"brokers": ["a", "b"], "zookeeper": names}
    found: dict[str, Any] = topology.topology(hosts, groups, OPTIONS, {}, lambda _: True)
    return found


def test_a_replicated_pair_knows_its_ensemble() -> None:
    found = replicated(z2={"zookeeper_client_port": 2281, "zookeeper_address": "fd00::2"}, z3={"zookeeper_id": 7})
    assert found["problems"] == []
    assert found["brokers"]["a"]["zookeeper"] == "z1:2181,[fd00::2]:2281,z3:2181"
    assert found["brokers"]["a"]["store"] == "/opt/pollux/data"
    assert [node["id"] for node in found["zookeeper"].values()] == [1, 2, 7]
    assert [server["id"] for server in found["zookeeper"]["z3"]["servers"]] == [1, 2, 7]
    assert found["zookeeper"]["z2"]["others"] == ["z1", "z3"]
    assert {"coordination_password", "ensemble_password"} <= set(found["secrets"]["names"])
    # The other member comes to the first acceptor, whatever clients may speak there.
    assert found["brokers"]["a"]["acceptors"][0]["protocols"] == ["AMQP", "STOMP", "MQTT", "CORE"]
    assert model(a=broker("live"), b=broker("backup"))["brokers"]["a"]["acceptors"][0]["protocols"][-1] == "MQTT"
    assert model(a=broker("live"), b=broker("backup"))["secrets"]["names"] == ["cluster_password", "users_key"]


@pytest.mark.parametrize(
    ("found", "problem"),
    [
        (lambda: replicated(0), "a, b: broker_zookeeper: is not set, and the inventory has no ZooKeeper"),
        (lambda: replicated(1), "inventory: topology_zookeeper: 1 ZooKeeper nodes: no majority is left"),
        (lambda: replicated(4), "inventory: topology_zookeeper: 4 ZooKeeper nodes: no more may fail than with one"),
        (lambda: replicated(z2={"zookeeper_id": 3}), "z3: zookeeper_id: 3 is also that of z2"),
        (lambda: replicated(z2={"zookeeper_id": 256}), "z2: zookeeper_id: 256 is outside of 1 to 255"),
        (lambda: replicated(z2={"ansible_host": "z1"}), "z2: ansible_host: is on the same machine (z1) as the Zoo"),
        (
            lambda: replicated(z1={"zookeeper_peer_port": 2181}),
            "z1: zookeeper_peer_port: port 2181 is taken by zookeeper_client_port of z1",
        ),
        (
            lambda: replicated(z1={"ansible_host": "a", "zookeeper_client_port": 61616}),
            "z1: zookeeper_client_port: port 61616 is taken by broker_acceptors[all] of a",
        ),
        (lambda: replicated(z1={"zookeeper_tick_ms": 400}), "z1: zookeeper_tick_ms: differs between the nodes"),
        (
            lambda: replicated(brokers={"broker_session_ms": 900}),
            "a, b: broker_session_ms: 900 is outside of what the ensemble grants (1000 to 60000)",
        ),
        (lambda: replicated(z1={"zookeeper_port": 1}), "z1: zookeeper_port: is not a variable of this bundle"),
        (lambda: replicated(z1={"zookeeper_data": "data"}), "z1: zookeeper_data: 'data' is not an absolute path"),
        (
            lambda: model(a=broker("", broker_ha_policy="replication", broker_zookeeper="z:2181")),
            "a: broker_group: group 'pair1' has one member, so there is nobody to replicate to",
        ),
    ],
)
def test_an_ensemble_that_cannot_work_is_refused(found: Any, problem: str) -> None:
    told = found()["problems"]
    assert any(line.startswith(problem) for line in told), told
    assert all("Remedy: " in line for line in told)


def filtered(**variables: Any) -> list[str]:
    """The problems of an ensemble with packet filters; all but z3 and b are known by address."""
    node = {"zookeeper_firewall": True, **variables}
    addresses = {"z1": "10.0.0.1", "z2": "10.0.0.2"}
    nodes = {
        name: {**node, **({"ansible_host": addresses[name]} if name in addresses else {})}
        for name in ("z1", "z2", "z3")
    }
    hosts = {
        "a": broker("live", broker_ha_policy="replication", ansible_host="10.0.1.1"),
        "b": broker("backup", broker_ha_policy="replication"),
        **{name: {"inventory_dir": "/inventory", **given} for name, given in nodes.items()},
    }
    found = topology.topology(hosts, {"brokers": ["a", "b"], "zookeeper": list(nodes)}, OPTIONS, {}, lambda _: True)
    if not found["problems"]:
        assert found["zookeeper"]["z1"]["known_clients"] == ["10.0.1.1"]
        assert found["zookeeper"]["z1"]["known_nodes"] == ["10.0.0.1", "10.0.0.2"]
    problems: list[str] = found["problems"]
    return problems


def test_a_packet_filter_keeps_nobody_out_who_needs_the_ensemble() -> None:
    networks = {"zookeeper_firewall_clients": ["10.0.1.0/24"], "zookeeper_firewall_nodes": ["10.0.0.0/24"]}
    assert filtered(**networks) == []
    assert filtered(zookeeper_firewall=False) == []
    clients, nodes = filtered()
    assert clients.startswith(
        "z1, z2, z3: zookeeper_firewall_clients: is empty, and not known by address: b; the packet"
    )
    # z3 itself needs no rule for itself.
    assert nodes.startswith(
        "z1, z2: zookeeper_firewall_nodes: is empty, and not known by address: z3; the packet filter"
    )
    (problem,) = filtered(**{**networks, "zookeeper_firewall_clients": ["10.0.1.1/24"]})
    assert problem.startswith("z1, z2, z3: zookeeper_firewall_clients: '10.0.1.1/24' is not a network.")


def voting(pairs: int = 3, *, everybody: dict[str, Any] | None = None, **some: dict[str, Any]) -> dict[str, Any]:
    """Pairs a1 and b1, a2 and b2 ... without ZooKeeper; `some` are the variables of some of these hosts."""
    hosts: dict[str, Any] = {
        f"{member}{pair}": broker(
            "live" if member == "a" else "backup",
            broker_group=f"pair{pair}",
            broker_ha_policy="replication",
            broker_coordination="votes",
            **(everybody or {}),
        )
        for pair in range(1, pairs + 1)
        for member in "ab"
    }
    for host, variables in some.items():
        hosts[host].update(variables)
    return model(**hosts)


def test_pairs_that_vote_are_one_cluster() -> None:
    found = voting()
    assert found["problems"] == []
    first = found["brokers"]["b1"]
    assert (first["votes"], first["part"], first["zookeeper"]) == (3, "backup", "")
    assert first["peers"] == ["a1", "a2", "b2", "a3", "b3"]
    assert [connector["name"] for connector in first["connectors"]] == ["a1", "b1", "a2", "b2", "a3", "b3"]
    # Clients of a pair go to that pair.
    assert found["groups"]["pair1"]["client_url"] == "(tcp://a1:61616,tcp://b1:61616)?reconnectAttempts=-1"
    assert found["secrets"]["names"] == ["cluster_password", "users_key"]
    assert "CORE" in first["acceptors"][0]["protocols"]
    # Who asks ZooKeeper is no part of it.
    mixed = voting(
        4, **{f"{member}4": {"broker_coordination": "zookeeper", "broker_zookeeper": "z:2181"} for member in "ab"}
    )
    assert mixed["problems"] == []
    assert (mixed["brokers"]["a1"]["votes"], mixed["brokers"]["a4"]["votes"]) == (3, 0)
    assert "a4" not in mixed["brokers"]["a1"]["peers"]
    assert mixed["brokers"]["a4"]["peers"] == ["b4"]


def test_each_pair_chooses_whether_a_live_that_lost_its_backup_goes_on() -> None:
    alone = {"broker_vote_on_replication_failure": False}
    assert voting(a3=alone, b3=alone)["problems"] == []


def test_too_few_pairs_are_accepted_with_a_reason() -> None:
    found = voting(1)
    (problem,) = found["problems"]
    assert problem.startswith("a1: broker_coordination: 1 replicated groups vote, too few to tell a dead live from")
    assert voting(2)["problems"] != []
    found = voting(1, everybody={"topology_few_pairs_reason": "nobody minds"})
    assert found["problems"] == []
    assert found["brokers"]["a1"]["votes"] == 1


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"a2": {"broker_preferred": "backup"}}, "a2: broker_preferred: group 'pair2' has backups but no preferred"),
        (
            {"a2": {"broker_preferred": ""}, "b2": {"broker_preferred": ""}},
            "a2: broker_preferred: group 'pair2' votes and has no preferred live",
        ),
        ({"b2": {"broker_preferred": ""}}, "b2: broker_preferred: is empty, but its group votes"),
        ({"b3": {"broker_zookeeper": "z:2181"}}, "b3: broker_zookeeper: is set, but broker_coordination is votes"),
        ({"b3": {"broker_coordination": "zookeeper"}}, "b3: broker_coordination: differs from that of a3 in the same"),
        ({"a3": {"broker_cluster_user": "other"}}, "a3: broker_cluster_user: differs from that of a1, and both vote"),
        (
            {"b3": {"broker_vote_on_replication_failure": False}},
            "b3: broker_vote_on_replication_failure: differs from that of a3 in the same group 'pair3'",
        ),
        (
            {"a3": {"broker_start_timeout": 60}},
            "a3: broker_start_timeout: 60 s are over before the votes of a start are (60 s)",
        ),
        ({"a3": {"broker_session_ms": 900}}, "a3: broker_session_ms: 900 is a silence that a busy network has"),
    ],
)
def test_votes_that_cannot_work_are_refused(given: dict[str, Any], problem: str) -> None:
    told = voting(**given)["problems"]
    assert any(line.startswith(problem) for line in told), told


NODE_TLS = {f"zookeeper_tls_{name}": f"/tls/{name}.pem" for name in ("certificate", "key", "authorities")}
BROKER_TLS = {f"broker_{name}": path for name, path in NODE_TLS.items()}


def encrypted(how: str = "required", *, broker: bool = True, **variables: Any) -> list[str]:
    """The problems of an ensemble with TLS; `variables` are of its nodes or of its brokers."""
    nodes = {"zookeeper_tls": how, **NODE_TLS}
    brokers = {"broker_zookeeper_tls": broker, **BROKER_TLS}
    for name, value in variables.items():
        (brokers if name.startswith("broker_") else nodes)[name] = value
    problems: list[str] = replicated(brokers=brokers, z1=nodes, z2=nodes, z3=nodes)["problems"]
    return problems


def test_tls_to_an_ensemble_is_all_or_on_its_way() -> None:
    assert encrypted() == []
    assert [encrypted(how, broker=broker) for how in ("accepted", "used") for broker in (True, False)] == [[]] * 4
    assert encrypted("none", broker=False) == []
    (problem,) = encrypted(broker=False)
    assert problem.startswith("a, b: broker_zookeeper_tls: is false, but zookeeper_tls is required")
    (problem,) = encrypted("none")
    assert problem.startswith("a, b: broker_zookeeper_tls: is true, but zookeeper_tls is none")
    (problem,) = encrypted(zookeeper_tls_key="")
    assert problem.startswith("z1, z2, z3: zookeeper_tls_key: is not set, but zookeeper_tls needs it.")
    (problem,) = encrypted(broker_zookeeper_tls_authorities="")
    assert problem.startswith("a, b: broker_zookeeper_tls_authorities: is not set, but broker_zookeeper_tls needs it.")


def test_what_another_ensemble_wants_to_see_is_not_known_but_half_a_key_is_no_use() -> None:
    foreign = {"broker_zookeeper": "zk.example.com:2281", "broker_zookeeper_tls": True}
    assert replicated(0, brokers=foreign)["problems"] == []
    assert replicated(0, brokers=foreign)["brokers"]["a"]["zookeeper_tls"] is True
    (problem,) = replicated(0, brokers={**foreign, "broker_zookeeper_tls_certificate": "/a.pem"})["problems"]
    assert problem.startswith("a, b: broker_zookeeper_tls_key: is not set")


def test_an_ensemble_of_somebody_else_needs_no_group() -> None:
    found = replicated(0, brokers={"broker_zookeeper": "zk.example.com:2181"})
    assert found["problems"] == []
    assert found["brokers"]["b"]["zookeeper"] == "zk.example.com:2181"
    assert "ensemble_password" not in found["secrets"]["names"]
