"""Who takes part in a drill, what may be broken how, and where its traffic comes from. Pure.

``variable`` names the variable of each host that holds its broker's answer (of pollux_info).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible_collections.pollux.bundle.plugins.plugin_utils.answers import said as said_by

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

#: As roles/pacemaker calls it.
CLONE = "pollux-clone"
#: What a resource manager can be told to do to its primary; a process of another machine is not ours to pause.
MANAGED = ("switchover", "stop", "restart", "kill", "none")
_LOOPBACK = ("127.", "localhost", "[::1]")


def managed(topology: Mapping[str, Any], group: str) -> str:
    """Return the resource manager of a group; empty for none."""
    return str(topology["groups"][group]["cluster"].get("manager", ""))


def manifest(topology: Mapping[str, Any], group: str, user: str) -> dict[str, Any]:
    """Return who takes part in a drill, as ``pollux drill`` reads it; the password is in a file beside it."""
    members = []
    for host in topology["groups"][group]["members"]:
        broker = topology["brokers"][host]
        one = {"name": host, "url": broker["connector"]["uri"], "management": broker["management"]["url"]}
        if managed(topology, group) == "pacemaker":
            one |= by_pacemaker(host)
        else:
            one |= {
                "pid_file": f"{broker['run']}/pollux.pid",
                "start": [f"{broker['root']}/bin/start"],
                "stop": [f"{broker['root']}/bin/stop"],
            }
        members.append(one)
    return {"members": members, "user": user, "password_file": "password"}


def by_pacemaker(node: str) -> dict[str, list[str]]:
    """Return how the resource manager, asked on any node, stops, starts, moves and fences this node's broker."""
    standby = ["crm_attribute", f"--node={node}", "--name=standby", "--lifetime=reboot"]
    stop = f"{' '.join(standby)} --update=on && crm_resource --wait --timeout=50s"
    return {
        "start": [*standby, "--delete"],
        "stop": ["/bin/sh", "-c", stop],
        "kill": ["stonith_admin", f"--reboot={node}"],
        "switchover": ["crm_resource", "--move", f"--resource={CLONE}", "--promoted"],
    }


def fault(topology: Mapping[str, Any], group: str, asked: str) -> str:
    """Return what is done: what was asked for, else the default of the group."""
    return asked or ("switchover" if managed(topology, group) else "kill")


def refusal(topology: Mapping[str, Any], hostvars: Mapping[str, Any], group: str, asked: str) -> str:
    """Return why there can be no such drill, by the inventory alone; empty when there can."""
    if group not in topology["groups"]:
        return f"drill_group names {group}; the groups are {', '.join(topology['groups'])}"
    members, manager = topology["groups"][group]["members"], managed(topology, group)
    if topology["groups"][group].get("policy") == "colocated":
        return f"group {group} is colocated: its backup is a life of another group's host, and a drill knows one group"
    if not manager:
        others = [host for host in members if hostvars[host].get("broker_service_manager", "systemd") != "none"]
        if others:
            return f"a drill kills and starts processes of this machine; {', '.join(others)} is run by systemd"
        return ""
    if manager != "pacemaker":
        return f"group {group} is under {manager}, which is not on this bundle's machines"
    kind = fault(topology, group, asked)
    if kind not in MANAGED:
        return f"drill_fault {kind}: under pacemaker it is one of {', '.join(MANAGED)}"
    if kind == "kill" and not topology["groups"][group]["cluster"]["fencing"]:
        return "drill_fault kill: the resource manager cuts the power of the primary's machine, and has no fencing"
    alone = [
        host
        for host in members
        if topology["brokers"][host]["management"]["url"].partition("://")[2].startswith(_LOOPBACK)
    ]
    if alone:
        return (
            f"the management of {', '.join(alone)} is reached on its own machine only, and the drill asks all of them:"
            " set broker_management_address"
        )
    return ""


def node(topology: Mapping[str, Any], hostvars: Mapping[str, Any], variable: str, group: str) -> str:
    """Return from whose machine the traffic comes: the last backup, which is the least likely to take over.

    Of a group without a resource manager nobody's: it comes from the controller.
    """
    if not managed(topology, group):
        return ""
    waiting = [
        host
        for host in topology["groups"][group]["members"]
        if said_by(hostvars, host, variable).get("state") == "ready"
    ]
    return str(waiting[-1]) if waiting else ""


class FilterModule:
    """Hand the filters to Ansible."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "pollux_manifest": manifest,
            "pollux_drill_fault": fault,
            "pollux_drill_refusal": refusal,
            "pollux_drill_node": node,
        }
