"""Filters that show an inventory and what its brokers said (results of pollux_info) to people. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.pollux.bundle.plugins.plugin_utils.answers import said as said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


def plan(topology: Mapping[str, Any]) -> list[str]:
    """Return a line for each group and each of its members: what an inventory means."""
    lines = []
    for name, group in topology["groups"].items():
        store = group["store"]
        place = f" on {store['source']}" if store["source"] else ""
        kept = f", journal in {store['path']}{place}" if group["policy"] in ("shared_store", "colocated") else ""
        if database := topology["brokers"][group["members"][0]]["database"]:
            kept = f", store in {database['url'].partition('?')[0]}"
        lines.append(
            f"group {name} ({group['policy']}{', symmetric' if group['symmetric'] else ''}"
            f"{', votes' if group['votes'] else ''}){kept}"
        )
        lines.append(f"  clients: {group['client_url']}")
        lines += [f"  {line}" for line in group["cluster"].get("plan", [])]
        for host in group["members"]:
            broker = topology["brokers"][host]
            ports = ", ".join(f"{acceptor['name']} {acceptor['netloc']}" for acceptor in broker["acceptors"])
            part = "live at home" if broker["colocated"] else broker["preferred"] or "equal"
            lines.append(f"  {host}: {part}, {ports}, management {broker['management']['url']}")
            if broker["colocated"]:
                shifts = ", ".join(f"+{shift}" for shift in broker["colocated"]["shifts"]) or "none"
                lines.append(f"    backups that it takes in have its ports {shifts}")
    for name, members in clusters(topology).items():
        own = [topology["brokers"][host]["cluster"] for host in members]
        how = "multicast" if own[0]["multicast"] else "static connectors"
        lines.append(f"cluster {name} ({how}, max-hops {', '.join(sorted({str(one['hops']) for one in own}))})")
        links = {
            topology["brokers"][host]["group"]: list(one["reaches"]) for host, one in zip(members, own, strict=True)
        }
        lines += [f"  {group} - {', '.join(reached) or 'nobody yet'}" for group, reached in links.items()]
    return lines


def report(topology: Mapping[str, Any], hostvars: Mapping[str, Any], variable: str) -> list[str]:
    """Return a line for each group and each of its members; ``variable`` holds a member's answer."""
    lines = []
    for name, group in topology["groups"].items():
        lines.append(f"group {name}: {group['client_url']}")
        for host in group["members"]:
            said = said_by(hostvars, host, variable)
            if not said:
                lines.append(f"  {host}: not asked")
                continue
            parts = [str(said.get("state"))]
            if said.get("epoch"):
                parts.append(f"epoch {said['epoch']}")
            if said.get("messages") is not None:
                parts.append(f"{said['messages']} messages")
            if said.get("version"):
                parts.append(f"version {said['version']}")
            if said.get("reason") and said.get("state") not in ("live", "ready"):
                parts.append(str(said["reason"]))
            parts += [f"needs a restart: {reason}" for reason in said.get("restart_reasons") or ()]
            lines.append(f"  {host}: {', '.join(parts)}")
            lines += [f"    {life}" for life in _lives(said)]
    return lines


def _lives(said: Mapping[str, Any]) -> list[str]:
    """Return a line for each life of a host with colocated backups."""
    lines = []
    for life in (said.get("status") or {}).get("lives") or ():
        backup = life["backup"] or {}
        where = f", backup on {backup['at']}" if backup.get("at") else ""
        slot = f", backup {life['slot']} of this host" if life["slot"] else ""
        lines.append(f"{life['name']}: {life['state']}{slot}{where}")
    return lines


def cluster_report(topology: Mapping[str, Any], hostvars: Mapping[str, Any], variable: str) -> list[str]:
    """Return a line for each node of each cluster; ``variable`` holds what its broker said (of pollux_links)."""
    lines = []
    for name, members in clusters(topology).items():
        lines.append(f"cluster {name}: {len({topology['brokers'][host]['group'] for host in members})} nodes")
        for host in members:
            said = said_by(hostvars, host, variable)
            if not said.get("serves"):
                continue
            broker = topology["brokers"][host]
            found = said["status"]
            linked = broker["cluster"]["reaches"]
            names = _nodes(link for link in found["links"] if link["connected"])
            reached = sum(bool(names & set(mates)) for mates in linked.values())
            lines.append(
                f"  {broker['group']} ({host}): {reached} of {len(linked)} links stand, {said['waiting']} messages wait"
                f" for others, {len(found['routes'])} queues of others are known"
            )
            lines += [f"    {problem}" for problem in said["problems"]]
    return lines


def _nodes(links: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the names of the nodes at the other ends; NAME@HOST is NAME, which a colocated backup serves."""
    return {link["node"].partition("@")[0] for link in links}


def clusters(topology: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return the brokers of each cluster."""
    found: dict[str, list[str]] = {}
    for host, broker in topology["brokers"].items():
        if broker["cluster"]:
            found.setdefault(broker["cluster"]["name"], []).append(host)
    return found


def unserved(
    topology: Mapping[str, Any], cluster: str, results: Sequence[Mapping[str, Any]], stood: Mapping[str, Any] | None
) -> list[str]:
    """Return what is wrong with a cluster whose brokers were asked (results of a loop over pollux_links).

    With ``stood`` (of :func:`links_that_stood`) a group that was no node of it at first needs to be none.
    """
    serving = {topology["brokers"][result["item"]]["group"] for result in results if result.get("serves")}
    members = clusters(topology).get(cluster, [])
    groups = dict.fromkeys(topology["brokers"][host]["group"] for host in members if stood is None or host in stood)
    return [
        f"no member of group {group} serves as a node of cluster {cluster}" for group in groups if group not in serving
    ]


def links_that_stood(
    topology: Mapping[str, Any], hostvars: Mapping[str, Any], variable: str
) -> dict[str, dict[str, list[str]]]:
    """Return for each member of a group that was a node of its cluster which groups that reached, with their members.

    ``variable`` holds what its broker said (of pollux_links). A link counts that stood in both directions.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for members in clusters(topology).values():
        reached: dict[str, dict[str, list[str]]] = {}
        for host in members:
            said = said_by(hostvars, host, variable)
            if said.get("serves"):
                names = _nodes(link for link in said["status"]["links"] if link["connected"])
                names &= _nodes(said["status"]["incoming"])
                broker = topology["brokers"][host]
                reached[broker["group"]] = {
                    group: list(mates) for group, mates in broker["cluster"]["reaches"].items() if names & set(mates)
                }
        for host in members:
            if (group := topology["brokers"][host]["group"]) in reached:
                found[host] = reached[group]
    return found


class FilterModule:
    """Hand the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "pollux_plan": plan,
            "pollux_report": report,
            "pollux_cluster_report": cluster_report,
            "pollux_unserved": unserved,
            "pollux_links_that_stood": links_that_stood,
        }
