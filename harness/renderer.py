"""Renders the roles' files for the hosts of an inventory, by Ansible, without touching them."""

from __future__ import annotations

import json
import shutil
import sys
from typing import TYPE_CHECKING, Any

import yaml

from harness.bundle import ROOT, Site, tree

if TYPE_CHECKING:
    from pathlib import Path

#: The hosts of the inventories that have three pairs.
HOSTS = [f"broker{group}{member}.example.com" for group in "123" for member in "ab"]
#: Writes what the role would write, a file for each host into OUT (pollux_rendered). The first task loads it.
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
                "pollux_rendered": {
                    "files": "{{ __broker_files + __firewall }}",
                    "out": "{{ out }}/{{ inventory_hostname }}",
                },
            },
        ],
    },
]


#: The same for the nodes of ZooKeeper, whose programs and packet filter are the brokers'.
RENDER_NODES = [
    RENDER[0],
    {
        "name": "Render",
        "hosts": "zookeeper",
        "gather_facts": False,
        "vars": {
            "__zookeeper_secrets": {"secrets": {"ensemble_password": "ensemble-password-0815"}},
            "role_path": str(ROOT / "roles" / "zookeeper"),
        },
        "tasks": [
            {"name": "Model", "ansible.builtin.include_role": {"name": "topology"}},
            {
                "name": "Load the role",
                "ansible.builtin.include_role": {
                    "name": "zookeeper",
                    "tasks_from": "gates.yml",
                    "public": True,
                    "apply": {"when": False},
                },
            },
            {
                "name": "Write",
                "pollux_rendered": {
                    "files": "{{ __zookeeper_files + [__zookeeper_file_rules, __zookeeper_file_firewall] }}",
                    "out": "{{ out }}/{{ inventory_hostname }}",
                },
            },
        ],
    },
]


def manager(role: str, tasks: str, *more: dict[str, Any]) -> list[dict[str, Any]]:
    """The same for what a resource manager's role writes, and ``more`` files."""
    private = {"secrets": {"manager_key": "manager-key-0815-0815"}}
    load = {"name": role, "tasks_from": tasks, "public": True, "apply": {"when": False}}
    files = f"{{{{ __{role}_files + more }}}}"
    play = {
        "name": "Render",
        "hosts": "brokers",
        "gather_facts": False,
        "vars": {
            "__pacemaker_secrets": private,
            "__virtual_ip_unit": "pollux",
            "role_path": str(ROOT / "roles" / role),
            "more": list(more),
        },
        "tasks": [
            {"name": "Load the role", "ansible.builtin.include_role": load},
            {"name": "Write", "pollux_rendered": {"files": files, "out": "{{ out }}/{{ inventory_hostname }}"}},
        ],
    }
    return [RENDER[0], play]


class Rendering:
    """The files that the role would write for the hosts of an inventory, without touching them."""

    def __init__(self, directory: Path, inventory: Path, plays: Any = RENDER, role: str = "broker") -> None:
        self.directory = directory
        self.site = Site(directory)
        self.site.strategy = {}  # actions that stand in for Ansible's are no classes that Mitogen could wrap
        self.site.inventory = inventory
        self.book = directory / "render" / "render.yml"
        self.book.parent.mkdir()
        for kind in ("templates", "files"):
            (self.book.parent / kind).symlink_to(ROOT / "roles" / role / kind)
        (self.book.parent / "action_plugins").symlink_to(ROOT / "tests" / "ansible" / "action_plugins")
        self.book.write_text(yaml.safe_dump(plays, sort_keys=False))

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


def example(directory: Path, name: str) -> Path:
    """A copy of one of the example inventories, with the wheelhouse that it names."""
    checkout = directory / "example"
    shutil.copytree(ROOT / "inventories" / name, checkout / "inventories" / name)
    (checkout / ".pollux" / "wheelhouse").mkdir(parents=True)
    for needed in ("requirements.txt", "with-database"):
        (checkout / ".pollux" / "wheelhouse" / needed).touch()
    for vault in (checkout / "inventories" / name).rglob("vault.yml.example"):
        vault.rename(vault.with_suffix(""))
    return checkout / "inventories" / name
