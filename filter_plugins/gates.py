"""The gates of playbooks: whether it is safe to go on, and with whom, by what brokers said. Pure.

A gate fails closed: a broker that was not asked, or did not answer, passes none. ``topology`` is the model that the
topology filter makes; ``variable`` names the variable of each host that holds its broker's answer (of pollux_info).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.pollux.bundle.plugins.plugin_utils.answers import said as said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: States in which the store of a broker may be the one that counts, and what is to be done.
REMEDIES = {
    "live": "a backup is another one",
    "activating": "a backup is another one",
    "unreachable": "stop it first",
    "unknown": "status.yml says why; mend that first",
}


def group_problems(
    topology: Mapping[str, Any], hostvars: Mapping[str, Any], variable: str, asked: Sequence[str]
) -> list[str]:
    """Return what is wrong with groups that were asked as a whole: no live, two, or a member that cannot take over."""
    lines = []
    for name, group in topology["groups"].items():
        if not set(group["members"]) <= set(asked):
            continue
        if group.get("policy") == "colocated":
            lines += _colocated_problems(topology, group["members"][0], hostvars, variable, asked)
            continue
        states = {host: str(said_by(hostvars, host, variable).get("state", "not asked")) for host in group["members"]}
        lives = [host for host, state in states.items() if state == "live"]
        if len(lives) != 1:
            lines.append(f"group {name} has {len(lives)} live brokers ({', '.join(lives) or 'none'}), expected one")
        lines += [
            f"{host} of group {name} cannot take over: it is {state}"
            for host, state in states.items()
            if state not in ("live", "ready")
        ]
    return lines


def lives_of(topology: Mapping[str, Any], host: str, hostvars: Mapping[str, Any], variable: str) -> dict[str, str]:
    """Return the state of each life of a colocated broker's node, by the host that it is on."""
    node = said_by(hostvars, host, variable).get("node_id")
    found = {}
    for other in topology["brokers"][host]["colocated"].get("members", ()):
        for life in (said_by(hostvars, other, variable).get("status") or {}).get("lives") or ():
            if node and life["nodeId"] == node:
                found[other] = str(life["state"])
    return found


def _colocated_problems(
    topology: Mapping[str, Any], host: str, hostvars: Mapping[str, Any], variable: str, asked: Sequence[str]
) -> list[str]:
    """Return what is wrong with a colocated broker: nobody serves its node, two do, or nobody waits."""
    state = str(said_by(hostvars, host, variable).get("state", "not asked"))
    if state not in ("live", "ready"):
        return [f"{host} does not do its part: it is {state}"]
    colocated = topology["brokers"][host]["colocated"]
    if not set(colocated["members"]) <= set(asked):
        return []  # those who were not asked may have its backup
    lives = lives_of(topology, host, hostvars, variable)
    serving = [one for one, found in lives.items() if found == "live"]
    lines = []
    if len(serving) != 1:
        lines.append(
            f"the node of {host} is served on {len(serving)} hosts ({', '.join(serving) or 'none'}), expected one"
        )
    if colocated["request_backup"] and "ready" not in lives.values():
        lines.append(f"the node of {host} has no backup that can take over")
    return lines


def served_at(topology: Mapping[str, Any], host: str, hostvars: Mapping[str, Any], variable: str) -> dict[str, str]:
    """Return which ``host`` serves a colocated broker's node in its place, and the ``node`` id; empty: none does."""
    for other, state in lives_of(topology, host, hostvars, variable).items():
        if other != host and state == "live":
            return {"host": other, "node": str(said_by(hostvars, host, variable)["node_id"])}
    return {}


def away_refusal(topology: Mapping[str, Any], host: str, said: Mapping[str, Any]) -> str:
    """Return why a colocated broker's host must not be stopped: it is not known to be where its node is served."""
    if not topology["brokers"][host]["colocated"] or said["state"] in ("live", "stopped", "unreachable", "unknown"):
        return ""  # what is down is refused by the other gate
    return f"{host} does not serve its own node ({said['state']}): run failback.yml first"


def rebuild_asked(topology: Mapping[str, Any], host: str, asked: Sequence[str]) -> list[str]:
    """Return why, by the inventory alone, ``host`` has no copy to set aside when the hosts in ``asked`` are asked."""
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
    return []


def rebuild(
    topology: Mapping[str, Any], host: str, hostvars: Mapping[str, Any], variable: str, asked: Sequence[str]
) -> list[str]:
    """Return why the copy of ``host`` must not be set aside; empty when another member serves with the newest data."""
    lines = rebuild_asked(topology, host, asked)
    if lines:
        return lines
    broker = topology["brokers"][host]
    group = topology["groups"][broker["group"]]
    states = {member: str(said_by(hostvars, member, variable).get("state", "not asked")) for member in group["members"]}
    if states[host] in REMEDIES:
        lines.append(f"{host} is {states[host]}, so its store may be the one that counts: {REMEDIES[states[host]]}")
    lives = [member for member, state in states.items() if state == "live" and member != host]
    if len(lives) != 1:
        said = ", ".join(f"{member} is {state}" for member, state in states.items())
        return [
            *lines,
            f"no other member of group {broker['group']} is the one live ({said}): there is nothing to copy",
        ]
    replication = said_by(hostvars, lives[0], variable).get("status", {}).get("activation", {}).get("replication") or {}
    mine, agreed = replication.get("sequence"), replication.get("coordinated_sequence")
    if not mine or mine != agreed:
        lines.append(
            f"{lives[0]} serves with sequence {mine}, and {agreed} was agreed on: whose data is the newest is not"
            " certain; wait, or see pollux activation list"
        )
    return lines


def rebuild_members(topology: Mapping[str, Any], host: str) -> list[str]:
    """Return the members of the group of ``host``, which are asked before its copy is set aside; none of no broker."""
    broker = topology["brokers"].get(host)
    return list(topology["groups"][broker["group"]]["members"]) if broker is not None else []


def rebuild_plan(
    topology: Mapping[str, Any], host: str, hostvars: Mapping[str, Any], variable: str, force: bool
) -> dict[str, Any]:
    """Return whom ``host`` copies from (``live``), and whether that is ``needed``; :func:`rebuild` has no objection."""
    states = {one: said_by(hostvars, one, variable)["state"] for one in rebuild_members(topology, host)}
    return {
        "live": next(one for one, state in states.items() if state == "live"),
        "needed": states[host] != "ready" or force,
    }


def rebuild_refusal(topology: Mapping[str, Any], host: str, hostvars: Mapping[str, Any], variable: str) -> str:
    """Return why the new copy of ``host`` is worth nothing: its live does not count on it. Empty when it does."""
    for live in rebuild_members(topology, host):
        said = said_by(hostvars, live, variable)
        if said.get("state") == "live":
            backups = (said["status"]["activation"].get("replication") or {}).get("backups") or []
            if any(one.get("name") == host and one.get("state") == "in sync" for one in backups):
                return ""
            return f"{live} says of its backups: {backups}"
    return f"nobody is live in the group of {host}"


def switchover_groups(topology: Mapping[str, Any], asked: str) -> list[str]:
    """Return the names in ``asked``, which are separated by commas; those of all groups when it is empty."""
    return [name.strip() for name in asked.split(",")] if asked else list(topology["groups"])


def switchover_refusal(topology: Mapping[str, Any], asked: str) -> str:
    """Return why nobody is to hand over: the inventory lacks groups that are asked for. Empty when it has them all."""
    unknown = [name for name in switchover_groups(topology, asked) if name not in topology["groups"]]
    if not unknown:
        return ""
    return f"switchover_groups names {', '.join(unknown)}; the groups are {', '.join(topology['groups'])}"


def hands_back(topology: Mapping[str, Any], host: str, said: Mapping[str, Any]) -> bool:
    """Tell whether a failback has this broker hand over: it is live, and its group prefers another one."""
    broker = topology["brokers"][host]
    preferred = topology["groups"][broker["group"]]["live"]
    return bool(said["state"] == "live" and preferred not in ("", host))


def failback_refusal(topology: Mapping[str, Any], host: str, said: Mapping[str, Any]) -> str:
    """Return why this broker must not hand over: chance would say who takes over. Empty when it may, or need not."""
    broker = topology["brokers"][host]
    # A resource manager moves it where it is told to.
    managed = topology["groups"][broker["group"]].get("cluster")
    if managed or broker["members"] <= 2 or not hands_back(topology, host, said):
        return ""
    return (
        f"group {broker['group']} has {broker['members'] - 1} backups that wait, and a live hands over to whichever is"
        f" first: stop the ones other than {topology['groups'][broker['group']]['live']}, run this again, and start"
        " them afterwards"
    )


def rolling_order(
    topology: Mapping[str, Any], hostvars: Mapping[str, Any], variable: str, chosen: str, hosts: Sequence[str]
) -> dict[str, Any]:
    """Return in which order those of ``hosts`` whose variable ``chosen`` is true are stopped: backups before lives.

    The result has their names in ``hosts``, and in ``handovers`` how many of them have to hand over first.
    """
    wanted = [host for host in hosts if hostvars[host][chosen]]
    lives = [host for host in wanted if said_by(hostvars, host, variable).get("state") == "live"]
    return {
        "hosts": [host for host in wanted if host not in lives] + lives,
        "handovers": sum(topology["brokers"][host]["members"] > 1 for host in lives),
    }


class FilterModule:
    """Hand the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "pollux_group_problems": group_problems,
            "pollux_served_at": served_at,
            "pollux_away_refusal": away_refusal,
            "pollux_rebuild": rebuild,
            "pollux_rebuild_asked": rebuild_asked,
            "pollux_rebuild_members": rebuild_members,
            "pollux_rebuild_plan": rebuild_plan,
            "pollux_rebuild_refusal": rebuild_refusal,
            "pollux_switchover_groups": switchover_groups,
            "pollux_switchover_refusal": switchover_refusal,
            "pollux_hands_back": hands_back,
            "pollux_failback_refusal": failback_refusal,
            "pollux_rolling_order": rolling_order,
        }
