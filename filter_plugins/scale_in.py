"""Whether a group can leave its cluster (scale_in.yml), who hands over, who is told, what is left to do. Pure.

A gate fails closed: a broker that was not asked, or did not answer, passes none. ``variable`` names the variable of
each host that holds its broker's answer (of pollux_info), ``noted`` the one with what an earlier run noted there:
``stage`` ("" nothing, "begun", "handed over", "removed") and ``node``, the node's id.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.pollux.bundle.plugins.plugin_utils.answers import said as said_by
from ansible_collections.pollux.bundle.plugins.plugin_utils.inventory.clusters import distances

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

#: Stages of a run that was broken off, in their order.
STAGES = ("", "begun", "handed over", "removed")
#: Of groups that vote so many have to be left.
_VOTERS = 3


def asked(topology: Mapping[str, Any], group: str, hosts: Sequence[str]) -> list[str]:
    """Return why, by the inventory alone, ``group`` does not leave its cluster in a run with these ``hosts``."""
    if group not in topology["groups"]:
        said = f"{group!r} is no group" if group else "scale_in_confirm is not set"
        remedy = (
            f"name the group that is to leave, -e scale_in_confirm=GROUP; there are {', '.join(topology['groups'])}"
        )
        return [f"{said}: {remedy}"]
    members = topology["groups"][group]["members"]
    first = topology["brokers"][members[0]]
    if not first["cluster"]:
        return [f"group {group} is in no cluster (broker_cluster), so nobody could have its messages"]
    if first["policy"] == "active_passive":
        return [f"group {group} is run by a resource manager, which would start what this stops: take it out there"]
    others = others_of(topology, group)
    if not others:
        return [
            f"group {group} is the only one of cluster {first['cluster']['name']!r}: nobody could have its messages"
        ]
    lines = []
    missing = [host for host in first["cluster"]["members"] if host not in hosts]
    if missing:
        lines.append(f"--limit leaves out {', '.join(missing)}, which must be asked")
    links = {one: list(topology["brokers"][mates[0]]["cluster"]["reaches"]) for one, mates in others.items()}
    left = {one: [other for other in reached if other != group] for one, reached in links.items()}
    start = next(iter(left))
    apart = [one for one in left if one not in distances(left, start)]
    if apart:
        lines.append(
            f"without group {group} no links lead from group {start} to {', '.join(apart)}: add broker_links"
            " between them, run site.yml and rolling_restart.yml, and then this again"
        )
    if first["votes"] and first["votes"] - 1 < _VOTERS:
        lines.append(
            f"group {group} votes, and without it {first['votes'] - 1} groups do, which is too few for a majority"
            " when one is down: add a group first"
        )
    return lines


def problems(
    topology: Mapping[str, Any], group: str, hostvars: Mapping[str, Any], variable: str, noted: str, *, cancels: bool
) -> list[str]:
    """Return why it is not safe now, by what brokers said; :func:`asked` has no objection. ``cancels``: to stay is."""
    lines = []
    if cancels:
        if stage(topology, group, hostvars, noted) in ("handed over", "removed"):
            why = f"everything of group {group} went, and its brokers are stopped: there is nothing to cancel"
            return [
                f"{why}; run this without scale_in_cancel, and add them to the cluster anew, with empty directories"
            ]
        return _not_one_live(group, topology["groups"][group]["members"], hostvars, variable)
    others = others_of(topology, group)
    if stage(topology, group, hostvars, noted) in ("", "begun"):
        lines += _not_one_live(group, topology["groups"][group]["members"], hostvars, variable)
        targets = topology["brokers"][topology["groups"][group]["members"][0]]["cluster"]["reaches"]
        full = {
            one: live
            for one in targets
            if (live := _live(others[one], hostvars, variable)) and _store(hostvars, live, variable).get("full")
        }
        if len(full) == len(targets):
            brokers = ", ".join(f"{live} of group {one}" for one, live in full.items())
            lines.append(f"the store of every broker that could have its messages is full: {brokers}; make room first")
    for one, mates in others.items():
        lines += _not_one_live(one, mates, hostvars, variable)
    return lines


def plan(
    topology: Mapping[str, Any], group: str, hostvars: Mapping[str, Any], variable: str, noted: str
) -> dict[str, Any]:
    """Return who does what; :func:`problems` has none.

    ``stage``: how far an earlier run came; ``node``: the node's id; ``live``: who hands over, "" once that is done;
    ``waiting``: its backups; ``teller``: the live of another group, who tells the cluster.
    """
    members = topology["groups"][group]["members"]
    now = stage(topology, group, hostvars, noted)
    live = _live(members, hostvars, variable) if now in ("", "begun") else ""
    known = [str((hostvars[host].get(noted) or {}).get("node", "")) for host in members]
    node = str(said_by(hostvars, live, variable).get("node_id", "")) if live else next(filter(None, known), "")
    return {
        "stage": now,
        "node": node,
        "live": live,
        "waiting": [host for host in members if host != live],
        "teller": next(_live(mates, hostvars, variable) for mates in others_of(topology, group).values()),
    }


def asked_members(topology: Mapping[str, Any], group: str, hostvars: Mapping[str, Any], noted: str) -> list[str]:
    """Return the brokers that are asked: all of the cluster, but the leaving ones once they have handed over."""
    if group not in topology["groups"]:
        return []
    own = topology["groups"][group]["members"]
    every = list(topology["brokers"][own[0]]["cluster"]["members"])
    gone = stage(topology, group, hostvars, noted) in ("handed over", "removed")
    return [host for host in every if not gone or host not in own]


def hint(topology: Mapping[str, Any], group: str) -> list[str]:
    """Return what is left to do in the inventory."""
    members = topology["groups"][group]["members"]
    naming = sorted(
        {
            broker["group"]
            for broker in topology["brokers"].values()
            if broker["group"] != group
            and any(group in router.get("groups", ()) for router in broker.get("routers", ()))
        }
    )
    direct = topology["brokers"][members[0]]["cluster"]["direct"]
    return [
        f"group {group} has left cluster {topology['brokers'][members[0]]['cluster']['name']!r}; in the inventory, now",
        f"  take out {', '.join(members)} (site.yml with them still in it starts them again, and they are refused)",
        *([f"  take {group} out of broker_links of others"] if direct else []),
        *([f"  take {group} out of broker_connection_routers of {', '.join(naming)}"] if naming else []),
        "  run site.yml and rolling_restart.yml for the others, and give clients addresses without it",
    ]


def stage(topology: Mapping[str, Any], group: str, hostvars: Mapping[str, Any], noted: str) -> str:
    """Return how far an earlier run came, by the member that noted most."""
    if group not in topology["groups"]:
        return ""
    found = [str((hostvars[host].get(noted) or {}).get("stage", "")) for host in topology["groups"][group]["members"]]
    return max(found, key=lambda one: STAGES.index(one) if one in STAGES else 0)


def others_of(topology: Mapping[str, Any], group: str) -> dict[str, list[str]]:
    """Return the members of each other group of the cluster."""
    name = topology["brokers"][topology["groups"][group]["members"][0]]["cluster"]["name"]
    return {
        one: list(found["members"])
        for one, found in topology["groups"].items()
        if one != group and topology["brokers"][found["members"][0]]["cluster"].get("name") == name
    }


def _live(members: Sequence[str], hostvars: Mapping[str, Any], variable: str) -> str:
    return next((host for host in members if said_by(hostvars, host, variable).get("state") == "live"), "")


def _store(hostvars: Mapping[str, Any], host: str, variable: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = (said_by(hostvars, host, variable).get("status") or {}).get("store") or {}
    return found


def _not_one_live(group: str, members: Sequence[str], hostvars: Mapping[str, Any], variable: str) -> list[str]:
    states = {host: str(said_by(hostvars, host, variable).get("state", "not asked")) for host in members}
    lives = [host for host, state in states.items() if state == "live"]
    if len(lives) == 1:
        return []
    told = ", ".join(f"{host} is {state}" for host, state in states.items())
    return [f"group {group} has {len(lives)} live brokers ({told}), expected one: what is on its way there would wait"]


class FilterModule:
    """Hand the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "pollux_scale_in_asked": asked,
            "pollux_scale_in_members": asked_members,
            "pollux_scale_in_problems": problems,
            "pollux_scale_in_plan": plan,
            "pollux_scale_in_hint": hint,
        }
