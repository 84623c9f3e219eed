"""The recovery filter: what recover_split_brain.yml is to do with which directories, or why it must not. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.pollux.bundle.plugins.plugin_utils.answers import said as said_by


def recovery(topology: Mapping[str, Any], asked: Mapping[str, Any], analysts: Sequence[str]) -> dict[str, Any]:
    """Return what to do, with ``problems`` (lines; when there are any, the rest is not to be used).

    ``asked`` are ``confirm`` (the group's name), ``sides`` (directories by host; may be empty) and ``keep`` (a host, or
    auto); ``analysts`` the hosts of the pipeline. Side ``a`` is the group's first member, its preferred live.
    """
    groups = topology["groups"]
    name = str(asked["confirm"])
    if name not in groups:
        said = f"{name!r} is no group" if name else "recover_confirm is not set"
        remedy = f"confirm it with its name (-e recover_confirm=GROUP); the groups are {', '.join(groups)}"
        return {"problems": [f"{said}: this stops every broker of a group and makes one store of two; {remedy}"]}
    group = groups[name]
    if group.get("policy") == "colocated":
        what = f"group {name} is colocated: its backup is a life of another group's host, which would not be stopped"
        return {"problems": [f"{what}; stop all hosts of its cluster, and merge by hand (pollux-pipeline split_brain)"]}
    brokers = {host: topology["brokers"][host] for host in group["members"]}
    stores = {host: broker["store"] for host, broker in brokers.items()}
    # One directory for all: a mounted export, or several brokers of one machine.
    shared = len(set(stores.values())) == 1 and (
        group["store"]["type"] == "nfs4" or len({broker["machine"] for broker in brokers.values()}) == 1
    )
    sides = dict(asked["sides"] or {}) if isinstance(asked["sides"], Mapping) else {}
    problems = _problems(group, brokers, sides, shared=shared)
    if not sides:
        sides = stores
    keep = str(asked["keep"] or "auto")
    hosts = [host for host in group["members"] if host in sides]
    if keep != "auto" and keep not in hosts:
        problems.append(f"recover_keep: {keep!r} is none of {', '.join(hosts)}; leave it out to keep the longer side")
    if not analysts:
        what = "the group pollux_pipeline has no host, and comparing journals needs the pipeline"
        problems.append(f"{what}: add one and run site.yml")
    letters = dict(zip(hosts, "ab", strict=False))
    return {
        "problems": problems,
        "group": name,
        "members": list(group["members"]),
        "sides": {host: {"name": letters.get(host, ""), "directory": str(sides[host])} for host in hosts},
        "hosts": {letter: host for host, letter in letters.items()},
        "keep": letters.get(keep, "auto"),
        "stores": stores,
        "shared": shared,
        "live": group["live"] or group["members"][0],
        "analyst": analysts[0] if analysts else "",
    }


def refusal(
    topology: Mapping[str, Any], asked: Mapping[str, Any], analysts: Sequence[str], hosts: Sequence[str]
) -> list[str]:
    """Return why :func:`recovery` must not begin with the ``hosts`` of this run, line by line; empty when it may."""
    found = recovery(topology, asked, analysts)
    problems = list(found["problems"])
    missing = [host for host in found.get("members", []) if host not in hosts]
    if missing:
        problems.append(f"--limit leaves out {', '.join(missing)}, which must be stopped too")
    return ["Nothing was changed.", *problems] if problems else []


def replays(
    found: Mapping[str, Any], server: str, hostvars: Mapping[str, Any], variable: str, asked: Sequence[str]
) -> str:
    """Return who replays the plan: whoever is live already (this was run before), else ``server``, which is started.

    ``found`` is what :func:`recovery` says; ``variable`` names what holds the answer of a broker that was asked.
    """
    members = [host for host in found["members"] if host in asked]
    return next((host for host in members if said_by(hostvars, host, variable).get("state") == "live"), server)


def _problems(
    group: Mapping[str, Any], brokers: Mapping[str, Any], sides: Mapping[str, Any], *, shared: bool
) -> list[str]:
    example = '{"recover_sides": {"HOST": "/DIRECTORY", "HOST": "/DIRECTORY"}}'
    remedy = f"say where each side's journal is: -e '{example}'"
    problems = [
        f"recover_sides: {host} is no member of group {group['name']}, which are {', '.join(brokers)}"
        for host in sides
        if host not in brokers
    ]
    problems += [
        f"recover_sides: {directory!r} of {host} is not an absolute path"
        for host, directory in sides.items()
        if not str(directory).startswith("/")
    ]
    if sides and len(sides) != 2:
        problems.append(f"recover_sides names {len(sides)} hosts; two sides are merged at a time")
    if sides and len({(brokers[host]["machine"], sides[host]) for host in sides if host in brokers}) < len(sides) == 2:
        problems.append("recover_sides: both sides are the same directory of one machine")
    if not sides and len(brokers) != 2:
        what = f"group {group['name']} has {len(brokers)} members, and two sides are merged at a time"
        problems.append(f"{what}; {remedy}")
    elif not sides and shared:
        place = group["store"]["path"]
        problems.append(f"both members have one store ({place}), which is one side only; {remedy}")
    return problems


class FilterModule:
    """Hand the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "pollux_recovery": recovery,
            "pollux_recovery_refusal": refusal,
            "pollux_recovery_replays": replays,
        }
