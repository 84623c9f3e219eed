"""Every file of inventories/prod, also units and packet filter, is the same whichever hosts a play runs on."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING

import pytest
import yaml

from pollux.config import loads
from pollux.ha.replication.settings import Votes, settings_of
from support.bundle import ROOT, Site, prod_inventory, tree, write_private

if TYPE_CHECKING:
    from pathlib import Path

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


class Rendering:
    """What the role would write for the hosts of an inventory, without touching them."""

    def __init__(self, directory: Path, inventory: Path) -> None:
        self.directory = directory
        self.site = Site(directory)
        self.site.inventory = inventory
        self.book = directory / "render" / "render.yml"
        self.book.parent.mkdir()
        (self.book.parent / "templates").symlink_to(ROOT / "roles" / "broker" / "templates")
        self.book.write_text(yaml.safe_dump(RENDER, sort_keys=False))

    def render(self, name: str, *flags: str, batch: int = len(HOSTS)) -> dict[str, tuple[int, str]]:
        """A file for each host, with all of its files, in the directory of this name."""
        out = self.directory / name
        out.mkdir()
        here = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            "broker_machine": "{{ inventory_hostname }}",
        }
        self.site.run(str(self.book), *flags, extra={**here, "out": str(out), "batch": batch}).succeeded()
        return tree(out)

    def files(self, name: str, host: str) -> dict[str, str]:
        """The files of a host, by path."""
        return {given["path"]: given["content"] for given in json.loads((self.directory / name / host).read_text())}


def test_limit_and_serial_change_no_byte_of_any_file(tmp_path: Path) -> None:
    inventory = prod_inventory(tmp_path / "prod")
    write_private(inventory / "group_vars" / "brokers" / "vault.yml", yaml.safe_dump(VAULT))
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
            "/opt/pollux/firewall.nft",
        ]
        assert f"{partner(host)}:5671" in files["/opt/pollux/etc/broker.xml"], (
            "what is rendered for one names the other"
        )
    assert render("limited", "--limit", HOSTS[3]) == {HOSTS[3]: everything[HOSTS[3]]}
    assert render("serial", batch=1) == everything


def test_brokers_that_vote_name_all_others_and_know_how_many_pairs_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "example"
    shutil.copytree(ROOT / "inventories" / "example-votes", checkout / "inventories" / "example-votes")
    (checkout / ".pollux" / "wheelhouse").mkdir(parents=True)
    (checkout / ".pollux" / "wheelhouse" / "requirements.txt").touch()
    variables = checkout / "inventories" / "example-votes" / "group_vars" / "brokers" / "main.yml"
    write_private(variables, variables.read_text() + "broker_cluster_password: a-cluster-password-0815\n")
    rendering = Rendering(tmp_path, checkout / "inventories" / "example-votes")
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
        assert settings.role == ("primary" if live else "backup")
        assert settings.group == f"pair{host[len('broker')]}"
        assert settings.votes == Votes(3, 12, 5.0, 30.0, on_replication_failure=True, check_for_live=live)
        assert sorted(endpoint.host for endpoint in settings.endpoints) == [name for name in HOSTS if name != host]
        assert (settings.silence, settings.allow_failback) == (6.0, not live)
        assert not [warning for warning in configuration.warnings if "vote" in warning.message]


def partner(host: str) -> str:
    """The other member of a pair."""
    group = host[len("broker")]
    return next(name for name in HOSTS if name != host and name[len("broker")] == group)
