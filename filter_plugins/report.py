"""Filters for what brokers said (results of pollux_info): a report for people, and what is wrong. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def _said(hostvars: Mapping[str, Any], host: str, variable: str) -> Mapping[str, Any]:
    try:
        found = hostvars[host][variable]
    except KeyError:
        return {}
    return found if isinstance(found, Mapping) else {}


def plan(topology: Mapping[str, Any]) -> list[str]:
    """A line for each group and each of its members: what an inventory means."""
    lines = []
    for name, group in topology["groups"].items():
        store = group["store"]
        place = f" on {store['source']}" if store["source"] else ""
        kept = f", journal in {store['path']}{place}" if group["policy"] == "shared_store" else ""
        lines.append(
            f"group {name} ({group['policy']}{', symmetric' if group['symmetric'] else ''}"
            f"{', votes' if group['votes'] else ''}){kept}"
        )
        lines.append(f"  clients: {group['client_url']}")
        for host in group["members"]:
            broker = topology["brokers"][host]
            ports = ", ".join(f"{acceptor['name']} {acceptor['netloc']}" for acceptor in broker["acceptors"])
            lines.append(
                f"  {host}: {broker['preferred'] or 'equal'}, {ports}, management {broker['management']['url']}"
            )
    return lines


def report(topology: Mapping[str, Any], hostvars: Mapping[str, Any], variable: str) -> list[str]:
    """A line for each group and each of its members; ``variable`` holds a member's answer."""
    lines = []
    for name, group in topology["groups"].items():
        lines.append(f"group {name}: {group['client_url']}")
        for host in group["members"]:
            said = _said(hostvars, host, variable)
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
    return lines


def group_problems(
    topology: Mapping[str, Any], hostvars: Mapping[str, Any], variable: str, asked: Sequence[str]
) -> list[str]:
    """What is wrong with groups all of whose members were asked: no live, two lives, a member that cannot take over."""
    lines = []
    for name, group in topology["groups"].items():
        if not set(group["members"]) <= set(asked):
            continue
        states = {host: str(_said(hostvars, host, variable).get("state", "not asked")) for host in group["members"]}
        lives = [host for host, state in states.items() if state == "live"]
        if len(lives) != 1:
            lines.append(f"group {name} has {len(lives)} live brokers ({', '.join(lives) or 'none'}), expected one")
        lines += [
            f"{host} of group {name} cannot take over: it is {state}"
            for host, state in states.items()
            if state not in ("live", "ready")
        ]
    return lines


def rebuild(
    topology: Mapping[str, Any], host: str, hostvars: Mapping[str, Any], variable: str, asked: Sequence[str]
) -> list[str]:
    """Why the copy of ``host`` must not be set aside; nothing when another member serves with the newest data."""
    broker = topology["brokers"].get(host)
    if broker is None:
        named = f"there is no broker {host!r}" if host else "rebuild_confirm is not set"
        return [f"{named}: name the backup whose copy is to be set aside, -e rebuild_confirm=NAME"]
    group = topology["groups"][broker["group"]]
    if group["policy"] != "replication":
        return [f"group {broker['group']} has {group['policy']}, so {host} has no copy of its own"]
    missing = [member for member in group["members"] if member not in asked]
    if missing:
        return [f"--limit leaves out {', '.join(missing)}, which must be asked"]
    lines = []
    states = {member: str(_said(hostvars, member, variable).get("state", "not asked")) for member in group["members"]}
    if states[host] in ("live", "activating", "unreachable"):
        remedy = "stop it first" if states[host] == "unreachable" else "a backup is another one"
        lines.append(f"{host} is {states[host]}, so its store may be the one that counts: {remedy}")
    lives = [member for member, state in states.items() if state == "live" and member != host]
    if len(lives) != 1:
        said = ", ".join(f"{member} is {state}" for member, state in states.items())
        return [
            *lines,
            f"no other member of group {broker['group']} is the one live ({said}): there is nothing to copy",
        ]
    replication = _said(hostvars, lives[0], variable).get("status", {}).get("activation", {}).get("replication") or {}
    mine, agreed = replication.get("sequence"), replication.get("coordinated_sequence")
    if not mine or mine != agreed:
        lines.append(
            f"{lives[0]} serves with sequence {mine}, and {agreed} was agreed on: whose data is the newest is not"
            " certain; wait, or see pollux activation list"
        )
    return lines


def manifest(topology: Mapping[str, Any], group: str, user: str) -> dict[str, Any]:
    """Who takes part in a drill, as ``pollux drill`` reads it; the password is in a file beside it."""
    members = []
    for host in topology["groups"][group]["members"]:
        broker = topology["brokers"][host]
        members.append(
            {
                "name": host,
                "url": broker["connector"]["uri"],
                "management": broker["management"]["url"],
                "pid_file": f"{broker['run']}/pollux.pid",
                "start": [f"{broker['root']}/bin/start"],
                "stop": [f"{broker['root']}/bin/stop"],
            }
        )
    return {"members": members, "user": user, "password_file": "password"}


class FilterModule:
    """What Ansible loads."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """The filters by name."""
        return {
            "pollux_plan": plan,
            "pollux_report": report,
            "pollux_group_problems": group_problems,
            "pollux_manifest": manifest,
            "pollux_rebuild": rebuild,
        }
