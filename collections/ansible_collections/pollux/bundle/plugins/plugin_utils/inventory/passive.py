"""Active-passive groups: a resource manager says who serves, so it must be able to, and to fence who is silent."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING, Any

from . import outage
from .model import netloc
from .problems import Add, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .member import Member

#: Fewer members have no majority when one is lost, unless somebody else votes.
LEAST = 3
#: Corosync's limits: nodes of a cluster, and what a shorter token would only be lost for.
MOST, LEAST_TOKEN = 16, 300
#: A backup asks at least so often in its lease whether it still counts (pollux.ha.active_passive).
_ASKS = 8
_WILDCARDS = ("0.0.0.0", "::")  # noqa: S104  (compared, not listened on)
#: What all members of a cluster must agree about.
SAME = (
    *("broker_resource_manager", "broker_heartbeat_ms", "broker_backup_timeout_ms", "broker_service_manager"),
    "broker_grant_lease_ms",
    *("virtual_ip_address", "virtual_ip_prefix", "pacemaker_cluster_name", "pacemaker_token_ms"),
    *("pacemaker_consensus_ms", "pacemaker_fencing", "pacemaker_fencing_devices", "pacemaker_qnetd"),
    *(
        "pacemaker_answer_seconds",
        "pacemaker_fencing_seconds",
        "pacemaker_monitor_seconds",
        "pacemaker_backup_monitor_seconds",
    ),
    *("broker_root", "broker_etc", "broker_service_name", "broker_start_timeout", "broker_stop_timeout"),
    *("pacemaker_properties", "rgmanager_config_version", "rgmanager_fencing_devices"),
)


def passive(member: Member) -> bool:
    """Tell whether a resource manager decides when this broker serves."""
    return bool(member.value["broker_ha_policy"] == "active_passive")


def with_pacemaker(member: Member) -> bool:
    """Tell whether pacemaker is that resource manager."""
    return passive(member) and bool(member.value["broker_resource_manager"] == "pacemaker")


def cluster_name(member: Member) -> str:
    """Return the name of the resource manager's cluster."""
    return str(member.value["pacemaker_cluster_name"] or member.group)


def check_passive(by_group: Mapping[str, Sequence[Member]], problems: list[Problem]) -> None:
    """Refuse clusters that could have no primary, or two."""
    taken: dict[str, str] = {}
    for group, mates in by_group.items():
        if not passive(mates[0]):
            continue
        first = mates[0]
        name = cluster_name(first)
        if (other := taken.setdefault(name, group)) != group:
            what = f"groups {other!r} and {group!r} are two clusters with the name {name!r}"
            remedy = "give each a name of its own: what one cluster says the other would believe"
            problems.append(Problem(first.name, "pacemaker_cluster_name", what, remedy))
        problems += [
            Problem(
                mate.name,
                variable,
                f"differs from that of {first.name} in the same group {group!r}",
                "set it for the whole group, not for a host",
            )
            for mate in mates[1:]
            for variable in SAME
            if mate.value[variable] != first.value[variable]
        ]
        _check_size(group, mates, problems)
        _check_fencing(first, problems)
        _check_times(first, problems)
        for mate in mates:
            _check_member(mate, mates, problems)


def _check_size(group: str, mates: Sequence[Member], problems: list[Problem]) -> None:
    first, count = mates[0], len(mates)
    with_qnetd = first.value["broker_resource_manager"] == "pacemaker" and bool(first.value["pacemaker_qnetd"])
    if count < (2 if with_qnetd else LEAST):
        more = ", or two with a third vote in pacemaker_qnetd" if not with_qnetd else ""
        problems.append(
            Problem(
                first.name,
                "broker_group",
                f"group {group!r} has {count} members, of which none may fail: no majority would be left",
                f"make it {LEAST} or more{more}",
            )
        )
    if with_qnetd and first.value["pacemaker_qnetd"] in {mate.name for mate in mates}:
        what = f"{first.value['pacemaker_qnetd']} is a member of the group: its vote and its own would be lost together"
        problems.append(Problem(first.name, "pacemaker_qnetd", what, "name a machine that has no broker of the group"))
    if count > MOST:
        what = f"group {group!r} has {count} members, and a cluster has {MOST} at most"
        problems.append(Problem(first.name, "broker_group", what, "make several groups of it"))


def _check_fencing(first: Member, problems: list[Problem]) -> None:
    """A member that does not answer must be known to be gone before another one is promoted."""
    value = first.value
    if value["broker_resource_manager"] == "rgmanager":
        if not value["rgmanager_fencing_devices"]:
            what = "is empty: rgmanager waits for ever for a node that is gone and cannot be fenced"
            problems.append(
                Problem(first.name, "rgmanager_fencing_devices", what, "name a device for each node's power")
            )
        return
    reason = value["pacemaker_fencing_reason"].strip()
    if value["pacemaker_fencing"] == "none" and not reason:
        problems.append(
            Problem(
                first.name,
                "pacemaker_fencing",
                "is none: a primary that does not answer could go on serving beside the next one (two lives)",
                "name devices in pacemaker_fencing_devices, or say in pacemaker_fencing_reason why two lives may be",
            )
        )
    if value["pacemaker_fencing"] == "required" and not value["pacemaker_fencing_devices"]:
        problems.append(
            Problem(
                first.name,
                "pacemaker_fencing_devices",
                "is empty, and without a device nothing is started",
                "name what can cut each machine's power, for instance agent: fence_ipmilan",
            )
        )
    names = [device["name"] for device in value["pacemaker_fencing_devices"]]
    if double := sorted({name for name in names if names.count(name) > 1}):
        what = f"listed twice: {', '.join(double)}"
        problems.append(Problem(first.name, "pacemaker_fencing_devices", what, "rename one"))


def _check_times(first: Member, problems: list[Problem]) -> None:
    value = first.value

    def add(variable: str, what: str, remedy: str) -> None:
        problems.append(Problem(first.name, variable, what, remedy))

    heartbeat = value["broker_heartbeat_ms"]
    if heartbeat < 50:
        add(
            "broker_heartbeat_ms",
            f"{heartbeat}: without heartbeats a broker that hangs would never be noticed",
            "give it at least 50",
        )
    grant, monitor = value["broker_grant_lease_ms"], value["pacemaker_monitor_seconds"]
    if grant and value["broker_resource_manager"] != "pacemaker":
        add(
            "broker_grant_lease_ms",
            f"{grant}: nobody says a primary's word again under {value['broker_resource_manager']}, so it would end",
            "leave it at 0",
        )
    if value["broker_resource_manager"] != "pacemaker":
        return
    if grant and grant < 2 * monitor * 1000:
        add(
            "broker_grant_lease_ms",
            f"{grant} is shorter than two looks at the primary ({2 * monitor * 1000} ms): a late one would end it",
            f"give it at least {3 * monitor * 1000}, or 0",
        )
    token, given = value["pacemaker_token_ms"], value["pacemaker_consensus_ms"]
    if token < LEAST_TOKEN:
        add(
            "pacemaker_token_ms",
            f"{token} is a silence that a busy machine has by itself",
            f"give it at least {LEAST_TOKEN}",
        )
    least = round(token * outage.LEAST_CONSENSUS)
    if given and given < least:
        add(
            "pacemaker_consensus_ms",
            f"{given} is less than corosync takes with this token ({least})",
            f"give it at least {least}, or 0",
        )
    for variable in ("pacemaker_monitor_seconds", "pacemaker_backup_monitor_seconds"):
        if value[variable] < 1:
            add(variable, f"{value[variable]} is no interval", "give it at least 1")
    if value["pacemaker_monitor_seconds"] == value["pacemaker_backup_monitor_seconds"]:
        add(
            "pacemaker_backup_monitor_seconds",
            "is that of the primary, and pacemaker tells monitors apart by their intervals",
            "make one of them longer",
        )
    lease = 2 * heartbeat
    off, hangs = (outage.total(parts) for parts in (outage.detection(value), outage.silence(value)))
    needed = max(off, hangs)
    what = "its primary's machine lost its power" if off >= hangs else "its primary hangs"
    left = lease - min(1000, lease // _ASKS)
    if heartbeat >= 50 and left < needed:
        add(
            "broker_heartbeat_ms",
            f"a backup is ready for {left} ms after {what}, and it may take {needed} ms until it is promoted: then"
            " nobody would serve",
            f"raise it to {-(-(needed + 1000) // 2)} or more, or lower"
            + (" pacemaker_fencing_seconds or pacemaker_token_ms" if off >= hangs else " pacemaker_answer_seconds"),
        )


def _check_member(member: Member, mates: Sequence[Member], problems: list[Problem]) -> None:
    value = member.value

    def add(variable: str, what: str, remedy: str) -> None:
        problems.append(Problem(member.name, variable, what, remedy))

    if value["broker_service_manager"] != "systemd":
        add(
            "broker_service_manager",
            "is none, and a resource manager works with systemd's units",
            "set it to systemd",
        )
    if member.acceptors and member.acceptors[0]["tls"]:
        add(
            "broker_acceptors",
            "the first one has tls: true, and brokers of an active-passive group reach each other without",
            "put an acceptor without TLS first, in a network of the brokers' own",
        )
    bound = value["broker_bind_address"]
    if bound not in (*_WILDCARDS, member.address):
        add(
            "broker_bind_address",
            f"{bound} is not {member.address}, under which the others know this broker: its own address would be"
            " missing in ha-brokers-url",
            "set broker_address to the same",
        )
    if member.address.startswith("127.") or member.address in ("localhost", "::1"):
        add("broker_address", f"{member.address} leads every member to itself", "give each the address that others see")
    check_virtual(member, mates, add)


def check_virtual(member: Member, mates: Sequence[Member], add: Add) -> None:
    """Refuse a virtual address that is a broker's own, or that is in no network of theirs."""
    text, prefix = member.value["virtual_ip_address"], member.value["virtual_ip_prefix"]
    if not text:
        return
    try:
        virtual = ipaddress.ip_address(text)
        network = ipaddress.ip_network(f"{text}/{prefix}", strict=False)
    except ValueError:
        add(
            "virtual_ip_address",
            f"{text}/{prefix} is no address",
            "write it as 192.0.2.10, its length into virtual_ip_prefix",
        )
        return
    for mate in mates:
        try:
            own = ipaddress.ip_address(mate.address)
        except ValueError:
            continue
        if own == virtual:
            add(
                "virtual_ip_address",
                f"{text} is the address of {mate.name}: it would be in ha-brokers-url, and of whoever serves",
                "take one that no machine has",
            )
        elif own.version == virtual.version and own not in network and mate is member:
            add(
                "virtual_ip_address",
                f"{text}/{prefix} is outside of the network of this broker ({own})",
                "correct it, or virtual_ip_prefix, or name the interface in virtual_ip_interface",
            )


def brokers_url(mates: Sequence[Member]) -> str:
    """Return ``ha-brokers-url``: every member's own address, never a virtual one."""
    return ",".join(netloc(mate.address, mate.acceptors[0]["port"] if mate.acceptors else 0) for mate in mates)


def virtual_model(mates: Sequence[Member]) -> dict[str, Any]:
    """Return the virtual address of a group, and how clients connect to it; where there is one."""
    first, value = mates[0], mates[0].value
    virtual = {
        "address": value["virtual_ip_address"],
        "prefix": value["virtual_ip_prefix"],
        "interface": value["virtual_ip_interface"],
    }
    if not virtual["address"] or not first.acceptors:
        return {"virtual": virtual}
    acceptor = first.acceptors[0]
    query = "?sslEnabled=true" if acceptor["tls"] else ""
    url = f"(tcp://{netloc(virtual['address'], acceptor['port'])}{query})?reconnectAttempts=-1"
    return {"virtual": virtual, "client_url": url}


def passive_model(group: str, mates: Sequence[Member]) -> dict[str, Any]:
    """Return what templates need of an active-passive group, its nodes in the inventory's order; empty for others."""
    if not mates or not passive(mates[0]):
        return {}
    first, value = mates[0], mates[0].value
    address = bool(value["virtual_ip_address"])
    ordered = sorted(mates, key=lambda mate: mate.name)
    return {
        "manager": value["broker_resource_manager"],
        "cluster": cluster_name(first),
        "brokers_url": brokers_url(ordered),
        "public_url": netloc(value["virtual_ip_address"], first.acceptors[0]["port"])
        if address and first.acceptors
        else "",
        "nodes": [
            {
                "id": mate.value["pacemaker_node_id"] or position,
                "name": mate.name,
                "addresses": mate.value["pacemaker_addresses"] or [mate.address],
                "broker": brokers_url([mate]),
            }
            for position, mate in enumerate(ordered, 1)
        ],
        "consensus_ms": outage.consensus(value),
        "fencing": value["pacemaker_fencing"] == "required",
        "unit": value["broker_service_name"],
        "user": value["broker_system_user"],
        "start_seconds": value["broker_start_timeout"],
        "stop_seconds": value["broker_stop_timeout"],
        "plan": [
            f"{value['broker_resource_manager']} decides who serves; nodes {', '.join(mate.name for mate in ordered)}",
            f"virtual address {value['virtual_ip_address']}/{value['virtual_ip_prefix']}"
            if address
            else "no virtual address",
            *(
                [
                    f"the primary's process ends: {outage.told(outage.process_death(value, address=address))}",
                    f"it hangs: {outage.told(outage.hang(value, address=address))}",
                    f"its machine loses its power: {outage.told(outage.host_death(value, address=address))}",
                ]
                if value["broker_resource_manager"] == "pacemaker"
                else []
            ),
            *(
                [f"cut off, and not fenced, it ends by itself: {outage.told(outage.cut_off(value))}"]
                if value["broker_resource_manager"] == "pacemaker" and value["broker_grant_lease_ms"]
                else []
            ),
            *(
                [f"NO FENCING, so two lives may be: {value['pacemaker_fencing_reason'].strip()}"]
                if value["broker_resource_manager"] == "pacemaker" and value["pacemaker_fencing"] == "none"
                else []
            ),
        ],
        "name": group,
    }
