"""Every variable is specified, used and documented; what is derived from the specifications is current."""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import jinja2.meta
import jinja2.nodes
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = ROOT / "collections/ansible_collections/pollux/bundle/plugins/plugin_utils/inventory"
ROLES = sorted(path.parents[1] for path in ROOT.glob("roles/*/meta/argument_specs.yml"))
PUBLIC = re.compile(
    r"\b((?:broker|shared_store|database_store|topology|nfs_server|pipeline|zookeeper|pacemaker|rgmanager|virtual_ip)"
    r"_[a-z0-9_]+)\b"
)
#: What Ansible itself defines, of what the bundle uses.
MAGIC = {"inventory_hostname", "inventory_dir", "playbook_dir", "role_path", "ansible_playbook_python", "hostvars"}


@functools.cache
def options() -> dict[str, dict[str, Any]]:
    """The options of all roles."""
    found: dict[str, dict[str, Any]] = {}
    for role in ROLES:
        loaded = yaml.safe_load((role / "meta" / "argument_specs.yml").read_text())
        found |= loaded["argument_specs"]["main"]["options"]
    return found


def templates() -> list[Path]:
    """The templates of all roles, and the partials that they are made of."""
    return sorted(path for path in ROOT.glob("roles/*/templates/**/*") if path.is_file())


@functools.cache
def sources() -> dict[Path, str]:
    """Read all that uses variables: tasks, templates, private variables, playbooks and filters; without comments."""
    paths = [*ROOT.glob("roles/*/tasks/**/*.yml"), *ROOT.glob("roles/*/vars/*.yml"), *templates()]
    paths += [*ROOT.glob("playbooks/*.yml"), *ROOT.glob("filter_plugins/*.py"), *INVENTORY.glob("*.py")]
    return {path: re.sub(r"(?m)^\s*#.*$", "", path.read_text()) for path in paths}


def test_defaults_and_readmes_are_what_the_specifications_say() -> None:
    command = [sys.executable, str(ROOT / "tools" / "bundle_docs.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, f"run tools/bundle_docs.py:\n{done.stdout}{done.stderr}"


@pytest.mark.parametrize("template", templates(), ids=lambda path: path.name)
def test_a_template_uses_only_variables_that_are_specified_or_private(template: Path) -> None:
    environment = jinja2.Environment(autoescape=True)
    parsed = environment.parse(template.read_text())
    for node in parsed.find_all(jinja2.nodes.Filter):  # Ansible's and the bundle's own filters
        environment.filters.setdefault(node.name, str)
    role = ROOT / "roles" / template.relative_to(ROOT / "roles").parts[0]
    private = yaml.safe_load((role / "vars" / "main.yml").read_text())
    known = options().keys() | private.keys() | MAGIC | {"__topology", "_", "process", "filter", "job"}
    assert jinja2.meta.find_undeclared_variables(parsed) - known == set()


def test_every_public_variable_that_is_used_is_specified() -> None:
    # What a name of ours is a part of: other variables' renamed predecessors are in the filter's own table only.
    table = (INVENTORY / "variables.py").read_text()
    renamed = set(re.findall(r'(?m)^    "(\w+)": "', table))
    for path, text in sources().items():
        used = {name for name in PUBLIC.findall(text) if not name.endswith("_")}
        assert used - options().keys() - renamed - {"shared_store_mount"} == set(), path


def test_every_specified_variable_is_used() -> None:
    text = "\n".join(sources().values())
    # The rules about the shared store read some variables by their last part.
    parts = re.findall(r'value\[f"(\w+)\{name\}"\] for name in \(([^)]*)\)', text)
    derived = {f"{prefix}{name}" for prefix, names in parts for name in re.findall(r'"(\w+)"', names)}
    assert {name for name in options() if not re.search(rf"\b{name}\b", text)} - derived == set()


def test_every_variable_is_described_and_no_password_may_be_shown() -> None:
    def walk(found: dict[str, dict[str, Any]], prefix: str = "") -> None:
        for name, option in found.items():
            assert option.get("description"), f"{prefix}{name} has no description"
            assert option.get("type"), f"{prefix}{name} has no type"
            if name.endswith(("password", "users_key")):
                assert option.get("no_log") is True, f"{prefix}{name} may be shown"
            walk(option.get("options") or {}, f"{prefix}{name}.")

    walk(options())
