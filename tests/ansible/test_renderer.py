"""Every file of inventories/prod, also units and packet filter, is the same whichever hosts a play runs on."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from lxml import etree

from harness.bundle import prod_inventory, write_private
from harness.modules import load
from harness.renderer import HOSTS, RENDER_NODES, Rendering, example, manager
from pollux.cluster.connection.settings import settings_of as link_settings_of
from pollux.config import loads
from pollux.config.acceptors import ConnectorSettings
from pollux.ha.replication.settings import Votes, settings_of

pytestmark = pytest.mark.timeout(900)
TLS = ("certificate", "key", "authorities")
VAULT = {
    "vault_cluster_password": "cluster-password-0815",
    "vault_users_key": "users-key-0815-0815",
    "vault_passwords": {name: f"password-of-{name}" for name in ("orders-service", "operator", "prometheus")},
}


def test_limit_and_serial_change_no_byte_of_any_file(tmp_path: Path) -> None:
    inventory = prod_inventory(tmp_path / "prod")
    authorities = {f"broker_tls{name}": str(tmp_path / f"ca{name}") for name in ("_authorities", "_client_authorities")}
    for name, path in authorities.items():
        Path(path).write_text(f"{name}\n")
    write_private(inventory / "group_vars" / "brokers" / "vault.yml", yaml.safe_dump({**VAULT, **authorities}))
    # Left to its default, which is another role's: rolling_upgrade.yml does not load that one.
    variables = inventory / "group_vars" / "brokers" / "main.yml"
    left = [line for line in variables.read_text().splitlines() if not line.startswith("shared_store_path:")]
    variables.write_text("\n".join(left))
    rendering = Rendering(tmp_path, inventory)
    render = rendering.render
    everything = render("all")
    assert sorted(everything) == HOSTS
    for host in HOSTS:
        files = rendering.files("all", host)
        assert sorted(files) == [
            "/etc/systemd/system/pollux-firewall.service",
            "/etc/systemd/system/pollux.service",
            "/opt/pollux/bin/pollux",
            "/opt/pollux/etc/broker.xml",
            "/opt/pollux/etc/secrets.env",
            "/opt/pollux/etc/tls/broker.pem",
            "/opt/pollux/etc/tls/brokers.pem",
            "/opt/pollux/etc/tls/clients.pem",
            "/opt/pollux/firewall.nft",
        ]
        assert connector_to(partner(host), files["/opt/pollux/etc/broker.xml"]) == ConnectorSettings(
            ssl_enabled=True,
            trust_store_path=Path("/opt/pollux/etc/tls/brokers.pem"),
            key_store_path=(Path("/opt/pollux/etc/tls/broker.pem"),),
        ), "what is rendered for one names the other, and verifies it"
        assert files["/opt/pollux/etc/tls/brokers.pem"] == "broker_tls_authorities\n"
        assert "\nRequiresMountsFor=/srv/pollux\n" in files["/etc/systemd/system/pollux.service"]
    assert render("limited", "--limit", HOSTS[3]) == {HOSTS[3]: everything[HOSTS[3]]}
    assert render("serial", batch=1) == everything


def connector_to(host: str, document: str) -> ConnectorSettings:
    """How a broker with this broker.xml reaches a host."""
    properties = {"pollux.cluster.password": "of the cluster"}
    found = loads(document, properties, file="/opt/pollux/etc/broker.xml")
    (connector,) = [one for one in found.connectors if one.name == host]
    (endpoint,) = connector.endpoints
    assert (endpoint.host, endpoint.port) == (host, 5671)
    return endpoint.settings


def test_brokers_that_vote_name_all_others_and_know_how_many_pairs_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = example(tmp_path, "example-votes")
    variables = inventory / "group_vars" / "brokers" / "main.yml"
    write_private(variables, variables.read_text() + "broker_cluster_password: a-cluster-password-0815\n")
    rendering = Rendering(tmp_path, inventory)
    assert sorted(rendering.render("votes")) == HOSTS
    monkeypatch.setenv("POLLUX_CLUSTER_PASSWORD", "a-cluster-password-0815")
    for host in HOSTS:
        files = rendering.files("votes", host)
        assert "close-session" not in files["/etc/systemd/system/pollux.service"]
        assert "ZOOKEEPER" not in files["/opt/pollux/etc/secrets.env"]
        configuration = loads(files["/opt/pollux/etc/broker.xml"])
        settings = settings_of(configuration)
        assert settings is not None
        live = host.startswith(("broker1a", "broker2a", "broker3a"))
        assert settings.role == ("live" if live else "backup")
        assert settings.group == f"pair{host[len('broker')]}"
        assert settings.votes == Votes(3, 12, 5.0, 30.0, on_replication_failure=True, check_for_live=live)
        assert sorted(endpoint.host for endpoint in settings.endpoints) == [name for name in HOSTS if name != host]
        assert (settings.silence, settings.allow_failback) == (6.0, not live)
        # They are in no cluster: nobody is asked again and again for a link that would be refused.
        assert link_settings_of(configuration).retry == 60.0
        assert not [warning for warning in configuration.warnings if "vote" in warning.message]


def test_only_brokers_and_nodes_reach_a_node_of_zookeeper(tmp_path: Path) -> None:
    inventory = example(tmp_path, "example-replication")
    nodes = {
        "zookeeper_firewall": True,
        "zookeeper_firewall_clients": ["10.0.1.0/24"],
        "zookeeper_tls": "required",
        "broker_zookeeper_tls": True,
        **{f"{role}zookeeper_tls_{name}": str(tmp_path / name) for role in ("", "broker_") for name in TLS},
    }
    for name in TLS:
        (tmp_path / name).write_text(f"the {name}")
    hosts = {f"zk{number}.example.com": {"ansible_host": f"10.0.0.{number}"} for number in (1, 2, 3)}
    added = {"zookeeper": {"hosts": hosts}, "all": {"vars": nodes}}
    (inventory / "more.yml").write_text(yaml.safe_dump(added))
    rendering = Rendering(tmp_path, inventory, RENDER_NODES, "zookeeper")
    assert sorted(rendering.render("nodes")) == sorted(hosts)
    files = rendering.files("nodes", "zk2.example.com")
    rules = [line.strip() for line in files["/opt/pollux-zookeeper/firewall.nft"].splitlines() if "tcp" in line]
    assert rules == [
        "tcp dport { 2181 } ip saddr { 10.0.0.1, 10.0.0.2, 10.0.0.3, 10.0.1.0/24 } accept",
        "tcp dport { 2181 } drop",
        "tcp dport { 2888, 3888 } ip saddr { 10.0.0.1, 10.0.0.2, 10.0.0.3 } accept",
        "tcp dport { 2888, 3888 } drop",
    ]
    unit = files["/etc/systemd/system/pollux-zookeeper-firewall.service"]
    assert "Before=network-pre.target pollux-zookeeper.service" in unit
    assert "ExecStart=/usr/sbin/nft --file /opt/pollux-zookeeper/firewall.nft" in unit
    assert files["/opt/pollux-zookeeper/tls.pem"] == "the certificate\nthe key\n"
    settings = files["/opt/pollux-zookeeper/zoo.cfg"].splitlines()
    for line in ("secureClientPort=2181", "sslQuorum=true", "portUnification=false", "ssl.quorum.clientAuth=need"):
        assert line in settings
    assert "/usr/share/java/netty-handler.jar" in files["/etc/systemd/system/pollux-zookeeper.service"]


def test_brokers_under_a_resource_manager_know_each_other_and_start_at_no_boot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = example(tmp_path, "example-active-passive")
    variables = inventory / "group_vars" / "brokers" / "main.yml"
    more = "broker_cluster_password: a-cluster-password-0815\nbroker_grant_lease_ms: 6500\n"
    write_private(variables, variables.read_text() + more)
    rendering = Rendering(tmp_path, inventory)
    hosts = sorted(rendering.render("brokers"))
    assert hosts == [f"broker{number}.example.com" for number in (1, 2, 3)]
    monkeypatch.setenv("POLLUX_CLUSTER_PASSWORD", "a-cluster-password-0815")
    for host in hosts:
        files = rendering.files("brokers", host)
        given = loads(files["/opt/pollux/etc/broker.xml"]).active_passive
        assert given is not None
        assert [str(one) for one in given.brokers] == [f"192.0.2.{number}:61616" for number in (11, 12, 13)]
        assert [str(one) for one in given.public] == ["192.0.2.10:61616"]
        assert (given.link_heartbeat_interval, given.ha_backup_timeout, given.ha_replicate.value) == (10.0, 10.0, "all")
        assert given.grant_lease == 6.5
        unit = files["/etc/systemd/system/pollux.service"].splitlines()
        assert "Restart=no" in unit
        assert "Before=pacemaker.service" in unit
        assert "ExecStopPost=-+/opt/pollux/bin/tell-manager" in unit
        assert "[Install]" not in unit
        assert "POLLUX_RUN='/opt/pollux/data/journal'" in files["/opt/pollux/bin/pollux"]


def test_a_cluster_fences_and_has_its_address_after_the_promotion(tmp_path: Path) -> None:
    inventory = example(tmp_path, "example-active-passive")
    plays = manager("pacemaker", "system.yml", {"path": "cib", "template": "cib.xml.j2"})
    rendering = Rendering(tmp_path, inventory, plays, "pacemaker")
    hosts = sorted(rendering.render("cluster"))
    all_files = [rendering.files("cluster", host) for host in hosts]
    assert all_files[0] == all_files[1] == all_files[2]
    files = all_files[0]
    settings = [line.strip() for line in files["/etc/corosync/corosync.conf"].splitlines()]
    for line in ("token: 1000", "consensus: 2400", "crypto_cipher: aes256", "ring0_addr: 192.0.2.13", "nodeid: 3"):
        assert line in settings
    assert len(files["/etc/corosync/authkey"]) == 128
    assert "manager-key" not in files["/etc/corosync/authkey"]
    cib = etree.fromstring(files["cib"].encode())
    values = {one.get("name"): str(one.get("value")) for one in cib.iter("nvpair")}
    assert (values["stonith-enabled"], values["no-quorum-policy"]) == ("true", "demote")
    assert values["members"].split()[2] == "broker3.example.com=192.0.2.13:61616"
    assert int(values["migration-threshold"]) > 2 * 3, "an end of a process counts three times, and may come twice"
    assert len({one.get("id") for one in cib.iter() if one.get("id")}) == sum(1 for one in cib.iter() if one.get("id"))
    assert [one.get("type") for one in cib.iter("primitive")] == ["broker", "IPaddr2", *["fence_ipmilan"] * 3]
    (colocation,) = cib.iter("rsc_colocation")
    assert (colocation.get("with-rsc-role"), colocation.get("score")) == ("Promoted", "INFINITY")
    (order,) = cib.iter("rsc_order")
    assert (order.get("first-action"), order.get("then"), order.get("kind")) == (
        "promote",
        "pollux-address",
        "Mandatory",
    )
    elsewhere = {(one.get("rsc"), one.get("node")) for one in cib.iter("rsc_location")}
    assert ("fence-ipmi2", "broker2.example.com") in elsewhere
    intervals = [one.get("interval") for one in cib.iterfind(".//primitive[@id='pollux']//op[@name='monitor']")]
    assert len(set(intervals)) == 2, "pacemaker tells monitors apart by their intervals"


@pytest.mark.parametrize(
    ("inventory_has_it", "said"),
    [(True, ["host: 192.0.2.20", "tls: required"]), (False, ["host: vote.example.com", "tls: on"])],
)
def test_a_third_vote_of_the_inventory_is_asked_with_certificates(
    tmp_path: Path, inventory_has_it: bool, said: list[str]
) -> None:
    inventory = example(tmp_path, "example-active-passive")
    variables = {"pacemaker_qnetd": "vote.example.com"}
    hosts = {"vote.example.com": {"ansible_host": "192.0.2.20"}} if inventory_has_it else {}
    added = {"votes": {"hosts": hosts}, "brokers": {"vars": variables}}
    (inventory / "more.yml").write_text(yaml.safe_dump(added))
    rendering = Rendering(tmp_path, inventory, manager("pacemaker", "system.yml"), "pacemaker")
    host = min(rendering.render("cluster"))
    settings = [line.strip() for line in rendering.files("cluster", host)["/etc/corosync/corosync.conf"].splitlines()]
    assert [line for line in settings if line.startswith(("host:", "tls:"))] == said


def test_the_cluster_conf_of_the_example_passes_rgmanagers_rules(tmp_path: Path) -> None:
    inventory = example(tmp_path, "example-rgmanager")
    rendering = Rendering(tmp_path, inventory, manager("rgmanager", "main.yml"), "rgmanager")
    hosts = sorted(rendering.render("cluster"))
    files = rendering.files("cluster", hosts[0])
    text = files["/etc/cluster/cluster.conf"]
    conf = load("filter_plugins/cluster_conf.py")
    assert conf.cluster_conf_problems(text) == []
    order = conf.cluster_conf_plan(text)["order"][-1]
    assert order.startswith("qpidd-primary-service: starts script qpidd-primary, ip 192.0.2.10; stops ip 192.0.2.10,")
    assert "POLLUX_USER='pollux'" in files["/etc/sysconfig/qpidd"]
    assert files["/etc/init.d/qpidd-primary"].startswith("#!/bin/sh")


def partner(host: str) -> str:
    """The other member of a pair."""
    group = host[len("broker")]
    return next(name for name in HOSTS if name != host and name[len("broker")] == group)


def test_brokers_with_their_store_in_a_database(tmp_path: Path) -> None:
    """`pollux check` accepts what is rendered; the password is in one private file."""
    inventory = example(tmp_path, "example-database")
    (inventory / "files").mkdir()
    (inventory / "files" / "database-authorities.crt").write_text("authorities\n")
    password = "database-canary-0815"
    given = {"database_store_password": password, "broker_cluster_password": "cluster-password-0815"}
    write_private(inventory / "group_vars" / "brokers" / "vault.yml", yaml.safe_dump(given))
    rendering = Rendering(tmp_path, inventory)
    hosts = sorted(rendering.render("brokers"))
    assert hosts == [f"broker{pair}{member}.example.com" for pair in "12" for member in "ab"]
    for host in hosts:
        files = rendering.files("brokers", host)
        document = files["/opt/pollux/etc/broker.xml"]
        assert [path for path, text in files.items() if password in text] == ["/opt/pollux/etc/secrets.env"]
        assert f"POLLUX_DATABASE_PASSWORD='{password}'" in files["/opt/pollux/etc/secrets.env"].splitlines()
        assert files["/opt/pollux/etc/tls/database.pem"] == "authorities\n"
        assert "RequiresMountsFor" not in files["/etc/systemd/system/pollux.service"]
        properties = {"pollux.cluster.password": "cluster-password-0815", "pollux.database.password": password}
        found = loads(document, properties, file="/opt/pollux/etc/broker.xml")
        assert found.warnings == ()
        assert found.database is not None
        assert found.database.jdbc_connection_url == (
            f"jdbc:postgresql://db1.example.com,db2.example.com/pollux_pair{host[6]}"
            "?sslmode=verify-full&sslrootcert=/opt/pollux/etc/tls/database.pem"
        )
        assert (found.database.jdbc_user, found.database.jdbc_password) == ("pollux", password)
        assert found.shares_store
