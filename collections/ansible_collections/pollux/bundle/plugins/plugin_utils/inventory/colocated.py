"""Brokers that have each other's backups: what is refused, and what templates print of it.

Each is a group of its own, and a node of a cluster by which they find each other. A host has slots for backups, whose
ports are the broker's own and broker_backup_port_offset once for each slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .problems import Add, Problem

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from .clusters import Groups
    from .member import Member

#: What a backup takes from its host, and its live expects to find there.
_ALIKE = (
    *("shared_store_type", "shared_store_path", "shared_store_lease_seconds"),
    *("broker_addresses", "broker_address_settings", "broker_security_settings", "broker_users", "broker_users_key"),
    *("broker_core_settings", "broker_lease_guard_ms", "broker_lease_margin_ms"),
)


def is_colocated(member: Member) -> bool:
    """Tell whether a broker has others' backups, and they have its own."""
    return bool(member.value["broker_ha_policy"] == "colocated")


def slots_of(member: Member) -> range:
    """Return the slots of a host for backups; none of a broker that takes none in."""
    return range(1, member.value["broker_max_backups"] + 1 if is_colocated(member) else 1)


def slot_ports(member: Member, ports: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Return the ports that backups have on a host; ``ports`` are the broker's own, with their variables."""
    for slot in slots_of(member):
        for port, variable in ports:
            shifted = port + slot * member.value["broker_backup_port_offset"]
            yield shifted, f"broker_backup_port_offset (backup {slot}, {variable})"


def colocated_model(member: Member, clusters: Groups) -> dict[str, Any]:
    """Return what is a broker's own of it; nothing of a broker without."""
    if not is_colocated(member):
        return {}
    value = member.value
    offset = value["broker_backup_port_offset"]
    return {
        "members": [one.name for one in _mates(member, clusters)],
        "request_backup": value["broker_request_backup"],
        "max_backups": value["broker_max_backups"],
        "port_offset": offset,
        "retries": value["broker_backup_request_retries"],
        "retry_interval": value["broker_backup_request_retry_interval_ms"],
        "domain": value["broker_failure_domain"],
        "shifts": [slot * offset for slot in slots_of(member)],
    }


def _mates(member: Member, clusters: Groups) -> list[Member]:
    """Return the colocated brokers of a broker's cluster, with itself."""
    groups = clusters.get(member.value["broker_cluster"], {})
    return [one for mates in groups.values() for one in mates if is_colocated(one)]


def check_colocated(members: Sequence[Member], clusters: Groups, problems: list[Problem]) -> None:
    """Refuse brokers that would find nobody for their backups, or whose backups would differ from them."""
    groups = [member.group for member in members]
    for member in filter(is_colocated, members):

        def add(variable: str, what: str, remedy: str, member: Member = member) -> None:
            problems.append(Problem(member.name, variable, what, remedy))

        if (count := groups.count(member.group)) > 1:
            what = f"group {member.group!r} has {count} members, and each colocated broker is a group of its own"
            add("broker_group", what, "leave it out, or set broker_ha_policy: shared_store")
        if member.preferred:
            add("broker_preferred", "means nothing for a colocated broker, which is live at home", "remove it")
        _check_value(member.value, add)
        mates = _mates(member, clusters)
        if not member.value["broker_cluster"]:
            what = "is not set, and by the links of a cluster brokers find hosts for their backups"
            add("broker_cluster", what, "set broker_cluster: NAME for all who have each other's backups")
        elif member.value["broker_request_backup"] and not any(
            one.value["broker_max_backups"] for one in mates if one.machine != member.machine
        ):
            what = f"no other machine of the cluster {member.value['broker_cluster']!r} takes backups in"
            add(
                "broker_cluster",
                what,
                "add a broker with broker_max_backups to it, or set broker_request_backup: false",
            )
        _check_alike(member, mates, add)


def _check_value(value: Mapping[str, Any], add: Add) -> None:
    """Apply the rules about one broker's variables."""
    for variable, least in (
        ("broker_max_backups", 0),
        ("broker_backup_port_offset", 1),
        ("broker_backup_request_retries", -1),
        ("broker_backup_request_retry_interval_ms", 1),
    ):
        if value[variable] < least:
            add(variable, f"{value[variable]} is less than {least}", f"write {least} or more")
    if value["shared_store_type"] == "database":
        what = "is database, and a backup opens the directories of its live"
        add("shared_store_type", what, "set shared_store_type: nfs4 or local")
    if value["virtual_ip_address"]:
        what = "follows who serves in a group, and a colocated host may serve several"
        add("virtual_ip_address", what, "remove it; clients have the addresses of all hosts")


def _check_alike(member: Member, mates: Sequence[Member], add: Add) -> None:
    first = mates[0] if mates else member
    for variable in _ALIKE:
        if member.value[variable] != first.value[variable]:
            what = f"differs from that of {first.name}, and each may have the other one's backup"
            add(variable, what, "set it for all of them")
