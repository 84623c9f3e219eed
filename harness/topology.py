"""The topology filter as tests call it: variables of hosts in, the model or the problems out. No Ansible runs here."""

from __future__ import annotations

from typing import Any

import yaml

from harness.bundle import ROOT
from harness.modules import load

topology = load("filter_plugins/topology.py")
OPTIONS = {
    role: yaml.safe_load((ROOT / "roles" / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"][
        "options"
    ]
    for role in topology.ROLES
}
PASSWORD = "a-long-enough-password-0815"


def broker(preferred: str, **variables: Any) -> dict[str, Any]:
    """Return the variables of a member of the group ``pair1``."""
    return {
        "inventory_dir": "/inventory",
        "broker_group": "pair1",
        "broker_preferred": preferred,
        "broker_wheelhouse": "/wheels",
        **variables,
    }


def model(*, secrets: dict[str, Any] | None = None, files: bool = True, **hosts: dict[str, Any]) -> dict[str, Any]:
    """Return the model of these hosts, all of them brokers."""
    found: dict[str, Any] = topology.topology(hosts, {"brokers": list(hosts)}, OPTIONS, secrets or {}, lambda _: files)
    return found


def cluster(groups: int = 4, *, everybody: dict[str, Any] | None = None, **some: dict[str, Any]) -> dict[str, Any]:
    """Groups g1, g2 ... of one broker each (n1, n2 ...) in one cluster; `some` are the variables of some of them."""
    hosts: dict[str, Any] = {
        f"n{one}": broker("", broker_group=f"g{one}", broker_ha_policy="none", broker_cluster="c", **(everybody or {}))
        for one in range(1, groups + 1)
    }
    for host, variables in some.items():
        hosts.setdefault(host, broker("")).update(variables)
    return model(**hosts)


def chain(count: int, *, ring: bool = False) -> dict[str, Any]:
    """Each group names the next one only."""
    last = count if ring else count - 1
    return {f"n{one}": {"broker_links": [f"g{one % count + 1}"]} for one in range(1, last + 1)}
