"""Every file of inventories/prod, also units and packet filter, is the same whichever hosts a play runs on."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import yaml

from pollux.config import loads
from pollux.config.acceptors import ConnectorSettings
from support.bundle import ROOT, Site, prod_inventory, tree, write_private

pytestmark = pytest.mark.timeout(900)
HOSTS = [f"broker{group}{member}.example.com" for group in "123" for member in "ab"]
VAULT = {
    "vault_cluster_password": "cluster-password-0815",
    "vault_users_key": "users-key-0815-0815",
    "vault_passwords": {name: f"password-of-{name}" for name in ("orders-service", "operator", "prometheus")},
}
#: Writes what the role would write, a file for each host into OUT. The first task only loads the role.
RENDER = [
    {"name": "Model", "hosts": "brokers", "gather_facts": False, "roles": [{"role": "topology"}]},
    {
        "name": "Render",
        "hosts": "brokers",
        "gather_facts": False,
        "serial": "{{ batch }}",
        "vars": {
            "__broker_release": {"name": "1.0-abc"},
            "__broker_secrets": {"secrets": {}},
            "__firewall": ["{{ __broker_file_rules }}", "{{ __broker_file_firewall }}"],
        },
        "tasks": [
            {
                "name": "Load the role",
                "ansible.builtin.include_role": {
                    "name": "broker",
                    "tasks_from": "info.yml",
                    "public": True,
                    "apply": {"when": False},
                },
            },
            {
                "name": "Write",
                "ansible.builtin.copy": {
                    "content": "{{ __broker_files + __broker_secret_files + __firewall }}",
                    "dest": "{{ out }}/{{ inventory_hostname }}",
                    "mode": "0600",
                },
            },
        ],
    },
]


def test_limit_and_serial_change_no_byte_of_any_file(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.inventory = prod_inventory(tmp_path / "prod")
    authorities = {f"broker_tls{name}": str(tmp_path / f"ca{name}") for name in ("_authorities", "_client_authorities")}
    for name, path in authorities.items():
        Path(path).write_text(f"{name}\n")
    write_private(site.inventory / "group_vars" / "brokers" / "vault.yml", yaml.safe_dump({**VAULT, **authorities}))
    book = tmp_path / "render" / "render.yml"
    book.parent.mkdir()
    (book.parent / "templates").symlink_to(ROOT / "roles" / "broker" / "templates")
    book.write_text(yaml.safe_dump(RENDER, sort_keys=False))

    def render(name: str, *flags: str, batch: int = len(HOSTS)) -> dict[str, tuple[int, str]]:
        out = tmp_path / name
        out.mkdir()
        here = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            "broker_machine": "{{ inventory_hostname }}",
        }
        site.run(str(book), *flags, extra={**here, "out": str(out), "batch": batch}).succeeded()
        return tree(out)

    everything = render("all")
    assert sorted(everything) == HOSTS
    for host in HOSTS:
        files = {given["path"]: given["content"] for given in json.loads((tmp_path / "all" / host).read_text())}
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


def partner(host: str) -> str:
    """The other member of a pair."""
    group = host[len("broker")]
    return next(name for name in HOSTS if name != host and name[len("broker")] == group)
