"""The topology filter: the inventory's variables in, one model of the brokers and every problem out.

It is pure: it sees variables and the roles' argument specifications, opens nothing (whether a file of the controller is
there is asked of the function it is given) and changes nothing. It must not know which hosts a play runs on, so
``--limit`` and ``serial`` cannot change what is rendered from it. It never repeats the value of a secret.

Durations carry their unit in the name; ports are as listened on, with the offset added. What it consists of is in
the collection ``pollux.bundle``, because Ansible lets plugins import what is theirs from collections only.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.clusters import check_clusters, clusters_of
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.colocated import check_colocated
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.database import check_databases, databases
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.electorate import check_electorate, votes
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.ensemble import (
    check_coordination,
    check_ensemble,
    check_filter,
    connect_string_of,
    node_model,
    read_nodes,
)
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.model import group_model, member_model
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.passive import (
    check_passive,
    passive_model,
    virtual_model,
)
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.place import place
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.problems import Problem, merged
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.routers import check_routers
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.rules import (
    check_group,
    check_machines,
    check_member,
    check_site,
)
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.scale_down import check_scaling
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.secrets import check_secrets, secrets_needed
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.variables import ROLES, read, read_member

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.member import Exists, Member, Variables


def topology(
    hostvars: Mapping[str, Variables],
    groups: Mapping[str, Sequence[str]],
    specifications: Mapping[str, Mapping[str, Any]],
    secrets: Mapping[str, Any],
    exists: Exists,
) -> dict[str, Any]:
    """Return the model of an inventory.

    ``hostvars`` are the variables of every host and ``groups`` the inventory's groups; ``specifications`` are the
    options of ``argument_specs`` by role; ``secrets`` is what the secrets file holds so far. The result has ``brokers``
    (by host), ``groups`` (by name), ``zookeeper`` (the ensemble's nodes by host), ``secrets`` (what has to be known:
    users without a password) and ``problems``
    (lines; when there are any, the rest is not to be used).
    """
    problems: list[Problem] = []
    name = next((read(v, "topology_brokers") for v in hostvars.values() if "topology_brokers" in v), None)
    brokers = list(groups.get(str(name or "brokers"), ()))
    if not brokers:
        problems.append(
            Problem("inventory", "topology_brokers", f"there is no host in the group {name or 'brokers'!r}", "add one")
        )
    members = [read_member(host, hostvars[host], specifications, problems) for host in brokers]
    for member in members:
        place(member, problems)
    by_group: dict[str, list[Member]] = defaultdict(list)
    for member in members:
        by_group[member.group].append(member)
    for group, mates in by_group.items():
        check_group(group, mates, problems)
        mates.sort(key=lambda mate: {"live": 0, "": 1, "backup": 2}[mate.preferred])
    nodes = read_nodes(hostvars, groups, specifications, problems)
    check_ensemble(nodes, members, exists, problems)
    check_filter(nodes, members, problems)
    connect_string = connect_string_of(nodes)
    for member in members:
        check_member(member, exists, problems)
        check_coordination(member, nodes, exists, problems)
        check_secrets(member, secrets, exists, problems)
    check_databases(members, exists, problems)
    check_electorate(members, problems)
    clusters = clusters_of(members)
    check_clusters(members, clusters, problems)
    check_colocated(members, clusters, problems)
    check_routers(members, by_group, problems)
    check_scaling(members, clusters, problems)
    check_passive(by_group, problems)
    check_machines(members, problems)
    check_site(members, problems)
    voters = [member for member in members if votes(member)]
    model_groups = {
        group: {**group_model(group, mates), **virtual_model(mates), "cluster": passive_model(group, mates)}
        for group, mates in by_group.items()
    }
    return {
        "brokers": {
            member.name: member_model(member, by_group, clusters, voters, connect_string) for member in members
        },
        "groups": model_groups,
        "databases": databases(members),
        "zookeeper": {node.name: node_model(node, nodes, members) for node in nodes},
        "secrets": secrets_needed(members, nodes),
        "problems": merged(problems),
    }


class FilterModule:
    """Hand the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"pollux_topology": _filter}


def _filter(
    hostvars: Mapping[str, Variables],
    groups: Mapping[str, Sequence[str]],
    specifications: Mapping[str, Mapping[str, Any]],
    secrets: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    options = {role: specifications[role]["argument_specs"]["main"]["options"] for role in ROLES}
    found = topology(hostvars, groups, options, secrets or {}, lambda path: Path(path).expanduser().exists())
    # What is refused is not used, and not shown either: what is wrong with it may be a secret in a wrong place.
    return {"problems": found["problems"]} if found["problems"] else found
