"""Clusters: groups that serve at the same time and forward messages to each other; and how their nodes find each other.

A node of a cluster is a group, whatever its policy. Without ``broker_links`` every group links to every other one; with
it, only along these links, which count in both directions: so a chain and a ring are named once.
"""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from typing import TYPE_CHECKING, Any

from .electorate import votes
from .problems import Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .member import Member

#: Elements of a cluster connection that come from other variables.
DERIVED = {
    "address": "broker_cluster_addresses",
    "allow-direct-connections-only": "broker_links",
    "connector-ref": "broker_address",
    "discovery-group-ref": "broker_cluster_discovery",
    "forward-when-no-consumers": "broker_load_balancing",
    "max-hops": "broker_max_hops",
    "message-load-balancing": "broker_load_balancing",
    "name": "broker_cluster",
    "static-connectors": "broker_links",
}
#: What all nodes of a cluster must agree about: without it they do not find, or do not believe, each other, or two of
#: them look at the same duplicate ids.
_SAME = (
    *("broker_cluster_user", "broker_cluster_password", "broker_cluster_discovery"),
    *("broker_multicast_address", "broker_multicast_port", "broker_cluster_duplicate_ids"),
)

Groups = dict[str, dict[str, list["Member"]]]


def clusters_of(members: Sequence[Member]) -> Groups:
    """Return the members of each cluster by group; brokers of no cluster are left out."""
    found: Groups = defaultdict(lambda: defaultdict(list))
    for member in members:
        if member.value["broker_cluster"]:
            found[member.value["broker_cluster"]][member.group].append(member)
    return found


def neighbours(groups: Mapping[str, Sequence[Member]]) -> dict[str, list[str]]:
    """Return to which groups each group of a cluster links, in the inventory's order."""
    wanted = {group: set(mates[0].value["broker_links"]) & set(groups) - {group} for group, mates in groups.items()}
    if not any(wanted.values()):
        return {group: [other for other in groups if other != group] for group in groups}
    return {group: [other for other in groups if other in wanted[group] or group in wanted[other]] for group in groups}


def distances(links: Mapping[str, Sequence[str]], start: str) -> dict[str, int]:
    """Return over how many links each group is reached that is reached at all."""
    found = {start: 0}
    edge = [start]
    while edge:
        following = [other for group in edge for other in links[group] if other not in found]
        edge = list(dict.fromkeys(following))
        found |= dict.fromkeys(edge, max(found.values()) + 1)
    return found


def hops(links: Mapping[str, Sequence[str]]) -> int:
    """Return over how many links the most distant groups reach each other."""
    return max((max(distances(links, group).values()) for group in links), default=0)


def cluster_model(member: Member, clusters: Groups) -> dict[str, Any]:
    """Return what is a broker's own of its cluster; nothing of a broker without one."""
    value = member.value
    name = value["broker_cluster"]
    if not name:
        return {}
    groups = clusters[name]
    links = neighbours(groups)
    every = {one.name: one for mates in groups.values() for one in mates}
    given = {key.replace("_", "-"): item for key, item in value["broker_cluster_settings"].items()}
    return {
        "name": name,
        "reaches": {group: [one.name for one in groups[group]] for group in links[member.group]},
        "members": list(every),
        "direct": any(one.value["broker_links"] for one in every.values()),
        "hops": value["broker_max_hops"] if value["broker_max_hops"] >= 0 else max(1, hops(links)),
        "multicast": value["broker_cluster_discovery"] == "multicast",
        "balancing": value["broker_load_balancing"],
        "addresses": ",".join(value["broker_cluster_addresses"]),
        "duplicate_ids": ",".join(value["broker_cluster_duplicate_ids"]),
        "redistribution_delay": value["broker_redistribution_delay_ms"],
        "settings": sorted(given.items()),
    }


def known(member: Member, clusters: Groups) -> list[Member]:
    """Return the brokers of other groups that a broker connects to, or is connected to by."""
    name = member.value["broker_cluster"]
    if not name:
        return []
    groups = clusters[name]
    return [one for group in neighbours(groups)[member.group] for one in groups[group]]


def check_clusters(members: Sequence[Member], clusters: Groups, problems: list[Problem]) -> None:
    """Refuse clusters whose nodes would not find, or not believe, each other."""
    for member in members:
        _check_settings(member, problems)
        _check_addresses(member, problems)
    for name, groups in clusters.items():
        every = [one for mates in groups.values() for one in mates]
        _check_same(name, every, problems)
        _check_nodes(name, every, problems)
        _check_links(name, groups, problems)
    _check_voters([member for member in members if votes(member)], problems)


def _check_settings(member: Member, problems: list[Problem]) -> None:
    """Apply the rules about one broker."""
    value = member.value

    def add(variable: str, what: str, remedy: str) -> None:
        problems.append(Problem(member.name, variable, what, remedy))

    if not value["broker_cluster"]:
        if value["broker_links"]:
            add("broker_links", "is set, but broker_cluster is not", "set broker_cluster: NAME for all who are linked")
        return
    for element, variable in DERIVED.items():
        if element in value["broker_cluster_settings"] or element.replace("-", "_") in value["broker_cluster_settings"]:
            add("broker_cluster_settings", f"{element!r} is derived by this bundle", f"remove it and set {variable}")
    if not _is_multicast(value["broker_multicast_address"]):
        what = f"{value['broker_multicast_address']!r} is not an IPv4 multicast address"
        add("broker_multicast_address", what, "choose one of 239.0.0.0/8")
    if not 0 < value["broker_multicast_port"] < 65536:
        add(
            "broker_multicast_port", f"port {value['broker_multicast_port']} is outside of 1 to 65535", "choose another"
        )
    bind = value["broker_multicast_bind_address"]
    if bind and not _is_four(bind):
        what = f"{bind!r} is not an IPv4 address"
        add("broker_multicast_bind_address", what, "write the address of a network interface of this host")
    if value["broker_links"] and value["broker_cluster_discovery"] == "multicast":
        add(
            "broker_cluster_discovery",
            "multicast finds every broker, but broker_links says that not all are linked",
            "set broker_cluster_discovery: static, or remove broker_links",
        )
    if value["broker_max_hops"] < -1:
        add("broker_max_hops", f"{value['broker_max_hops']} is no number of links", "write -1, or 0 and more")
    if value["broker_redistribution_delay_ms"] < -1:
        add("broker_redistribution_delay_ms", "is less than -1", "write -1 (never), or milliseconds")


def _check_addresses(member: Member, problems: list[Problem]) -> None:
    """Apply the rules about the addresses that are the cluster's."""
    value = member.value
    for variable in ("broker_cluster_addresses", "broker_cluster_duplicate_ids"):
        for prefix in value[variable]:
            if not prefix.strip("! ") or "," in prefix:
                what = f"{prefix!r} is no prefix of addresses"
                problems.append(Problem(member.name, variable, what, "write one prefix in each entry"))
    if not value["broker_cluster_duplicate_ids"]:
        return
    what, remedy = "", "set another broker_load_balancing, or remove it"
    if not value["broker_cluster"]:
        what = "is set, but broker_cluster is not"
        remedy = "remove it: a broker alone looks at all duplicate ids by itself"
    elif value["broker_load_balancing"] == "OFF":
        what = "needs messages that leave the node that looks at their ids, and broker_load_balancing is OFF"
    if what:
        problems.append(Problem(member.name, "broker_cluster_duplicate_ids", what, remedy))


def _is_four(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 4
    except ValueError:
        return False


def _is_multicast(text: str) -> bool:
    return _is_four(text) and ipaddress.ip_address(text).is_multicast


def _check_same(name: str, every: Sequence[Member], problems: list[Problem]) -> None:
    first = every[0]
    problems += [
        Problem(
            member.name,
            variable,
            f"differs from that of {first.name}, and both are of the cluster {name!r}",
            "set it for the whole cluster",
        )
        for member in every[1:]
        for variable in _SAME
        if member.value[variable] != first.value[variable]
    ]


def _check_nodes(name: str, every: Sequence[Member], problems: list[Problem]) -> None:
    """Refuse two nodes that others cannot tell apart: by name, or because one connector leads to both."""
    names: dict[str, Member] = {}
    places: dict[tuple[str, int], Member] = {}
    for member in every:
        other = names.setdefault(member.name.casefold(), member)
        if other is not member:
            what = f"is the name of {other.name} of the cluster {name!r} too, but for capitals"
            problems.append(Problem(member.name, "inventory_hostname", what, "rename one"))
        port = member.acceptors[0]["port"] if member.acceptors else 0
        other = places.setdefault((member.address, port), member)
        # What is on one machine is refused by its ports.
        if other is not member and other.machine != member.machine:
            what = f"{member.address}:{port} is where {other.name} of the cluster {name!r} is, too"
            problems.append(Problem(member.name, "broker_address", what, "give each broker an address of its own"))


def _check_links(name: str, groups: Mapping[str, Sequence[Member]], problems: list[Problem]) -> None:
    """Refuse links that lead nowhere, and groups that no link leads to."""
    before = len(problems)
    for group, mates in groups.items():
        for other in mates[0].value["broker_links"]:
            if other == group:
                what, remedy = f"links group {group!r} to itself", "remove it"
            elif other not in groups:
                what = f"group {other!r} is not in the cluster {name!r}, whose groups are {', '.join(groups)}"
                remedy = "correct the name, or set broker_cluster for that group"
            else:
                continue
            problems.append(Problem(mates[0].name, "broker_links", what, remedy))
    links = neighbours(groups)
    first = next(iter(groups))
    lonely = [group for group in groups if group not in distances(links, first)]
    if lonely and len(problems) == before:
        what = f"no links lead from group {first!r} to {', '.join(lonely)} of the cluster {name!r}"
        remedy = "add the group that they are linked to to their broker_links"
        problems.append(Problem(groups[lonely[0]][0].name, "broker_links", what, remedy))


def _check_voters(voters: Sequence[Member], problems: list[Problem]) -> None:
    """Those who vote connect to all others: they are one cluster, or none, and all of them are linked."""
    for member in voters:
        if member.value["broker_cluster"] != voters[0].value["broker_cluster"]:
            what = f"differs from that of {voters[0].name}, and both vote"
            problems.append(Problem(member.name, "broker_cluster", what, "set it for all groups that vote"))
        if member.value["broker_links"]:
            what = "is set, but broker_coordination is votes, for which all groups are linked"
            remedy = "remove it, or set broker_coordination: zookeeper"
            problems.append(Problem(member.name, "broker_links", what, remedy))
