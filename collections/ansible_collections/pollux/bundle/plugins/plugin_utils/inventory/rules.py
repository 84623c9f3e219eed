"""Every rule about brokers, their groups, stores and machines."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .place import ports
from .problems import Add, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .member import Exists, Member

#: Elements of broker.xml's core that the template derives from the model.
DERIVED_ELEMENTS = frozenset(
    {
        *("name", "acceptors", "connectors", "addresses", "address-settings", "security-settings", "ha-policy"),
        *("bindings-directory", "journal-directory", "large-messages-directory", "paging-directory"),
        *("node-manager-lock-directory", "cluster-user", "cluster-password", "cluster-connections"),
        *("broadcast-groups", "discovery-groups", "persistence-enabled", "mask-password", "store"),
        *("connection-routers",),
    }
)
#: Mount options that no failover survives, why, and what to write instead.
REFUSED_MOUNT_OPTIONS = (
    (r"(vers|nfsvers)=3(\..*)?|nfsvers=2|vers=2|v3|v2", "NFSv3 keeps the lock of a dead broker for ever", "vers=4.1"),
    (r"nolock|local_lock=(all|flock|posix)", "locks would hold on one machine only", "no such option"),
    (r"hard", "a lost server would hang the broker instead of failing it", "soft"),
    (r"async", "what was confirmed might be in the machine's memory only", "sync"),
    (r"lookupcache=(all|pos|positive)|ac", "the other member's changes would not be seen", "lookupcache=none and noac"),
    (r"udp|proto=udp", "NFSv4 needs TCP", "proto=tcp"),
)


def check_group(group: str, mates: Sequence[Member], problems: list[Problem]) -> None:
    """Apply the rules about the members of one group together."""
    lives = [mate for mate in mates if mate.preferred == "live"]
    problems += [
        Problem(
            mate.name,
            "broker_preferred",
            f"{lives[0].name} is the preferred live of group {group!r} already",
            f"set broker_preferred: backup on {mate.name} or on {lives[0].name}",
        )
        for mate in lives[1:]
    ]
    backups = [mate for mate in mates if mate.preferred == "backup"]
    if backups and not lives:
        problems.append(
            Problem(
                backups[0].name,
                "broker_preferred",
                f"group {group!r} has backups but no preferred live",
                "set broker_preferred: live on one member, or on none for a symmetric group",
            )
        )
    policies = {mate.value["broker_ha_policy"] for mate in mates}
    if len(policies) > 1:
        problems.append(
            Problem(
                mates[0].name,
                "broker_ha_policy",
                f"members of group {group!r} have different policies: {', '.join(sorted(policies))}",
                "set it for the whole group",
            )
        )
    if len(mates) > 1 and policies == {"none"}:
        problems.append(
            Problem(
                mates[1].name,
                "broker_group",
                f"group {group!r} has {len(mates)} members but broker_ha_policy none",
                "set broker_ha_policy: shared_store or replication, or give each broker a group of its own",
            )
        )
    if len(mates) == 1 and policies == {"replication"}:
        problems.append(
            Problem(
                mates[0].name,
                "broker_group",
                f"group {group!r} has one member, so there is nobody to replicate to",
                "add a member, or set broker_ha_policy: none",
            )
        )
    _check_apart(group, mates, problems)
    _check_same(group, mates, problems)


def _check_apart(group: str, mates: Sequence[Member], problems: list[Problem]) -> None:
    """Refuse members of a group that fail together, unless somebody said why they may."""
    for index, mate in enumerate(mates):
        for other in mates[:index]:
            if mate.machine == other.machine and not mate.value["topology_single_machine_reason"].strip():
                problems.append(
                    Problem(
                        mate.name,
                        "ansible_host",
                        f"is on the same machine ({mate.machine}) as {other.name}, and both are in group {group!r}",
                        "move it to another machine, or say why one is enough in topology_single_machine_reason",
                    )
                )
            domain = mate.value["broker_failure_domain"]
            if domain and domain == other.value["broker_failure_domain"]:
                problems.append(
                    Problem(
                        mate.name,
                        "broker_failure_domain",
                        f"{domain!r} is also that of {other.name} of the same group {group!r}",
                        "place the members in different failure domains",
                    )
                )


#: What members of one group must agree about, because they serve the same store to the same clients.
_SHARED_BY_GROUP = (
    *("shared_store_type", "shared_store_path", "shared_store_source", "shared_store_lease_seconds"),
    *("broker_addresses", "broker_address_settings", "broker_security_settings", "broker_users"),
    *("broker_cluster_user", "broker_core_settings", "broker_lease_guard_ms", "broker_lease_margin_ms"),
    *("broker_users_key", "broker_lock_keep_alive_period", "broker_lock_acquire_sleep_interval"),
    *("broker_zookeeper", "broker_zookeeper_namespace", "broker_zookeeper_user", "broker_zookeeper_password"),
    *("broker_zookeeper_tls", "broker_coordination", "broker_vote_on_replication_failure"),
    *("broker_session_ms", "broker_replica_timeout_ms", "broker_sync_timeout_ms"),
    *("broker_cluster", "broker_links", "broker_cluster_discovery", "broker_load_balancing", "broker_max_hops"),
    *("broker_cluster_addresses", "broker_cluster_settings", "broker_redistribution_delay_ms"),
    "broker_cluster_duplicate_ids",
    *("broker_connection_routers",),
    *("database_store_hosts", "database_store_name", "database_store_user", "database_store_password"),
    *("database_store_lock_expiration_ms", "database_store_network_timeout_ms"),
)


def _check_same(group: str, mates: Sequence[Member], problems: list[Problem]) -> None:
    first = mates[0]
    for mate in mates[1:]:
        problems += [
            Problem(
                mate.name,
                name,
                f"differs from that of {first.name} in the same group {group!r}",
                "set it for the whole group, not for a host",
            )
            for name in _SHARED_BY_GROUP
            if mate.value[name] != first.value[name]
        ]


def check_member(member: Member, exists: Exists, problems: list[Problem]) -> None:
    """Apply the rules about one broker."""
    value = member.value

    def add(variable: str, what: str, remedy: str) -> None:
        problems.append(Problem(member.name, variable, what, remedy))

    for port, variable in ports(member):
        if not 0 < port < 65536:
            add(variable, f"port {port} (with broker_port_offset) is outside of 1 to 65535", "choose another port")
    names = [acceptor["name"] for acceptor in member.acceptors]
    for name in {name for name in names if names.count(name) > 1}:
        add("broker_acceptors", f"there are two acceptors called {name!r}", "rename one")
    for acceptor in member.acceptors:
        for name, text in (acceptor.get("parameters") or {}).items():
            if name.lower().endswith("password") and not str(text).startswith("ENC("):
                add(
                    f"broker_acceptors[{acceptor['name']}].parameters.{name}",
                    "is a password that broker.xml and every difference of it would show",
                    "use broker_tls_certificate and broker_tls_key, which need none; ansible-vault encrypts the key",
                )
    for name in sorted(DERIVED_ELEMENTS & set(value["broker_core_settings"])):
        add(
            "broker_core_settings",
            f"{name!r} is derived by this bundle",
            "remove it and set the variable it comes from",
        )
    addresses = [item["name"] for item in value["broker_addresses"]]
    if len(addresses) != len(set(addresses)):
        double = sorted({name for name in addresses if addresses.count(name) > 1})
        add("broker_addresses", f"listed twice: {', '.join(double)}", "merge the entries")
    for variable in ("broker_root", "broker_etc", "broker_data", "broker_run", "broker_log", "shared_store_path"):
        if not value[variable].startswith("/"):
            add(variable, f"{value[variable]!r} is not an absolute path", "write the path from / on")
    if value["broker_service_manager"] == "systemd" and not value["broker_system_user"]:
        add("broker_system_user", "is empty, so the broker would run as root", "name a user")
    _check_times(value, add)
    _check_audit(value, add)
    _check_networks(value, add)
    check_installation(value, exists, add)
    _check_tls(member, exists, add)
    if value["broker_ha_policy"] in ("shared_store", "colocated"):
        check_store(value, add)


def is_network(text: str) -> bool:
    """Tell whether it is an address or a network."""
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return True


def _check_times(value: Mapping[str, Any], add: Add) -> None:
    for variable in ("broker_start_timeout", "broker_answer_timeout", "broker_stop_timeout"):
        if value[variable] < 1:
            add(variable, "must be at least 1 second", "raise it")


def _check_audit(value: Mapping[str, Any], add: Add) -> None:
    if not 2 <= value["broker_audit_max_files"] <= 100_000:
        add("broker_audit_max_files", f"{value['broker_audit_max_files']} is out of range", "choose 2 to 100000")


def _check_networks(value: Mapping[str, Any], add: Add) -> None:
    for variable in ("broker_firewall_clients", "broker_firewall_management"):
        for network in value[variable]:
            if not is_network(network):
                add(variable, f"{network!r} is not a network", "write it as 10.0.0.0/8 or 2001:db8::/32")


def check_installation(value: Mapping[str, Any], exists: Exists, add: Add, role: str = "broker") -> None:
    source, wheelhouse, packages = (value[f"{role}_{name}"] for name in ("source", "wheelhouse", "environment"))
    made_by = "tools/wheelhouse.py" + (" --pipeline" if role == "pipeline" else "")
    if not source and not wheelhouse:
        add(
            f"{role}_wheelhouse",
            f"is not set, and {role}_source neither, so there is nothing to install",
            f"make a wheelhouse with {made_by} and name it",
        )
    if source and not packages and not wheelhouse:
        add(f"{role}_environment", f"is needed with {role}_source", f"name it, or use {role}_wheelhouse")
    for name, path, needed in (
        (f"{role}_source", source, "pyproject.toml"),
        (f"{role}_wheelhouse", wheelhouse, "requirements.txt"),
    ):
        if path and not exists(str(Path(path) / needed)):
            add(name, f"there is no {needed} in {path}", "correct the path (on the controller)")


#: What site.yml makes on the controller where broker_certificates_generate says so.
_MADE = ("broker_tls_certificate", "broker_tls_key", "broker_tls_authorities")


def _check_tls(member: Member, exists: Exists, add: Add) -> None:
    value = member.value
    files = ("broker_tls_certificate", "broker_tls_key", "broker_tls_client_authorities", "broker_tls_authorities")
    making = value["broker_certificates_generate"]
    for name in files:
        if value[name] and not exists(value[name]) and not (making and name in _MADE):
            made = ", or have it made by broker_certificates_generate" if name in _MADE else ""
            add(name, f"there is no file {value[name]} on the controller", f"correct the path or create the file{made}")
    if making:
        _check_made(value, exists, add)
    encrypted = [acceptor["name"] for acceptor in member.acceptors if acceptor["tls"]]
    if encrypted:
        for name in files[:2]:
            if not value[name]:
                add(name, f"is not set, but the acceptor {encrypted[0]!r} has tls: true", "name the PEM file")
    elif value["broker_tls_authorities"]:
        what = "no acceptor has tls: true, but broker_tls_authorities is given"
        add("broker_acceptors", what, "set tls: true on one")
    elif value["broker_tls_certificate"]:
        add("broker_acceptors", "no acceptor has tls: true, but there is a certificate", "set tls: true on one")


def _check_made(value: Mapping[str, Any], exists: Exists, add: Add) -> None:
    """Certificates that are to be made have a place each, and their authority its key."""
    for name in _MADE:
        if not value[name]:
            add(name, "is not set, but broker_certificates_generate needs a place for it", "name the file to be made")
    authority = value["broker_tls_authorities"]
    missing = [value[name] for name in _MADE[:2] if value[name] and not exists(value[name])]
    if authority and exists(authority) and missing and not exists(authority_key(authority)):
        add(
            "broker_certificates_generate",
            f"{missing[0]} is to be made, but {authority} is an authority without its key ({authority_key(authority)})",
            "have that authority make it, or name another file in broker_tls_authorities",
        )


def authority_key(authority: str) -> str:
    """Return where the key of an authority that the bundle made is: beside its certificate."""
    return str(Path(authority).with_suffix(".key"))


def check_store(value: Mapping[str, Any], add: Add) -> None:
    """Rules about a shared store: a lock must exclude, a lost server must be noticed, the guard must end first."""
    kind, source, options = (value[f"shared_store_{name}"] for name in ("type", "source", "options"))
    lease_ms, guard_ms = value["shared_store_lease_seconds"] * 1000, value["broker_lease_guard_ms"]
    margin_ms = value["broker_lease_margin_ms"]
    needed = guard_ms + margin_ms
    if guard_ms < 500:
        add("broker_lease_guard_ms", f"{guard_ms} ms leaves no time for a proof", "give it at least 500")
    if margin_ms < 100:
        add("broker_lease_margin_ms", f"{margin_ms} ms leaves no time for what is on its way", "give it at least 100")
    if kind != "database" and lease_ms < needed:
        add(
            "shared_store_lease_seconds",
            f"the lease of {lease_ms} ms is shorter than the guard (broker_lease_guard_ms {guard_ms} and"
            f" broker_lease_margin_ms {margin_ms}: {needed} ms), so two brokers could be live",
            f"raise the lease to {-(-needed // 1000)} or more, or lower the guard",
        )
    if kind != "nfs4" and source:
        what = f"is set, but shared_store_type {kind} mounts nothing"
        add("shared_store_source", what, "set shared_store_type: nfs4")
    if kind != "nfs4":
        return
    if not re.fullmatch(r"(\[[0-9a-fA-F:]+\]|[^:/\s]+):/\S*", source):
        add("shared_store_source", f"{source!r} is not SERVER:/PATH", "name the export, for instance nfs1:/pollux")
    given = [item.strip() for option in options for item in option.split(",")]
    for option in given:
        for pattern, reason, instead in REFUSED_MOUNT_OPTIONS:
            if re.fullmatch(pattern, option):
                add("shared_store_options", f"{option!r} is refused: {reason}", f"use {instead}")
    for needed_option, reason in (
        ("soft", "without it a lost server hangs the broker instead of failing it"),
        ("sync", "without it confirmed messages may be in memory only"),
        ("noac", "without it the other member's changes are seen late"),
        ("lookupcache=none", "without it a replaced lock file is not seen"),
    ):
        if needed_option not in given:
            add("shared_store_options", f"{needed_option!r} is missing: {reason}", f"add {needed_option}")
    if not any(re.fullmatch(r"(nfs)?vers=4(\.\d)?", option) for option in given):
        add("shared_store_options", "the version of NFS is left to chance", "add vers=4.1")


def check_machines(members: Sequence[Member], problems: list[Problem]) -> None:
    """Refuse brokers of one machine that take each other's ports and directories."""
    taken: dict[tuple[str, str, Any], tuple[Member, str]] = {}
    for member in members:
        claims: list[tuple[str, Any, str]] = [("port", port, variable) for port, variable in ports(member)]
        claims += [("directory", member.value[name], name) for name in ("broker_root", "broker_data", "broker_run")]
        if member.value["broker_service_manager"] == "systemd":
            claims.append(("service", member.value["broker_service_name"], "broker_service_name"))
        for kind, what, variable in claims:
            other, other_variable = taken.setdefault((member.machine, kind, what), (member, variable))
            if (other, other_variable) == (member, variable):
                continue
            whose = "" if other is member else f" of {other.name} on the same machine"
            remedy = f"give {member.name} another {kind}"
            if kind == "port":
                remedy = "give one of them another port" if other is member else "set broker_port_offset"
            problems.append(
                Problem(member.name, variable, f"{kind} {what} is taken by {other_variable}{whose}", remedy)
            )


def check_site(members: Sequence[Member], problems: list[Problem]) -> None:
    """Refuse what differs and must be one for the whole inventory, and what is one and must differ."""
    making = [member for member in members if member.value["broker_certificates_generate"]]
    if len({member.value["broker_tls_authorities"] for member in making}) > 1:
        what, remedy = "brokers of one inventory have different ones", "set it once, for all brokers"
        problems.append(Problem(making[0].name, "broker_tls_authorities", what, remedy))
    taken: dict[str, Member] = {}
    for member in making:
        for name in _MADE[:2]:
            path = member.value[name]
            if path and (other := taken.setdefault(path, member)) is not member:
                what = f"{path} is to be made for {other.name} too"
                problems.append(Problem(member.name, name, what, "put {{ inventory_hostname }} into its name"))
    files = {member.value["broker_secrets_file"] for member in members}
    if len(files) > 1:
        problems.append(
            Problem(
                members[0].name,
                "broker_secrets_file",
                f"brokers of one inventory have different ones: {', '.join(sorted(files))}",
                "set it once, for all brokers",
            )
        )
